"""Options of the roofline that cannot be: the error names the key and says what to give."""

from typing import Any

import pytest

from rollcast.simulator.costs import RooflineCost, RooflineTrainer
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.errors import ScenarioError
from tests.refusals import refuses

MODEL, GPU = load_model("qwen3-8b"), load_gpu("h100-sxm")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tensor_parallel": 3}, "cluster.tensor_parallel"),
        ({"tensor_parallel": 0}, "cluster.tensor_parallel"),
        ({"replicas": 1.5}, "cluster.replicas"),
        ({"placement": "shared"}, "cluster.placement"),
        ({"engine": "vllm"}, "cost.roofline.engine"),
        ({"stack": "nemo"}, "cost.roofline.stack"),
        ({"host_factor": "fast"}, "cost.roofline.host_factor"),
        ({"engine_sleep": True}, "cost.roofline.engine_sleep"),
    ],
)
def test_costs_built_in_python_are_checked_too(options: dict[str, Any], field: str) -> None:
    with refuses(field):
        RooflineCost(MODEL, GPU, **options)


def test_splits_of_a_model_that_cannot_be() -> None:
    mixture = load_model("qwen3-30b-a3b")
    for experts, word in ((3, "128 experts"), (16, "the 8 GPUs")):
        with refuses("cost.roofline.trainer.expert_parallel", word):
            RooflineTrainer(mixture, GPU, 8, expert_parallel=experts)
    with pytest.raises(ScenarioError, match="14 attention heads"):
        RooflineTrainer(load_model("qwen2.5-0.5b"), GPU, 8, tensor_parallel=4)
    with pytest.raises(ScenarioError, match=r"or give gpu\."):
        RooflineTrainer(MODEL, load_gpu("l40s"), attention="flash_2")
    with pytest.raises(ScenarioError, match="trainer_gpus"):
        RooflineTrainer(MODEL, GPU, 0)
