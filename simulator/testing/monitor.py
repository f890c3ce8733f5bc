"""A watched world that checks every call of the loop and every answer of the world.

PYTEST_DONT_REWRITE: the sentences are whole as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Protocol

from rollcast.simulator.core.plan import Layout, Placement
from rollcast.simulator.core.rollout import FAILED, Key, Rollout, Segment
from rollcast.simulator.core.world import Ended, Event, Synced, TrainBatch, Trained, World
from rollcast.simulator.testing.watched import Watched

NEARLY_S = 1e-9


class Tokens(Protocol):
    """Per response token of a rollout: its id, the log-probability that it was sampled with, and
    the version of the weights that sampled it."""

    @property
    def ids(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def log_probs(self) -> tuple[float, ...]: ...  # noqa: D102
    @property
    def versions(self) -> tuple[int, ...]: ...  # noqa: D102


class Monitor(Watched):
    """Stands between the loop and a world; a violation raises AssertionError where it happens.

    cap: on a response, tokens. block_tokens: of the world's prefix cache; None without one.
    tokens: gives a rollout's tokens, if the world keeps them.

    Counts rollouts ``ended`` and ``resumed`` and segments ``aborted``; ``version``: of the
    replicas' weights.
    """

    def __init__(
        self,
        world: World,
        cap: int,
        block_tokens: int | None = None,
        tokens: Callable[[Rollout], Tokens] | None = None,
    ) -> None:
        super().__init__(world)
        self.version = self.ended = self.resumed = self.aborted = 0
        self._cap, self._block, self._tokens_of = cap, block_tokens, tokens
        self._now_s = world.now_s
        self._flying: dict[Key, Rollout] = {}
        self._allowed: dict[Key, int | None] = {}
        self._before: dict[Key, int] = {}  # tokens when the segment began
        self._oracle: dict[Key, int | None] = {}
        self._reached: dict[tuple[int, int, int], int] = {}  # by group, index, attempt
        self._turns: dict[tuple[int, int, int], tuple[int, int]] = {}  # turn, tokens observed
        self._failed = False  # whether an environment ever ended a rollout
        self._prompts: dict[int, int] = {}
        self._made: dict[Key, tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...]]] = {}
        # Tokens that each segment found in a replica's cache since the last sync, by prompt.
        self._found: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._through: set[int] = set()  # prompts in flight at the last sync
        self._ended_here: set[tuple[Key, int, int]] = set()  # key, attempt, replica; since then
        self._trained: set[tuple[int, int, int]] = set()
        self._updating: int | None = None
        self._final = True
        self._updates = 0
        self._unsynced = self._syncing = False

    @property
    def now_s(self) -> float:
        """The world's clock."""
        now_s = self.world.now_s
        assert now_s >= self._now_s, "the clock runs backwards"
        self._now_s = now_s
        return now_s

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._flying and self._updating is None and not self._syncing

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """See `World.submit`."""
        asked: set[Key] = set()
        for rollout in rollouts:
            assert rollout.key not in asked | self._flying.keys(), f"{rollout} is in flight twice"
            asked.add(rollout.key)
            assert rollout.allowance is None or rollout.allowance > 0, (
                f"{rollout} was submitted with {rollout.allowance} tokens allowed"
            )
            assert not rollout.finished, f"{rollout} was submitted again"
            reached = self._reached.get((*rollout.key, rollout.attempt), 0)
            assert rollout.new_tokens == reached, (
                f"tokens were lost between two segments: {rollout} had {reached}"
            )
            self._before[rollout.key] = reached
            self._allowed[rollout.key] = rollout.allowance
            self.resumed += reached > 0
            self._oracle[rollout.key] = self.world.oracle_tokens(rollout)
            if self._tokens_of and reached:
                self._made[rollout.key] = self._tokens(rollout)
        super().submit(rollouts, placement)
        self._flying |= {rollout.key: rollout for rollout in rollouts}

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """See `World.abort`."""
        asked = [*self._flying] if keys is None else [*keys]
        stopped = super().abort(keys, for_good)
        assert [segment.key for segment in stopped] == sorted(asked), (
            f"an abort of {len(asked)} rollouts returned {len(stopped)} segments, or not by key"
        )
        for segment in stopped:
            self._end(segment)
        self.aborted += len(stopped)
        return stopped

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """See `World.train`."""
        assert self._updating is None, "two updates at once"
        if self.shape.colocated:
            assert not self._flying, "an update begins while rollouts are in flight"
        assert batch.step == self._updates, (
            f"the batch of step {batch.step} is update {self._updates}"
        )
        for group in batch.groups:
            attempts = {r.attempt for r in group.rollouts}
            assert len(attempts) == 1 or self._failed, (
                f"group {group.group} mixes attempts {sorted(attempts)}"
            )
            for rollout in group.rollouts:
                self._check_trainable(rollout)
        self._updating, self._final = batch.step, batch.final
        super().train(batch, layout)

    def sync_weights(self) -> None:
        """See `World.sync_weights`."""
        assert self._unsynced, "a sync without new weights"
        if self.shape.colocated:
            assert not self._flying, "a sync while rollouts are in flight on the GPUs it needs"
        self._syncing = True
        super().sync_weights()

    def wait(self, until_s: float | None = None) -> list[Event]:
        """See `World.wait`."""
        events = super().wait(until_s)
        now_s = self.now_s
        assert events or (until_s is not None and now_s >= until_s - NEARLY_S), (
            "a wait ended before its time with no event"
        )
        ranks = [_rank(event) for event in events]
        assert ranks == sorted(ranks), "events of one instant are out of order"
        for event in events:
            if isinstance(event, Ended):
                assert event.segment.ending != "aborted", f"{event.segment} came as an event"
                assert event.segment.end_s <= now_s + NEARLY_S, (
                    f"{event.segment} ends in the future"
                )
                if event.segment.ending == "turn":
                    self._turned(event.segment)
                else:
                    self._end(event.segment)
                continue
            ends = [(phase.start_s, phase.end_s) for phase in event.phases]
            assert all(start <= end <= now_s + NEARLY_S for start, end in ends), (
                f"a phase ends before it starts, or in the future: {event}"
            )
            assert all(a[1] <= b[0] + NEARLY_S for a, b in pairwise(ends)), (
                f"phases of one trainer overlap: {event}"
            )
            if isinstance(event, Trained):
                assert event.step == self._updating, (
                    f"an update of step {event.step} ended; under way is {self._updating}"
                )
                self._updating, self._unsynced = None, self._unsynced or self._final
                self._updates += self._final
            else:
                self._synced(event)
        return events

    # Inside

    def _synced(self, event: Synced) -> None:
        assert self._syncing, "a weight sync ended that was not under way"
        self._syncing = self._unsynced = False
        self.version = self._updates
        # The caches were empty when this version began but for what was in flight, so of every
        # other prompt that a replica saw, some rollout computed all of it, or still does.
        flying = {rollout.prompt for rollout in self._flying.values()}
        for (prompt, replica), blocks in self._found.items():
            cold = prompt in self._through | flying or min(blocks) == 0
            assert cold, f"all that answered prompt {prompt} found old keys on replica {replica}"
        self._found.clear()
        self._ended_here.clear()
        self._through = flying

    def _turned(self, segment: Segment) -> None:
        """A turn ended; its rollout stays in flight."""
        rollout = self._flying[segment.key]
        assert segment.new_tokens > 0, f"{segment} had a turn without a token"
        self._check_segment(segment)
        self._check_turn(segment, rollout.prompt, self._before[segment.key])
        self._ended_here.add((segment.key, segment.attempt, segment.replica))
        self._before[segment.key] += segment.new_tokens
        allowed = self._allowed[segment.key]
        if allowed is not None:
            assert segment.new_tokens <= allowed, (
                f"{segment} has more than {allowed} tokens allowed"
            )
            self._allowed[segment.key] = allowed - segment.new_tokens

    def _check_segment(self, segment: Segment) -> None:
        name = (*segment.key, segment.attempt)
        turn, observed = self._turns.get(name, (0, 0))
        assert segment.turn >= turn, f"{segment} is of an earlier turn than {turn}"
        assert segment.observation_tokens >= observed, f"{segment} has lost what it observed"
        assert segment.turn > turn or segment.observation_tokens == observed, (
            f"{segment} observed something within a turn"
        )
        self._turns[name] = segment.turn, segment.observation_tokens
        for call in segment.calls:
            assert call.asked_s <= call.start_s <= call.end_s <= segment.end_s + NEARLY_S, (
                f"{segment} was away out of order: {call}"
            )

    def _end(self, segment: Segment) -> None:
        """A segment ended and its rollout left."""
        assert segment.key in self._flying, f"{segment} ended, but that rollout is not in flight"
        rollout = self._flying.pop(segment.key)
        self.ended += 1
        before, allowed = self._before.pop(segment.key), self._allowed.pop(segment.key)
        oracle = self._oracle.pop(segment.key)
        self._check_segment(segment)
        sampled, total = segment.new_tokens, before + segment.new_tokens
        assert segment.attempt == rollout.attempt, f"{segment} is of another attempt than {rollout}"
        prompt = self._prompts.setdefault(segment.group, segment.prompt_tokens)
        assert segment.prompt_tokens == prompt > 0, (
            f"{segment}: the prompt had {prompt} tokens before"
        )
        turns = segment.turn + 1
        most = turns * self._cap
        assert total <= most, f"{rollout} has {total} tokens in {turns} turns; the cap is {most}"
        assert segment.start_s <= segment.end_s + NEARLY_S, f"{segment} ends before it starts"
        away = segment.replica == -1 and not sampled
        assert away or 0 <= segment.replica < self.shape.replicas, (
            f"{segment} was on no replica of this world"
        )
        versions = [part.version for part in segment.tokens_by_version]
        assert versions == sorted(set(versions)), f"{segment}: versions do not rise"
        assert all(part.tokens > 0 for part in segment.tokens_by_version), (
            f"{segment}: an empty segment"
        )
        # While a sync is under way, a replica that has the new weights may go on before the others.
        newest = self._updates if self._syncing else self.version
        assert set(versions) <= {*range(newest + 1)}, (
            f"{segment} has tokens of weights that the replicas never had"
        )
        if segment.finished:
            self._failed |= segment.ending in FAILED
            assert sampled > 0 or segment.calls, f"{segment} finished without a token"
            assert segment.reward is not None, f"{segment} finished without a reward"
            assert turns > 1 or total == self._cap or segment.ending != "length", (
                f"{segment} was cut at {total} tokens; the cap is {self._cap}"
            )
            assert oracle in (None, total), (
                f"{rollout} finished with {total} tokens, but was to have {oracle}"
            )
        else:
            assert segment.reward is None, f"{segment} has a reward, unfinished"
            if segment.ending == "budget":
                spent = sampled == allowed or rollout.turn_allowance is not None
                assert spent, f"{segment} came to rest with {sampled} tokens of {allowed} allowed"
            elif sampled:
                assert sampled != allowed, f"{segment} went on with {sampled} tokens allowed"
        assert allowed is None or sampled <= allowed, (
            f"{segment} has {sampled} tokens, with {allowed} allowed"
        )
        self._reached[(*segment.key, segment.attempt)] = total
        self._check_turn(segment, rollout.prompt, before)
        self._ended_here.add((segment.key, segment.attempt, segment.replica))
        if self._tokens_of:
            self._check_tokens(rollout, before, total)

    def _check_turn(self, segment: Segment, prompt: int, before: int) -> None:
        """A segment prefills its context except for whole cached blocks: of the prompt, of its own
        response if it was on this replica with these weights, and of a response known to begin
        alike. Later turns are not checked; they may leave blocks to others."""
        if segment.turn:
            if segment.prefill_tokens:
                self._found[prompt, segment.replica].append(0)
            return
        assert 0 <= segment.recomputed_tokens <= segment.prefill_tokens, (
            f"{segment} recomputed more than it prefilled"
        )
        assert segment.recomputed_tokens == 0 or segment.preemptions > 0, (
            f"{segment} recomputed tokens without a preemption"
        )
        if segment.preemptions or not segment.new_tokens:
            if segment.prefill_tokens:  # part of a prefill, which others may have found
                self._found[prompt, segment.replica].append(0)
            return
        computed = segment.prompt_tokens + before - segment.prefill_tokens
        block = self._block
        if block is None:
            assert computed == 0, f"{segment} found {computed} tokens in a cache that is not there"
            return
        assert computed % block == 0, (
            f"{segment} found {computed} tokens, which are not whole blocks of {block}"
        )
        here_before = (segment.key, segment.attempt, segment.replica) in self._ended_here
        most = segment.prompt_tokens + (before if here_before else 0)
        assert 0 <= computed <= max(most, segment.shared.tokens), (
            f"{segment} found {computed} tokens, of which {most} may have been cached"
        )
        self._found[prompt, segment.replica].append(computed)

    def _tokens(
        self, rollout: Rollout
    ) -> tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...]]:
        assert self._tokens_of is not None
        tokens = self._tokens_of(rollout)
        return tokens.ids, tokens.log_probs, tokens.versions

    def _check_tokens(self, rollout: Rollout, before: int, total: int) -> None:
        """Earlier segments' tokens are unchanged; new ones are of the replicas' version."""
        ids, log_probs, versions = self._tokens(rollout)
        assert len(ids) == len(log_probs) == len(versions) == total, (
            f"{rollout} has {total} tokens, but the world keeps {len(ids)} tokens, "
            f"{len(log_probs)} log-probabilities and {len(versions)} versions"
        )
        old = self._made.pop(rollout.key, ((), (), ()))
        assert (ids[:before], log_probs[:before], versions[:before]) == old, (
            f"the {before} tokens that {rollout} had before this segment have changed"
        )
        assert set(versions[before:]) <= {self.version}, (
            f"{rollout} has new tokens of other weights than version {self.version}"
        )
        assert all(value <= 0 for value in log_probs), f"{rollout}: a probability above 1"

    def _check_trainable(self, rollout: Rollout) -> None:
        identity = (*rollout.key, rollout.attempt)
        assert identity not in self._trained, f"{rollout} is trained on twice"
        self._trained.add(identity)
        assert rollout.finished, f"{rollout} is trained on unfinished"
        assert rollout.key not in self._flying, f"{rollout} is trained on while it runs"
        versions = [part.version for part in rollout.tokens_by_version]
        assert versions == sorted(set(versions)), f"{rollout}: versions do not rise"
        assert versions[-1] <= self.version, f"{rollout} has tokens of weights to come"
        added = sum(part.tokens for part in rollout.tokens_by_version)
        assert added == rollout.new_tokens, f"{rollout} has {added} tokens by version"
        if self._tokens_of:
            spread = [s.version for s in rollout.tokens_by_version for _ in range(s.tokens)]
            assert [*self._tokens(rollout)[2]] == spread, (
                f"the world keeps other versions of {rollout}'s tokens than the loop"
            )


def _rank(event: Event) -> tuple[int, int, int]:
    if isinstance(event, Ended):
        return (0 if event.segment.ending == "turn" else 1), *event.segment.key
    return (2 if isinstance(event, Trained) else 3), 0, 0
