"""A world that passes everything on to another one, and holds the laws of worlds against it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise

from simulator.plan import Layout, Placement
from simulator.rollout import Key, Rollout, Stay
from simulator.world import ClusterShape, Ended, Event, Synced, TrainBatch, Trained
from tests.conformance.arenas import Arena

NEARLY_S = 1e-9


class Monitor:
    """Stands between the loop and a world; a violation is an AssertionError where it happens."""

    def __init__(self, arena: Arena) -> None:
        self.world = arena.world
        self.name = arena.world.name
        self.shape: ClusterShape = arena.world.shape
        self.version = 0
        self.submitted = self.ended = self.resumed = self.aborted = 0
        self._arena = arena
        self._now_s = arena.world.now_s
        self._flying: dict[Key, Rollout] = {}
        self._allowed: dict[Key, int | None] = {}
        self._before: dict[Key, int] = {}  # tokens when the stay began
        self._reached: dict[tuple[int, int, int], int] = {}  # by group, index, attempt
        self._prompts: dict[int, int] = {}
        self._made: dict[Key, tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...]]] = {}
        self._cold: dict[tuple[int, int], list[int]] = defaultdict(list)  # missing prompt tokens
        self._trained: set[tuple[int, int, int]] = set()
        self._updating: int | None = None
        self._final = True
        self._updates = 0
        self._unsynced = self._syncing = False

    @property
    def now_s(self) -> float:
        now_s = self.world.now_s
        assert now_s >= self._now_s, "the clock runs backwards"
        self._now_s = now_s
        return now_s

    @property
    def idle(self) -> bool:
        return not self._flying and self._updating is None and not self._syncing

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        asked: set[Key] = set()
        for rollout in rollouts:
            assert rollout.key not in asked | self._flying.keys(), f"{rollout} is in flight twice"
            asked.add(rollout.key)
            assert rollout.allowance is None or rollout.allowance > 0
            assert not rollout.finished
            reached = self._reached.get((*rollout.key, rollout.attempt), 0)
            assert rollout.new_tokens == reached, "tokens were lost between two stays"
            self._before[rollout.key] = reached
            self._allowed[rollout.key] = rollout.allowance
            self.resumed += reached > 0
            if self._arena.tokens and reached:
                self._made[rollout.key] = self._tokens(rollout)
        self.world.submit(rollouts, placement)
        self._flying |= {rollout.key: rollout for rollout in rollouts}
        self.submitted += len(rollouts)

    def abort(self, keys: Collection[Key] | None = None) -> list[Stay]:
        asked = [*self._flying] if keys is None else [*keys]
        stopped = self.world.abort(keys)
        assert [stay.key for stay in stopped] == sorted(asked)
        for stay in stopped:
            self._end(stay)
        self.aborted += len(stopped)
        return stopped

    def foresee(self, rollout: Rollout) -> int | None:
        return self.world.foresee(rollout)

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        assert self._updating is None, "two updates at once"
        if self.shape.colocated:
            assert not self._flying, "an update begins while rollouts are in flight"
        assert batch.step == self._updates
        for group in batch.groups:
            assert len({r.attempt for r in group.rollouts}) == 1
            for rollout in group.rollouts:
                self._check_trainable(rollout)
        self._updating, self._final = batch.step, batch.final
        self.world.train(batch, layout)

    def sync_weights(self) -> None:
        assert self._unsynced, "a sync without new weights"
        if self.shape.colocated:
            assert not self._flying, "a sync while rollouts are in flight on the GPUs it needs"
        self._syncing = True
        self.world.sync_weights()

    def wait(self, until_s: float | None = None) -> list[Event]:
        events = self.world.wait(until_s)
        now_s = self.now_s
        assert events or (until_s is not None and now_s >= until_s - NEARLY_S)
        assert [_rank(event) for event in events] == sorted(_rank(event) for event in events)
        for event in events:
            if isinstance(event, Ended):
                assert event.stay.ending != "aborted"
                assert event.stay.end_s <= now_s + NEARLY_S
                self._end(event.stay)
                continue
            ends = [(phase.start_s, phase.end_s) for phase in event.phases]
            assert all(start <= end <= now_s + NEARLY_S for start, end in ends)
            assert all(a[1] <= b[0] + NEARLY_S for a, b in pairwise(ends))
            if isinstance(event, Trained):
                assert event.step == self._updating
                self._updating, self._unsynced = None, self._unsynced or self._final
                self._updates += self._final
            else:
                self._synced(event)
        return events

    # Inside

    def _synced(self, event: Synced) -> None:
        assert self._syncing
        self._syncing = self._unsynced = False
        self.version = self._updates
        # The caches were empty when this version began, so of every prompt that a replica saw,
        # some rollout computed all of it.
        for (group, replica), missing in self._cold.items():
            assert min(missing) == 0, f"group {group} found old keys on replica {replica}"
        self._cold.clear()

    def _end(self, stay: Stay) -> None:
        """A stay is over."""
        rollout = self._flying.pop(stay.key)
        self.ended += 1
        before, allowed = self._before.pop(stay.key), self._allowed.pop(stay.key)
        sampled, total = stay.new_tokens, before + stay.new_tokens
        assert stay.attempt == rollout.attempt
        assert stay.prompt_tokens == self._prompts.setdefault(stay.group, stay.prompt_tokens) > 0
        assert total <= self._arena.cap
        assert stay.start_s <= stay.end_s + NEARLY_S
        assert 0 <= stay.replica < self.shape.replicas
        versions = [segment.version for segment in stay.segments]
        assert versions == sorted(set(versions))
        assert all(segment.tokens > 0 for segment in stay.segments)
        assert set(versions) <= {*range(self.version + 1)}
        if stay.finished:
            assert sampled > 0
            assert stay.reward is not None
            assert (total == self._arena.cap) or stay.ending == "stop"
        else:
            assert stay.reward is None
            assert (sampled == allowed) == (stay.ending == "budget")
        assert allowed is None or sampled <= allowed
        self._reached[(*stay.key, stay.attempt)] = total
        self._check_prefill(stay, before, sampled)
        if self._arena.tokens:
            self._check_tokens(rollout, before, total)

    def _check_prefill(self, stay: Stay, before: int, sampled: int) -> None:
        """A stay computes what it knows, but for whole blocks of the prompt that its group has."""
        assert 0 <= stay.recomputed_tokens <= stay.prefill_tokens
        assert stay.recomputed_tokens == 0 or stay.preemptions > 0
        if stay.preemptions or not sampled:
            if stay.prefill_tokens:  # part of a prefill, which others may have found
                self._cold[stay.group, stay.replica].append(0)
            return
        found = stay.prompt_tokens + before - stay.prefill_tokens
        block = self._arena.block_tokens
        if block is None:
            assert found == 0
            return
        # Where a chunk leaves one token over, the simulator decodes that one.
        odd = found % block
        assert odd == 0 or (odd == 1 and not self._arena.tokens), (stay, found)
        found -= odd
        assert 0 <= found <= stay.prompt_tokens, "a resumed rollout found its old tokens' keys"
        self._cold[stay.group, stay.replica].append(found)

    def _tokens(self, rollout: Rollout) -> tuple[tuple[int, ...], ...]:
        assert self._arena.tokens is not None
        tokens = self._arena.tokens(rollout)
        return tokens.ids, tokens.log_probs, tokens.versions  # type: ignore[return-value]

    def _check_tokens(self, rollout: Rollout, before: int, total: int) -> None:
        """Tokens and log-probabilities of earlier stays are untouched; the new ones are of the
        version that the replicas hold."""
        ids, log_probs, versions = self._tokens(rollout)
        assert len(ids) == len(log_probs) == len(versions) == total
        old = self._made.pop(rollout.key, ((), (), ()))
        assert (ids[:before], log_probs[:before], versions[:before]) == old
        assert set(versions[before:]) <= {self.version}
        assert all(value <= 0 for value in log_probs)

    def _check_trainable(self, rollout: Rollout) -> None:
        identity = (*rollout.key, rollout.attempt)
        assert identity not in self._trained, f"{rollout} is trained on twice"
        self._trained.add(identity)
        assert rollout.finished
        assert rollout.key not in self._flying
        versions = [segment.version for segment in rollout.segments]
        assert versions == sorted(set(versions))
        assert versions[-1] <= self.version
        assert sum(segment.tokens for segment in rollout.segments) == rollout.new_tokens
        if self._arena.tokens:
            spread = [s.version for s in rollout.segments for _ in range(s.tokens)]
            assert [*self._tokens(rollout)[2]] == spread


def _rank(event: Event) -> tuple[int, int, int]:
    if isinstance(event, Ended):
        return 0, *event.stay.key
    return (1 if isinstance(event, Trained) else 2), 0, 0
