"""Sleep and wake of colocated engines, and what a step holds beside its phases."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollcast.simulator.costs import RooflineCost, TrainLoad
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.roofline.cost import RooflineSection
from rollcast.simulator.costs.roofline.draws import spreads
from rollcast.simulator.costs.sync.sleep import engine_switch_s
from rollcast.simulator.studies.simulate import load, simulate
from rollcast.simulator.values.chance import Drawn

SWITCH_S = figures("roofline").switch_fixed_s
(SPREAD,) = spreads("engine_sleep")
MODEL, GPU = load_model("qwen3-8b"), load_gpu("h100-sxm")


def cost(**options: object) -> RooflineCost:
    section = RooflineSection.from_mapping(options, "cost.roofline")
    return RooflineCost.from_options(MODEL, GPU, section, trainer_gpus=8)


def test_published_sleeps_and_wakes() -> None:
    """vLLM on A100: one GPU and four; seconds to wake and to sleep where both are given. The
    last two were held out."""
    a100 = load_gpu("a100-80gb")
    thirty, large = load_model("qwen3-30b-a3b"), load_model("qwen3-235b-a22b")
    eight_bits = replace(large, weight_bytes_per_parameter=1)
    phi = replace(MODEL, weight_bytes_per_parameter=8.3e9 / MODEL.parameters)
    for model, gpus, published, factor in (
        (load_model("qwen3-0.6b"), 1, (0.26,), 1.15),
        (thirty, 1, (2.87, 2.78), 1.05),
        (eight_bits, 4, (5.41, 5.89), 1.15),
        (phi, 1, (0.82,), 1.5),
        (MODEL, 1, (2.19,), 2.4),
    ):
        found = engine_switch_s(model, a100, gpus, "offload")
        for seconds in published:
            assert 1 / factor < found / seconds < factor, (model.name, found, seconds)
            assert SPREAD.low <= seconds / found <= SPREAD.high


def test_a_sleep_replaces_the_fixed_switch_unless_that_is_given() -> None:
    moved_s = cost().switch_to_train_s - SWITCH_S
    slept = engine_switch_s(MODEL, GPU, 1, "offload")
    assert cost(engine_sleep="offload").switch_to_train_s == pytest.approx(slept + moved_s)
    discarded = cost(engine_sleep="discard")
    assert discarded.switch_to_rollout_s == pytest.approx(0.21 + moved_s)
    assert cost(engine_sleep="offload", switch_fixed_s=SWITCH_S).switch_fixed_s == SWITCH_S
    assert replace(cost(), engine_sleep="discard").switch_fixed_s == 0.21
    assert replace(cost(), engine_sleep="none").switch_fixed_s == 0
    assert replace(discarded, switch_fixed_s=2.0).switch_fixed_s == 2.0
    assert replace(discarded, placement="disaggregated").switch_to_train_s == 0
    assert cost().switch_fixed_s == SWITCH_S


def test_switches_of_a_named_sleep_are_drawn_within_its_spread() -> None:
    rng, base = np.random.default_rng(5), cost(engine_sleep="offload")
    found = (
        np.array([base.with_figures_drawn(Drawn(rng)).switch_fixed_s for _ in range(200)])
        / base.switch_fixed_s
    )
    assert SPREAD.low <= found.min() < found.max() <= SPREAD.high
    assert found.std() > 0.2


def test_what_a_step_holds_beside_its_phases_comes_after_the_update() -> None:
    update = TrainLoad([(100, [900, 400])] * 8)
    plain, rest = cost().train(update), cost(rest_s=54).train(update)
    assert rest.phases_s == (*plain.phases_s, ("rest", 54))
    assert rest.peak_bytes == plain.peak_bytes


@pytest.mark.parametrize(
    ("policy", "placement", "holds"),
    [("sync", "colocated", "generation"), ("one_step_off", "disaggregated", "other")],
)
def test_a_driver_puts_a_batch_together(policy: str, placement: str, holds: str) -> None:
    """4 groups of 8 rollouts, padded to 512 and 16,384 tokens: after the generation on shared GPUs,
    and in the trainer's step on others, whatever draws of the rest there are."""
    example = Path(__file__).parents[2] / "examples" / "one_step_off.yaml"
    factor = "cost.roofline.phase_factors.rest=3"
    place = (f"cluster.placement={placement}", f"policy={policy}")
    small = ("steps=2", "workload.batch_groups=4", *place, factor)
    each = "cost.roofline.trainer.collected_per_token_s=1e-4"
    found = [
        simulate(load(example, *small, *more)).summary["phases"]
        for more in (("cost.roofline.rest_s=2",), ("cost.roofline.rest_s=2", each))
    ]
    plain, held = ({name: phase["s"] for name, phase in phases.items()} for phases in found)
    assert held[holds] - plain[holds] == pytest.approx(4 * 8 * (512 + 16_384) * 1e-4)
    alike = {"generation", "other", "update"} - {holds}
    assert {name: held[name] for name in alike} == pytest.approx({n: plain[n] for n in alike})


@pytest.mark.parametrize("policy", ["sync", "streaming"])
def test_the_rest_is_a_phase_of_every_step(policy: str) -> None:
    """Once a step, however many parts the update has."""
    example = Path(__file__).parents[2] / "examples" / "one_step_off.yaml"
    small = ("steps=2", "workload.batch_groups=4")
    without = simulate(load(example, *small).with_policy(policy)).run
    held = simulate(load(example, *small, "cost.roofline.rest_s=40").with_policy(policy)).run
    found = [phase for phase in held.phases if phase.kind == "rest"]
    assert [phase.end_s - phase.start_s for phase in found] == pytest.approx([40.0, 40.0])
    assert not [phase for phase in without.phases if phase.kind == "rest"]
    kinds = [phase.kind for phase in held.phases]
    assert kinds[kinds.index("rest") - 1] == "optimizer"
