"""Factors on costs, by phase."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.costs import Iteration, LinearCost, RooflineCost, TrainLoad
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.scaled import PHASES, Scale, ScaledCost
from rollcast.simulator.results.phases import GRADES
from rollcast.simulator.scenario.file import parse_scenario, read_scenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.values.chance import Drawn
from tests.refusals import refuses

APRIL = Path(__file__).parents[2] / "examples" / "april.yaml"
COST = RooflineCost(load_model("qwen3-8b"), load_gpu("h100-sxm"), trainer_gpus=8, rest_s=3.0)
LOAD = TrainLoad([(500, [1000, 2000])] * 8)
ONES = dict.fromkeys(PHASES, 1.0)


def phases(cost: Any) -> dict[str, float]:
    """Seconds of what each factor multiplies, one at a time."""
    train = dict(cost.train(LOAD).phases_s)
    prompt = Iteration(9, 5000, 700, 700 * 701 // 2, 1, 700)
    decode = cost.decode_curve(8).seconds(4300)
    return {
        "decode": decode,
        "prefill": cost.mixed_iteration_s(prompt) - decode,
        "log_prob": train["log_prob"],
        "update": sum(s for name, s in train.items() if name not in ("log_prob", "rest")),
        "sync": cost.sync_s,
        "switch": cost.switch_to_train_s + cost.switch_to_rollout_s,
        "rest": train["rest"],
    }


@given(st.sampled_from(PHASES), st.floats(0.01, 100))
def test_a_factor_multiplies_its_phase_and_no_other(phase: str, factor: float) -> None:
    before, after = phases(COST), phases(ScaledCost(COST, {**ONES, phase: factor}))
    for name, seconds in before.items():
        assert after[name] == pytest.approx(seconds * (factor if name == phase else 1.0), rel=1e-9)


def test_every_forward_before_the_update_goes_with_log_prob() -> None:
    trainer = replace(COST.trainer_of, log_prob_passes=2, critic=True, reward_passes=1, gpus=8)
    cost = replace(COST, trainer=trainer)
    before = dict(cost.train(LOAD).phases_s)
    after = dict(ScaledCost(cost, {**ONES, "log_prob": 3.0}).train(LOAD).phases_s)
    assert set(GRADES) < set(before)
    for name, seconds in before.items():
        assert after[name] == pytest.approx(seconds * (3.0 if name in GRADES else 1.0))


def test_factors_of_one_change_no_run_by_a_tick() -> None:
    plain = simulate(from_raw(read_scenario(APRIL), "steps=3"))
    scaled = simulate(from_raw(read_scenario(APRIL), "steps=3", "cost.scale.decode=1"))
    assert isinstance(scaled.scenario.cost, ScaledCost)
    assert plain.run.end_s == scaled.run.end_s
    assert plain.summary == scaled.summary


def test_a_run_whose_every_phase_takes_twice_as_long_takes_twice_as_long() -> None:
    doubled = [f"cost.scale.{phase}=2" for phase in PHASES]
    plain = simulate(from_raw(read_scenario(APRIL), "steps=3"))
    scaled = simulate(from_raw(read_scenario(APRIL), "steps=3", *doubled))
    assert scaled.summary["makespan_s"] == pytest.approx(2 * plain.summary["makespan_s"], rel=1e-12)
    assert scaled.run.decisions == plain.run.decisions


def test_what_is_sure_is_drawn_by_its_own_spread_alone() -> None:
    scale = Scale(decode=1.5, decode_sd=0.1, update_sd=0.3)
    cost = ScaledCost(COST, scale.factors(), scale.spreads())
    rng = np.random.default_rng(0)
    found = [phases(cost.drawn(Drawn(rng))) for _ in range(400)]
    centre = phases(cost)
    for phase, sd in {"decode": 0.1, "prefill": 0.0, "update": 0.3, "sync": 0.0}.items():
        logs = np.log([each[phase] / centre[phase] for each in found])
        assert np.std(logs) == pytest.approx(sd, rel=0.12, abs=1e-6)
        assert np.mean(logs) == pytest.approx(0.0, abs=4 * sd / 20 + 1e-6)


def test_what_is_not_sure_is_as_uncertain_as_its_costs() -> None:
    drawn = ScaledCost(COST, {**ONES, "decode": 2.0}).drawn(Drawn(np.random.default_rng(3)))
    inner = COST.drawn(Drawn(np.random.default_rng(3)))
    assert phases(drawn)["decode"] == pytest.approx(2 * phases(inner)["decode"])
    assert phases(drawn)["update"] == pytest.approx(phases(inner)["update"])


@pytest.mark.parametrize(
    ("cost", "field", "says"),
    [
        ("{roofline: {}, scale: {decoding: 2}}", "cost.scale.decoding", "decode"),
        ("{roofline: {}, scale: {decode: 0}}", "cost.scale.decode", "above 0"),
        ("{roofline: {}, scale: {decode_sd: -1}}", "cost.scale.decode_sd", "from 0 to 3"),
        ("{roofline: {}, scale: 2}", "cost.scale", "a mapping"),
        ("{}", "cost", "exactly one of roofline, tables, file, linear"),
    ],
)
def test_bad_factors_name_their_key(cost: str, field: str, says: str) -> None:
    with refuses(field, says):
        from_raw(parse_scenario(f"{APRIL.read_text()}\ncost: {cost}"))


def test_coefficients_have_a_level_too() -> None:
    linear = LinearCost(1e-3, 1e-5, 1e-7, 1e-5, 1.0, 1e-4, 0.5)
    scaled = ScaledCost(linear, {**ONES, "update": 3.0})
    assert scaled.train(LOAD).total_s == pytest.approx(3 * linear.train(LOAD).total_s)
    assert replace(scaled, factors=ONES).sync_s == linear.sync_s
