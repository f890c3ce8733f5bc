"""Rollouts on one kind of GPU, training on another: each prices its own part."""

from dataclasses import replace
from typing import Any

import pytest

from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.cost import RooflineCost
from rollcast.simulator.costs.sync.weight_sync import WeightSync
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.explore.knobs import chosen, knobs, starts
from rollcast.simulator.planner.planner import plan
from rollcast.simulator.report.assumptions import of_presets
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.values.chance import Levels
from tests.refusals import refuses
from tests.scenarios import LINEAR

CLUSTER = {"placement": "disaggregated", "replicas": 6, "trainer_gpus": 4}
DATA: dict[str, Any] = {
    "model": "qwen3-8b",
    "gpu": "h20",
    "cluster": {**CLUSTER, "trainer_gpu": "h100-sxm"},
    "workload": {
        "batch_groups": 8,
        "group_size": 4,
        "prompt_tokens": 300,
        "max_new_tokens": 2048,
        "lengths": {
            "family": "lognormal",
            "median_tokens": 500,
            "between_sd": 0.5,
            "within_sd": 0.3,
        },
    },
    "steps": 3,
}


def raw(**changes: Any) -> RawScenario:
    return RawScenario({**DATA, **changes})


def of(gpu: str, trainer_gpu: str | None = None) -> dict[str, Any]:
    cluster = {**CLUSTER, "trainer_gpu": trainer_gpu}
    return simulate(from_raw(raw(gpu=gpu, cluster=cluster))).summary


def test_rollouts_take_what_they_take_on_their_kind_and_updates_on_the_trainers() -> None:
    both, engines, trainers = of("h20", "h100-sxm"), of("h20"), of("h100-sxm")
    assert both["rollout_s"] == pytest.approx(engines["rollout_s"])
    assert both["train_s"] == pytest.approx(trainers["train_s"])
    assert trainers["train_s"] < 0.5 * engines["train_s"]
    assert of("h20", "h20")["makespan_s"] == engines["makespan_s"]


def test_each_hour_has_the_price_of_its_gpu() -> None:
    both = of("h20", "h100-sxm")
    usd_per_hour = 6 * load_gpu("h20").usd_per_hour + 4 * load_gpu("h100-sxm").usd_per_hour
    assert both["cost_usd"] == pytest.approx(usd_per_hour * both["makespan_s"] / 3600)
    assert both["gpus_of"]["trainer"] == {"gpu": "h100-sxm", "gpus": 4, "usd_per_hour": 2.5}
    free = {"preset": "h100-sxm", "usd_per_hour": 0}
    unpriced = from_raw(raw(cluster={**CLUSTER, "trainer_gpu": free}))
    assert "cost_usd" not in simulate(unpriced).summary


def test_the_trainers_memory_is_its_own() -> None:
    small = raw(cluster={**CLUSTER, "trainer_gpu": "v100-32gb"})
    with pytest.raises(ScenarioError, match="4 x v100-32gb"):
        from_raw(small).check_memory()
    a40 = from_raw(raw(gpu="a40"))
    assert a40.engine.kv_tokens < from_raw(raw()).engine.kv_tokens


def cost(gpu: str, trainer_gpu: str, **options: Any) -> RooflineCost:
    made = RooflineCost.from_options(
        load_model("qwen3-8b"),
        load_gpu(gpu),
        trainer_gpus=2,
        trainer_gpu=load_gpu(trainer_gpu),
        placement="disaggregated",
    )
    return replace(made, **options)


def test_weights_go_by_the_slower_link_and_between_nodes() -> None:
    fast = {"sync_bytes_per_s": 1e13, "sync_fixed_s": 0.0}
    mixed = cost("h100-sxm", "l20", **fast).sync_s
    assert mixed == cost("l20", "h100-sxm", **fast).sync_s == cost("l20", "l20", **fast).sync_s
    assert mixed > 5 * cost("h100-sxm", "h100-sxm", **fast).sync_s
    sync = WeightSync("nccl_per_tensor")
    assert sync.preset.node_bytes_per_s is not None
    near, far = cost("h100-sxm", "h100-sxm", sync=sync), cost("h100-sxm", "h200-sxm", sync=sync)
    assert far.sync_s == sync.seconds(far.model, 2, 1, apart=True) != near.sync_s


def test_the_two_kinds_err_apart() -> None:
    chance = Levels({"prefill efficiency/gemm_flop_efficiency": 2.0})
    load = TrainLoad([(300, [900] * 8)])
    both, one = cost("h20", "h100-sxm"), cost("h20", "h20")
    drawn, same = both.with_figures_drawn(chance), one.with_figures_drawn(chance)
    assert drawn.trainer_of.train(load).total_s < both.trainer_of.train(load).total_s
    assert drawn.gpu == both.gpu
    assert same.gpu.gemm_flop_efficiency > one.gpu.gemm_flop_efficiency
    assert "prefill efficiency/gemm_flop_efficiency of the engines" in chance.names


@pytest.mark.parametrize(
    ("changes", "field", "word"),
    [
        ({"cluster": {"trainer_gpu": "h20"}}, "cluster.trainer_gpu", "placement: disaggregated"),
        ({"cost": {"linear": LINEAR}}, "cluster.trainer_gpu", "cost: linear"),
        ({"cost": {"file": "fitted.json"}}, "cluster.trainer_gpu", "cost: file"),
        ({"cluster": {**CLUSTER, "trainer_gpu": "h1000"}}, "cluster.trainer_gpu", "h100"),
        ({"cluster": {**CLUSTER, "trainer_gpu": 8}}, "cluster.trainer_gpu", "a name or a mapping"),
        (
            {"cluster": {**CLUSTER, "trainer_gpu": {"preset": "h20", "memory": 1}}},
            "cluster.trainer_gpu.memory",
            "memory_bytes",
        ),
        ({"gpu": None}, "gpu", "missing"),
    ],
)
def test_bad_input_names_the_key(changes: dict[str, Any], field: str, word: str) -> None:
    with refuses(field, word):
        from_raw(raw(**changes))


def test_a_plan_names_both_and_leaves_out_shared_gpus() -> None:
    section = {
        "run": {"steps": 20},
        "choose": {
            "cluster.trainer_gpu": ["h100-sxm", "h20"],
            "placement": ["colocated", "disaggregated"],
            "gpus": [8],
            "policy": ["sync"],
        },
    }
    planned = plan(from_raw(raw(plan=section)), workers=1, intervals=False)
    assert {row.setup.placement for row in planned.rows} == {"disaggregated"}
    assert any("of one kind" in found.problem for found in planned.impossible)
    best = planned.rows[0].setup
    assert f"{best.trainer_gpus} {best.trainer_gpu} for the trainer" in planned.sentences[0]
    assert best.usd_per_gpu_hour is not None
    assert 1.5 <= best.usd_per_gpu_hour <= 2.5


def test_the_pages_assumptions_hold_the_figures_of_both() -> None:
    keys = {row.key for row in of_presets(from_raw(raw()))}
    assert {"gpu.bandwidth_bytes_per_s", "cluster.trainer_gpu.bandwidth_bytes_per_s"} <= keys


def test_the_page_of_sliders_has_no_one_price_for_two_kinds() -> None:
    scenario = from_raw(raw())
    made = knobs(scenario)
    assert "usd_per_hour" not in {knob.name for knob in made}
    moved = from_raw(chosen(scenario, starts(made)))
    assert moved.trainer_gpu == scenario.trainer_gpu
