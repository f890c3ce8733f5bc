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
from rollcast.engine.trainer.advantages import (
    PODS_EPSILON,
    group_advantages,
    overlong_penalty,
)
from rollcast.engine.trainer.losses import IMPORTANCE_CAP
from rollcast.engine.trainer.trainer import Trainer

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
