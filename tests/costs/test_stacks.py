"""Stacks as presets: what they set, what is given in their place, and their spread."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from rollcast.simulator.costs import RooflineCost, RooflineTrainer
from rollcast.simulator.costs.engine.hosts import engine_presets
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.presets.provenance import Kind
from rollcast.simulator.costs.roofline.cost import RooflineSection
from rollcast.simulator.costs.stacks import STACKS, Stack, listed
from rollcast.simulator.costs.sync.sleep import engine_switch_s
from rollcast.simulator.costs.sync.weight_sync import WeightSync
from rollcast.simulator.stacks.stack import all_stacks, exporters, logged, priced
from rollcast.simulator.values.chance import Drawn

MODEL, GPU = load_model("llama-3.1-8b"), load_gpu("h100-sxm")


def cost(placement: str = "colocated", **options: object) -> RooflineCost:
    section = RooflineSection.from_mapping(options, "cost.roofline")
    return RooflineCost.from_options(MODEL, GPU, section, trainer_gpus=8, placement=placement)  # type: ignore[arg-type]


def test_every_stack_has_figures_and_a_source() -> None:
    assert set(STACKS) == set(get_args(Stack))
    for name, stack in STACKS.items():
        assert stack.rest_spread[0] < 1 < stack.rest_spread[1]
        assert stack.rest.kind in get_args(Kind)
        assert (stack.host is None) == (stack.host_s is None)
        assert cost(stack=name).stack == name
    assert "nemo-rl vllm-0.11" in listed()


def test_a_version_takes_the_preset_nearest_to_it() -> None:
    for version in ("0.3", "0.4", "0.6"):
        assert STACKS[f"verl-{version}"] == STACKS["verl-0.5"]
    for version in ("0.7", "0.8", "0.9"):
        assert STACKS[f"verl-{version}"] == STACKS["verl"]
    assert STACKS["miles"] == STACKS["relax"] == STACKS["slime"] != STACKS["vime"]


def test_a_stack_that_is_only_priced_is_neither_read_nor_exported() -> None:
    alone = {"unknown", "rlinf", "unirl", "torchforge", "deepspeed_chat"}
    assert alone <= priced().keys()
    for known in (all_stacks(), logged(), exporters()):
        assert alone.isdisjoint(known)


def test_a_stack_sets_what_nobody_gave() -> None:
    found, preset = cost(stack="nemo-rl"), STACKS["nemo-rl"]
    assert (found.engine, found.cuda_graphs, found.rest_s) == ("vllm-0.11", True, preset.rest_s)
    assert (found.host_s, found.host_per_rollout_s) == (preset.host_s, preset.host_per_rollout_s)
    assert found.switch_fixed_s == engine_switch_s(MODEL, GPU, 1, "offload")
    assert found.sync == WeightSync("cuda_ipc")
    assert cost("disaggregated", stack="nemo-rl").sync == WeightSync("nccl_packed")
    assert cost(stack="verl-0.5").cuda_graphs is False
    assert cost().cuda_graphs is True
    newer, host = cost(stack="verl"), engine_presets()["vllm-0.11"]
    assert (newer.host_s, newer.host_per_rollout_s) == (host.host_s, host.host_per_rollout_s)
    assert cost(stack="slime").sync == WeightSync("cuda_ipc", per_tensor_s=0.0)


def test_what_is_given_stays() -> None:
    own = cost(
        stack="nemo-rl",
        engine="sglang",
        cuda_graphs=False,
        rest_s=0,
        sync="disk",
        host_s=0.1,
        switch_fixed_s=2,
    )
    assert (own.engine, own.cuda_graphs, own.rest_s) == ("sglang", False, 0)
    assert own.sync == WeightSync("disk")
    # The host's figures are of the stack's own engine: another engine has its own.
    assert (own.host_s, own.host_per_rollout_s) == (
        0.1,
        engine_presets()["sglang"].host_per_rollout_s,
    )
    assert own.switch_fixed_s == 2
    slower = cost(stack="nemo-rl", host_factor=2.0)
    assert slower.host_s == pytest.approx(2 * 3.0e-3)
    assert replace(slower, rest_s=1.0).host_s == slower.host_s


def test_adapters_are_sent_alone_by_any_stack() -> None:
    trainer = RooflineTrainer(MODEL, GPU, 8, weights="lora")
    found = RooflineCost(MODEL, GPU, trainer_gpus=8, trainer=trainer, stack="nemo-rl")
    assert found.sync == WeightSync("adapter")


def test_its_own_figures_are_drawn_within_its_spreads() -> None:
    rng, base, preset = np.random.default_rng(3), cost(stack="nemo-rl"), STACKS["nemo-rl"]
    drawn = [base.with_figures_drawn(Drawn(rng)) for _ in range(300)]
    for name, (low, high) in (
        ("rest_s", preset.rest_spread),
        ("host_s", preset.host_spread),
        ("host_per_rollout_s", preset.host_spread),
        ("offload_bytes_per_s", (0.25, 2.5)),
    ):
        found = np.array([getattr(each, name) / getattr(base, name) for each in drawn])
        assert low <= found.min() < 1.3 * low
        assert high / 1.3 < found.max() <= high
    assert all(each.sync and each.sync.mechanism == "cuda_ipc" for each in drawn)
    assert cost().with_figures_drawn(Drawn(rng)).rest_s == 0
