"""One inference engine: continuous batching as vLLM V1's scheduler does it, jumping between events.

Each iteration begins with a scheduling pass over a budget of ``max_batched_tokens``: running
rollouts first, in order of admission, one token for each that decodes and a chunk for one that
still prefills; where the KV pool runs short, the rollout admitted last is preempted, to be
recomputed from the front of the queue. If none was, waiting rollouts are admitted first come, first
served, as long as all their known tokens fit (vLLM's ``scheduler_reserve_full_isl``) and
``max_seqs`` allows. A rollout whose known tokens are all computed samples one token at the
iteration's end.

Two facts make jumps exact. A rollout caught in the middle of its prefill took the rest of the
budget, so nothing was admitted behind it: it is the last one running, and there is at most one. And
while all that run decode, the pass repeats itself until one finishes or the pool runs short, for an
idle pool only shrinks: that many iterations are one event, and their time is a closed form of the
cost's decode curve (`simulator.costs.base.Curve.total_ticks`). Decoding rollouts are therefore not
touched one by one: with ``it`` the count of iterations, a rollout's computed tokens are
``it + off`` for a constant ``off``, and the blocks it needs follow from ``off`` modulo the block
size.

A pure decode iteration costs what the decode curve says at its context; one in which anything
prefills costs ``mixed_iteration_s``; a pass that leaves nothing to compute takes no time. The
reference in ``tests/reference`` does all this one iteration and one rollout at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, cast

import simpy

from simulator.cluster.batching import Jump, Stay, Work
from simulator.cluster.kv import KvPool
from simulator.costs.base import CostModel, Curve, Extremes, Iteration
from simulator.costs.clock import to_seconds, to_ticks
from simulator.errors import RunError, ScenarioError
from simulator.rollout import Rollout


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


class Replica:
    """A SimPy process that runs rollouts.

    finished: called with each rollout that ends by itself, at its instant.
    turn: gives the event to wait for before an iteration begins, so that everything else that
        happens at this instant, and the loop's answer to it, comes first.
    """

    def __init__(
        self,
        env: simpy.Environment,
        number: int,
        spec: EngineSpec,
        cost: CostModel,
        extremes: Extremes,
        finished: Callable[[Rollout], None],
        turn: Callable[[], simpy.Event],
    ) -> None:
        self.number = number
        self.waiting: deque[Stay] = deque()
        self.running: dict[Stay, None] = {}  # in order of admission
        self.pool = KvPool(spec.kv_blocks, spec.block_tokens, spec.prefix_caching)
        self._env = env
        self._spec = spec
        self._cost = cost
        self._extremes = extremes
        self._finished = finished
        self._turn = turn
        self._curves: dict[int, Curve] = {}
        self._it = 0  # iterations so far
        self._decoding = 0
        self._off_sum = 0
        self._phases = [0] * spec.block_tokens  # decoding rollouts by when they need a block
        self._ends: list[tuple[int, int, Stay]] = []  # (iteration, ticket, who) that finish
        self._tickets = 0
        self._filling: list[Stay] = []  # scheduled in the iteration under way, not decoding yet
        self._aborted: list[Stay] = []
        self._jump: Jump | None = None
        self._wake: simpy.Event | None = None
        self._process = env.process(self._run())

    # What the cluster asks

    @property
    def load(self) -> int:
        """Rollouts running or waiting."""
        return len(self.running) + len(self.waiting)

    @property
    def busy(self) -> bool:
        """Whether it has, or will have, anything to run once the aborted have left."""
        return self.load > len(self._aborted)

    @property
    def idle_at(self) -> int:
        """The tick at which the iteration under way ends; now if there is none."""
        jump = self._jump
        return self._now if jump is None else jump.start + jump.ticks

    def submit(self, stays: Sequence[Stay]) -> None:
        """Queues stays; they are seen at the next boundary."""
        can_admit = not self.waiting and len(self.running) < self._spec.max_seqs
        self.waiting.extend(stays)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None
        elif self._jump is not None and can_admit:
            self._cut()

    def abort(self, stays: Sequence[Stay]) -> None:
        """Stops stays at the next boundary, and writes into their rollouts how they end there."""
        now = self._now
        gone = {stay for stay in stays if stay not in self.running}
        if gone:
            self.waiting = deque(stay for stay in self.waiting if stay not in gone)
        # Who leaves the queue may have kept others from being admitted.
        can_admit = bool(gone and self.waiting) and len(self.running) < self._spec.max_seqs
        if can_admit or len(gone) < len(stays):
            self._cut()
        for stay in stays:
            if stay in gone:
                self._report(stay, stay.known, now)
            elif self._jump is None:
                known = self._stop(stay)
                self._report(stay, known, now)
            else:
                stay.aborted = True
                self._aborted.append(stay)
                self._report(stay, self._known_at_boundary(stay), self.idle_at)

    # The process

    def _run(self) -> Generator[simpy.Event, Any, None]:
        env = self._env
        while True:
            if not self.running and not self.waiting:
                self._wake = env.event()
                yield self._wake
            yield self._turn()
            if not self.running and not self.waiting:  # aborted at this very instant
                continue
            self._jump = jump = self._schedule()
            try:
                yield env.timeout(jump.ticks)
            except simpy.Interrupt:
                yield env.timeout(jump.start + jump.ticks - env.now)
            if self._jump is jump:
                self._end(jump)

    def _cut(self) -> None:
        """Makes the jump under way end at its next boundary: at once, if that is now."""
        jump = self._jump
        if jump is not None and jump.cut(self._now):
            self._process.interrupt()
            if jump.start + jump.ticks == self._now:
                self._end(jump)

    @property
    def _now(self) -> int:
        return cast(int, self._env.now)  # simpy types its clock as int | float

    # A scheduling pass

    def _schedule(self) -> Jump:
        preempted = self._make_room()
        self._filling = []
        budget = self._spec.max_batched_tokens - self._decoding
        context = self._decoding * (self._it + 1) + self._off_sum
        work = Work()
        last = next(reversed(self.running), None)
        if last is not None and not last.decoding and budget > 0:
            tokens = min(last.known - last.computed, budget)
            need = self.pool.blocks_for(last.computed + tokens)
            need -= self.pool.blocks_for(last.computed)
            if need > self.pool.free:
                self._preempt(last)
                preempted = True
            else:
                self.pool.used += need
                self._fill(last, tokens, work, prefilling=last.known - last.computed > 1)
                budget -= tokens
        if not preempted:
            self._admit(budget, work)
        self.pool.evict()
        return self._plan_jump(context, work, preempted)

    def _make_room(self) -> bool:
        """Takes the blocks that decoding needs in this iteration, preempting from the end of the
        running until they are there. Whether it preempted.

        The rollouts are preempted that vLLM's walk along the running would preempt: the shortest
        tail without which the blocks suffice for the rest.
        """
        slot = self._it % self._spec.block_tokens
        preempted = False
        while self._phases[slot] > self.pool.free:
            self._preempt(next(reversed(self.running)))
            preempted = True
        self.pool.used += self._phases[slot]
        return preempted

    def _preempt(self, stay: Stay) -> None:
        stay.known = self._stop(stay)
        stay.preemptions += 1
        self.waiting.appendleft(stay)

    def _fill(self, stay: Stay, tokens: int, work: Work, prefilling: bool) -> None:
        """Schedules tokens, whose blocks are taken, of a rollout that does not decode yet."""
        before = stay.computed
        stay.computed += tokens
        prompt = min(stay.computed, stay.rollout.prompt_tokens)
        stay.shared += self.pool.grow(stay.rollout.group, prompt)
        self._filling.append(stay)
        work.context_tokens += stay.computed
        if not prefilling:
            return
        stay.prefill_tokens += tokens
        if stay.preemptions:
            stay.recomputed_tokens += tokens
        work.prefill_rollouts += 1
        work.prefill_tokens += tokens
        work.prefill_pairs += tokens * before + tokens * (tokens + 1) // 2
        work.prefill_context_tokens += stay.computed

    def _admit(self, budget: int, work: Work) -> None:
        """Admits waiting rollouts in order while budget, ``max_seqs`` and the pool allow."""
        pool, waiting = self.pool, self.waiting
        while budget > 0 and waiting and len(self.running) < self._spec.max_seqs:
            stay = waiting[0]
            group, known = stay.rollout.group, stay.known
            if not pool.fits(group, known):
                break
            waiting.popleft()
            self.running[stay] = None
            stay.shared = pool.hits(group, known)
            stay.computed = stay.shared * pool.block_tokens
            pool.hold(group)
            tokens = min(known - stay.computed, budget)
            pool.used += pool.blocks_for(stay.computed + tokens) - stay.shared
            if stay.start < 0:
                stay.start = self._now
            self._fill(stay, tokens, work, prefilling=True)
            budget -= tokens
            pool.evict()

    def _plan_jump(self, context: int, work: Work, preempted: bool) -> Jump:
        now, extremes, decoding = self._now, self._extremes, self._decoding
        rollouts = decoding + len(self._filling)
        if rollouts > extremes.rollouts:
            extremes.rollouts = rollouts
        if self._filling:
            context += work.context_tokens
            extremes.context_tokens = max(extremes.context_tokens, context)
            extremes.prefill_tokens = max(extremes.prefill_tokens, work.prefill_tokens)
            if work.prefill_tokens:
                iteration = Iteration(
                    rollouts,
                    context,
                    work.prefill_tokens,
                    work.prefill_pairs,
                    work.prefill_rollouts,
                    work.prefill_context_tokens,
                )
                ticks = to_ticks(self._cost.mixed_iteration_s(iteration))
            else:
                ticks = self._curve(rollouts).ticks(context)
            return Jump(now, 1, rollouts, context, None, ticks)
        if not decoding:
            if preempted:  # nothing is left to schedule, and the next pass may admit again
                return Jump(now, 1, 0, 0, None, 0)
            raise RunError(
                f"replica {self.number} can never go on: its KV pool of {self._spec.kv_tokens} "
                "tokens cannot hold the next rollout (engine.kv_tokens)"
            )
        curve = self._curve(decoding)
        # What a preemption or an eviction has just made room for is admitted in the next pass.
        n = 1 if self._head_fits() else self._horizon()
        extremes.context_tokens = max(extremes.context_tokens, context + (n - 1) * decoding)
        ticks = curve.total_ticks(context, decoding, n)
        return Jump(now, n, decoding, context, curve, ticks)

    def _curve(self, rollouts: int) -> Curve:
        curve = self._curves.get(rollouts)
        if curve is None:
            curve = self._curves[rollouts] = self._cost.decode_curve(rollouts)
        return curve

    def _head_fits(self) -> bool:
        if not self.waiting or len(self.running) >= self._spec.max_seqs:
            return False
        head = self.waiting[0]
        return self.pool.fits(head.rollout.group, head.known)

    def _horizon(self) -> int:
        """Iterations that repeat this one: until a rollout finishes, the pool runs short, or the
        cache of the group that waits at the head may be evicted, which can make room for it."""
        ends = self._ends
        while ends[0][2].ticket != ends[0][1]:  # it left before its end
            heappop(ends)
        n = self._iterations_within(self.pool.free, ends[0][0] - self._it)
        if self.waiting and self.pool.is_idle(self.waiting[0].rollout.group):
            n = self._iterations_within(self.pool.free - self.pool.idle_blocks, n - 1) + 1
        return n

    def _iterations_within(self, blocks: int, most: int) -> int:
        """Iterations, ``most`` at the most, that need no more than ``blocks`` further blocks; those
        of the first one are taken."""
        size = self._spec.block_tokens
        cycles = blocks // self._decoding  # whole cycles of ``size`` iterations take a block each
        iterations = cycles * size + 1
        if iterations >= most:
            return most
        blocks -= cycles * self._decoding
        while iterations < most:
            blocks -= self._phases[(self._it + iterations) % size]
            if blocks < 0:
                break
            iterations += 1
        return iterations

    # The end of an iteration

    def _end(self, jump: Jump) -> None:
        """The boundary: tokens are sampled, the finished and the aborted leave."""
        self._jump = None
        n, size = jump.iterations, self._spec.block_tokens
        if n > 1:
            cycles, rest = divmod(n - 1, size)
            blocks = cycles * self._decoding
            for i in range(1, rest + 1):
                blocks += self._phases[(self._it + i) % size]
            self.pool.used += blocks
            self.pool.evict()
        self._it += n
        done: list[Stay] = []
        for stay in self._filling:
            if stay.computed == stay.known:
                stay.known += 1
                if stay.known == stay.target:
                    done.append(stay)
                else:
                    self._start_decoding(stay)
        self._filling = []
        ends = self._ends
        while ends and ends[0][0] <= self._it:
            _, ticket, stay = heappop(ends)
            if stay.ticket == ticket:
                done.append(stay)
        for stay in done:
            known = self._stop(stay)
            if not stay.aborted:
                self._report(stay, known, self._now)
                self._finished(stay.rollout)
        for stay in self._aborted:
            if stay in self.running:
                self._stop(stay)
        self._aborted = []

    def _start_decoding(self, stay: Stay) -> None:
        stay.decoding = True
        off = stay.off = stay.computed - self._it
        self._decoding += 1
        self._off_sum += off
        self._phases[-off % self._spec.block_tokens] += 1
        self._tickets += 1
        stay.ticket = self._tickets
        heappush(self._ends, (stay.target - 1 - off, stay.ticket, stay))

    def _stop(self, stay: Stay) -> int:
        """Takes it out of the running and frees its blocks; returns its known tokens."""
        del self.running[stay]
        if stay.decoding:
            stay.decoding = False
            stay.ticket = -1
            off = stay.off
            stay.computed = self._it + off
            stay.known = stay.computed + 1
            self._decoding -= 1
            self._off_sum -= off
            self._phases[-off % self._spec.block_tokens] -= 1
        private = self.pool.blocks_for(stay.computed) - stay.shared
        self.pool.release(stay.rollout.group, private, self._now)
        stay.computed = stay.shared = 0
        return stay.known

    def _known_at_boundary(self, stay: Stay) -> int:
        """Its known tokens when the jump under way ends."""
        assert self._jump is not None
        if stay.decoding:
            return self._it + stay.off + 1 + self._jump.iterations
        samples = stay in self._filling and stay.computed == stay.known
        return stay.known + samples

    def _report(self, stay: Stay, known: int, end: int) -> None:
        """Writes the stay's outcome into its rollout."""
        rollout = stay.rollout
        rollout.new_tokens = known - rollout.prompt_tokens
        rollout.finished = known == stay.target
        rollout.replica = self.number
        rollout.end_s = to_seconds(end)
        rollout.start_s = rollout.end_s if stay.start < 0 else to_seconds(stay.start)
        rollout.prefill_tokens = stay.prefill_tokens
        rollout.recomputed_tokens = stay.recomputed_tokens
        rollout.preemptions = stay.preemptions
