"""Replicas of many GPUs: what they send each other, ranks that wait, stages; 4 bit products."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.costs import Extremes, Iteration, RooflineCost, kv_pool_tokens
from rollcast.simulator.costs.engine.communication import Exchange
from rollcast.simulator.costs.engine.hosts import Engine
from rollcast.simulator.costs.engine.layout import EngineLayout
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.options import RooflineSection
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.scenario.scenario import build_scenario
from tests.costs.test_roofline import IDEAL, gpu_s, prefill
from tests.refusals import refuses

DEEPSEEK, LLAMA = load_model("deepseek-v3"), load_model("llama-3.1-8b")
H200 = load_gpu("h200-sxm")
# DeepEP's low-latency kernels on H800, EP to us of dispatch and of combine: 128 tokens a GPU.
DEEP_EP = {16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}


def apart(gpus: int, **more: object) -> EngineLayout:
    return EngineLayout(gpus, expert_parallel=True, data_parallel_attention=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpus", sorted(DEEP_EP))
def test_all_to_all_between_nodes_as_measured(gpus: int) -> None:
    layers_s = Exchange(DEEPSEEK, load_gpu("h800-sxm"), apart(gpus)).layers_s(128 * gpus)
    dense_s = Exchange(replace(DEEPSEEK, layers=3, moe_layers=0), load_gpu("h800-sxm"), apart(gpus))
    layer_s = (layers_s - dense_s.layers_s(128 * gpus)) / 58
    assert layer_s == pytest.approx(1e-6 * sum(DEEP_EP[gpus]), rel=0.1)


# NCCL's tables of aiconfigurator 0.12.0: GPU, GPUs, MiB, us of an all-reduce.
LARGE = [
    ("a100-80gb", 8, 64, 595),
    ("a100-80gb", 4, 128, 1001),
    ("a100-80gb", 2, 256, 1430),
    ("h100-sxm", 4, 128, 613),
    ("h100-sxm", 2, 64, 255),
    ("a100-80gb", 8, 16, 217),
    ("h100-sxm", 8, 4, 50.5),
    ("h100-sxm", 4, 4, 42.2),
]


@pytest.mark.parametrize(("gpu", "gpus", "mebibytes", "us"), LARGE)
def test_all_reduces_as_measured(gpu: str, gpus: int, mebibytes: int, us: float) -> None:
    tokens = mebibytes * 2**20 / (2 * LLAMA.hidden)
    found = Exchange(LLAMA, load_gpu(gpu), EngineLayout(gpus)).layers_s(tokens) / 64
    assert found == pytest.approx(1e-6 * us, rel=0.16)


# Bytes a second of each GPU's ring (busbw) of large all-reduces by NCCL over nodes of eight: 350e9
# on H200 with a 400 Gb/s link a GPU (nccl-tests issue 283), 96e9 at most on A100 with four of 200
# Gb/s a node (issue 119).
OVER_NODES = [("h200-sxm", 1984, 50e9, 350e9), ("a100-40gb", 24, 12.5e9, 96e9)]


@pytest.mark.parametrize(("gpu", "gpus", "network", "ring"), OVER_NODES)
def test_large_all_reduces_over_nodes_as_measured(
    gpu: str, gpus: int, network: float, ring: float
) -> None:
    """All links of a node carry a ring together."""
    layout = EngineLayout(gpus, network_bytes_per_s=network)
    tokens = 512 * 2**20 / (2 * LLAMA.hidden)
    found_s = Exchange(LLAMA, load_gpu(gpu), layout).layers_s(tokens) / 64
    assert 2 * (gpus - 1) / gpus * 512 * 2**20 / found_s == pytest.approx(ring, rel=0.2)


@pytest.mark.parametrize(
    ("tensor", "stages", "far"), [(4, 2, 0), (8, 2, 2), (4, 4, 2), (2, 8, 2), (16, 2, 2), (8, 4, 4)]
)
def test_stages_pay_the_network_once_a_node(tensor: int, stages: int, far: int) -> None:
    """A network without a limit but a floor: 30 us for each hop that crosses it."""
    layout = EngineLayout(tensor, stages, network_bytes_per_s=1e15, network_floor_s=30e-6)
    near = replace(layout, gpus_per_node=1024)
    gpu = load_gpu("h100-sxm")
    more_s = Exchange(LLAMA, gpu, layout).hops_s(8) - Exchange(LLAMA, gpu, near).hops_s(8)
    assert more_s == pytest.approx(far * 30e-6, rel=1e-3)


def test_a_collective_waits_once_for_each_level_of_a_tree_of_nodes() -> None:
    def waits_s(gpus: int) -> float:
        far, near = (
            EngineLayout(gpus, network_bytes_per_s=1e15, network_floor_s=floor_s)
            for floor_s in (30e-6, 0.0)
        )
        h100 = load_gpu("h100-sxm")
        return Exchange(LLAMA, h100, far).layers_s(8) - Exchange(LLAMA, h100, near).layers_s(8)

    for gpus, levels in ((8, 0), (16, 1), (32, 2), (64, 3)):
        assert waits_s(gpus) == pytest.approx(levels * 2 * LLAMA.layers * 30e-6)
    # Four GPUs a host beside a Grace, all of which share NVLink.
    beside = load_gpu("gb200")
    for gpus, levels in ((4, 0), (8, 1), (32, 3)):
        apart, together = (
            Exchange(LLAMA, gpu, EngineLayout(gpus, gpus_per_node=72)).layers_s(0)
            for gpu in (beside, replace(beside, host_link_bytes_per_s=64e9))
        )
        assert apart - together == pytest.approx(levels * 2 * LLAMA.layers * 10e-6)


def test_a_stage_over_nodes_crosses_the_network() -> None:
    inside, across, wide = (
        Exchange(LLAMA, IDEAL, layout).layers_s(64)
        for layout in (EngineLayout(8), EngineLayout(16), EngineLayout(16, gpus_per_node=72))
    )
    assert inside < wide < across


def test_ranks_wait_for_the_one_with_most_rollouts() -> None:
    """Eight GPUs with rollouts of their own: one that is left takes as long as eight."""
    cost = RooflineCost(DEEPSEEK, H200, 8, data_parallel_attention=True)

    def token_s(rollouts: int) -> float:
        curve = cost.decode_curve(rollouts)
        return (curve.seconds(10**6) - curve.seconds(0)) / 10**6

    assert token_s(1) == pytest.approx(8 * token_s(8), rel=1e-6)
    assert token_s(9) == pytest.approx(16 / 9 * token_s(8), rel=1e-6)
    # The same context in each rollout: a rollout more costs nothing until a GPU has two.
    times = [gpu_s(cost, rollouts, rollouts * 100_000) for rollouts in range(1, 18)]
    attention = [token_s(rollouts) * rollouts for rollouts in range(1, 18)]
    assert attention[:8] == pytest.approx([attention[0]] * 8)
    assert attention[8:16] == pytest.approx([2 * attention[0]] * 8)
    assert times == sorted(times)


STAGES = RooflineCost(LLAMA, IDEAL, host_s=0, host_per_rollout_s=0)


def test_a_pipeline_makes_no_token_faster_and_leaves_room_for_more() -> None:
    four = replace(STAGES, pipeline_parallel=4)
    alone = [four.decode_curve(n).seconds(1000 * n) for n in (1, 2, 3)]
    assert alone == pytest.approx([alone[0]] * 3)
    assert alone[0] > STAGES.decode_curve(1).seconds(1000)
    assert four.kv_pool_tokens > 4 * STAGES.kv_pool_tokens
    large = load_model("llama-3.1-70b")
    with pytest.raises(ScenarioError, match="no room"):
        kv_pool_tokens(large, IDEAL, 1)
    assert kv_pool_tokens(large, IDEAL, 1, pipeline_parallel=4) > 0


def test_a_full_pipeline_gives_more_tokens_than_one_stage() -> None:
    """64 rollouts over four stages: the time of 16 on one, and four times its head."""
    four = replace(STAGES, pipeline_parallel=4)
    sixteen = STAGES.decode_curve(16).seconds(16_000)
    assert sixteen < four.decode_curve(64).seconds(64_000) < 1.4 * sixteen
    assert four.decode_curve(64).seconds(64_000) < STAGES.decode_curve(64).seconds(64_000) * 1.2
    prompts = prefill(8, 8192)
    assert four.iteration_s(prompts) == pytest.approx(STAGES.iteration_s(prompts) / 4, rel=0.05)
    assert four.iteration_s(prefill(1, 8192)) > STAGES.iteration_s(prefill(1, 8192))


@given(
    stages=st.integers(1, 8),
    rollouts=st.integers(1, 100),
    context=st.integers(1, 5000),
    ranks=st.booleans(),
)
def test_curves_are_the_formula_in_closed_form(
    stages: int, rollouts: int, context: int, ranks: bool
) -> None:
    cost = RooflineCost(
        load_model("gpt-oss-20b"),
        IDEAL,
        4,
        pipeline_parallel=stages,
        data_parallel_attention=ranks,
        expert_parallel=ranks,
    )
    work = Iteration(rollouts, rollouts * context)
    found = cost.decode_curve(rollouts).seconds(rollouts * context)
    assert found == pytest.approx(cost.iteration_s(work), rel=1e-9)


SCENARIO = """
model: llama-3.1-8b
gpu: h100-sxm
cluster: {{replicas: 2, tensor_parallel: 2, pipeline_parallel: {stages}}}
workload:
  batch_groups: 1
  group_size: 2
  prompt_tokens: 10
  max_new_tokens: 100
  lengths: {{family: lognormal, median_tokens: 50, between_sd: 0.1, within_sd: 0.1}}
cost: {cost}
"""


def test_a_scenario_with_stages_holds_their_gpus() -> None:
    built = build_scenario(parse_scenario(SCENARIO.format(stages=2, cost="roofline")))
    assert (built.shape.gpus_per_replica, built.shape.trainer_gpus) == (4, 8)
    assert any("stages" in said for said in built.cost.warnings(Extremes()))
    one = build_scenario(parse_scenario(SCENARIO.format(stages=1, cost="roofline")))
    assert built.engine.kv_tokens > 2 * one.engine.kv_tokens
    assert not any("stages" in said for said in one.cost.warnings(Extremes()))


@pytest.mark.parametrize(("stages", "word"), [(0, "from 1"), (33, "more than the 32 layers")])
def test_bad_stages_name_themselves(stages: int, word: str) -> None:
    with refuses("cluster.pipeline_parallel", word):
        build_scenario(parse_scenario(SCENARIO.format(stages=stages, cost="roofline")))


FP4 = replace(IDEAL, fp8_flop_per_s=2e15, fp4_flop_per_s=4e15)


def test_four_bit_floats_are_warned_of_where_they_are_unpacked() -> None:
    quantised = replace(LLAMA, precision="nvfp4")
    said = RooflineCost(quantised, IDEAL).warnings(Extremes())
    assert any("products of nvfp4 weights" in w for w in said)
    assert not any("weights" in w for w in RooflineCost(quantised, FP4).warnings(Extremes()))
    assert RooflineCost(quantised, FP4).iteration_s(prefill(1, 8192)) < RooflineCost(
        quantised, IDEAL
    ).iteration_s(prefill(1, 8192))


# Qwen3-235B-A22B in fp8 on 4 H100 (vllm issue 21348): tokens in the logs of vLLM and SGLang.
@pytest.mark.parametrize(
    ("engine", "share", "tokens"), [("vllm-0.8", 0.9, 178_880), ("sglang", 0.93, 367_404)]
)
def test_pools_of_a_large_model_are_as_engines_log_them(
    engine: Engine, share: float, tokens: int
) -> None:
    model = load_model({"preset": "qwen3-235b-a22b", "precision": "fp8"})
    known: dict[str, Any] = {"engine": engine, "kv_memory_utilization": share}
    cost = RooflineCost(model, load_gpu("h100-sxm"), 4, **known)
    assert cost.kv_pool_tokens == pytest.approx(tokens, rel=0.05)
    assert any("Give engine.kv_tokens" in sentence for sentence in cost.warnings(Extremes()))
    said = RooflineCost(model, load_gpu("h100-sxm"), 4, reserve_bytes=2e9, **known)
    assert said.reserve_bytes == 2e9
    section = RooflineSection.from_mapping({"engine": engine}, "cost.roofline")
    built = RooflineCost.from_options(model, load_gpu("h100-sxm"), section, tensor_parallel=4)
    assert built.reserve_bytes == cost.reserve_bytes
    small = RooflineCost(LLAMA, load_gpu("h100-sxm"), engine=engine)
    assert small.reserve_bytes == 2e9
