"""What a replica keeps of a request under way, and of the iterations under way."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.cluster.kv import Chain, Leading
from simulator.costs.base import Curve
from simulator.rollout import Ending, Rollout, Segment, Stay


class Request(Chain):
    """A rollout on a replica, from submit to the end of its stay.

    known: prompt and sampled tokens to compute before the next one is sampled. While it waits or
    prefills, ``computed`` counts tokens in the cache; while it decodes, they are ``it + off``.
    target: known tokens at which its stay ends; whole: at which its response is; cut: whether that
    is at the cap. version: of the weights, since it had ``since`` known tokens; older: (version,
    since) of those before, rising. leading: what others may have of its blocks.
    """

    __slots__ = (
        "aborted",
        "computed",
        "cut",
        "decoding",
        "known",
        "off",
        "older",
        "preemptions",
        "prefill_tokens",
        "prompt_tokens",
        "recomputed_tokens",
        "reward",
        "rollout",
        "since",
        "start",
        "target",
        "ticket",
        "version",
        "whole",
    )

    def __init__(
        self,
        rollout: Rollout,
        prompt_tokens: int,
        total_new_tokens: int,
        cut: bool,
        reward: float,
        version: int,
        leading: Leading,
    ) -> None:
        self.prompt = rollout.prompt
        self.name = (rollout.group, rollout.index, rollout.attempt)
        self.body, self.public = leading
        self.copies = ()
        self.rollout = rollout
        self.prompt_tokens = prompt_tokens
        self.cut = cut
        self.reward = reward
        self.known = prompt_tokens + rollout.new_tokens
        self.whole = self.target = prompt_tokens + total_new_tokens
        if rollout.allowance is not None:
            self.target = min(self.whole, self.known + rollout.allowance)
        self.version, self.since = version, self.known
        self.older: tuple[tuple[int, int], ...] = ()
        self.computed = 0
        self.decoding = False
        self.off = 0
        self.ticket = -1  # of its place in the heap of ends
        self.start = -1
        self.prefill_tokens = 0
        self.recomputed_tokens = 0
        self.preemptions = 0
        self.aborted = False

    def segments(self, known: int) -> tuple[Segment, ...]:
        """Its tokens by version, once it has ``known``."""
        if not self.older:
            new = known - self.since
            return (Segment(self.version, new),) if new > 0 else ()
        versions = (*self.older, (self.version, self.since))
        ends = [start for _, start in versions[1:]] + [known]
        pairs = zip(versions, ends, strict=True)
        return tuple(Segment(v, end - start) for (v, start), end in pairs if end > start)

    def new_version(self, version: int, known: int) -> None:
        """Tokens after the first ``known`` are of ``version``."""
        if self.since != known and self.version != version:
            self.older += ((self.version, self.since),)
            self.since = known
        self.version = version

    def stay(self, replica: int, known: int, start_s: float, end_s: float) -> Stay:
        """Its stay, which ends with ``known`` tokens."""
        finished = known == self.whole
        ending: Ending = "length" if self.cut else "stop"
        if not finished:
            ending = "budget" if known == self.target else "aborted"
        rollout = self.rollout
        return Stay(
            rollout.group,
            rollout.index,
            rollout.attempt,
            replica,
            self.prompt_tokens,
            self.segments(known),
            ending,
            start_s,
            end_s,
            self.prefill_tokens,
            self.recomputed_tokens,
            self.preemptions,
            self.reward if finished else None,
        )


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
