"""Several GPUs over PCIe: published runs lie inside the intervals of their forecasts, and what is
said of a host is no longer drawn."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rollcast.simulator.costs.base import CostModel, Extremes, Iteration
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.cost import RooflineCost
from rollcast.simulator.costs.roofline.draws import drawn_links
from rollcast.simulator.costs.sync.weight_sync import WeightSync
from rollcast.simulator.costs.trainer.trainer import RooflineTrainer
from rollcast.simulator.values.chance import Drawn, Levels

QWEN_72B = load_model({"preset": "qwen2.5-72b", "kv_heads": 64})  # Qwen1.5 shares no heads
LLAMA_70B = load_model("llama-3.1-70b")


def prefill_s(cost: CostModel, rollouts: int, prompt: int) -> float:
    """Prompts in iterations of 8,192 tokens."""
    at_once = min(rollouts, max(1, 8192 // prompt))
    tokens, pairs = at_once * prompt, at_once * prompt * (prompt + 1) // 2
    work = Iteration(at_once, tokens, tokens, pairs, at_once, tokens)
    return max(1, rollouts // at_once) * cost.mixed_iteration_s(work)


def batch_s(cost: CostModel, rollouts: int, prompt: int, new: int) -> float:
    """A batch of equal requests from its first prompt to its last token."""
    middle = cost.decode_curve(rollouts).seconds(rollouts * (prompt + new // 2))
    return prefill_s(cost, rollouts, prompt) + (new - 1) * middle


def l20(cost: CostModel) -> float:
    return cost.decode_curve(1).seconds(1050)


def trt(prompt: int, new: int) -> Callable[[CostModel], float]:
    return lambda cost: batch_s(cost, 64, prompt, new)


A100 = RooflineCost(LLAMA_70B, load_gpu("a100-80gb-pcie"), 4, engine="tensorrt-llm")
LAUNCHES: dict[str, Any] = {"cuda_graphs": False, "launch_s_per_layer": 4e-4}
L20 = RooflineCost(QWEN_72B, load_gpu("l20"), 8, engine="vllm-0.5", **LAUNCHES)
# vLLM issue 4852 (Qwen1.5-72B, eager, batch 1); TensorRT-LLM issue 1240 (version 0.6.1, batch 64).
MEASURED: list[tuple[RooflineCost, Callable[[CostModel], float], float]] = [
    (L20, l20, 0.0392),
    (L20, lambda cost: prefill_s(cost, 1, 1024), 0.427),
    (A100, trt(128, 128), 9.961),
    (A100, trt(128, 2048), 133.99),
    (A100, trt(2048, 128), 60.149),
]


@pytest.mark.parametrize(("cost", "figure", "seconds"), MEASURED)
def test_published_runs_lie_inside_their_intervals(
    cost: RooflineCost, figure: Callable[[CostModel], float], seconds: float
) -> None:
    assert figure(cost) == pytest.approx(seconds, rel=0.5)
    rng = np.random.default_rng(0)
    low, high = np.quantile([figure(cost.drawn(Drawn(rng))) for _ in range(100)], [0.05, 0.95])
    assert low <= seconds <= high


@pytest.mark.parametrize(
    ("changes", "gpus", "names"),
    [
        ({}, 8, {"interconnect_efficiency", "all_reduce_floor_s", "interconnect_shared"}),
        ({}, 2, {"interconnect_efficiency", "all_reduce_floor_s"}),
        ({"interconnect_shared": True}, 8, {"interconnect_efficiency", "all_reduce_floor_s"}),
        ({"interconnect_shared": False}, 8, {"interconnect_efficiency", "all_reduce_floor_s"}),
        ({}, 1, set()),
        ({"interconnect_bytes_per_s": 3e11}, 8, set()),
    ],
)
def test_what_is_known_of_a_host_is_not_drawn(
    changes: dict[str, Any], gpus: int, names: set[str]
) -> None:
    gpu, chance = replace(load_gpu("l20"), **changes), Levels()
    assert drawn_links(gpu, gpus, chance).link_bytes_per_s(gpus) == gpu.link_bytes_per_s(gpus)
    assert {name.rpartition("/")[2] for name in chance.names} == names


def test_a_shared_link_is_among_the_draws_and_slower() -> None:
    shares = {"decode efficiency/interconnect_shared": 1.645}
    drawn = drawn_links(load_gpu("l20"), 8, Levels(shares))
    assert drawn.link_bytes_per_s(8) == load_gpu("l20").link_bytes_per_s(8) / 8
    low = drawn_links(load_gpu("l20"), 8, Levels({"decode efficiency/interconnect_efficiency": -9}))
    assert low.interconnect_efficiency == pytest.approx(0.3)


def test_a_warning_says_what_is_taken() -> None:
    for changes, words in (
        ({}, "taken to have a link each"),
        ({"interconnect_shared": True}, "said to share one link"),
    ):
        gpu = replace(load_gpu("l20"), **changes)
        said = RooflineCost(LLAMA_70B, gpu, 8).warnings(Extremes())
        assert any(words in sentence for sentence in said)
    nvlink = RooflineCost(LLAMA_70B, load_gpu("h100-sxm"), 8).warnings(Extremes())
    assert not any("PCIe" in sentence for sentence in nvlink)


def test_trainers_and_syncs_reach_the_share_of_a_slot_that_collectives_do() -> None:
    """As engines' all-reduces; of NVLink a trainer's are the given share."""
    model = load_model("qwen3-4b")

    def cost(gpu: str, **figures: Any) -> RooflineCost:
        board = replace(load_gpu(gpu), **figures)
        sync = WeightSync("cuda_ipc", bytes_per_s=1e12, fixed_s=0.0, per_tensor_s=0.0)
        trainer = RooflineTrainer(model, board, 4, sharding="fsdp")
        return RooflineCost(model, board, replicas=4, trainer_gpus=4, trainer=trainer, sync=sync)

    half, quarter = (cost("rtx-a6000", interconnect_efficiency=share) for share in (0.5, 0.25))
    assert quarter.trainer_of.layout.gather_s == 2 * half.trainer_of.layout.gather_s
    assert quarter.sync_s == pytest.approx(2 * half.sync_s)
    shared = cost("rtx-a6000", interconnect_efficiency=0.5, interconnect_shared=True)
    assert shared.sync_s == pytest.approx(4 * half.sync_s)
    best = [cost("rtx-a6000", interconnect_efficiency=share) for share in (0.7, 1.0)]
    assert best[0].trainer_of.layout.gather_s == best[1].trainer_of.layout.gather_s
    joined = [cost("h100-sxm", interconnect_efficiency=share) for share in (0.25, 1.0)]
    assert joined[0].trainer_of.layout.gather_s == joined[1].trainer_of.layout.gather_s
    assert joined[0].sync_s == joined[1].sync_s
