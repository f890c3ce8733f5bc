"""Repeated iterations: decoding rollouts as counts, and how many iterations one event covers.

While all that run decode, a scheduling pass repeats until a rollout finishes or the pool runs
short: those iterations are one event, a `Jump`, whose time is a closed form of the cost's decode
curve (`simulator.costs.base.Curve.total_ticks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from rollcast.simulator.cluster.kv import KvPool
from rollcast.simulator.cluster.request import Request
from rollcast.simulator.costs.base import Curve


class DecodingBatch:
    """A replica's decoding rollouts; an iteration touches none of them.

    Each computes one token an iteration, so its computed tokens are ``iterations + offset`` for a
    constant offset, which also decides in which iterations it needs a block. iterations: made by
    the replica. count: of rollouts. sharing: those that may decode blocks which others may have
    too.
    """

    __slots__ = (
        "_block_tokens",
        "_by_slot",
        "_ends",
        "_offsets",
        "_tickets",
        "count",
        "iterations",
        "sharing",
    )

    def __init__(self, block_tokens: int) -> None:
        self.iterations = 0
        self.count = 0
        self._block_tokens = block_tokens
        self._offsets = 0  # their sum
        self._by_slot = [0] * block_tokens  # rollouts by the iterations in which they need a block
        self._ends: list[tuple[int, int, Request]] = []  # (iteration, ticket, who) that finish
        self._tickets = 0
        self.sharing: dict[Request, None] = {}

    @property
    def context_tokens(self) -> int:
        """Tokens that they attend to in the next iteration."""
        return self.count * (self.iterations + 1) + self._offsets

    @property
    def blocks_needed(self) -> int:
        """Blocks that the next iteration takes."""
        return self._by_slot[self.iterations % self._block_tokens]

    def known(self, request: Request) -> int:
        """Prompt and sampled tokens of one of them."""
        return self.iterations + request.offset + 1

    def add(self, request: Request, shares: bool) -> None:
        """Adds a rollout whose known tokens are all computed and that has sampled one more. shares:
        whether it may decode blocks that others may have too."""
        request.decoding = True
        offset = request.offset = request.computed - self.iterations
        self.count += 1
        self._offsets += offset
        self._by_slot[-offset % self._block_tokens] += 1
        self._tickets += 1
        request.ticket = self._tickets
        heappush(self._ends, (request.target - 1 - offset, request.ticket, request))
        if shares:
            self.sharing[request] = None

    def remove(self, request: Request) -> None:
        """One of them stops decoding; its counts of tokens are its own again."""
        offset = request.offset
        request.decoding = False
        request.ticket = -1
        request.computed = self.iterations + offset
        request.known = request.computed + 1
        self.count -= 1
        self._offsets -= offset
        self._by_slot[-offset % self._block_tokens] -= 1
        if self.sharing:
            self.sharing.pop(request, None)

    def cache_shared(self, pool: KvPool) -> None:
        """Caches the shared blocks that the next iteration fills, in order of admission."""
        for request in list(self.sharing):
            pool.cache(request, self.iterations + 1 + request.offset)
            if len(request.copies) == len(request.public):
                del self.sharing[request]

    def repeats(self, free_blocks: int) -> int:
        """Equal iterations from this one on: until a rollout finishes, the pool runs out of blocks,
        or a rollout fills a block that others may have too."""
        ends = self._ends
        while ends[0][2].ticket != ends[0][1]:  # it left before its end
            heappop(ends)
        n = self._within(free_blocks, ends[0][0] - self.iterations)
        if not self.sharing:
            return n
        size, computed = self._block_tokens, self.iterations + 1
        return min(n, *(size - (computed + request.offset) % size for request in self.sharing))

    def _within(self, blocks: int, most: int) -> int:
        """Iterations, at most ``most``, that need at most ``blocks`` blocks beyond the first's."""
        size = self._block_tokens
        cycles = blocks // self.count  # whole cycles of ``size`` iterations take a block each
        iterations = cycles * size + 1
        if iterations >= most:
            return most
        blocks -= cycles * self.count
        while iterations < most:
            blocks -= self._by_slot[(self.iterations + iterations) % size]
            if blocks < 0:
                break
            iterations += 1
        return iterations

    def advance(self, iterations: int) -> int:
        """So many iterations are over; returns the blocks taken in all but the first of them."""
        blocks, size = 0, self._block_tokens
        if iterations > 1:
            cycles, rest = divmod(iterations - 1, size)
            blocks = cycles * self.count
            for i in range(1, rest + 1):
                blocks += self._by_slot[(self.iterations + i) % size]
        self.iterations += iterations
        return blocks

    def finished(self) -> list[Request]:
        """Those that have all their tokens now, in the order of admission."""
        ends, done = self._ends, []
        while ends and ends[0][0] <= self.iterations:
            _, ticket, request = heappop(ends)
            if request.ticket == ticket:
                done.append(request)
        return done


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
