"""How well a model does a task, and how long its responses are, with the engine that samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.engine.edges import Engine, Response
from rollcast.engine.tasks.base import Prompt, Task


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Rewards and response lengths in tokens, end token included: (prompts, rollouts) each.

    truncated: rollouts that were cut at the task's ``max_new_tokens``.
    """

    rewards: np.ndarray
    lengths_tokens: np.ndarray
    truncated: int

    @property
    def mean_reward(self) -> float:
        """Mean over all rollouts: with rewards of 0 and 1, the accuracy when sampling."""
        return float(self.rewards.mean())

    def length_quantile_tokens(self, q: float) -> float:
        """The length below which a share ``q`` of the responses lies."""
        return float(np.quantile(self.lengths_tokens, q))

    @property
    def between_sd(self) -> float:
        """Standard deviation between prompts of the mean log length, sampling noise removed."""
        logs = np.log(self.lengths_tokens)
        noise = self.within_sd**2 / logs.shape[1]
        return float(np.sqrt(max(0.0, logs.mean(1).var(ddof=1) - noise)))

    @property
    def within_sd(self) -> float:
        """Standard deviation of the log length within a prompt's rollouts (0 for a single one)."""
        if self.lengths_tokens.shape[1] < 2:
            return 0.0
        return float(np.sqrt(np.log(self.lengths_tokens).var(1, ddof=1).mean()))


def evaluate(
    engine: Engine, task: Task, prompts: Sequence[Prompt], *, rollouts: int = 1, seed: int = 0
) -> Evaluation:
    """Sample ``rollouts`` responses to every prompt, at the engine's own sampling settings.

    The engine has to be idle, and is so again afterwards.
    """
    for i, prompt in enumerate(prompts):
        for j in range(rollouts):
            engine.submit(
                f"evaluate-{i}-{j}",
                prompt.token_ids,
                max_new_tokens=task.max_new_tokens,
                seed=(seed * len(prompts) + i) * rollouts + j,
            )
    responses: dict[str, Response] = {}
    while engine.unfinished:
        responses |= {response.request_id: response for response in engine.step()}
    rewards = np.zeros((len(prompts), rollouts))
    lengths = np.zeros((len(prompts), rollouts), dtype=np.int64)
    truncated = 0
    for i, prompt in enumerate(prompts):
        for j in range(rollouts):
            response = responses[f"evaluate-{i}-{j}"]
            rewards[i, j] = task.reward(prompt, task.decode(response.token_ids))
            lengths[i, j] = len(response.token_ids)
            truncated += response.finish_reason == "length"
    return Evaluation(rewards, lengths, truncated)
