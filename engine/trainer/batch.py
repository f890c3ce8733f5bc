"""The examples of a batch of groups."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rollcast.engine.edges import SampledGroup
from rollcast.engine.trainer.advantages import group_advantages


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One rollout for the trainer. group: index of its group in the step. sampled: log-probability
    of each response token when sampled. trained: whether each response token counts in the loss
    (False: too old, or observed). observed_tokens: response tokens that are observations."""

    group: int
    prompt: Sequence[int]
    response: Sequence[int]
    sampled: Sequence[float]
    trained: Sequence[bool]
    advantage: float
    observed_tokens: int = 0

    @property
    def input_tokens(self) -> int:
        """Tokens of a dense forward: all but the last of the response."""
        return len(self.prompt) + len(self.response) - 1

    @property
    def trained_tokens(self) -> int:
        """Response tokens that count in the loss."""
        return sum(self.trained)


def make_examples(
    groups: Sequence[SampledGroup],
    *,
    epsilon: float,
    divide_by_std: bool = True,
    version: int,
    mask_before_version: int | None = None,
) -> list[Example]:
    """Advantages and masks of a step's rollouts, in their order. Tokens of a version below
    ``mask_before_version`` and observations do not count in the loss; their rewards still count in
    the advantages. Raises ValueError where a group cannot have been sampled."""
    examples: list[Example] = []
    for index, group in enumerate(groups):
        _check(group, index, version)
        advantages = group_advantages(
            [rollout.reward for rollout in group.rollouts],
            group.baseline_rewards,
            epsilon=epsilon,
            divide_by_std=divide_by_std,
        )
        for rollout, advantage in zip(group.rollouts, advantages, strict=True):
            observed = rollout.observed or [False] * len(rollout.response)
            trained = [
                not seen and (mask_before_version is None or made_by >= mask_before_version)
                for made_by, seen in zip(rollout.versions, observed, strict=True)
            ]
            examples.append(
                Example(
                    group=index,
                    prompt=group.prompt,
                    response=rollout.response,
                    sampled=rollout.log_probs,
                    trained=trained,
                    advantage=advantage,
                    observed_tokens=sum(observed),
                )
            )
    return examples


def _check(group: SampledGroup, index: int, version: int) -> None:
    if not group.prompt:
        raise ValueError(f"group {index}: the prompt is empty")
    if not group.rollouts:
        raise ValueError(f"group {index}: there is no rollout to train on")
    for number, rollout in enumerate(group.rollouts):
        where = f"group {index}, rollout {number}"
        tokens = len(rollout.response)
        if tokens == 0:
            raise ValueError(f"{where}: the response is empty")
        if len(rollout.log_probs) != tokens or len(rollout.versions) != tokens:
            raise ValueError(
                f"{where}: {tokens} tokens, {len(rollout.log_probs)} log-probabilities and "
                f"{len(rollout.versions)} versions; there must be one of each a token"
            )
        if len(rollout.observed) not in (0, tokens):
            raise ValueError(f"{where}: {tokens} tokens, and a mask of {len(rollout.observed)}")
        if any(a > b for a, b in itertools.pairwise(rollout.versions)):
            raise ValueError(f"{where}: the versions of its tokens must not fall")
        if rollout.versions[-1] > version:
            raise ValueError(
                f"{where}: a token of version {rollout.versions[-1]} is newer than the trainer's "
                f"version {version}"
            )
