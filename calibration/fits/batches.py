"""The batch of each step: the lengths of its responses by prompt, as logged or made like them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.calibration.fits.step_lengths import Spread, lengths_like
from rollcast.calibration.fits.steps import Steps
from rollcast.simulator.costs.base import TrainLoad


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step generated and trained on: lengths of each prompt's responses, in tokens."""

    prompt_tokens: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def rollouts(self) -> int:
        """Responses."""
        return sum(map(len, self.groups))

    @property
    def tokens(self) -> int:
        """Of prompts and responses, as the trainer computes them."""
        return self.rollouts * self.prompt_tokens + sum(map(sum, self.groups))

    @property
    def padded_tokens(self) -> int:
        """The same where each is padded to the longest of the batch."""
        return self.load.padded_tokens

    @property
    def load(self) -> TrainLoad:
        """As the trainer is asked for its price."""
        return TrainLoad([(self.prompt_tokens, group) for group in self.groups])


def dealt(lengths: Sequence[int], group_size: int, prompt_tokens: int) -> Batch:
    """Lengths in the order of launch, as groups; what is left over is one more."""
    groups = [tuple(lengths[at : at + group_size]) for at in range(0, len(lengths), group_size)]
    return Batch(prompt_tokens, tuple(groups))


def from_figures(
    steps: Steps, group_size: int, usual: int, cap: int, prompt_tokens: int, spread: Spread
) -> list[Batch | None]:
    """A batch with each step's mean and longest response; None where the step has no mean. usual:
    rollouts of a step that does not say. spread: of log lengths, from which the longest is taken
    where a step has none: the cap if responses were cut, else its median."""
    rng = np.random.default_rng(0)
    batches: list[Batch | None] = []
    names = ("rollouts", "mean_new_tokens", "max_new_tokens", "truncated_share")
    columns = [steps.column(name) for name in (*names, "mean_prompt_tokens")]
    for count, mean, longest, cut, prompt in zip(*columns, strict=True):
        if not math.isfinite(mean) or mean < 1:
            batches.append(None)
            continue
        number = round(count) if math.isfinite(count) and count >= 1 else usual
        if not math.isfinite(longest):
            usual_longest = spread.longest(mean, max(number / group_size, 1.0), group_size)
            longest = cap if cut > 0 else min(usual_longest, cap - (cut == 0))
        lengths = lengths_like(number, mean, longest, cut, cap, spread.total, rng)
        asked = round(prompt) if math.isfinite(prompt) and prompt >= 1 else prompt_tokens
        batches.append(dealt(lengths.tolist(), group_size, max(asked, 1)))
    return batches
