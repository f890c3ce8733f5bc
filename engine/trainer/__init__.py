"""The real trainer: GRPO, DAPO and GSPO on Hugging Face causal models, dense or with the prompt of
a group computed once."""

from engine.edges import SampledGroup, SampledRollout, TrainMetrics
from engine.options import (
    DAPO,
    GRPO,
    GRPO_EPSILON,
    GSPO,
    LOSSES,
    LossConfig,
    TrainerConfig,
)
from engine.trainer.advantages import (
    PODS_EPSILON,
    group_advantages,
    overlong_penalty,
)
from engine.trainer.errors import NonFiniteLoss, UnsupportedModelError
from engine.trainer.losses import IMPORTANCE_CAP
from engine.trainer.trainer import Trainer

__all__ = [
    "DAPO",
    "GRPO",
    "GRPO_EPSILON",
    "GSPO",
    "IMPORTANCE_CAP",
    "LOSSES",
    "PODS_EPSILON",
    "LossConfig",
    "NonFiniteLoss",
    "SampledGroup",
    "SampledRollout",
    "TrainMetrics",
    "Trainer",
    "TrainerConfig",
    "UnsupportedModelError",
    "group_advantages",
    "overlong_penalty",
]
