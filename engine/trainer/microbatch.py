"""Packing rollouts into microbatches, and dealing them to ranks, for either layout.

Any packing gives the same update: it decides only speed and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from rollcast.engine.trainer.batch import Example
from rollcast.simulator.costs.trainer.packing import Row
from rollcast.simulator.costs.trainer.packing import padded_rows as pack

IDLE: Sequence[Example] = (Example(0, (0,), (0,), (0.0,), (False,), 0.0),)
"""A microbatch of a rank that has none left while others have: a pass without gradient."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedPass:
    """Groups whose prefixes are computed together, once each. A prefix is the prompt without its
    last token, a suffix that token and the response without its last, so that suffixes hold every
    position that predicts a response token.

    prefixes: the longest first; rollouts: of each. places: where a group's prefix is, by the
    group's number. microbatches: the rollouts, packed by suffix tokens; those of a group lie side
    by side.
    """

    prefixes: Sequence[Sequence[int]]
    rollouts: Sequence[int]
    microbatches: Sequence[Sequence[Example]]
    places: Mapping[int, int] = field(default_factory=dict)

    def place(self, example: Example) -> int:
        """Where the prefix of an example is; an idle one reads the first."""
        return self.places.get(example.group, 0)


@dataclass(frozen=True, slots=True)
class Packing:
    """The microbatches of one batch: dense ones, then those with shared prefixes. packed: a dense
    one is a single row."""

    dense: Sequence[Sequence[Example]]
    shared: Sequence[SharedPass]
    packed: bool = False

    @property
    def microbatches(self) -> int:
        """Forward and backward passes, without those over prefixes."""
        return len(self.dense) + sum(len(one.microbatches) for one in self.shared)

    @property
    def _suffixes(self) -> Iterator[Example]:
        return (e for one in self.shared for batch in one.microbatches for e in batch)

    @property
    def tokens(self) -> int:
        """Tokens fed to the model: N (P + S) a group when dense, P + N S with a shared prefix
        (arXiv 2606.01143), less those that predict nothing."""
        dense = sum(example.input_tokens for batch in self.dense for example in batch)
        suffixes = sum(len(example.response) for example in self._suffixes)
        return dense + suffixes + sum(len(p) for one in self.shared for p in one.prefixes)

    @property
    def targets(self) -> int:
        """Tokens whose probability is computed."""
        dense = sum(len(example.response) for batch in self.dense for example in batch)
        return dense + sum(len(example.response) for example in self._suffixes)

    @property
    def pairs(self) -> int:
        """Pairs of a token fed to the model and one that it attends to."""
        pairs = sum(_triangle(example.input_tokens) for batch in self.dense for example in batch)
        pairs += sum(_triangle(len(prefix)) for one in self.shared for prefix in one.prefixes)
        for example in self._suffixes:
            suffix = len(example.response)
            pairs += (len(example.prompt) - 1) * suffix + _triangle(suffix)
        return pairs

    @property
    def padding_tokens(self) -> int:
        """Padding tokens, which make the rows of a microbatch equally long."""
        total = 0 if self.packed else sum(_padding(batch, dense_width) for batch in self.dense)
        for one in self.shared:
            total += _padding(one.prefixes, len)
            total += sum(_padding(batch, suffix_width) for batch in one.microbatches)
        return total


def _triangle(tokens: int) -> int:
    return tokens * (tokens + 1) // 2


def dense_width(example: Example) -> int:
    """Tokens of one row of a dense microbatch."""
    return example.input_tokens


def suffix_width(example: Example) -> int:
    """Tokens of one row of a suffix microbatch."""
    return len(example.response)


def _padding(batch: Sequence[Row], width: Callable[[Row], int]) -> int:
    widths = [width(row) for row in batch]
    return max(widths) * len(widths) - sum(widths)


def pack_rows(
    examples: Sequence[Example], width: Callable[[Example], int], budget_tokens: int
) -> list[list[Example]]:
    """Microbatches of at most ``budget_tokens`` without padding: the longest first, each to the
    first that has room. A longer one gets its own."""
    batches: list[list[Example]] = []
    room: list[int] = []
    for example in sorted(examples, key=width, reverse=True):
        tokens = width(example)
        place = next((i for i, left in enumerate(room) if left >= tokens), len(batches))
        if place == len(batches):
            batches.append([])
            room.append(budget_tokens)
        batches[place].append(example)
        room[place] -= tokens
    return batches


def plan_packing(
    examples: Sequence[Example],
    *,
    shared_prefix: bool,
    budget_tokens: int,
    suffix_budget_tokens: int,
    prefix_budget_tokens: int,
    packed: bool = False,
) -> Packing:
    """The packing of one batch. Groups of one rollout and prompts of one token stay dense: there is
    nothing to share. Prefixes of at most ``prefix_budget_tokens``, padding included, are computed
    together, and a longer one by itself: a pass of few tokens waits for its launches."""
    fill = pack_rows if packed else pack
    if not shared_prefix:
        return Packing(fill(examples, dense_width, budget_tokens), [], packed)
    groups: dict[int, list[Example]] = {}
    for example in examples:
        groups.setdefault(example.group, []).append(example)
    dense: list[Example] = []
    sharing: list[list[Example]] = []
    for members in groups.values():
        if len(members) < 2 or len(members[0].prompt) < 2:
            dense.extend(members)
        else:
            sharing.append(members)
    together = pack(sharing, _prefix_width, prefix_budget_tokens)
    shared = [_shared_pass(members, suffix_budget_tokens) for members in together]
    return Packing(fill(dense, dense_width, budget_tokens), shared, packed)


def _prefix_width(members: Sequence[Example]) -> int:
    return len(members[0].prompt) - 1


def _shared_pass(groups: Sequence[Sequence[Example]], suffix_budget_tokens: int) -> SharedPass:
    places = {members[0].group: place for place, members in enumerate(groups)}
    batches = pack([e for members in groups for e in members], suffix_width, suffix_budget_tokens)
    return SharedPass(
        [members[0].prompt[:-1] for members in groups],
        [len(members) for members in groups],
        [sorted(batch, key=lambda e: places[e.group]) for batch in batches],
        places,
    )


def in_step(mine: Packing, every: Sequence[Packing]) -> Packing:
    """This rank's packing with idle passes where another rank, by ``every`` rank's packing, has
    more: so all make equally many, in the same order. Prefixes of most microbatches come first."""
    dense = max(len(one.dense) for one in every)
    lengths = ([len(one.microbatches) for one in _by_length(packing)] for packing in every)
    passes = [max(row) for row in zip_longest(*lengths, fillvalue=0)]
    own = _by_length(mine)
    own += [SharedPass([(0,)], [0], ())] * (len(passes) - len(own))
    shared = [
        replace(one, microbatches=_filled(one.microbatches, count))
        for one, count in zip(own, passes, strict=True)
    ]
    return Packing(_filled(mine.dense, dense), shared, mine.packed)


def _by_length(packing: Packing) -> list[SharedPass]:
    return sorted(packing.shared, key=lambda one: -len(one.microbatches))


def _filled(batches: Sequence[Sequence[Example]], count: int) -> list[Sequence[Example]]:
    return [*batches, *[IDLE] * (count - len(batches))]


def shares(examples: Sequence[Example], ranks: int, *, shared_prefix: bool) -> list[list[Example]]:
    """Each rank's rollouts, in their order; a rank may have none.

    Greedy: the longest first, each to the rank with the fewest tokens. With ``shared_prefix`` a
    group stays on one rank, which computes its prompt once.
    """
    if ranks == 1:
        return [[*examples]]
    units: dict[int, list[int]] = {}
    for place, example in enumerate(examples):
        units.setdefault(example.group if shared_prefix else place, []).append(place)
    costs = {
        unit: _tokens([examples[place] for place in places], shared_prefix)
        for unit, places in units.items()
    }
    taken: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for unit in sorted(units, key=lambda unit: -costs[unit]):
        rank = loads.index(min(loads))
        taken[rank] += units[unit]
        loads[rank] += costs[unit]
    return [[examples[place] for place in sorted(places)] for places in taken]


def _tokens(examples: Sequence[Example], shared_prefix: bool) -> int:
    """Tokens fed to the model; with ``shared_prefix`` the examples are one group."""
    if not shared_prefix or len(examples) < 2:
        return sum(map(dense_width, examples))
    return len(examples[0].prompt) - 1 + sum(map(suffix_width, examples))
