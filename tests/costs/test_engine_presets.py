"""Host time by engine: what is given wins over the engine's figures, and those over the default."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from rollcast.simulator.costs import Iteration, RooflineCost
from rollcast.simulator.costs.engine.hosts import engine_presets
from rollcast.simulator.costs.presets.gpus import Gpu, load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.presets.provenance import Kind, figures
from rollcast.simulator.costs.roofline.cost import RooflineSection
from rollcast.simulator.costs.roofline.draws import cost_spreads, gpu_spreads
from rollcast.simulator.costs.roofline.options import LAUNCHES
from rollcast.simulator.values.chance import Drawn

MODEL, GPU = load_model("qwen3-8b"), load_gpu("h100-sxm")


def cost(**options: object) -> RooflineCost:
    section = RooflineSection.from_mapping(options, "cost.roofline")
    return RooflineCost.from_options(MODEL, GPU, section)


def test_every_engine_has_figures_and_a_source() -> None:
    for host in engine_presets().values():
        assert 0 < host.host_per_rollout_s < host.host_s < 1e-2
        assert 0 < host.low < 1 < host.high
        assert host.provenance.kind in get_args(Kind)
        assert host.provenance.source


@pytest.mark.parametrize(
    ("most", "gpu", "gpus", "options"),
    [
        (512, "h100-sxm", 1, {"engine": "vllm-0.26"}),
        (256, "h100-sxm", 2, {"engine": "sglang"}),
        (512, "h100-sxm", 4, {"engine": "sglang"}),
        (32, "a100-40gb", 2, {"engine": "sglang"}),
        (160, "a100-40gb", 4, {"engine": "sglang"}),
        (16, "a100-40gb", 2, {"engine": "sglang", "graph_rollouts": 16}),
    ],
)
def test_no_graph_holds_more_rollouts_than_the_engine_captures(
    most: int, gpu: str, gpus: int, options: dict[str, object]
) -> None:
    """More are launched kernel by kernel, by a host that prepares nothing meanwhile."""
    model = load_model("qwen3-0.6b")
    section = RooflineSection.from_mapping({**options, "launch_s_per_layer": 5e-3}, "cost.roofline")
    with_graphs = RooflineCost.from_options(model, load_gpu(gpu), section, tensor_parallel=gpus)
    eager = replace(with_graphs, cuda_graphs=False)
    for rollouts, same in ((most, with_graphs), (most + 1, eager)):
        work = Iteration(rollouts, rollouts * 100)
        assert with_graphs.iteration_s(work) == same.iteration_s(work)
        at = with_graphs.decode_curve(rollouts).seconds(rollouts * 100)
        assert at == pytest.approx(same.iteration_s(work))
    assert eager.iteration_s(work) > 2 * with_graphs.iteration_s(Iteration(most, most * 100))


GRACE = load_gpu("gh200")


def test_grace_is_slower_than_x86_where_nothing_is_given() -> None:
    def beside(gpu: Gpu, **options: object) -> RooflineCost:
        section = RooflineSection.from_mapping(options, "cost.roofline")
        return RooflineCost.from_options(MODEL, gpu, section)

    known, eager = figures("grace"), {"cuda_graphs": False}
    for options in ({}, {"engine": "sglang"}, {"stack": "nemo-rl"}):
        x86, grace = beside(GPU, **options), beside(GRACE, **options)
        for name in ("host_s", "host_per_rollout_s", "loop_s", "loop_per_rollout_s"):
            assert getattr(grace, name) == pytest.approx(known.host_factor * getattr(x86, name))
        for name in LAUNCHES:
            assert getattr(grace, name) == pytest.approx(known.launch_factor * getattr(x86, name))
        again = replace(replace(grace, tensor_parallel=2), tensor_parallel=1)
        assert (again.host_s, again.launch_s_per_layer) == (grace.host_s, grace.launch_s_per_layer)
    given = {"host_s": 1e-3, "launch_s_per_layer": 2e-4}
    own = beside(GRACE, host_factor=2.0, **given)
    assert (own.host_s, own.launch_s_per_layer) == (1e-3, 2e-4)
    assert own.host_per_rollout_s == 2.0 * cost().host_per_rollout_s
    work = Iteration(8, 8 * 500)
    slower = beside(GRACE, **eager).iteration_s(work) / beside(GPU, **eager).iteration_s(work)
    assert 2.0 < slower < known.launch_factor


def test_an_engine_sets_what_is_not_given() -> None:
    host = engine_presets()["sglang"]
    named = cost(engine="sglang")
    assert (named.host_s, named.host_per_rollout_s) == (host.host_s, host.host_per_rollout_s)
    own = cost(engine="sglang", host_s=5.4e-4)  # the default's value, but given
    assert (own.host_s, own.host_per_rollout_s) == (5.4e-4, host.host_per_rollout_s)
    slow = cost(engine="sglang", host_factor=2, host_per_rollout_s=7e-6)
    assert (slow.host_s, slow.host_per_rollout_s) == (2 * host.host_s, 7e-6)
    same = replace(slow, sync_fixed_s=1.0)
    assert (same.host_s, same.host_per_rollout_s) == (slow.host_s, slow.host_per_rollout_s)


def test_without_an_engine_it_is_the_one_that_was_fitted() -> None:
    fitted = engine_presets()["vllm-0.19"]
    assert (cost().host_s, cost().host_per_rollout_s) == (fitted.host_s, fitted.host_per_rollout_s)
    assert cost(host_factor=3).host_s == pytest.approx(3 * fitted.host_s)
    assert type(cost().host_s) is float


def test_a_named_engine_is_drawn_within_its_own_spread() -> None:
    rng, host = np.random.default_rng(3), engine_presets()["vllm-0.19"]
    named = cost(engine="vllm-0.19")
    drawn = (
        np.array([named.with_figures_drawn(Drawn(rng)).host_s for _ in range(300)]) / host.host_s
    )
    assert host.low <= drawn.min() < host.low * 1.1
    assert host.high / 1.1 < drawn.max() <= host.high
    assert cost_spreads(None)[0].names == cost_spreads("vllm-0.19")[0].names


def test_figures_that_nobody_measured_are_drawn_wider() -> None:
    for known, assumed in zip(gpu_spreads(GPU), gpu_spreads(load_gpu("mi300x")), strict=True):
        assert assumed.low < known.low < 1 < known.high < assumed.high
        assert assumed.names == known.names
    mixed = gpu_spreads(load_gpu("rtx-pro-6000-server"))
    assert [spread.high for spread in mixed] == [1.14, 1.22, 2.0]  # its trainer is assumed
