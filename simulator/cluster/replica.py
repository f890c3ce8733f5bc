"""One inference engine: its scheduler's iterations, priced, jumping from event to event.

A pure decode iteration costs the decode curve at its context; one with any prefill costs
``mixed_iteration_s``. The reference in ``tests/reference`` does one iteration at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from rollcast.simulator.cluster.jump import Jump
from rollcast.simulator.cluster.kv import KvPool
from rollcast.simulator.cluster.request import Request
from rollcast.simulator.cluster.scheduler import Scheduler
from rollcast.simulator.core.rollout import Segment
from rollcast.simulator.costs.base import CostModel, Curve, Extremes, Iteration
from rollcast.simulator.costs.clock import to_seconds, to_ticks
from rollcast.simulator.errors import RunError, ScenarioError


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine's limits. kv_tokens is the KV pool of one replica, in tokens."""

    max_seqs: int
    max_batched_tokens: int
    kv_tokens: int
    block_tokens: int = 16
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in ("max_seqs", "max_batched_tokens", "kv_tokens", "block_tokens"):
            if getattr(self, name) < 1:
                raise ScenarioError(f"engine.{name}", "must be at least 1")
        if self.max_batched_tokens < self.max_seqs:
            raise ScenarioError(
                "engine.max_batched_tokens",
                f"is {self.max_batched_tokens}, less than max_seqs ({self.max_seqs}): every "
                "running rollout needs one token per iteration",
            )

    @property
    def kv_blocks(self) -> int:
        """Whole blocks in the pool."""
        return self.kv_tokens // self.block_tokens


def check_pool(engine: EngineSpec, prompt_tokens: int, new_tokens: int) -> None:
    """Raises ScenarioError where one rollout of so many tokens could never fit into the pool."""
    blocks = -(-(prompt_tokens + new_tokens) // engine.block_tokens)
    if blocks > engine.kv_blocks:
        raise ScenarioError(
            "engine.kv_tokens",
            f"a pool of {engine.kv_tokens} tokens cannot hold one rollout of {prompt_tokens} "
            f"prompt and {new_tokens} new tokens; it needs at least "
            f"{blocks * engine.block_tokens}",
        )


class Replica:
    """Runs rollouts on SimPy's clock.

    ended: called with the segment of each rollout that ends by itself. instant_over: calls what it
    is given, which begins an iteration, after all else at this instant, the loop's answer included.
    """

    def __init__(
        self,
        env: simpy.Environment,
        number: int,
        spec: EngineSpec,
        cost: CostModel,
        extremes: Extremes,
        ended: Callable[[Segment], None],
        instant_over: Callable[[Callable[[], None]], None],
    ) -> None:
        self.number = number
        self.version = 0  # of its weights
        self._env = env
        self._spec = spec
        self._cost = cost
        self._extremes = extremes
        self._ended = ended
        self._instant_over = instant_over
        pool = KvPool(spec.kv_blocks, spec.block_tokens, spec.prefix_caching)
        self._scheduler = Scheduler(spec.max_seqs, spec.max_batched_tokens, pool)
        self._slower = 1.0  # how many times as long iterations take, for what else works
        self._curves: dict[int, Curve] = {}
        self._curves_at = {self._slower: self._curves}
        self._aborted: list[Request] = []
        self._jump: Jump | None = None
        self._wake: simpy.Event | None = None
        self._paused: simpy.Event | None = None
        self._due: simpy.Event | None = None  # at the end of the jump, unless it was cut
        self._await()

    # What the cluster asks

    @property
    def load(self) -> int:
        """Rollouts running or waiting."""
        return len(self._scheduler.running) + len(self._scheduler.waiting)

    @property
    def busy(self) -> bool:
        """Whether it has, or will have, anything to run once the aborted have left."""
        return self.load > len(self._aborted)

    @property
    def works(self) -> bool:
        """Whether it is iterating, or about to."""
        return self._jump is not None or (self.busy and self._paused is None)

    @property
    def idle_at(self) -> int:
        """The tick at which the iteration under way ends; now if there is none."""
        jump = self._jump
        return self._now if jump is None else jump.start + jump.ticks

    @property
    def running(self) -> int:
        """Rollouts in its batch."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Rollouts that wait to be admitted."""
        return len(self._scheduler.waiting)

    @property
    def kv_used(self) -> float:
        """The share of its KV pool that is held."""
        pool = self._scheduler.pool
        return pool.used / pool.blocks

    def known_now(self, request: Request) -> int:
        """Prompt and sampled tokens of a rollout here after the iterations made by now."""
        jump, made = self._jump, 0
        if jump is not None and self._now > jump.start:
            made = jump.iterations_until(self._now)
            made -= jump.start + jump.ticks_of(made) > self._now
        return self._scheduler.known(request, made)

    def flush(self) -> None:
        """Empties its prefix cache."""
        self._scheduler.pool.flush()

    def submit(self, requests: Sequence[Request]) -> None:
        """Queues requests; they are seen at the next boundary."""
        scheduler = self._scheduler
        can_admit = not scheduler.waiting and scheduler.has_seats
        scheduler.waiting.extend(requests)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None
        elif self._jump is not None and can_admit:
            self._cut()

    def abort(self, requests: Sequence[Request]) -> list[Segment]:
        """Stops requests at the next boundary; returns their segments, as they end there."""
        now, scheduler = self._now, self._scheduler
        gone = {request for request in requests if request not in scheduler.running}
        if gone:
            scheduler.discard(gone)
        # Who leaves the queue may have kept others from being admitted.
        can_admit = bool(gone and scheduler.waiting) and scheduler.has_seats
        if can_admit or len(gone) < len(requests):
            self._cut()
        segments = []
        for request in requests:
            if request in gone:
                segments.append(self._segment(request, request.known, now))
            elif self._jump is None:
                scheduler.remove(request)
                segments.append(self._segment(request, request.known, now))
            else:
                request.aborted = True
                self._aborted.append(request)
                known = scheduler.known(request, self._jump.iterations)
                segments.append(self._segment(request, known, self.idle_at))
        return segments

    def pause(self) -> None:
        """Begins no iteration after the one under way, which ends at its next boundary."""
        if self._paused is None:
            self._paused = self._env.event()
            self._cut()

    def resume(self) -> None:
        """Goes on after a `pause`."""
        if self._paused is not None:
            self._paused.succeed()
            self._paused = None

    def slow_down(self, times: float) -> None:
        """Iterations after the one under way take so many times as long as they would alone."""
        if times != self._slower:
            self._slower, self._curves = times, self._curves_at.setdefault(times, {})
            self._cut()

    def new_weights(self, version: int) -> None:
        """New weights are in place: what runs goes on with the keys and values that it has."""
        scheduler, self.version = self._scheduler, version
        scheduler.pool.flush()
        for request in (*scheduler.running, *scheduler.waiting):
            request.new_version(version, scheduler.known(request))

    # From boundary to boundary

    def _await(self, _: simpy.Event | None = None) -> None:
        """Waits for rollouts, then for the end of the instant."""
        if self._scheduler.running or self._scheduler.waiting:
            self._instant_over(self._begin)
        else:
            self._wake = self._env.event()
            self._wake.callbacks.append(self._await)

    def _begin(self) -> None:
        """The instant is over: the next iterations begin, unless all were aborted in it."""
        if not self._scheduler.running and not self._scheduler.waiting:
            self._await()
        elif self._paused is not None:
            self._paused.callbacks.append(self._await)
        else:
            self._jump = jump = self._next_jump()
            self._due = due = self._env.timeout(jump.ticks)
            due.callbacks.append(self._over)

    def _over(self, due: simpy.Event) -> None:
        """Time is at the boundary where the jump was due, if none has cut it."""
        if due is self._due:
            self._arrive()

    def _arrive(self) -> None:
        if self._jump is not None:  # a cut may have ended it already
            self._end(self._jump)
        self._await()

    def _arrive_earlier(self, jump: Jump) -> Generator[simpy.Event, Any, None]:
        """A process, which SimPy starts before all else of this instant that is not so urgent."""
        yield self._env.timeout(jump.start + jump.ticks - self._now)
        self._arrive()

    def _next_jump(self) -> Jump:
        """The iterations from now on that one scheduling pass decides."""
        now, scheduler, extremes = self._now, self._scheduler, self._extremes
        prefill = scheduler.schedule(now)
        decoding = scheduler.decoding.count
        context = scheduler.decoding.context_tokens + prefill.context_tokens
        rollouts = decoding + prefill.rollouts
        if rollouts > extremes.rollouts:
            extremes.rollouts = rollouts
        if prefill.rollouts:
            extremes.context_tokens = max(extremes.context_tokens, context)
            extremes.prefill_tokens = max(extremes.prefill_tokens, prefill.tokens)
            iteration = Iteration(
                rollouts,
                context,
                prefill.tokens,
                prefill.pairs,
                prefill.rollouts,
                prefill.context_tokens,
            )
            ticks = to_ticks(self._slower * self._cost.mixed_iteration_s(iteration))
            return Jump(now, 1, rollouts, context, None, ticks)
        if not decoding:
            raise RunError(
                f"replica {self.number} is stuck: its KV pool of {self._spec.kv_tokens} "
                "tokens cannot hold the next rollout (engine.kv_tokens)"
            )
        # What a preemption has just made room for is admitted in the next pass.
        once = prefill.preempted and scheduler.head_fits()
        n = 1 if once else scheduler.decoding.repeats(scheduler.pool.free)
        extremes.context_tokens = max(extremes.context_tokens, context + (n - 1) * decoding)
        curve = self._curve(decoding)
        ticks = curve.total_ticks(context, decoding, n)
        return Jump(now, n, decoding, context, curve, ticks)

    def _curve(self, rollouts: int) -> Curve:
        curve = self._curves.get(rollouts)
        if curve is None:
            curve = self._cost.decode_curve(rollouts).scaled(self._slower)
            self._curves[rollouts] = curve
        return curve

    def _cut(self) -> None:
        """Makes the jump under way end at its next boundary: at once, if that is now."""
        jump = self._jump
        if jump is not None and jump.cut(self._now):
            self._due = None
            self._env.process(self._arrive_earlier(jump))
            if jump.start + jump.ticks == self._now:
                self._end(jump)

    def _end(self, jump: Jump) -> None:
        """The boundary: tokens are sampled, the finished and the aborted leave."""
        self._jump = None
        scheduler = self._scheduler
        for request in scheduler.sample(jump.iterations):
            scheduler.remove(request)
            if not request.aborted:
                self._ended(self._segment(request, request.known, self._now))
        for request in self._aborted:
            if request in scheduler.running:
                scheduler.remove(request)
        self._aborted = []

    @property
    def _now(self) -> int:
        return self._env.now  # type: ignore[return-value]  # simpy: int | float

    def _segment(self, request: Request, known: int, end: int) -> Segment:
        end_s = to_seconds(end)
        start_s = end_s if request.start < 0 else to_seconds(request.start)
        return request.segment(self.number, known, start_s, end_s)
