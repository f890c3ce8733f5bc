"""A replica, one iteration at a time: the specification of continuous batching written out plainly.

Nothing here is clever. Every block that a rollout holds is an entry of a list, every total is
summed anew when it is asked for, and what must always hold is asserted after every pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.cluster.replica import EngineSpec
from simulator.costs.base import CostModel, Iteration
from simulator.costs.clock import to_ticks
from simulator.rollout import Rollout


@dataclass(eq=False)
class Stay:
    """One rollout on one replica, from submit to finish or abort."""

    rollout: Rollout
    number: int  # counts submissions, over all replicas
    replica: int
    prompt: int
    length: int  # of the whole response
    reward: float
    sampled: int  # response tokens so far
    resumed_from: int  # response tokens when it was submitted
    allowance: int | None  # response tokens that it may sample
    versions: list[int] = field(default_factory=list)  # of each token sampled in this stay
    computed: int = 0  # tokens in the KV cache
    blocks: list[bool] = field(default_factory=list)  # one a block held: True if it is shared
    scheduled: int = 0  # tokens of the iteration under way
    prefilling: bool = False  # in the iteration under way
    leaving: bool = False  # aborted in the iteration under way
    start: int | None = None
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0

    @property
    def group(self) -> int:
        return self.rollout.group

    @property
    def known(self) -> int:
        """Prompt and response tokens so far, computed or not."""
        return self.prompt + self.sampled

    @property
    def private_blocks(self) -> int:
        return self.blocks.count(False)


@dataclass
class Entry:
    """The leading prompt blocks of a group in the prefix cache."""

    blocks: int = 0
    idle_since: int = 0  # an instant; read only while no rollout of the group runs


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
        self.pool = engine.kv_tokens // engine.block_tokens
        self.running: list[Stay] = []
        self.waiting: list[Stay] = []
        self.cache: dict[int, Entry] = {}
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
        blocks = 0
        while blocks * self.engine.block_tokens < tokens:
            blocks += 1
        return blocks

    def is_held(self, group: int) -> bool:
        return any(stay.group == group for stay in self.running)

    def used_blocks(self) -> int:
        private = sum(stay.private_blocks for stay in self.running)
        held = sum(entry.blocks for group, entry in self.cache.items() if self.is_held(group))
        return private + held

    def idle_blocks(self) -> int:
        return sum(e.blocks for group, e in self.cache.items() if not self.is_held(group))

    def free_blocks(self) -> int:
        """Blocks in nobody's use, those of idle entries included."""
        return self.pool - self.used_blocks()

    def evict(self) -> None:
        """Idle entries go, longest idle first, until those left fit into the free blocks."""
        while self.idle_blocks() > self.free_blocks():
            idle = [g for g, e in self.cache.items() if not self.is_held(g) and e.blocks > 0]
            del self.cache[min(idle, key=lambda group: (self.cache[group].idle_since, group))]

    def forget(self) -> None:
        """The cache is of old weights: what nobody holds is gone."""
        self.cache = {group: e for group, e in self.cache.items() if self.is_held(group)}

    def leave_running(self, stay: Stay, now: int) -> None:
        """Frees the rollout's blocks; its group's entry becomes idle if nobody holds it now."""
        self.running.remove(stay)
        stay.blocks = []
        if stay.group in self.cache and not self.is_held(stay.group):
            self.cache[stay.group].idle_since = now

    # The scheduling pass

    def begin(self, now: int) -> None:
        """Makes a pass and starts its iteration."""
        assert self.ends is None
        assert self.rollouts > 0
        self._preempted = []
        budget = self.schedule_running(self.engine.max_batched_tokens, now)
        if not self._preempted:
            self.admit(budget)
        self.evict()
        work = self.work()
        if work.rollouts == 0:  # only preemptions: no forward pass, the next one follows at once
            ticks = 0
        elif work.prefill_tokens:
            ticks = to_ticks(self.cost.mixed_iteration_s(work))
        else:
            ticks = self.cost.decode_curve(work.rollouts).ticks(work.context_tokens)
        self.ends = now + ticks
        for stay in self.running:
            if stay.scheduled and stay.start is None:
                stay.start = now
            if stay.prefilling:
                stay.prefill_tokens += stay.scheduled
                if stay.preemptions:
                    stay.recomputed_tokens += stay.scheduled
        self.passes.append(
            Pass(
                self.number,
                now,
                self.ends,
                work,
                tuple((s.rollout.key, s.scheduled) for s in self.running if s.scheduled),
                tuple(self._preempted),
                self.free_blocks(),
            )
        )
        self.check()

    def schedule_running(self, budget: int, now: int) -> int:
        """Step 1 of the pass; returns the budget left."""
        position = 0
        while position < len(self.running) and budget > 0:
            stay = self.running[position]
            tokens = min(stay.known - stay.computed, budget)
            needed = self.blocks_for(stay.computed + tokens) - len(stay.blocks)
            while needed > self.free_blocks() and stay in self.running:
                self.preempt(self.running[-1], now)
            if stay not in self.running:
                break
            prefilling = stay.known - stay.computed > 1
            self.schedule(stay, tokens, prefilling)
            budget -= tokens
            position += 1
        return budget

    def preempt(self, stay: Stay, now: int) -> None:
        assert stay.scheduled == 0
        self.leave_running(stay, now)
        stay.computed = 0
        stay.preemptions += 1
        self.waiting.insert(0, stay)
        self._preempted.append(stay.rollout.key)

    def admit(self, budget: int) -> None:
        """Step 2 of the pass."""
        while budget > 0 and len(self.running) < self.engine.max_seqs and self.waiting:
            stay = self.waiting[0]
            hits = self.hits(stay)
            free = self.free_blocks()
            if stay.group in self.cache and not self.is_held(stay.group):
                free -= self.cache[stay.group].blocks
            if self.blocks_for(stay.known) - hits > free:
                return
            self.waiting.pop(0)
            self.running.append(stay)
            stay.blocks = [True] * hits
            stay.computed = hits * self.engine.block_tokens
            tokens = min(stay.known - stay.computed, budget)
            self.schedule(stay, tokens, prefilling=True)
            budget -= tokens
            self.evict()

    def hits(self, stay: Stay) -> int:
        """Leading prompt blocks to be had from the cache; one token is always left to compute."""
        if not self.engine.prefix_caching or stay.group not in self.cache:
            return 0
        return min(self.cache[stay.group].blocks, (stay.known - 1) // self.engine.block_tokens)

    def schedule(self, stay: Stay, tokens: int, prefilling: bool) -> None:
        """Takes the blocks of a rollout's next tokens, and grows its group's entry by the prompt
        blocks that they fill."""
        stay.scheduled = tokens
        stay.prefilling = prefilling
        reached = stay.computed + tokens
        while len(stay.blocks) * self.engine.block_tokens < reached:
            stay.blocks.append(False)
        if not self.engine.prefix_caching:
            return
        entry = self.cache.setdefault(stay.group, Entry())
        while (entry.blocks + 1) * self.engine.block_tokens <= min(reached, stay.prompt):
            assert not stay.blocks[entry.blocks]
            stay.blocks[entry.blocks] = True
            entry.blocks += 1

    def work(self) -> Iteration:
        """The iteration's work, summed token by token."""
        context = pairs = prefill = prefill_rollouts = prefill_context = rollouts = 0
        for stay in self.running:
            if stay.scheduled == 0:
                continue
            rollouts += 1
            context += stay.computed + stay.scheduled
            if stay.prefilling:
                prefill_rollouts += 1
                prefill_context += stay.computed + stay.scheduled
                for token in range(stay.computed, stay.computed + stay.scheduled):
                    prefill += 1
                    pairs += token + 1  # a token attends to those before it and to itself
        return Iteration(rollouts, context, prefill, pairs, prefill_rollouts, prefill_context)

    # The end of an iteration

    def after(self, stay: Stay) -> int:
        """Response tokens that a rollout has once the iteration under way has ended."""
        samples = stay.scheduled > 0 and stay.computed + stay.scheduled == stay.known
        return stay.sampled + int(samples)

    def end(self, now: int) -> list[Stay]:
        """Ends the iteration; returns the finished, without those that an abort has returned."""
        assert self.ends == now
        self.ends = None
        finished = []
        for stay in list(self.running):
            sampled = self.after(stay)
            stay.computed += stay.scheduled
            stay.versions += [self.version] * (sampled - stay.sampled)
            stay.sampled = sampled
            stay.scheduled, stay.prefilling = 0, False
            if stay.leaving:
                self.leave_running(stay, now)
            elif stay.sampled == stay.length or self.has_had_its_share(stay):
                self.leave_running(stay, now)
                finished.append(stay)
        return finished

    def has_had_its_share(self, stay: Stay) -> bool:
        return stay.allowance is not None and stay.sampled - stay.resumed_from >= stay.allowance

    # What always holds

    def check(self) -> None:
        """Right after a pass."""
        engine = self.engine
        assert len(self.running) <= engine.max_seqs
        assert sum(stay.scheduled for stay in self.running) <= engine.max_batched_tokens
        assert 0 <= self.used_blocks() <= self.pool
        assert self.used_blocks() + self.idle_blocks() <= self.pool
        numbers = [stay.number for stay in self.running + self.waiting]
        assert numbers == sorted(numbers), "first come, first served"
        for stay in self.running:
            assert stay.computed < stay.known
            assert stay.computed + stay.scheduled <= stay.known
            assert len(stay.blocks) == self.blocks_for(stay.computed + stay.scheduled)
            shared = stay.blocks.count(True)
            assert stay.blocks[:shared] == [True] * shared, "what is shared is in front"
            assert shared == 0 or shared <= self.cache[stay.group].blocks
        for stay in self.running + self.waiting:
            assert stay.sampled < stay.length
            assert stay.recomputed_tokens <= stay.prefill_tokens
        for stay in self.waiting:
            assert (stay.computed, stay.scheduled, stay.blocks) == (0, 0, [])
        if not engine.prefix_caching:
            assert not self.cache
