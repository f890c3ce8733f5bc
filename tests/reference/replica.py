"""A replica, one iteration at a time: the specification of continuous batching written out plainly.

Nothing here is clever. The KV pool is a list of blocks, and the free ones stand in a queue as those
of vLLM do; a cached block is known by all tokens up to its end, and what a rollout may take of the
cache is found by comparing tokens. Every total is summed anew when it is asked for, and what must
always hold is asserted after every pass.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.core.rollout import Rollout
from rollcast.simulator.costs.base import CostModel, Iteration
from rollcast.simulator.costs.clock import to_ticks


@dataclass(eq=False)
class Block:
    """A KV block. tokens: those up to its end, if it is cached."""

    holders: int = 0
    tokens: tuple[object, ...] | None = None


@dataclass(eq=False)
class Segment:
    """One rollout on one replica, from submit to finish or abort."""

    rollout: Rollout
    number: int  # counts submissions, over all replicas
    replica: int
    tokens: tuple[object, ...]  # prompt and the whole response, with all that is observed in it
    prompt: int
    observed: int  # tokens of its context that are neither prompt nor response
    until: int  # response tokens with which it is whole, or its turn
    sampled: int  # response tokens so far
    resumed_from: int  # response tokens when it was submitted
    allowance: int | None  # response tokens that it may sample
    versions: list[int] = field(default_factory=list)  # of each token sampled in this segment
    computed: int = 0  # tokens in the KV cache
    blocks: list[Block] = field(default_factory=list)  # in the order of its tokens
    scheduled: int = 0  # tokens of the iteration under way
    awaited: int = 0  # tokens that it knew when it was admitted, with which its prefill ends
    prefilling: bool = False  # in the iteration under way
    leaving: int | None = None  # which abort it is that ends it with the iteration under way
    start: int | None = None
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0

    @property
    def known(self) -> int:
        """Tokens of its context so far, computed or not."""
        return self.prompt + self.observed + self.sampled


@dataclass(frozen=True)
class Pass:
    """An iteration as it was scheduled, kept so that tests can look at it."""

    replica: int
    start: int
    end: int
    work: Iteration
    scheduled: tuple[tuple[tuple[int, int], int], ...]  # ((group, index), tokens), in order
    preempted: tuple[tuple[int, int], ...]
    free_blocks: int


class Replica:
    """The scheduler, the KV pool and the prefix cache of one engine."""

    def __init__(self, number: int, engine: EngineSpec, cost: CostModel) -> None:
        self.number = number
        self.engine = engine
        self.cost = cost
        self.pool = [Block() for _ in range(engine.kv_tokens // engine.block_tokens)]
        self.free = list(self.pool)  # what is taken next is in front
        # By all the tokens up to a block's end: equal ones in the order in which they were cached.
        self.cached: dict[tuple[object, ...], list[Block]] = {}
        self.running: list[Segment] = []
        self.waiting: list[Segment] = []
        self.ends: int | None = None  # of the iteration under way; None at a boundary
        self.passes: list[Pass] = []
        self.version = 0
        self._preempted: list[tuple[int, int]] = []

    @property
    def rollouts(self) -> int:
        """Running and waiting, those that leave at the coming boundary included."""
        return len(self.running) + len(self.waiting)

    @property
    def idle(self) -> bool:
        return self.ends is None and self.rollouts == 0

    # Blocks

    def blocks_for(self, tokens: int) -> int:
        return math.ceil(tokens / self.engine.block_tokens)

    def take(self, blocks: int) -> list[Block]:
        """Takes free blocks from the front of the queue; what they held is forgotten."""
        taken = self.free[:blocks]
        del self.free[:blocks]
        assert len(taken) == blocks
        for block in taken:
            block.holders = 1
            self.forget(block)
        return taken

    def forget(self, block: Block) -> None:
        if block.tokens is not None:
            self.cached[block.tokens].remove(block)
            block.tokens = None

    def forget_free(self) -> None:
        """The cache is of old weights: what nobody holds is gone."""
        for block in self.free:
            self.forget(block)

    def leave_running(self, segment: Segment) -> None:
        """Gives back the rollout's blocks, the last one first. Those that nobody else holds join
        the queue: at its end where they are cached, in front where they are not."""
        self.running.remove(segment)
        for block in reversed(segment.blocks):
            block.holders -= 1
            if block.holders == 0:
                if block.tokens is None:
                    self.free.insert(0, block)
                else:
                    self.free.append(block)
        segment.blocks = []

    # The scheduling pass

    def begin(self, now: int) -> None:
        """Makes a pass and starts its iteration."""
        assert self.ends is None
        assert self.rollouts > 0
        self._preempted = []
        budget = self.schedule_running(self.engine.max_batched_tokens)
        if not self._preempted:
            self.admit(budget)
        work = self.work()
        assert work.rollouts > 0
        if work.prefill_tokens:
            ticks = to_ticks(self.cost.mixed_iteration_s(work))
        else:
            ticks = self.cost.decode_curve(work.rollouts).ticks(work.context_tokens)
        self.ends = now + ticks
        for segment in self.running:
            if segment.scheduled and segment.start is None:
                segment.start = now
            if segment.prefilling:
                segment.prefill_tokens += segment.scheduled
                if segment.preemptions:
                    segment.recomputed_tokens += segment.scheduled
        self.passes.append(
            Pass(
                self.number,
                now,
                self.ends,
                work,
                tuple((s.rollout.key, s.scheduled) for s in self.running if s.scheduled),
                tuple(self._preempted),
                len(self.free),
            )
        )
        self.check()

    def schedule_running(self, budget: int) -> int:
        """Step 1 of the pass; returns the budget left."""
        position = 0
        while position < len(self.running) and budget > 0:
            segment = self.running[position]
            tokens = min(segment.known - segment.computed, budget)
            needed = self.blocks_for(segment.computed + tokens) - len(segment.blocks)
            while needed > len(self.free) and segment in self.running:
                self.preempt(self.running[-1])
            if segment not in self.running:
                break
            self.schedule(segment, tokens, prefilling=segment.computed < segment.awaited)
            budget -= tokens
            position += 1
        return budget

    def preempt(self, segment: Segment) -> None:
        assert segment.scheduled == 0
        self.leave_running(segment)
        segment.computed = 0
        segment.preemptions += 1
        self.waiting.insert(0, segment)
        self._preempted.append(segment.rollout.key)

    def admit(self, budget: int) -> None:
        """Step 2 of the pass."""
        while budget > 0 and len(self.running) < self.engine.max_seqs and self.waiting:
            segment = self.waiting[0]
            hits = self.hits(segment)
            # A hit that nobody holds is one of the free blocks.
            needed = self.blocks_for(segment.known) - sum(block.holders > 0 for block in hits)
            if needed > len(self.free):
                return
            self.waiting.pop(0)
            self.running.append(segment)
            for block in hits:
                block.holders += 1
                self.free = [other for other in self.free if other is not block]
            segment.blocks = hits
            segment.computed = len(hits) * self.engine.block_tokens
            segment.awaited = segment.known
            tokens = min(segment.known - segment.computed, budget)
            self.schedule(segment, tokens, prefilling=True)
            budget -= tokens

    def hits(self, segment: Segment) -> list[Block]:
        """The leading blocks to be had from the cache, of equal ones the one cached first; one
        token is always left to compute."""
        found: list[Block] = []
        if not self.engine.prefix_caching:
            return found
        while (end := (len(found) + 1) * self.engine.block_tokens) < segment.known:
            equal = self.cached.get(segment.tokens[:end])
            if not equal:
                break
            found.append(equal[0])
        return found

    def schedule(self, segment: Segment, tokens: int, prefilling: bool) -> None:
        """Takes the blocks of a rollout's next tokens, and caches those that they fill."""
        segment.scheduled = tokens
        segment.prefilling = prefilling
        reached = segment.computed + tokens
        segment.blocks += self.take(self.blocks_for(reached) - len(segment.blocks))
        if not self.engine.prefix_caching:
            return
        size = self.engine.block_tokens
        for number in range(segment.computed // size, reached // size):  # those that are now full
            block, end = segment.blocks[number], (number + 1) * size
            if block.tokens is None:
                block.tokens = segment.tokens[:end]
                self.cached.setdefault(block.tokens, []).append(block)

    def work(self) -> Iteration:
        """The iteration's work, summed token by token."""
        context = pairs = prefill = prefill_rollouts = prefill_context = rollouts = 0
        for segment in self.running:
            if segment.scheduled == 0:
                continue
            rollouts += 1
            context += segment.computed + segment.scheduled
            if segment.prefilling:
                prefill_rollouts += 1
                prefill_context += segment.computed + segment.scheduled
                for token in range(segment.computed, segment.computed + segment.scheduled):
                    prefill += 1
                    pairs += token + 1  # a token attends to those before it and to itself
        return Iteration(rollouts, context, prefill, pairs, prefill_rollouts, prefill_context)

    # The end of an iteration

    def after(self, segment: Segment) -> int:
        """Response tokens that a rollout has once the iteration under way has ended."""
        samples = segment.scheduled > 0 and segment.computed + segment.scheduled == segment.known
        return segment.sampled + int(samples)

    def end(self, now: int) -> list[Segment]:
        """Ends the iteration; returns the finished, without those that an abort has returned.

        The finished leave in the order of admission, then the aborted in that of their aborts.
        """
        assert self.ends == now
        self.ends = None
        finished = []
        for segment in list(self.running):
            sampled = self.after(segment)
            segment.computed += segment.scheduled
            segment.versions += [self.version] * (sampled - segment.sampled)
            segment.sampled = sampled
            segment.scheduled, segment.prefilling = 0, False
            if segment.sampled == segment.until or self.has_had_its_share(segment):
                self.leave_running(segment)
                if segment.leaving is None:
                    finished.append(segment)
        leaving = [segment for segment in self.running if segment.leaving is not None]
        for segment in sorted(leaving, key=lambda segment: segment.leaving or 0):
            self.leave_running(segment)
        return finished

    def has_had_its_share(self, segment: Segment) -> bool:
        return (
            segment.allowance is not None
            and segment.sampled - segment.resumed_from >= segment.allowance
        )

    # What always holds

    def check(self) -> None:
        """Right after a pass."""
        engine = self.engine
        assert len(self.running) <= engine.max_seqs
        assert sum(segment.scheduled for segment in self.running) <= engine.max_batched_tokens
        held = [block for block in self.pool if block.holders]
        assert len(self.free) + len(held) == len(self.pool)
        assert {*self.free, *held} == {*self.pool}
        holding = Counter(id(block) for segment in self.running for block in segment.blocks)
        assert holding == {id(block): block.holders for block in held}
        numbers = [segment.number for segment in self.running + self.waiting]
        assert numbers == sorted(numbers), "first come, first served"
        for segment in self.running:
            assert segment.computed < segment.known
            assert segment.computed + segment.scheduled <= segment.known
            assert len(segment.blocks) == self.blocks_for(segment.computed + segment.scheduled)
            for number, block in enumerate(segment.blocks):
                end = (number + 1) * engine.block_tokens
                full = engine.prefix_caching and end <= segment.computed + segment.scheduled
                assert block.tokens == (segment.tokens[:end] if full else None)
        for segment in self.running + self.waiting:
            assert segment.sampled < segment.until
            assert segment.recomputed_tokens <= segment.prefill_tokens
        for segment in self.waiting:
            assert (segment.computed, segment.scheduled, segment.blocks) == (0, 0, [])
        if not engine.prefix_caching:
            assert not any(self.cached.values())
