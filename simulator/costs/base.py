"""What prices a run: the seam between the cluster and a cost model.

A cost model prices an engine iteration, an update (and says whether it fits in memory), a weight
sync and the switch of shared GPUs between rollout and training.

Decode iterations are asked for as a *curve*: for a constant number of running rollouts, seconds as
a piecewise-linear function of the context attended. The cluster sums it over any number of
iterations in closed form, and so jumps from event to event.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollcast.simulator.costs.actors import ActorCosts
from rollcast.simulator.costs.clock import to_seconds, to_ticks
from rollcast.simulator.values.chance import Chance


@dataclass(frozen=True, slots=True)
class Iteration:
    """The work of one engine iteration (one forward pass of one replica).

    rollouts: that compute at least one token in it, decoding or prefilling.
    context_tokens: of those rollouts, tokens in the KV cache once the iteration ends.
    prefill_tokens: computed by rollouts that are prefilling: prompts, and the partial responses of
        resumed or preempted rollouts.
    prefill_pairs: query-key pairs of these; n tokens on top of c computed ones have
        ``n * c + n * (n + 1) / 2``.
    prefill_rollouts, prefill_context_tokens: of the two above, what is prefilling.
    """

    rollouts: int
    context_tokens: int
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    prefill_rollouts: int = 0
    prefill_context_tokens: int = 0


class Curve:
    """Seconds of a decode iteration as a piecewise-linear function of its context tokens.

    ``pieces`` are ``(from_context_tokens, seconds_at_that_context, seconds_per_token)``, in rising
    order, the first from 0; the last reaches to infinity. Kept in ticks, so sums are exact.
    """

    __slots__ = ("_bases", "_slopes", "_starts")

    def __init__(self, pieces: Sequence[tuple[int, float, float]]) -> None:
        self._starts = [int(start) for start, _, _ in pieces]
        if not pieces or self._starts[0] != 0 or self._starts != sorted(set(self._starts)):
            raise ValueError("a curve's pieces start at 0 and rise strictly")
        self._bases = [to_ticks(base) for _, base, _ in pieces]
        self._slopes = [to_ticks(slope) for _, _, slope in pieces]

    @classmethod
    def affine(cls, base_s: float, per_token_s: float) -> Curve:
        """``base_s + per_token_s * context``."""
        return cls([(0, base_s, per_token_s)])

    def scaled(self, factor: float) -> Curve:
        """The curve with every iteration ``factor`` times as long."""
        if factor == 1.0:  # to the tick, which a float is too short for
            return self
        made = Curve.__new__(Curve)
        made._starts = self._starts
        made._bases = [round(factor * base) for base in self._bases]
        made._slopes = [round(factor * slope) for slope in self._slopes]
        return made

    def ticks(self, context_tokens: int) -> int:
        """Ticks of one iteration that attends ``context_tokens``."""
        i = bisect_right(self._starts, context_tokens) - 1
        return self._bases[i] + self._slopes[i] * (context_tokens - self._starts[i])

    def seconds(self, context_tokens: int) -> float:
        """Seconds of one iteration that attends ``context_tokens``."""
        return to_seconds(self.ticks(context_tokens))

    def total_ticks(self, context_tokens: int, stride: int, iterations: int) -> int:
        """Ticks of ``iterations`` iterations whose context starts at ``context_tokens`` and grows
        by ``stride`` (the running rollouts) each: a closed form per piece."""
        starts, total = self._starts, 0
        while iterations > 0:
            i = bisect_right(starts, context_tokens) - 1
            n = iterations
            if i + 1 < len(starts) and stride > 0:
                n = min(n, -((context_tokens - starts[i + 1]) // stride))
            slope = self._slopes[i]
            total += n * (self._bases[i] + slope * (context_tokens - starts[i]))
            total += slope * stride * (n * (n - 1) // 2)
            context_tokens += n * stride
            iterations -= n
        return total


@dataclass(frozen=True, slots=True)
class TrainLoad:
    """What one update trains on, as counts.

    groups: one ``(prompt_tokens, response_tokens of each selected rollout)`` per group.
    shared_prefix: the layout: the prompt computed once a group (phases A, B, C), or dense.
    equal_rewards: of each group, whether its advantages are all 0; empty where no one knows.
    kept: what a trainer makes of it and may ask for again.
    """

    groups: Sequence[tuple[int, Sequence[int]]]
    shared_prefix: bool = False
    equal_rewards: Sequence[bool] = ()
    kept: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def that_teaches(self) -> TrainLoad:
        """Without the groups of equal rewards, for trainers that leave them out."""
        if not any(self.equal_rewards):
            return self
        pairs = zip(self.groups, self.equal_rewards, strict=True)
        return TrainLoad([group for group, equal in pairs if not equal], self.shared_prefix)

    @property
    def rollouts(self) -> int:
        """Rollouts trained on."""
        return sum(len(responses) for _, responses in self.groups)

    @property
    def tokens(self) -> int:
        """Tokens that a trainer pass computes: N (P + S) a group, or P + N S with a shared prefix
        (arXiv 2606.01143)."""
        total = 0
        for prompt, responses in self.groups:
            copies = min(1, len(responses)) if self.shared_prefix else len(responses)
            total += prompt * copies + sum(responses)
        return total

    @property
    def padded_tokens(self) -> int:
        """Tokens of a pass that pads every rollout to the longest prompt and the longest response
        of the batch, whatever the layout."""
        full = [(prompt, responses) for prompt, responses in self.groups if responses]
        if not full:
            return 0
        longest = max(prompt for prompt, _ in full) + max(max(responses) for _, responses in full)
        return self.rollouts * longest


@dataclass(frozen=True, slots=True)
class TrainCost:
    """How long an update takes and what it holds.

    phases_s: ``(name, seconds)`` in order: of ``log_prob, reference, values, reward, forward,
        backward, gradient_exchange, optimizer, critic, overhead, rest`` those that the model tells
        apart, or one ``train``. `simulator.results.phases` says to which phase of a step each
        belongs.
    peak_bytes: peak memory of one trainer GPU, 0 where the model does not say.
    microbatches: number of microbatches of one GPU, 0 where the model does not say.
    """

    phases_s: tuple[tuple[str, float], ...]
    peak_bytes: int = 0
    microbatches: int = 0

    @property
    def total_s(self) -> float:
        """Seconds of the whole update."""
        return math.fsum(seconds for _, seconds in self.phases_s)


@dataclass(slots=True)
class Extremes:
    """The largest work that a run asked a cost model to price."""

    rollouts: int = 0
    context_tokens: int = 0
    prefill_tokens: int = 0
    train_tokens: int = 0
    rollout_tokens: int = 0  # longest prompt + response
    shared_prefix: bool = False  # whether an update had that layout


class CostModel(ABC):
    """Prices a run: what a source of costs derives from. Pure.

    Iterations and updates must be priced; all else takes no time and has no limit by default.
    """

    __slots__ = ()

    @property
    def in_prompt_order(self) -> bool:
        """Whether the trainer takes a batch in the order of its prompts, whichever group ended
        first."""
        return False

    @abstractmethod
    def decode_curve(self, rollouts: int) -> Curve:
        """Seconds of a pure decode iteration of ``rollouts`` rollouts, over its context."""

    @abstractmethod
    def mixed_iteration_s(self, work: Iteration) -> float:
        """Seconds of an iteration with ``work.prefill_tokens > 0``."""

    @abstractmethod
    def train(self, load: TrainLoad) -> TrainCost:
        """The update's phases. Raises ScenarioError when it does not fit in memory."""

    @property
    def sync_s(self) -> float:
        """Seconds to bring new weights to every replica."""
        return 0.0

    def opening_s(self, rollouts: int) -> float:
        """Seconds of a step's generation before its first rollouts run, where so many begin."""
        return 0.0

    def reading_s(self, rollouts: int, at_once: int) -> float:
        """Seconds in which a step's driver reads the responses of so many rollouts, ``at_once`` of
        them in flight: its generation takes no less after its opening."""
        return 0.0

    @property
    def switch_to_train_s(self) -> float:
        """Seconds from the last rollout to the first trainer pass on shared GPUs."""
        return 0.0

    @property
    def switch_to_rollout_s(self) -> float:
        """Seconds from synced weights to the first rollout on shared GPUs."""
        return 0.0

    @property
    def actors(self) -> ActorCosts | None:
        """What it costs that replicas and a trainer apart from them are processes of their own;
        None where that is nothing."""
        return None

    @property
    def kv_pool_tokens(self) -> int | None:
        """Tokens of KV that one replica has room for; None where the model knows of no memory."""
        return None

    @property
    def knows_memory(self) -> bool:
        """Whether it is, or adjusts, one that knows the model and the GPUs."""
        return False

    def warnings(self, extremes: Extremes) -> list[str]:
        """One sentence for each way in which a run left the range this model covers."""
        return []

    def drawn(self, chance: Chance) -> CostModel:
        """The costs drawn anew from what is not known of them; itself where it does not say how
        sure it is."""
        return self


@dataclass(frozen=True)
class AdjustedCost(CostModel):
    """All of ``inner``: derive from it to answer some questions otherwise."""

    inner: CostModel

    def decode_curve(self, rollouts: int) -> Curve:
        """See `CostModel.decode_curve`."""
        return self.inner.decode_curve(rollouts)

    def mixed_iteration_s(self, work: Iteration) -> float:
        """See `CostModel.mixed_iteration_s`."""
        return self.inner.mixed_iteration_s(work)

    def train(self, load: TrainLoad) -> TrainCost:
        """See `CostModel.train`."""
        return self.inner.train(load)

    @property
    def in_prompt_order(self) -> bool:
        """See `CostModel.in_prompt_order`."""
        return self.inner.in_prompt_order

    @property
    def sync_s(self) -> float:
        """See `CostModel.sync_s`."""
        return self.inner.sync_s

    def opening_s(self, rollouts: int) -> float:
        """See `CostModel.opening_s`."""
        return self.inner.opening_s(rollouts)

    def reading_s(self, rollouts: int, at_once: int) -> float:
        """See `CostModel.reading_s`."""
        return self.inner.reading_s(rollouts, at_once)

    @property
    def switch_to_train_s(self) -> float:
        """See `CostModel.switch_to_train_s`."""
        return self.inner.switch_to_train_s

    @property
    def switch_to_rollout_s(self) -> float:
        """See `CostModel.switch_to_rollout_s`."""
        return self.inner.switch_to_rollout_s

    @property
    def actors(self) -> ActorCosts | None:
        """See `CostModel.actors`."""
        return self.inner.actors

    @property
    def kv_pool_tokens(self) -> int | None:
        """See `CostModel.kv_pool_tokens`."""
        return self.inner.kv_pool_tokens

    @property
    def knows_memory(self) -> bool:
        """See `CostModel.knows_memory`."""
        return self.inner.knows_memory

    def warnings(self, extremes: Extremes) -> list[str]:
        """See `CostModel.warnings`."""
        return self.inner.warnings(extremes)

    def drawn(self, chance: Chance) -> CostModel:
        """See `CostModel.drawn`."""
        return self.inner.drawn(chance)


# Curves before they are counted in ticks: sums, products and the larger of two

Piece = tuple[int, float, float]
"""From so many context tokens on: the seconds there, and the seconds a token beyond."""


def at_least(pieces: list[Piece], least_s: float) -> list[Piece]:
    """The pieces of the larger of a rising curve and ``least_s``."""
    for number, (start, base_s, slope) in enumerate(pieces):
        until = pieces[number + 1][0] if number + 1 < len(pieces) else None
        flat_until = start
        if base_s < least_s:
            flat_until = start + math.ceil((least_s - base_s) / slope) if slope else start
            if not slope or (until is not None and flat_until >= until):
                continue
        if flat_until <= 0:
            return pieces
        rest = [(flat_until, base_s + slope * (flat_until - start), slope), *pieces[number + 1 :]]
        return [(0, least_s, 0.0), *rest]
    return [(0, least_s, 0.0)]


def plus(first: list[Piece], second: list[Piece]) -> list[Piece]:
    """The sum of two curves."""
    starts = sorted({start for start, _, _ in (*first, *second)})
    pieces = []
    for start in starts:
        (one_s, one), (other_s, other) = _at(first, start), _at(second, start)
        pieces.append((start, one_s + other_s, one + other))
    return pieces


def _at(pieces: list[Piece], context: int) -> tuple[float, float]:
    """A curve's value and slope from ``context`` on."""
    start, base_s, slope = next(p for p in reversed(pieces) if p[0] <= context)
    return base_s + slope * (context - start), slope


def scaled(pieces: list[Piece], factor: float, extra_s: float = 0.0) -> list[Piece]:
    """``extra_s`` more than a curve, ``factor`` times that."""
    return [(start, (base_s + extra_s) * factor, slope * factor) for start, base_s, slope in pieces]
