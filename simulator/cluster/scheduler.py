"""Continuous batching as in vLLM V1's scheduler.

A pass has a budget of ``max_batched_tokens``: running rollouts first, in order of admission, one
token for each that decodes and a chunk for one that prefills. Where the KV pool runs short, the
rollout admitted last is preempted and recomputed from the front of the queue; without a preemption,
waiting rollouts are admitted in order while all their known tokens fit (vLLM's
``scheduler_reserve_full_isl``) and ``max_seqs`` allows. A rollout whose known tokens are computed
samples one token at the iteration's end.

A rollout in the middle of its prefill took the rest of the budget: at most one is, the last
running.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from rollcast.simulator.cluster.jump import DecodingBatch
from rollcast.simulator.cluster.kv import KvPool
from rollcast.simulator.cluster.request import Request


@dataclass(slots=True)
class Prefill:
    """What prefilling rollouts add to an iteration (`simulator.costs.base.Iteration`). preempted:
    whether the pass preempted, and therefore admitted none."""

    context_tokens: int = 0
    rollouts: int = 0
    tokens: int = 0
    pairs: int = 0
    preempted: bool = False


class Scheduler:
    """A replica's rollouts: waiting; running, in order of admission; of these, decoding or
    ``filling`` (scheduled in the iteration under way and not decoding yet)."""

    __slots__ = (
        "_max_batched_tokens",
        "_max_seqs",
        "decoding",
        "filling",
        "pool",
        "running",
        "waiting",
    )

    def __init__(self, max_seqs: int, max_batched_tokens: int, pool: KvPool) -> None:
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.decoding = DecodingBatch(pool.block_tokens)
        self.filling: list[Request] = []
        self.pool = pool
        self._max_seqs = max_seqs
        self._max_batched_tokens = max_batched_tokens

    @property
    def has_seats(self) -> bool:
        """Whether another rollout may run."""
        return len(self.running) < self._max_seqs

    def schedule(self, now: int) -> Prefill:
        """One pass, at tick ``now``: takes the blocks of the next iteration."""
        decoding, pool, prefill = self.decoding, self.pool, Prefill()
        self.filling = []
        while (blocks := decoding.blocks_needed) > pool.free:
            self._preempt(next(reversed(self.running)))
            prefill.preempted = True
        pool.take(blocks)
        if decoding.sharing:
            decoding.cache_shared(pool)
        budget = self._max_batched_tokens - decoding.count
        last = next(reversed(self.running), None)
        if last is not None and not last.decoding and budget > 0:
            tokens = min(last.known - last.computed, budget)
            blocks = pool.blocks_for(last.computed + tokens) - pool.blocks_for(last.computed)
            if blocks > pool.free:
                self._preempt(last)
                prefill.preempted = True
            else:
                self._fill(last, tokens, blocks, prefill)
                budget -= tokens
        if not prefill.preempted:
            self._admit(budget, now, prefill)
        return prefill

    def _admit(self, budget: int, now: int, prefill: Prefill) -> None:
        """Admits waiting rollouts in order while budget, ``max_seqs`` and the pool allow."""
        pool, waiting = self.pool, self.waiting
        while budget > 0 and waiting and len(self.running) < self._max_seqs:
            request = waiting[0]
            hits = pool.admit(request, request.known)
            if hits is None:
                break
            waiting.popleft()
            self.running[request] = None
            if request.start < 0:
                request.start = now
            request.computed = hits * pool.block_tokens
            tokens = min(request.known - request.computed, budget)
            blocks = pool.blocks_for(request.computed + tokens) - hits
            self._fill(request, tokens, blocks, prefill)
            budget -= tokens

    def _fill(self, request: Request, tokens: int, blocks: int, prefill: Prefill) -> None:
        """Schedules a chunk of a rollout that does not decode yet."""
        self.pool.take(blocks)
        before = request.computed
        request.computed += tokens
        request.prefill_tokens += tokens
        if request.preemptions:
            request.recomputed_tokens += tokens
        self.pool.cache(request, request.computed)
        self.filling.append(request)
        prefill.context_tokens += request.computed
        prefill.rollouts += 1
        prefill.tokens += tokens
        prefill.pairs += tokens * before + tokens * (tokens + 1) // 2

    def _preempt(self, request: Request) -> None:
        """Preempts one rollout; vLLM preempts the shortest tail that leaves enough blocks."""
        self.remove(request)
        request.preemptions += 1
        self.waiting.appendleft(request)

    def remove(self, request: Request) -> None:
        """Takes a rollout out of the running and frees its blocks."""
        del self.running[request]
        if request.decoding:
            self.decoding.remove(request)
        self.pool.release(request, request.computed)
        request.computed = 0

    def head_fits(self) -> bool:
        """Whether the next pass would admit a rollout, if nothing else changed."""
        if not self.waiting or not self.has_seats:
            return False
        head = self.waiting[0]
        return self.pool.fits(head, head.known)

    def discard(self, requests: Collection[Request]) -> None:
        """Takes rollouts out of the waiting."""
        self.waiting = deque(request for request in self.waiting if request not in requests)

    def sample(self, iterations: int) -> list[Request]:
        """Ends so many equal iterations; returns the rollouts that now have all their tokens, in
        order of admission."""
        blocks = self.decoding.advance(iterations)
        if blocks:
            self.pool.take(blocks)
        done = self.decoding.finished()
        for request in self.filling:
            if request.computed == request.known:
                request.known += 1
                if request.known == request.target:
                    done.append(request)
                else:
                    shares = self.pool.caching and len(request.copies) < len(request.public)
                    self.decoding.add(request, shares)
        self.filling = []
        return done

    def known(self, request: Request, iterations: int = 0) -> int:
        """A rollout's known tokens, ``iterations`` of the batch under way later."""
        if request.decoding:
            return self.decoding.known(request) + iterations
        if not iterations or request.computed < request.known:
            return request.known
        return request.known + (request in self.filling)
