"""What a replica keeps of one stay of a rollout, and of the iterations under way."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.costs.base import Curve
from simulator.rollout import Rollout


class Stay:
    """A stay of a rollout on a replica.

    known: prompt and sampled tokens to compute before the next one is sampled. While it waits or
    prefills, ``computed`` counts tokens in the cache; while it decodes, they are ``it + off``.
    shared: blocks of its that belong to the group's cache entry.
    """

    __slots__ = (
        "aborted",
        "computed",
        "decoding",
        "known",
        "off",
        "preemptions",
        "prefill_tokens",
        "recomputed_tokens",
        "rollout",
        "shared",
        "start",
        "target",
        "ticket",
    )

    def __init__(self, rollout: Rollout, total_new_tokens: int) -> None:
        self.rollout = rollout
        self.known = rollout.prompt_tokens + rollout.new_tokens
        self.target = rollout.prompt_tokens + total_new_tokens
        self.computed = 0
        self.decoding = False
        self.off = 0
        self.shared = 0
        self.ticket = -1  # of its place in the heap of ends
        self.start = -1
        self.prefill_tokens = 0
        self.recomputed_tokens = 0
        self.preemptions = 0
        self.aborted = False


@dataclass(slots=True)
class Work:
    """What the rollouts that do not decode yet add to an iteration, as in `Iteration`.

    context_tokens: of all of them; the other figures are of those that count as prefilling. One
    whose last token alone was left over by a chunk does not: it computes what decoding would.
    """

    context_tokens: int = 0
    prefill_rollouts: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    prefill_context_tokens: int = 0


@dataclass(slots=True)
class Jump:
    """Iterations under way: ``iterations`` of them from ``start``, all with the same batch."""

    start: int
    iterations: int
    rollouts: int
    context_tokens: int
    curve: Curve | None  # None: a single iteration that takes ``ticks``
    ticks: int

    def ticks_of(self, iterations: int) -> int:
        """Ticks of its first ``iterations`` iterations."""
        if self.curve is None or iterations == self.iterations:
            return self.ticks
        return self.curve.total_ticks(self.context_tokens, self.rollouts, iterations)

    def iterations_until(self, now: int) -> int:
        """Iterations until its first boundary at or after ``now``, at least one."""
        low, high, elapsed = 1, self.iterations, now - self.start
        while low < high:
            middle = (low + high) // 2
            if self.ticks_of(middle) >= elapsed:
                high = middle
            else:
                low = middle + 1
        return low

    def cut(self, now: int) -> bool:
        """Ends it at its first boundary at or after ``now``; whether that changed anything."""
        iterations = self.iterations_until(now)
        if iterations == self.iterations:
            return False
        self.ticks = self.ticks_of(iterations)
        self.iterations = iterations
        return True
