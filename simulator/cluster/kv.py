"""A replica's KV pool, as vLLM V1's block pool and prefix cache keep it, in counts.

vLLM's rules, which the reference in ``tests/reference`` follows block by block: a block is cached
as soon as the tokens that fill it are scheduled, sampled ones included, under the whole prefix that
it ends; whoever is admitted takes the cached blocks that its known tokens begin with, all but the
last token, and of equal ones the one cached first. What is held by nobody is free, but keeps its
contents until it is taken for something else: blocks without contents are taken first, then the
ones freed longest ago, and of those freed together the last one of a rollout first.

Most blocks need not be told apart. A rollout's leading blocks fall into three parts (`Chain`):

- the *body*, full blocks of the prompt which any sibling must find: there is one copy of each, and
  all siblings that run hold all of it. One count a prompt (`Entry`).
- *public* blocks behind it, which several may compute side by side. Each copy has a number
  of its own. That is the last block of a prompt that fills it, as the last token is always
  computed, and what responses are known to have in common.
- the *private* rest, that nobody else can have. While it runs its blocks are a number, and later
  one entry of the queue.

A rollout is freed from its end to its beginning, so that where a block is still cached, those
before it are too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from rollcast.simulator.workload.base import Path

Name = tuple[int, int, int]
"""(group, index, attempt) of a response."""


class Chain:
    """The contents of a rollout's blocks, from its first token on.

    name: of the response, under which its private blocks are found again. prompt: its number. body:
    full blocks of the prompt. public: a name for the contents of each block behind them that others
    may have too. copies: numbers of the public blocks that it holds while it runs.
    """

    __slots__ = ("body", "copies", "name", "prompt", "public")
    prompt: int
    name: Name
    body: int
    public: Sequence[Hashable]
    copies: tuple[int, ...]


Leading = tuple[int, Sequence[Hashable]]
"""``body`` and ``public`` of a `Chain`."""


def leading_blocks(prompt: int, prompt_tokens: int, block_tokens: int) -> Leading:
    """Of a response that has its prompt alone in common, with others to the same prompt. A damaged
    record may have a prompt of no tokens."""
    if prompt_tokens < 1:
        return 0, ()
    body, rest = divmod(prompt_tokens - 1, block_tokens)
    return body, (prompt,) if rest == block_tokens - 1 else ()


def shared_blocks(path: Path, block_tokens: int) -> Leading:
    """Of a response of which ``path`` says what others have in common with it."""
    public: list[Hashable] = []
    for end, owner in path:
        public += [(owner, block) for block in range(len(public), end // block_tokens)]
    return 0, public


class Entry:
    """The cached body of a prompt."""

    __slots__ = ("blocks", "holders", "prompt")

    def __init__(self, prompt: int) -> None:
        self.prompt = prompt
        self.blocks = 0
        self.holders = 0


class KvPool:
    """Blocks of ``block_tokens`` tokens, ``blocks`` in all, of which ``used`` are held."""

    __slots__ = (
        "_contents",
        "_copies",
        "_entries",
        "_holders",
        "_idle_blocks",
        "_next_copy",
        "_queue",
        "block_tokens",
        "blocks",
        "caching",
        "used",
    )

    def __init__(self, blocks: int, block_tokens: int, caching: bool) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.caching = caching
        self.used = 0
        self._entries: dict[int, Entry] = {}
        # Copies of public blocks. Numbers, not objects: there may be one a rollout, and the garbage
        # collector would visit them all again and again.
        self._copies: dict[Hashable, list[int]] = {}  # those of one name, the oldest first
        self._contents: dict[int, Hashable] = {}  # the name of each
        self._holders: dict[int, int] = {}  # of each
        self._next_copy = 0
        # Cached and held by nobody, with its blocks: entries, copies, and names of chains for what
        # is private. What was freed first goes first, and of a chain its last block.
        self._queue: OrderedDict[Name | Entry | int, int] = OrderedDict()
        self._idle_blocks = 0

    @property
    def free(self) -> int:
        """Blocks not in use, the cached ones among them included."""
        return self.blocks - self.used

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.block_tokens)

    def _find(self, chain: Chain, known_tokens: int) -> tuple[int, int]:
        """(cached leading blocks, those that nobody holds) of ``known_tokens`` but the last."""
        hits = idle = 0
        if chain.body:
            entry = self._entries.get(chain.prompt)
            if entry is None:
                return 0, 0
            hits = entry.blocks
            idle = 0 if entry.holders else hits
            if hits < chain.body:
                return hits, idle
        most = (known_tokens - 1) // self.block_tokens
        for name in chain.public:
            if hits == most:
                return hits, idle
            copies = self._copies.get(name)
            if copies is None:
                return hits, idle
            hits += 1
            idle += not self._holders[copies[0]]
        private = self._queue.get(chain.name, 0)
        return hits + private, idle + private

    def fits(self, chain: Chain, known_tokens: int) -> bool:
        """Whether a waiting rollout's known tokens would all fit. Evictions make no room: a free
        block that it would hit was room, too."""
        hits, idle = self._find(chain, known_tokens)
        return self.blocks_for(known_tokens) - hits + idle <= self.free

    def admit(self, chain: Chain, known_tokens: int) -> int | None:
        """Holds the cached blocks that a rollout finds and returns their number; None, without
        effect, if its known tokens would not all fit."""
        if not self.caching:
            return 0 if self.blocks_for(known_tokens) <= self.free else None
        hits, idle = self._find(chain, known_tokens)
        if self.blocks_for(known_tokens) - hits + idle > self.free:
            return None
        self.used += idle
        self._idle_blocks -= idle
        if chain.body:
            entry = self._entries.get(chain.prompt)
            if entry is None:
                entry = self._entries[chain.prompt] = Entry(chain.prompt)
            elif not entry.holders:
                del self._queue[entry]
            entry.holders += 1
        if hits > chain.body:
            shared = chain.public[: hits - chain.body]
            chain.copies = tuple([self._copies[name][0] for name in shared])
            for copy in chain.copies:
                if not self._holders[copy]:
                    del self._queue[copy]
                self._holders[copy] += 1
            if hits > chain.body + len(chain.public):
                del self._queue[chain.name]
        return hits

    def cache(self, chain: Chain, computed_tokens: int) -> None:
        """Caches the full blocks of a running rollout's first ``computed_tokens`` tokens."""
        if not self.caching:
            return
        body = chain.body
        if body:
            entry = self._entries[chain.prompt]
            if entry.blocks < body:
                entry.blocks = min(computed_tokens // self.block_tokens, body)
        if not chain.public:
            return
        held, full = len(chain.copies), computed_tokens // self.block_tokens
        if held < len(chain.public) and held < full - body:
            for name in chain.public[held : full - body]:
                copy = self._next_copy
                self._next_copy += 1
                self._contents[copy] = name
                self._holders[copy] = 1
                others = self._copies.get(name)
                if others is None:
                    self._copies[name] = [copy]
                else:
                    others.append(copy)
                chain.copies += (copy,)

    def release(self, chain: Chain, computed_tokens: int) -> None:
        """A rollout that has computed so many tokens stops running, and frees its blocks."""
        if not self.caching:
            self.used -= self.blocks_for(computed_tokens)
            return
        size = self.block_tokens
        blocks = computed_tokens // size
        queue, body, copies = self._queue, chain.body, chain.copies
        private = blocks - body - len(chain.public)
        if private > 0:
            queue[chain.name] = private
            self._idle_blocks += private
        begun = -(-computed_tokens // size)
        self.used -= begun - (body if body < blocks else blocks) - len(copies)
        if copies:
            for copy in reversed(copies):
                holders = self._holders[copy] = self._holders[copy] - 1
                if not holders:
                    queue[copy] = 1
                    self._idle_blocks += 1
                    self.used -= 1
            chain.copies = ()
        if body:
            entry = self._entries[chain.prompt]
            entry.holders -= 1
            if not entry.holders:
                if entry.blocks:
                    queue[entry] = entry.blocks
                    self._idle_blocks += entry.blocks
                    self.used -= entry.blocks
                else:
                    del self._entries[chain.prompt]

    def take(self, blocks: int) -> None:
        """Takes free blocks and evicts what was cached in them, in the order of the queue."""
        self.used += blocks
        short = self._idle_blocks + self.used - self.blocks
        if short <= 0:
            return
        self._idle_blocks -= short
        queue = self._queue
        while short > 0:
            what = next(iter(queue))
            blocks = queue[what]
            left = blocks - short if blocks > short else 0
            if left:
                queue[what] = left
            else:
                del queue[what]
            short -= blocks
            if not isinstance(what, tuple):
                self._shrink(what, left)

    def flush(self) -> None:
        """Forgets all that nobody holds, which new weights make wrong."""
        if self.used:
            for what in self._queue:
                if not isinstance(what, tuple):
                    self._shrink(what, 0)
        else:
            self._entries.clear()
            self._copies.clear()
            self._contents.clear()
            self._holders.clear()
        self._queue.clear()
        self._idle_blocks = 0

    def _shrink(self, what: Entry | int, left: int) -> None:
        if isinstance(what, Entry):
            what.blocks = left
            if not left:
                del self._entries[what.prompt]
        else:
            name = self._contents.pop(what)
            del self._holders[what]
            copies = self._copies[name]
            copies.remove(what)
            if not copies:
                del self._copies[name]
