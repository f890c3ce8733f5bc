"""What the rollouts of a real run are made of: prompts, tokens and rewards, by group and index.

The loop sees counts alone; a world keeps the rest here, whatever processes its engines are in.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from engine.desk import Landed, Order, request_name
from engine.edges import Response, SampledGroup, SampledRollout
from engine.tasks.base import Prompt, Task
from simulator.errors import RunError
from simulator.rollout import Ending, Key, Rollout, Segment, Stay
from simulator.world import TrainBatch, TrainGroup

SYNC_SAMPLE, SYNC_TOKENS = 4, 48
"""Sequences that each weight sync is checked on, and how much of each: wrong weights show in any
token, and a replica that checks samples nothing."""


@dataclass(slots=True)
class Tokens:
    """What a rollout is made of.

    ids, log_probs and versions have one entry a response token: the token, the log-probability
    that it was sampled with, and the version of the weights that did.
    """

    attempt: int = 0
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()


class Responses:
    """Prompts and tokens of rollouts that are not trained on yet.

    task: prompts and rewards. seed: of prompts and of every rollout's random stream, which hangs on
    (seed, group, index, attempt) and the tokens it has alone. asked: the prompt's number by group.
    tokens: by (group, index), as far as each rollout had got when its last stay ended.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.asked: dict[int, int] = {}
        self.tokens: dict[Key, Tokens] = {}
        self._task = task
        self._seed = seed
        self._prompts: dict[int, Prompt] = {}

    def order(self, rollout: Rollout) -> Order:
        """What an engine is asked for; raises RunError where it has other tokens than the loop
        says."""
        self.asked[rollout.group] = rollout.prompt
        tokens = self.tokens.get(rollout.key)
        if tokens is None or tokens.attempt != rollout.attempt:
            tokens = self.tokens[rollout.key] = Tokens(rollout.attempt)
        if len(tokens.ids) != rollout.new_tokens:
            raise RunError(f"{rollout} has {len(tokens.ids)} tokens in the engine's world")
        name = request_name(rollout.key)
        return Order(
            rollout.key,
            rollout.attempt,
            self._prompt(rollout.group).token_ids,
            tokens.ids,
            tokens.log_probs,
            self._cap(rollout),
            zlib.crc32(f"{self._seed} {name} {rollout.attempt}".encode()),
        )

    def land(self, rollout: Rollout, landed: Landed, replica: int, zero_s: float = 0.0) -> Stay:
        """Takes in what an engine made of a rollout, and says what its stay was. zero_s: what the
        desk's clock showed when the run's stood at 0. Raises EngineError where the reward
        function fails."""
        response = landed.response
        tokens = self.tokens[rollout.key]
        made = [version for version, count in response.segments for _ in range(count)]
        tokens.versions += tuple(made)
        tokens.ids, tokens.log_probs = response.token_ids, response.log_probs
        if len(tokens.versions) != len(tokens.ids):
            raise RunError(f"{rollout}: the engine lost or invented tokens")
        ending = self._ending(response)
        prompt = self._prompt(rollout.group)
        reward = None
        if ending in ("stop", "length"):
            reward = self._task.reward(prompt, self._task.decode(tokens.ids))
        return Stay(
            rollout.group,
            rollout.index,
            rollout.attempt,
            replica,
            len(prompt.token_ids),
            tuple(Segment(version, count) for version, count in response.segments),
            ending,
            landed.start_s - zero_s,
            landed.end_s - zero_s,
            landed.prefill_tokens,
            landed.recomputed_tokens,
            landed.preemptions,
            reward,
            landed.shared,
        )

    def never_ran(self, rollout: Rollout, replica: int, now_s: float) -> Stay:
        """The stay of a rollout that was stopped and has no token of it."""
        prompt = len(self._prompt(rollout.group).token_ids)
        key = (rollout.group, rollout.index, rollout.attempt)
        return Stay(*key, replica, prompt, (), "aborted", now_s, now_s)

    def sampled(self, group: TrainGroup) -> SampledGroup:
        """What the trainer gets of a group. Raises RunError for a rollout without a reward."""
        rollouts = []
        for rollout in group.rollouts:
            tokens = self.tokens[rollout.key]
            if rollout.reward is None:
                raise RunError(f"{rollout} has no reward")
            rollouts.append(
                SampledRollout(tokens.ids, tokens.log_probs, tokens.versions, rollout.reward)
            )
        prompt = self._prompt(group.group).token_ids
        return SampledGroup(prompt, tuple(rollouts), group.baseline_rewards)

    def sample(self, batch: TrainBatch, longest: int) -> list[list[int]]:
        """The ends of a few sequences of a batch, of ``longest`` tokens at most, to compare engine
        and trainer on."""
        most = min(longest, SYNC_TOKENS)
        return [
            [*self._prompt(group.group).token_ids, *self.tokens[rollout.key].ids][-most:]
            for group in batch.groups[:SYNC_SAMPLE]
            for rollout in group.rollouts[:1]
        ]

    def keep_only(self, groups: Collection[int]) -> None:
        """Forgets prompts and tokens of every other group: they are trained, or dropped."""
        kept = set(groups)
        self._prompts = {group: p for group, p in self._prompts.items() if group in kept}
        self.asked = {group: number for group, number in self.asked.items() if group in kept}
        self.tokens = {key: tokens for key, tokens in self.tokens.items() if key[0] in kept}

    def load(self, asked: Mapping[int, int], tokens: Mapping[Key, Tokens]) -> None:
        """Goes on from another's. Prompts are made again by the task."""
        self.asked, self.tokens, self._prompts = dict(asked), dict(tokens), {}

    def _cap(self, rollout: Rollout) -> int:
        """Response tokens that the rollout may have at the end of its stay."""
        cap = self._task.max_new_tokens
        if rollout.allowance is None:
            return cap
        return min(cap, rollout.new_tokens + rollout.allowance)

    def _prompt(self, group: int) -> Prompt:
        if group not in self._prompts:
            number = self.asked.get(group, group)
            self._prompts[group] = self._task.prompt(number, self._seed)
        return self._prompts[group]

    def _ending(self, response: Response) -> Ending:
        if response.finish_reason is None:
            return "aborted"
        if response.finish_reason != "length":
            return "stop"
        return "length" if len(response.token_ids) >= self._task.max_new_tokens else "budget"
