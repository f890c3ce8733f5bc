"""One inference engine: continuous batching as vLLM V1's scheduler does it, jumping between events.

Each iteration begins with a scheduling pass over a budget of ``max_batched_tokens``: running rollouts
first, in order of admission, one token for each that decodes and a chunk for one that still
prefills; where the KV pool runs short, the rollout admitted last is preempted, to be recomputed from
the front of the queue. If none was, waiting rollouts are admitted first come, first served, as long
as all their known tokens fit (vLLM's ``scheduler_reserve_full_isl``) and ``max_seqs`` allows. A
rollout whose known tokens are all computed samples one token at the iteration's end.

Two facts make jumps exact. A rollout caught in the middle of its prefill took the rest of the
budget, so nothing was admitted behind it: it is the last one running, and there is at most one. And
while all that run decode, the pass repeats itself until one finishes or the pool runs short, for an
idle pool only shrinks: that many iterations are one event, and their time is a closed form of the
cost's decode curve (`simulator.costs.base.Curve.total_ticks`). Decoding rollouts are therefore not
touched one by one: with ``it`` the count of iterations, a rollout's computed tokens are ``it + off``
for a constant ``off``, and the blocks it needs follow from ``off`` modulo the block size.

A pure decode iteration costs what the decode curve says at its context; one in which anything
prefills costs ``mixed_iteration_s``. The reference in ``tests/reference`` does all this one iteration
and one rollout at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import simpy

from simulator.clock import to_seconds, to_ticks
from simulator.costs.base import CostModel, Curve, Extremes, Iteration
from simulator.errors import RunError, ScenarioError
from simulator.kv import KvPool
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
                f"is {self.max_batched_tokens}, less than max_seqs ({self.max_seqs}): every running "
                "rollout needs one token per iteration",
            )

    @property
    def kv_blocks(self) -> int:
        """Whole blocks in the pool."""
        return self.kv_tokens // self.block_tokens


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
class _Jump:
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
        self._prefilling: list[Stay] = []  # scheduled to prefill in the iteration under way
        self._aborted: list[Stay] = []
        self._jump: _Jump | None = None
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
        return self._env.now if jump is None else jump.start + jump.ticks

    def submit(self, sequences: Sequence[Stay]) -> None:
        """Queues stays; they are seen at the next boundary."""
        can_admit = not self.waiting and len(self.running) < self._spec.max_seqs
        self.waiting.extend(sequences)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None
        elif self._jump is not None and can_admit:
            self._cut()

    def abort(self, sequences: Sequence[Stay]) -> None:
        """Stops stays at the next boundary, and writes into their rollouts how they end there."""
        now = self._env.now
        gone = {sequence for sequence in sequences if sequence not in self.running}
        if gone:
            self.waiting = deque(s for s in self.waiting if s not in gone)
        if len(gone) < len(sequences) and self._jump is not None:
            self._cut()
        for sequence in sequences:
            if sequence in gone:
                self._report(sequence, sequence.known, now)
            elif self._jump is None:
                known = self._stop(sequence)
                self._report(sequence, known, now)
            else:
                sequence.aborted = True
                self._aborted.append(sequence)
                self._report(sequence, self._known_at_boundary(sequence), self.idle_at)

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
            self._jump = None
            self._end(jump)

    def _cut(self) -> None:
        """Makes the jump under way end at its next boundary."""
        if self._jump is not None and self._jump.cut(self._env.now):
            self._process.interrupt()

    # A scheduling pass

    def _schedule(self) -> _Jump:
        preempted = self._make_room()
        self._prefilling = []
        budget = self._spec.max_batched_tokens - self._decoding
        context = self._decoding * (self._it + 1) + self._off_sum
        work = [0, 0, 0]  # tokens, pairs, context of what prefills
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
                self._prefill(last, tokens, work)
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

    def _preempt(self, sequence: Stay) -> None:
        sequence.known = self._stop(sequence)
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def _prefill(self, sequence: Stay, tokens: int, work: list[int]) -> None:
        """Schedules a chunk whose blocks are taken."""
        before = sequence.computed
        sequence.computed += tokens
        prompt = min(sequence.computed, sequence.rollout.prompt_tokens)
        sequence.shared += self.pool.grow(sequence.rollout.group, prompt)
        sequence.prefill_tokens += tokens
        if sequence.preemptions:
            sequence.recomputed_tokens += tokens
        work[0] += tokens
        work[1] += tokens * before + tokens * (tokens + 1) // 2
        work[2] += sequence.computed
        self._prefilling.append(sequence)

    def _admit(self, budget: int, work: list[int]) -> None:
        """Admits waiting rollouts in order while budget, ``max_seqs`` and the pool allow."""
        pool, waiting = self.pool, self.waiting
        while budget > 0 and waiting and len(self.running) < self._spec.max_seqs:
            sequence = waiting[0]
            group, known = sequence.rollout.group, sequence.known
            if not pool.fits(group, known):
                break
            waiting.popleft()
            self.running[sequence] = None
            sequence.shared = pool.hits(group, known)
            sequence.computed = sequence.shared * pool.block_tokens
            pool.hold(group)
            tokens = min(known - sequence.computed, budget)
            pool.used += pool.blocks_for(sequence.computed + tokens) - sequence.shared
            if sequence.start < 0:
                sequence.start = self._env.now
            self._prefill(sequence, tokens, work)
            budget -= tokens
            pool.evict()

    def _plan_jump(self, context: int, work: list[int], preempted: bool) -> _Jump:
        now, extremes = self._env.now, self._extremes
        prefilling, decoding = len(self._prefilling), self._decoding
        rollouts = decoding + prefilling
        if rollouts > extremes.rollouts:
            extremes.rollouts = rollouts
        if prefilling:
            total = context + work[2]
            extremes.context_tokens = max(extremes.context_tokens, total)
            extremes.prefill_tokens = max(extremes.prefill_tokens, work[0])
            iteration = Iteration(rollouts, total, work[0], work[1], prefilling, work[2])
            ticks = to_ticks(self._cost.mixed_iteration_s(iteration))
            return _Jump(now, 1, rollouts, total, None, ticks)
        if not decoding:
            raise RunError(
                f"replica {self.number} can never go on: its KV pool of {self._spec.kv_tokens} "
                "tokens cannot hold the next rollout (engine.kv_tokens)"
            )
        curve = self._curves.get(decoding)
        if curve is None:
            curve = self._curves[decoding] = self._cost.decode_curve(decoding)
        # After a preemption the queue is looked at again in the next pass, if its head would fit.
        n = 1 if preempted and self._head_fits() else self._horizon()
        extremes.context_tokens = max(extremes.context_tokens, context + (n - 1) * decoding)
        ticks = curve.total_ticks(context, decoding, n)
        return _Jump(now, n, decoding, context, curve, ticks)

    def _head_fits(self) -> bool:
        if len(self.running) >= self._spec.max_seqs:
            return False
        head = self.waiting[0]
        return self.pool.fits(head.rollout.group, head.known)

    def _horizon(self) -> int:
        """Iterations that repeat this one: until a rollout finishes or the pool runs short."""
        ends = self._ends
        while ends[0][2].ticket != ends[0][1]:  # it left before its end
            heappop(ends)
        n = ends[0][0] - self._it
        size, free = self._spec.block_tokens, self.pool.free
        cycles = free // self._decoding  # whole cycles of ``size`` iterations take a block each
        if cycles * size + 1 >= n:
            return n
        free -= cycles * self._decoding
        safe = cycles * size + 1  # this iteration's blocks are taken
        while safe < n:
            free -= self._phases[(self._it + safe) % size]
            if free < 0:
                break
            safe += 1
        return safe

    # The end of an iteration

    def _end(self, jump: _Jump) -> None:
        """The boundary: tokens are sampled, the finished and the aborted leave."""
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
        for sequence in self._prefilling:
            if sequence.computed == sequence.known:
                sequence.known += 1
                if sequence.known == sequence.target:
                    done.append(sequence)
                    continue
            if sequence.computed == sequence.known - 1:
                self._start_decoding(sequence)
        self._prefilling = []
        ends = self._ends
        while ends and ends[0][0] <= self._it:
            _, ticket, sequence = heappop(ends)
            if sequence.ticket == ticket:
                done.append(sequence)
        for sequence in done:
            known = self._stop(sequence)
            if not sequence.aborted:
                self._report(sequence, known, self._env.now)
                self._finished(sequence.rollout)
        for sequence in self._aborted:
            if sequence in self.running:
                self._stop(sequence)
        self._aborted = []

    def _start_decoding(self, sequence: Stay) -> None:
        sequence.decoding = True
        off = sequence.off = sequence.computed - self._it
        self._decoding += 1
        self._off_sum += off
        self._phases[-off % self._spec.block_tokens] += 1
        self._tickets += 1
        sequence.ticket = self._tickets
        heappush(self._ends, (sequence.target - 1 - off, sequence.ticket, sequence))

    def _stop(self, sequence: Stay) -> int:
        """Takes it out of the running and frees its blocks; returns its known tokens."""
        del self.running[sequence]
        if sequence.decoding:
            sequence.decoding = False
            sequence.ticket = -1
            off = sequence.off
            sequence.computed = self._it + off
            sequence.known = sequence.computed + 1
            self._decoding -= 1
            self._off_sum -= off
            self._phases[-off % self._spec.block_tokens] -= 1
        private = self.pool.blocks_for(sequence.computed) - sequence.shared
        self.pool.release(sequence.rollout.group, private, self._env.now)
        sequence.computed = sequence.shared = 0
        return sequence.known

    def _known_at_boundary(self, sequence: Stay) -> int:
        """Its known tokens when the jump under way ends."""
        assert self._jump is not None
        if sequence.decoding:
            return self._it + sequence.off + 1 + self._jump.iterations
        samples = sequence in self._prefilling and sequence.computed == sequence.known
        return sequence.known + samples

    def _report(self, sequence: Stay, known: int, end: int) -> None:
        """Writes the stay's outcome into its rollout."""
        rollout = sequence.rollout
        rollout.new_tokens = known - rollout.prompt_tokens
        rollout.finished = known == sequence.target
        rollout.replica = self.number
        rollout.end_s = to_seconds(end)
        rollout.start_s = rollout.end_s if sequence.start < 0 else to_seconds(sequence.start)
        rollout.prefill_tokens = sequence.prefill_tokens
        rollout.recomputed_tokens = sequence.recomputed_tokens
        rollout.preemptions = sequence.preemptions
