"""Prompts, tokens and rewards of a real run's rollouts by group and index; loops see counts."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from rollcast.engine.edges import Response, SampledGroup, SampledRollout
from rollcast.engine.frontend import Finished, Order, request_name
from rollcast.engine.log import Failure
from rollcast.engine.tasks.base import Prompt, Task
from rollcast.simulator.core.rollout import Ending, Key, LateReward, Rollout, Segment, VersionTokens
from rollcast.simulator.core.world import TrainBatch, TrainGroup
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop.accounting import reward_of

SYNC_SAMPLE, SYNC_TOKENS = 4, 48
"""Sequences that each weight sync is checked on, and how much of each: wrong weights show in any
token, and a replica that checks samples nothing."""


@dataclass(slots=True)
class Tokens:
    """The tokens of a rollout.

    ids, log_probs, versions: of each response token, the version being that of the weights. The
    environment's observations are among them, with log-probability 0 and the version before.
    answers: where each observation begins and ends in the response. asking: the turn is over and
    the environment has not answered. earned: sum of the answers' rewards. ending: how the rollout
    ended, before its segment has said so.
    """

    attempt: int = 0
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    answers: tuple[tuple[int, int], ...] = ()
    asking: bool = False
    earned: float = 0.0
    ending: Ending | None = None

    @property
    def turn(self) -> int:
        """The number of its turn, from 0."""
        return len(self.answers)

    @property
    def turn_start(self) -> int:
        """The token that the turn begins with."""
        return self.answers[-1][1] if self.answers else 0

    @property
    def observation_tokens(self) -> int:
        """Tokens of all observations."""
        return sum(end - start for start, end in self.answers)

    @property
    def observed(self) -> tuple[bool, ...]:
        """Whether each token is an observation's; empty without observations."""
        if not self.answers:
            return ()
        mask = [False] * len(self.ids)
        for start, end in self.answers:
            mask[start:end] = [True] * (end - start)
        return tuple(mask)

    @property
    def turns(self) -> list[tuple[int, ...]]:
        """The sampled tokens of each turn that is over."""
        starts = [0, *(end for _, end in self.answers)]
        ends = [start for start, _ in self.answers]
        if self.asking:
            ends.append(len(self.ids))
        return [self.ids[start:end] for start, end in zip(starts, ends, strict=False)]

    def observe(self, tokens: tuple[int, ...]) -> None:
        """Adds an observation; the next turn begins."""
        start = len(self.ids)
        self.ids += tokens
        self.log_probs += (0.0,) * len(tokens)
        self.versions += self.versions[-1:] * len(tokens)
        self.answers += ((start, len(self.ids)),)


class Responses:
    """Prompts and tokens of rollouts that are not trained on yet.

    seed: of prompts and of every rollout's random stream, which depends only on (seed, group,
    index, attempt) and its tokens. asked: the prompt's number by group. tokens: by (group, index),
    as of the end of the last segment or the environment's last answer.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.asked: dict[int, int] = {}
        self.tokens: dict[Key, Tokens] = {}
        self.task = task
        self.seed = seed
        self._prompts: dict[int, Prompt] = {}
        self._late: list[tuple[Key, int, LateReward]] = []

    def begin(self, rollout: Rollout) -> Tokens:
        """The tokens of a rollout that is submitted. Raises RunError where the loop knows another
        number of them."""
        self.asked[rollout.group] = rollout.prompt
        tokens = self.tokens.get(rollout.key)
        if tokens is None or tokens.attempt != rollout.attempt:
            tokens = self.tokens[rollout.key] = Tokens(rollout.attempt)
        sampled = len(tokens.ids) - tokens.observation_tokens
        if sampled != rollout.new_tokens:
            raise RunError(f"{rollout} has {sampled} tokens in the engine's world")
        return tokens

    def order(self, rollout: Rollout) -> Order:
        """The order for a rollout of one turn. Raises as `begin`."""
        self.begin(rollout)
        return self.order_to(rollout, self._cap(rollout))

    def order_to(self, rollout: Rollout, cap: int, turn_below_tokens: float = 0) -> Order:
        """The order for a response of at most ``cap`` tokens. See `engine.frontend.Order`."""
        tokens, name = self.tokens[rollout.key], request_name(rollout.key)
        return Order(
            rollout.key,
            rollout.attempt,
            self.prompt(rollout.group).token_ids,
            tokens.ids,
            tokens.log_probs,
            cap,
            zlib.crc32(f"{self.seed} {name} {rollout.attempt}".encode()),
            turn_below_tokens,
        )

    def finish(
        self, rollout: Rollout, finished: Finished, replica: int, zero_s: float = 0.0
    ) -> Segment:
        """Takes in the result of a rollout of one turn; returns its segment. zero_s: the front
        end's clock at the run's 0."""
        self.take_in(rollout, finished)
        ending, reward = self._ending(finished.response), None
        if ending in ("stop", "length"):
            text = self.task.decode(self.tokens[rollout.key].ids)
            reward = self.task.reward(self.prompt(rollout.group), text)
        return self.segment(rollout, finished, replica, zero_s, ending, reward)

    def failures(self, now_s: float) -> Iterator[Failure]:
        """Of rewards that were late, and have been asked for since the last call."""
        late, self._late = self._late, []
        for key, turn, reward in late:
            if reward.failure is not None:
                yield Failure(now_s, *key, turn, reward.failure)
            elif not reward.known:
                self._late.append((key, turn, reward))

    def take_in(self, rollout: Rollout, finished: Finished) -> int:
        """Takes in a result; returns the number of new tokens."""
        response, tokens = finished.response, self.tokens[rollout.key]
        made = [version for version, count in response.tokens_by_version for _ in range(count)]
        tokens.versions += tuple(made)
        tokens.ids, tokens.log_probs = response.token_ids, response.log_probs
        if len(tokens.versions) != len(tokens.ids):
            raise RunError(f"{rollout}: the engine lost or invented tokens")
        return len(made)

    def segment(
        self,
        rollout: Rollout,
        finished: Finished,
        replica: int,
        zero_s: float,
        ending: Ending,
        reward: float | None,
    ) -> Segment:
        """The segment of a result."""
        self.note(rollout.key, reward)
        return Segment(
            rollout.group,
            rollout.index,
            rollout.attempt,
            replica,
            len(self.prompt(rollout.group).token_ids),
            tuple(
                VersionTokens(version, count)
                for version, count in finished.response.tokens_by_version
            ),
            ending,
            finished.start_s - zero_s,
            finished.end_s - zero_s,
            finished.prefill_tokens,
            finished.recomputed_tokens,
            finished.preemptions,
            reward,
            finished.shared,
        )

    def nothing(
        self,
        rollout: Rollout,
        replica: int,
        now_s: float,
        ending: Ending = "aborted",
        reward: float | None = None,
    ) -> Segment:
        """The segment of a rollout that is stopped, or ends, without an iteration."""
        self.note(rollout.key, reward)
        prompt = len(self.prompt(rollout.group).token_ids)
        key = (rollout.group, rollout.index, rollout.attempt)
        return Segment(*key, replica, prompt, (), ending, now_s, now_s, reward=reward)

    def note(self, key: Key, reward: float | None) -> None:
        """Remembers a late reward for `failures`."""
        if isinstance(reward, LateReward):
            self._late.append((key, self.tokens[key].turn, reward))

    def sampled(self, group: TrainGroup) -> SampledGroup:
        """A group for the trainer, without rollouts that have no token. Raises RunError for a
        rollout without a reward."""
        rollouts = []
        for rollout in group.rollouts:
            tokens = self.tokens[rollout.key]
            reward = reward_of(rollout)
            if not tokens.ids:
                continue
            rollouts.append(
                SampledRollout(
                    tokens.ids, tokens.log_probs, tokens.versions, reward, tokens.observed
                )
            )
        prompt = self.prompt(group.group).token_ids
        return SampledGroup(prompt, tuple(rollouts), group.baseline_rewards)

    def sample(self, batch: TrainBatch, longest: int) -> list[list[int]]:
        """The last ``longest`` tokens of a few sequences of a batch, to check weight syncs on."""
        most = min(longest, SYNC_TOKENS)
        return [
            [*self.prompt(group.group).token_ids, *self.tokens[rollout.key].ids][-most:]
            for group in batch.groups[:SYNC_SAMPLE]
            for rollout in group.rollouts[:1]
            if self.tokens[rollout.key].ids
        ]

    def keep_only(self, groups: Collection[int]) -> None:
        """Deletes prompts and tokens of all other groups, which are trained or dropped."""
        kept = set(groups)
        self._prompts = {group: p for group, p in self._prompts.items() if group in kept}
        self.asked = {group: number for group, number in self.asked.items() if group in kept}
        self.tokens = {key: tokens for key, tokens in self.tokens.items() if key[0] in kept}

    def lay_out(self, prompts: Mapping[int, Prompt]) -> None:
        """Has groups ask these prompts, and not the training's."""
        self._prompts |= prompts

    def forget(self, groups: Collection[int]) -> int:
        """Deletes these groups; returns the number of their rewards that failed."""
        late = [reward for key, _, reward in self._late if key[0] in groups]
        self._late = [entry for entry in self._late if entry[0][0] not in groups]
        self.keep_only(self.asked.keys() - set(groups))
        return sum(reward.failure is not None for reward in late)

    def load(self, asked: Mapping[int, int], tokens: Mapping[Key, Tokens]) -> None:
        """Takes up another's; the task makes the prompts again."""
        self.asked, self.tokens, self._prompts = dict(asked), dict(tokens), {}

    def _cap(self, rollout: Rollout) -> int:
        cap = self.task.max_new_tokens
        if rollout.allowance is None:
            return cap
        return min(cap, rollout.new_tokens + rollout.allowance)

    def prompt(self, group: int) -> Prompt:
        """The prompt of a group."""
        if group not in self._prompts:
            number = self.asked.get(group, group)
            self._prompts[group] = self.task.prompt(number, self.seed)
        return self._prompts[group]

    def _ending(self, response: Response) -> Ending:
        if response.finish_reason is None:
            return "aborted"
        if response.finish_reason != "length":
            return "stop"
        return "length" if len(response.token_ids) >= self.task.max_new_tokens else "budget"
