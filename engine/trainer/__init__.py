"""The real trainer: GRPO, DAPO and GSPO on Hugging Face causal models, dense or with the prompt of
a group computed once."""

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
