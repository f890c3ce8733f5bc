"""GRPO, DAPO and GSPO as one sum over tokens.

Each loss is ``sum_t weight_t * correction_t * -min(ratio_t A, clip(ratio_t) A)``. The weights hold
the aggregation and come from the whole batch before any microbatch is computed, so the losses (and
gradients) of its microbatches add up to those of one large batch. The losses differ in ratio,
clip range and weights alone, and know nothing of the layout.

| loss | ratio | clip | a token's weight |
|---|---|---|---|
| GRPO (arXiv 2402.03300) | token | 1 -+ 0.2 | 1 / (tokens of its rollout x rollouts) |
| DAPO (arXiv 2503.14476) | token | 1 - 0.2, 1 + 0.28 | 1 / tokens of the batch |
| GSPO (arXiv 2507.18071) | sequence, length-normalised | 1 - 3e-4, 1 + 4e-4 | as in GRPO |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollcast.engine.options import LossConfig
from rollcast.engine.trainer.batch import Example


@dataclass(frozen=True, slots=True)
class LossTotals:
    """Counts of the whole batch that one update averages over."""

    rollouts: int
    trained_tokens: int

    @classmethod
    def of(cls, examples: Sequence[Example]) -> LossTotals:
        """Totals of a batch."""
        return cls(len(examples), sum(example.trained_tokens for example in examples))

    def __add__(self, other: LossTotals) -> LossTotals:
        return LossTotals(
            self.rollouts + other.rollouts, self.trained_tokens + other.trained_tokens
        )

    def divisor(self, config: LossConfig) -> int:
        """Divides the loss by totals of `ONE` to give the loss by these."""
        return max(1, self.trained_tokens if config.aggregation == "token_mean" else self.rollouts)


ONE = LossTotals(1, 1)
"""For a part of a batch whose totals are not known yet: its loss is a sum, not a mean."""


@dataclass(frozen=True, slots=True)
class LossParts:
    """The loss of a microbatch, a scalar with gradient, and sums over its trained tokens.
    ratio_sum: of importance ratios (of tokens; GSPO: of each token's sequence). clipped: tokens
    whose clipped term binds. trained: whether each token counts, [tokens]. divergence: sum of `k3`,
    0 without a reference."""

    loss: Tensor
    ratio_sum: Tensor
    clipped: Tensor
    trained_tokens: int
    trained: Tensor
    divergence: Tensor


def policy_loss(
    config: LossConfig,
    totals: LossTotals,
    examples: Sequence[Example],
    log_probs: Tensor,
    old_log_probs: Tensor,
    correction: Tensor | None = None,
    reference: Tensor | None = None,
) -> LossParts:
    """The loss of one microbatch. log_probs: of every response token, the examples' concatenated in
    order, [tokens]. old_log_probs: the ratio's denominator, same shape, without gradient.
    correction: importance weights of each token, same shape, or None. reference: the reference
    model's log-probabilities, same shape, or None."""
    device, dtype = log_probs.device, log_probs.dtype
    trained = torch.tensor(
        [flag for example in examples for flag in example.trained], dtype=dtype, device=device
    )
    lengths = [len(example.response) for example in examples]
    repeats = torch.tensor(lengths, device=device)
    advantages = torch.tensor([e.advantage for e in examples], dtype=dtype, device=device)
    advantages = advantages.repeat_interleave(repeats, output_size=sum(lengths))
    weights = _weights(config, totals, examples, dtype, device).repeat_interleave(
        repeats, output_size=sum(lengths)
    )

    # A masked token must not reach the exponential: its ratio may overflow, and 0 * inf is nan.
    log_ratio = torch.where(trained > 0, log_probs - old_log_probs, 0.0)
    if config.sequence_ratio:
        counts = torch.tensor(
            [max(1, e.trained_tokens) for e in examples], dtype=dtype, device=device
        )
        sums = torch.stack([part.sum() for part in torch.split(log_ratio.detach(), lengths)])
        # Same value and gradient as the sequence-level loss: d/dx of the mean over tokens of
        # exp(x_t - stop(x_t) + stop(mean)) is that of exp(mean).
        log_ratio = (
            log_ratio
            - log_ratio.detach()
            + (sums / counts).repeat_interleave(repeats, output_size=sum(lengths))
        )
    ratio = log_ratio.exp()
    plain = ratio * advantages
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantages
    loss = -torch.minimum(plain, clipped) * weights * trained
    if correction is not None:
        loss = loss * torch.where(trained > 0, correction, 0.0)
    divergence = torch.zeros((), dtype=dtype, device=device)
    if reference is not None:
        away = k3(torch.where(trained > 0, reference - log_probs, 0.0)) * trained
        loss = loss + (config.kl_coefficient or 0.0) * away * weights
        divergence = away.detach().sum()
    with torch.no_grad():
        ratio_sum = (ratio * trained).sum()
        binding = ((clipped < plain) & (trained > 0)).sum()
    tokens = sum(e.trained_tokens for e in examples)
    return LossParts(loss.sum(), ratio_sum, binding, tokens, trained, divergence)


def k3(log_ratio: Tensor) -> Tensor:
    """``r - 1 - log r``, r the reference's over the policy's probability of a sampled token: an
    estimate of the policy's divergence from the reference without bias, never negative (Schulman,
    joschu.net/blog/kl-approx.html)."""
    return torch.expm1(log_ratio) - log_ratio


def importance_weights(trainer: Tensor, sampled: Tensor, cap: float) -> Tensor:
    """Truncated importance weights ``min(exp(trainer - sampled), cap)`` of tokens: the engine
    samples from slightly other probabilities than the trainer computes."""
    return (trainer - sampled).exp().clamp(max=cap)


def _weights(
    config: LossConfig,
    totals: LossTotals,
    examples: Sequence[Example],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """The weight of each trained token, by example, [examples]."""
    if config.aggregation == "token_mean":
        values = [1 / max(1, totals.trained_tokens)] * len(examples)
    else:
        values = [1 / (max(1, e.trained_tokens) * totals.rollouts) for e in examples]
    return torch.tensor(values, dtype=dtype, device=device)
