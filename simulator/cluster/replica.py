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
prefills costs ``mixed_iteration_s``. The reference in ``tests/reference`` does all this one
iteration and one rollout at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import simpy

from simulator.cluster.batching import Jump, Request, Work
from simulator.cluster.kv import KvPool
from simulator.costs.base import CostModel, Curve, Extremes, Iteration
from simulator.costs.clock import to_seconds, to_ticks
from simulator.errors import RunError, ScenarioError
from simulator.rollout import Stay


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
    """A SimPy process that runs rollouts.

    ended: called with the stay of each rollout that ends by itself, at its instant.
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
        ended: Callable[[Stay], None],
        turn: Callable[[], simpy.Event],
    ) -> None:
        self.number = number
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}  # in order of admission
        self.pool = KvPool(spec.kv_blocks, spec.block_tokens, spec.prefix_caching)
        self._env = env
        self._spec = spec
        self._cost = cost
        self._extremes = extremes
        self._ended = ended
        self._turn = turn
        self._slower = 1.0  # how many times as long iterations take, for what else works
        self._curves: dict[int, Curve] = {}
        self._curves_at = {self._slower: self._curves}
        self._it = 0  # iterations so far
        self._decoding = 0
        self._off_sum = 0
        self._phases = [0] * spec.block_tokens  # decoding rollouts by when they need a block
        self._ends: list[tuple[int, int, Request]] = []  # (iteration, ticket, who) that finish
        self._tickets = 0
        self._sharers: dict[Request, None] = {}  # decoding blocks that others may have too
        self._filling: list[Request] = []  # scheduled in the iteration under way, not decoding yet
        self._aborted: list[Request] = []
        self._jump: Jump | None = None
        self._wake: simpy.Event | None = None
        self._paused: simpy.Event | None = None
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
    def works(self) -> bool:
        """Whether it is iterating, or about to."""
        return self._jump is not None or (self.busy and self._paused is None)

    @property
    def idle_at(self) -> int:
        """The tick at which the iteration under way ends; now if there is none."""
        jump = self._jump
        return self._now if jump is None else jump.start + jump.ticks

    def submit(self, requests: Sequence[Request]) -> None:
        """Queues requests; they are seen at the next boundary."""
        can_admit = not self.waiting and len(self.running) < self._spec.max_seqs
        self.waiting.extend(requests)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None
        elif self._jump is not None and can_admit:
            self._cut()

    def abort(self, requests: Sequence[Request]) -> list[Stay]:
        """Stops requests at the next boundary; returns their stays, as they end there."""
        now = self._now
        gone = {request for request in requests if request not in self.running}
        if gone:
            self.waiting = deque(request for request in self.waiting if request not in gone)
        # Who leaves the queue may have kept others from being admitted.
        can_admit = bool(gone and self.waiting) and len(self.running) < self._spec.max_seqs
        if can_admit or len(gone) < len(requests):
            self._cut()
        stays = []
        for request in requests:
            if request in gone:
                stays.append(self._stay(request, request.known, now))
            elif self._jump is None:
                known = self._stop(request)
                stays.append(self._stay(request, known, now))
            else:
                request.aborted = True
                self._aborted.append(request)
                known = self._known_at_boundary(request)
                stays.append(self._stay(request, known, self.idle_at))
        return stays

    def pause(self) -> None:
        """Begins no iteration after the one under way, which ends at its next boundary."""
        if self._paused is None:
            self._paused = self._env.event()
            self._cut()

    def go_on(self) -> None:
        """Goes on after a `pause`."""
        if self._paused is not None:
            self._paused.succeed()
            self._paused = None

    def go_slower(self, times: float) -> None:
        """Iterations after the one under way take so many times as long as they would alone."""
        if times != self._slower:
            self._slower, self._curves = times, self._curves_at.setdefault(times, {})
            self._cut()

    def new_weights(self, version: int) -> None:
        """New weights are in place: what runs goes on with the keys and values that it has."""
        self.pool.flush()
        for request in (*self.running, *self.waiting):
            known = self._it + request.off + 1 if request.decoding else request.known
            request.new_version(version, known)

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
            if self._paused is not None:
                yield self._paused
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
        return self._env.now  # type: ignore[return-value]  # simpy: int | float

    # A scheduling pass

    def _schedule(self) -> Jump:
        preempted = self._make_room()
        if self._sharers:
            self._cache_decoded()
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
                self.pool.evict()
                self._fill(last, tokens, work)
                budget -= tokens
        if not preempted:
            self._admit(budget, work)
        return self._plan_jump(context, work)

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
        self.pool.evict()
        return preempted

    def _preempt(self, request: Request) -> None:
        request.known = self._stop(request)
        request.preemptions += 1
        self.waiting.appendleft(request)

    def _fill(self, request: Request, tokens: int, work: Work) -> None:
        """Schedules tokens, whose blocks are taken, of a rollout that does not decode yet."""
        before = request.computed
        request.computed += tokens
        self.pool.cache(request, request.computed)
        self._filling.append(request)
        work.context_tokens += request.computed
        request.prefill_tokens += tokens
        if request.preemptions:
            request.recomputed_tokens += tokens
        work.prefill_rollouts += 1
        work.prefill_tokens += tokens
        work.prefill_pairs += tokens * before + tokens * (tokens + 1) // 2
        work.prefill_context_tokens += request.computed

    def _admit(self, budget: int, work: Work) -> None:
        """Admits waiting rollouts in order while budget, ``max_seqs`` and the pool allow."""
        pool, waiting = self.pool, self.waiting
        while budget > 0 and waiting and len(self.running) < self._spec.max_seqs:
            request = waiting[0]
            hits = pool.admit(request, request.known)
            if hits is None:
                break
            waiting.popleft()
            self.running[request] = None
            request.computed = hits * pool.block_tokens
            tokens = min(request.known - request.computed, budget)
            pool.used += pool.blocks_for(request.computed + tokens) - hits
            pool.evict()
            if request.start < 0:
                request.start = self._now
            self._fill(request, tokens, work)
            budget -= tokens

    def _plan_jump(self, context: int, work: Work) -> Jump:
        now, extremes, decoding = self._now, self._extremes, self._decoding
        rollouts = decoding + len(self._filling)
        if rollouts > extremes.rollouts:
            extremes.rollouts = rollouts
        if self._filling:
            context += work.context_tokens
            extremes.context_tokens = max(extremes.context_tokens, context)
            extremes.prefill_tokens = max(extremes.prefill_tokens, work.prefill_tokens)
            iteration = Iteration(
                rollouts,
                context,
                work.prefill_tokens,
                work.prefill_pairs,
                work.prefill_rollouts,
                work.prefill_context_tokens,
            )
            ticks = to_ticks(self._slower * self._cost.mixed_iteration_s(iteration))
            return Jump(now, 1, rollouts, context, None, ticks)
        if not decoding:
            raise RunError(
                f"replica {self.number} can never go on: its KV pool of {self._spec.kv_tokens} "
                "tokens cannot hold the next rollout (engine.kv_tokens)"
            )
        curve = self._curve(decoding)
        # What a preemption has just made room for is admitted in the next pass.
        n = 1 if self._head_fits() else self._horizon()
        extremes.context_tokens = max(extremes.context_tokens, context + (n - 1) * decoding)
        ticks = curve.total_ticks(context, decoding, n)
        return Jump(now, n, decoding, context, curve, ticks)

    def _curve(self, rollouts: int) -> Curve:
        curve = self._curves.get(rollouts)
        if curve is None:
            curve = self._cost.decode_curve(rollouts).scaled(self._slower)
            self._curves[rollouts] = curve
        return curve

    def _head_fits(self) -> bool:
        if not self.waiting or len(self.running) >= self._spec.max_seqs:
            return False
        head = self.waiting[0]
        return self.pool.fits(head, head.known)

    def _horizon(self) -> int:
        """Iterations that repeat this one: until a rollout finishes, the pool runs short, or one
        decodes a block that others may have too."""
        ends = self._ends
        while ends[0][2].ticket != ends[0][1]:  # it left before its end
            heappop(ends)
        n = self._iterations_within(self.pool.free, ends[0][0] - self._it)
        return min(n, self._until_shared()) if self._sharers else n

    # Blocks that others may have too: a pass caches them as they come, in the order of admission

    def _cache_decoded(self) -> None:
        for request in list(self._sharers):
            self.pool.cache(request, self._it + 1 + request.off)
            if len(request.copies) == len(request.public):
                del self._sharers[request]

    def _until_shared(self) -> int:
        """Iterations until the pass that caches the next such block."""
        size = self._spec.block_tokens
        return min(size - (self._it + 1 + request.off) % size for request in self._sharers)

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
        done: list[Request] = []  # in the order of admission, in which they free their blocks
        ends = self._ends
        while ends and ends[0][0] <= self._it:
            _, ticket, request = heappop(ends)
            if request.ticket == ticket:
                done.append(request)
        for request in self._filling:
            if request.computed == request.known:
                request.known += 1
                if request.known == request.target:
                    done.append(request)
                else:
                    self._start_decoding(request)
        self._filling = []
        for request in done:
            known = self._stop(request)
            if not request.aborted:
                self._ended(self._stay(request, known, self._now))
        for request in self._aborted:
            if request in self.running:
                self._stop(request)
        self._aborted = []

    def _start_decoding(self, request: Request) -> None:
        request.decoding = True
        off = request.off = request.computed - self._it
        self._decoding += 1
        self._off_sum += off
        self._phases[-off % self._spec.block_tokens] += 1
        self._tickets += 1
        request.ticket = self._tickets
        heappush(self._ends, (request.target - 1 - off, request.ticket, request))
        if request.public and len(request.copies) < len(request.public) and self.pool.caching:
            self._sharers[request] = None

    def _stop(self, request: Request) -> int:
        """Takes it out of the running and frees its blocks; returns its known tokens."""
        del self.running[request]
        if request.decoding:
            request.decoding = False
            request.ticket = -1
            off = request.off
            request.computed = self._it + off
            request.known = request.computed + 1
            self._decoding -= 1
            self._off_sum -= off
            self._phases[-off % self._spec.block_tokens] -= 1
            if self._sharers:
                self._sharers.pop(request, None)
        self.pool.release(request, request.computed)
        request.computed = 0
        return request.known

    def _known_at_boundary(self, request: Request) -> int:
        """Its known tokens when the jump under way ends."""
        assert self._jump is not None
        if request.decoding:
            return self._it + request.off + 1 + self._jump.iterations
        samples = request in self._filling and request.computed == request.known
        return request.known + samples

    def _stay(self, request: Request, known: int, end: int) -> Stay:
        end_s = to_seconds(end)
        start_s = end_s if request.start < 0 else to_seconds(request.start)
        return request.stay(self.number, known, start_s, end_s)
