"""The settings of the trainer."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, get_args

from engine.trainer.losses import GRPO, LossConfig
from engine.trainer.prefix_reuse import Backend, Checkpoint
from simulator.errors import ScenarioError

OldLogProbs = Literal["sampled", "trainer"]


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """How a step updates the weights.

    The model keeps its own type and device; a bfloat16 model is trained in bfloat16 weights, where
    small updates round away, so ``autocast`` over float32 weights is the safer bfloat16.

    betas, adam_epsilon, weight_decay: AdamW's.
    max_grad_norm: gradients are scaled down to this norm; None for no clipping.
    microbatch_tokens: tokens of a dense microbatch, padding included.
    suffix_microbatch_tokens: tokens of a suffix microbatch, padding included; None for the same.
        Besides these it holds the prefix's keys, values and their gradients.
    minibatches: updates a pass over the batch, each over its share of the groups.
    epochs: passes over the batch.
    old_log_probs: the ratio's denominator. "sampled": what each token was sampled with, by
        whichever version did. "trainer": the trainer's own, computed once before the first update;
        tokens of earlier versions then start at a ratio of 1, and only ``loss.importance_cap``
        corrects for their age and for the engine's other arithmetic.
    temperature: that of the sampled log-probabilities.
    checkpoint: what is computed again in the backward instead of kept: "none", "prefix" (phase A)
        or "all" (dense and suffix forwards too).
    offload_prefix: keep phase A's activations in host memory until phase C.
    head_chunk_tokens: tokens of the output head at a time, keeping no logits; None for all at once.
    router_aux_coefficient: weight of a mixture-of-experts model's load-balancing loss over the
        update's whole batch; None for the model's own where it asks for router logits. Costs a
        pass without gradient for the expert counts.
    prefix_backend: see :data:`engine.trainer.prefix_reuse.Backend`.
    seed: of the order of groups over minibatches.
    """

    loss: LossConfig = field(default_factory=lambda: GRPO)
    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    microbatch_tokens: int = 4096
    suffix_microbatch_tokens: int | None = None
    minibatches: int = 1
    epochs: int = 1
    old_log_probs: OldLogProbs = "sampled"
    temperature: float = 1.0
    autocast: bool = False
    checkpoint: Checkpoint = "none"
    offload_prefix: bool = False
    head_chunk_tokens: int | None = None
    router_aux_coefficient: float | None = None
    prefix_backend: Backend = "attention"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "temperature", "adam_epsilon", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value > 0):
                raise _wrong(name, f"must be a number above 0, not {value}")
        for name in ("weight_decay", "router_aux_coefficient"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise _wrong(name, f"must be a number of at least 0, not {value}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise _wrong("betas", f"must both be from 0 to below 1, not {self.betas}")
        counts = ("microbatch_tokens", "suffix_microbatch_tokens", "minibatches", "epochs")
        for name in (*counts, "head_chunk_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise _wrong(name, f"must be at least 1, not {value}")
        choices = {"old_log_probs": OldLogProbs, "checkpoint": Checkpoint}
        for name, kind in {**choices, "prefix_backend": Backend}.items():
            if getattr(self, name) not in get_args(kind):
                options = " or ".join(get_args(kind))
                raise _wrong(name, f"must be {options}, not {getattr(self, name)!r}")
        if self.loss.importance_cap is not None and self.old_log_probs != "trainer":
            raise _wrong(
                "loss.importance_cap",
                "needs old_log_probs: trainer; with the sampled log-probabilities the ratio itself "
                "holds that correction",
            )


def _wrong(name: str, message: str) -> ScenarioError:
    return ScenarioError(f"engine.trainer.{name}", message)
