"""What a replica keeps of a request under way, and of the iterations under way."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.cluster.kv import Chain, Leading
from simulator.cluster.sessions import Session
from simulator.costs.base import Curve
from simulator.rollout import Ending, Rollout, Segment, Stay


class Request(Chain):
    """A rollout on a replica, from submit to the end of its stay.

    known: prompt and sampled tokens to compute before the next one is sampled. While it waits or
    prefills, ``computed`` counts tokens in the cache; while it decodes, they are ``it + off``.
    target: known tokens at which its stay ends; whole: at which its response is, or its turn;
    ending: what it is called then. version: of the weights, since it had ``since`` known tokens;
    older: (version, since) of those before, rising. leading: what others may have of its blocks.
    session: of a rollout with turns.
    """

    __slots__ = (
        "aborted",
        "computed",
        "decoding",
        "ending",
        "known",
        "off",
        "older",
        "preemptions",
        "prefill_tokens",
        "prompt_tokens",
        "recomputed_tokens",
        "reward",
        "rollout",
        "session",
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
        known: int,
        whole: int,
        allowance: int | None,
        ending: Ending,
        reward: float | None,
        version: int,
        leading: Leading,
        session: Session | None = None,
    ) -> None:
        self.prompt = rollout.prompt
        self.name = (rollout.group, rollout.index, rollout.attempt)
        self.body, self.public = leading
        self.copies = ()
        self.rollout = rollout
        self.session = session
        self.prompt_tokens = prompt_tokens
        self.ending = ending
        self.reward = reward
        self.known = known
        self.whole = self.target = whole
        if allowance is not None:
            self.target = min(whole, known + allowance)
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
        whole = known == self.whole
        ending = self.ending
        if not whole:
            ending = "budget" if known == self.target else "aborted"
        rollout = self.rollout
        stay = Stay(
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
            self.reward if whole else None,
        )
        return stay if self.session is None else self.session.told(stay)


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
