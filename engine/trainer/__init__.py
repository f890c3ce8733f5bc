"""The real trainer: GRPO, DAPO and GSPO on Hugging Face causal models, dense or with the prompt of
a group computed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcast.engine.edges import SampledGroup, SampledRollout, TrainMetrics
from rollcast.engine.errors import NonFiniteLoss, UnsupportedModelError
from rollcast.engine.options import (
    DAPO,
    GRPO,
    GRPO_EPSILON,
    GSPO,
    LOSSES,
    LossConfig,
    TrainerConfig,
)
from rollcast.engine.trainer.advantages import group_advantages

if TYPE_CHECKING:
    from rollcast.engine.trainer.trainer import Trainer

__all__ = [
    "DAPO",
    "GRPO",
    "GRPO_EPSILON",
    "GSPO",
    "LOSSES",
    "LossConfig",
    "NonFiniteLoss",
    "SampledGroup",
    "SampledRollout",
    "TrainMetrics",
    "Trainer",
    "TrainerConfig",
    "UnsupportedModelError",
    "group_advantages",
]


def __getattr__(name: str) -> Any:
    """`Trainer`, whose module imports transformers, which a rank that meets the others does not
    wait for."""
    if name == "Trainer":
        from rollcast.engine.trainer.trainer import Trainer

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
