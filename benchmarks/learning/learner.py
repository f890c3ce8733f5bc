"""The trainer: group-relative advantages, a clipped loss, AdamW, and what each update showed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.learning.model import Model, encode
from benchmarks.learning.sampling import Row
from benchmarks.learning.tasks import SCHEDULE, Task
from rollcast.engine.trainer.advantages import group_advantages
from rollcast.simulator.core.world import TrainBatch

CLIP, MOST_NORM, BETAS = 0.2, 1.0, (0.9, 0.95)


@dataclass
class _Part:
    """Rows with their advantages, and the version before which tokens are masked."""

    rows: list[list[Row]] = field(default_factory=list)
    advantages: list[list[float]] = field(default_factory=list)
    mask_before: int | None = None


class Learner:
    """Updates a model with the batches that the loop hands over; ``updates`` has one mapping each.

    minibatches: optimiser steps of an update, of as many groups each. mask_cut: whether responses
    that were cut at the cap are masked in the loss; their rewards count in the baseline.
    """

    def __init__(
        self,
        task: Task,
        model: Model,
        learning_rate: float,
        minibatches: int,
        mask_cut: bool = False,
    ) -> None:
        self.task, self.model = task, model
        self.updates: list[dict[str, Any]] = []
        self._rate, self._minibatches, self._mask_cut = learning_rate, minibatches, mask_cut
        self._optimiser = torch.optim.AdamW(
            model.parameters(), learning_rate, betas=BETAS, weight_decay=0.0
        )
        self._part = _Part()

    def take(self, batch: TrainBatch, rows: list[list[Row]]) -> None:
        """A batch, or a part of one; the optimiser steps after the last part."""
        part = self._part
        for group, members in zip(batch.groups, rows, strict=True):
            rewards = [self.task.reward(row.answer, row.text) for row in members]
            part.rows.append(members)
            part.advantages.append(group_advantages(rewards, group.baseline_rewards))
        part.mask_before = batch.mask_before_version
        if not batch.final:
            return
        self._part = _Part()
        for setting in self._optimiser.param_groups:
            setting["lr"] = self._rate * SCHEDULE.rate_factor(len(self.updates))
        count = min(self._minibatches, len(part.rows))
        figures = []
        for i in range(count):
            members = [row for group in part.rows[i::count] for row in group]
            advantages = [a for group in part.advantages[i::count] for a in group]
            figures.append(self._step(members, advantages, part.mask_before))
        means = {name: sum(f[name] for f in figures) / count for name in figures[0]}
        self.updates.append(means)

    def _masked(self, row: Row) -> bool:
        return self._mask_cut and row.truncated

    def _step(
        self, rows: Sequence[Row], advantages: Sequence[float], mask_before: int | None
    ) -> dict[str, float]:
        """One optimiser step, and what it showed."""
        texts = [encode(row.prompt + row.text) for row in rows]
        width = max(map(len, texts))
        codes = torch.tensor([text + [0] * (width - len(text)) for text in texts])
        first = self.task.width

        def padded(values: Sequence[Sequence[float]]) -> Tensor:
            return torch.tensor([[*v, *[0.0] * (width - first - len(v))] for v in values])

        least = 0 if mask_before is None else mask_before
        trained = padded(
            [
                [float(version >= least) * (not self._masked(row)) for version in row.versions]
                for row in rows
            ]
        )
        sampled = padded([row.log_probs for row in rows])
        logs = self.model(codes[:, :-1])[:, first - 1 :].log_softmax(-1)
        own = logs.gather(2, codes[:, first:, None])[..., 0]
        ratio = (torch.where(trained > 0, own - sampled, 0.0)).exp()
        weight = torch.tensor(advantages)[:, None]
        gain = torch.minimum(ratio * weight, ratio.clamp(1 - CLIP, 1 + CLIP) * weight)
        tokens = trained.sum().clamp(min=1.0)
        loss = -(gain * trained).sum() / tokens
        self._optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), MOST_NORM)
        self._optimiser.step()
        with torch.no_grad():
            entropy = -((logs.exp() * logs).sum(-1) * trained).sum() / tokens
            away = ((ratio - 1).abs() * trained).sum() / tokens
            clipped = (((ratio - 1).abs() > CLIP).float() * trained).sum() / tokens
            total, squares = (ratio * trained).sum(), (ratio**2 * trained).sum()
        return {
            "entropy": float(entropy),
            "grad_norm": float(norm),
            "mismatch": float(away),
            "clipped": float(clipped),
            "effective_share": float(total**2 / (squares * tokens)) if float(squares) else 1.0,
        }
