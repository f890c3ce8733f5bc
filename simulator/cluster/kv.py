"""A replica's KV pool: blocks in use, and the prompt blocks that a group's rollouts share.

Counts only. An *entry* is the cached prompt of a group on this replica. It is held while any
rollout of the group runs here, and its blocks are in use; afterwards it is idle: the blocks count
as free but can still be hit, until the pool runs short and idle entries are evicted, the one idle
longest first.
"""

from __future__ import annotations


class Entry:
    """A group's cached leading prompt blocks."""

    __slots__ = ("blocks", "holders", "idle_since")

    def __init__(self) -> None:
        self.blocks = 0
        self.holders = 0
        self.idle_since = 0


class KvPool:
    """Blocks of ``block_tokens`` tokens, ``blocks`` in all."""

    __slots__ = ("_entries", "_idle", "_idle_blocks", "block_tokens", "blocks", "caching", "used")

    def __init__(self, blocks: int, block_tokens: int, caching: bool) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.caching = caching
        self.used = 0
        self._entries: dict[int, Entry] = {}
        self._idle: dict[int, Entry] = {}
        self._idle_blocks = 0

    @property
    def free(self) -> int:
        """Blocks not in use, those of idle entries included."""
        return self.blocks - self.used

    @property
    def idle_blocks(self) -> int:
        """Blocks of idle entries."""
        return self._idle_blocks

    def is_idle(self, group: int) -> bool:
        """Whether the group has a cached prompt that nobody holds."""
        return group in self._idle

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.block_tokens)

    def hits(self, group: int, known_tokens: int) -> int:
        """Leading blocks that a rollout of ``known_tokens`` finds cached; its last token is always
        computed."""
        entry = self._entries.get(group)
        if entry is None:
            return 0
        return min(entry.blocks, (known_tokens - 1) // self.block_tokens)

    def fits(self, group: int, known_tokens: int) -> bool:
        """Whether all known tokens of a rollout that is to be admitted would fit."""
        need = self.blocks_for(known_tokens) - self.hits(group, known_tokens)
        idle = self._idle.get(group)
        return need <= self.free - (idle.blocks if idle else 0)

    def hold(self, group: int) -> None:
        """A rollout of the group starts to run."""
        if not self.caching:
            return
        entry = self._entries.get(group)
        if entry is None:
            entry = self._entries[group] = Entry()
        elif group in self._idle:
            del self._idle[group]
            self._idle_blocks -= entry.blocks
            self.used += entry.blocks
        entry.holders += 1

    def grow(self, group: int, prompt_tokens: int) -> int:
        """Caches the full blocks of the first ``prompt_tokens`` prompt tokens, now scheduled.
        Returns how many of the caller's blocks thereby became the entry's."""
        if not self.caching:
            return 0
        entry = self._entries[group]
        grown = max(prompt_tokens // self.block_tokens - entry.blocks, 0)
        entry.blocks += grown
        return grown

    def release(self, group: int, private_blocks: int, now: int) -> None:
        """A rollout of the group stops running and gives back its private blocks."""
        self.used -= private_blocks
        if not self.caching:
            return
        entry = self._entries[group]
        entry.holders -= 1
        if entry.holders == 0:
            if entry.blocks == 0:
                del self._entries[group]
                return
            entry.idle_since = now
            self._idle[group] = entry
            self._idle_blocks += entry.blocks
            self.used -= entry.blocks

    def evict(self) -> None:
        """Evicts idle entries until those left fit into the free blocks."""
        while self._idle_blocks > self.free:
            oldest = min(self._idle, key=lambda group: (self._idle[group].idle_since, group))
            self._idle_blocks -= self._idle.pop(oldest).blocks
            del self._entries[oldest]

    def flush(self) -> None:
        """Forgets every idle entry (a weight sync makes their contents wrong)."""
        for group in self._idle:
            del self._entries[group]
        self._idle.clear()
        self._idle_blocks = 0
