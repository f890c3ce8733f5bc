"""What a stack's loop, fixed seconds and factors add to the roofline, by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.costs import Iteration, RooflineCost, TrainLoad
from rollcast.simulator.costs.engine.speculative_options import Speculative
from rollcast.simulator.costs.phase_figures import FixedSeconds, PhaseFactors
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.options import RooflineSection
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from rollcast.simulator.studies.work import Work
from rollcast.simulator.values.chance import Drawn
from tests.costs.test_backends import STEP

LOAD = TrainLoad([(100, [400, 500])] * 8)
DECODING = Iteration(32, 32 * 800)
MIXED = Iteration(33, 32 * 800 + 300, 300, 300 * 301 // 2, 1, 300)
PREFILL = Iteration(2, 600, 600, 300 * 301, 2, 600)


def cost(**options: Any) -> RooflineCost:
    section = RooflineSection.from_mapping(options, "cost.roofline")
    model, gpu = load_model("qwen3-8b"), load_gpu("h100-sxm")
    return RooflineCost.from_options(model, gpu, section, trainer_gpus=8)


def phases(its: RooflineCost) -> dict[str, float]:
    return dict(its.train(LOAD).phases_s)


def test_a_loop_adds_to_every_iteration_and_a_factor_leaves_it_alone() -> None:
    plain, base = cost(), cost(loop_s=0.004, loop_per_rollout_s=1e-5)
    for work in (DECODING, MIXED, PREFILL):
        added = base.iteration_s(work) - plain.iteration_s(work)
        assert added == pytest.approx(0.004 + 1e-5 * work.rollouts)
    slow = replace(base, phase_factors=PhaseFactors(decode=1.5, prefill=3.0))
    loop_s = 0.004 + 1e-5 * 32
    assert slow.iteration_s(DECODING) == pytest.approx(1.5 * plain.iteration_s(DECODING) + loop_s)
    assert slow.decode_curve(32).seconds(32 * 800) == pytest.approx(slow.iteration_s(DECODING))
    whole, alone = plain.iteration_s(MIXED), plain.iteration_s(DECODING)
    expected = 1.5 * alone + 3.0 * (whole - alone) + 0.004 + 1e-5 * 33
    assert slow.iteration_s(MIXED) == pytest.approx(expected)
    expected = 3.0 * plain.iteration_s(PREFILL) + 0.004 + 2e-5
    assert slow.iteration_s(PREFILL) == pytest.approx(expected)


@given(st.integers(1, 300), st.integers(1, 6000), st.sampled_from([0.6, 1.0, 1.7]))
def test_a_host_that_works_ahead_counts_where_it_takes_longer(
    rollouts: int, context: int, factor: float
) -> None:
    times = {"host_s": 4e-3, "host_per_rollout_s": 4e-5, "loop_s": 1e-3}
    engine, work = cost(host_s=0.0, host_per_rollout_s=0.0), Iteration(rollouts, rollouts * context)
    gpu_s, host_s = engine.iteration_s(work), 4e-3 + 4e-5 * rollouts
    ahead = cost(**times, host_overlaps=True)
    assert ahead.iteration_s(work) == pytest.approx(max(gpu_s, host_s + 1e-3))
    slow = replace(ahead, phase_factors=PhaseFactors(decode=factor, prefill=factor))
    expected = max(gpu_s, host_s + 1e-3) + (factor - 1) * max(gpu_s, host_s)
    assert slow.iteration_s(work) == pytest.approx(expected)
    assert slow.decode_curve(rollouts).seconds(work.context_tokens) == pytest.approx(expected)
    launched = cost(**times, host_overlaps=True, cuda_graphs=False)
    assert launched.iteration_s(work) == cost(**times, cuda_graphs=False).iteration_s(work)


def test_an_iteration_that_verifies_passes_the_loop_once_for_all_its_tokens() -> None:
    drafts = Speculative(method="mtp", tokens=2, tokens_per_step=2.5)
    plain = replace(cost(), speculative=drafts)
    loop = replace(plain, loop_s=0.005, phase_factors=PhaseFactors(decode=2.0))
    seconds = loop.decode_curve(8).seconds(8 * 500)
    assert seconds == pytest.approx(2 * plain.decode_curve(8).seconds(8 * 500) + 0.005 / 2.5)
    assert loop.iteration_s(Iteration(8, 8 * 500)) == pytest.approx(seconds)


def test_factors_and_fixed_seconds_of_an_update() -> None:
    given = {"rest_s": 1.0, "trainer": {"log_prob_passes": 3, "critic": True}}
    plain = phases(cost(**given))
    factors = {"log_prob": 2.0, "reference": 5.0, "update": 1.5}
    fixed = {"log_prob": 7.0, "update": 11.0}
    found = phases(cost(**given, phase_factors=factors, fixed=fixed))
    assert list(found) == [*list(plain)[:-1], "overhead", "rest"]
    assert found["log_prob"] == pytest.approx(2 * plain["log_prob"] + 7)
    assert found["reference"] == pytest.approx(5 * plain["reference"])
    assert found["values"] == pytest.approx(2 * plain["values"])
    for name in ("forward", "backward", "gradient_exchange", "optimizer"):
        assert found[name] == pytest.approx(1.5 * plain[name])
    assert (found["overhead"], found["rest"]) == (11.0, 1.0)
    # Without one of its own, the reference takes the factor of the log-probabilities; without a
    # pass there is nothing to add fixed seconds to.
    two = phases(cost(**given, phase_factors={"log_prob": 2.0}))
    assert two["reference"] == pytest.approx(2 * plain["reference"])
    none = phases(cost(trainer={"log_prob_passes": 0}, fixed=fixed))
    assert "log_prob" not in none


def test_fixed_seconds_of_syncs_and_switches_are_slowed_with_them() -> None:
    plain, found = cost(), cost(fixed={"sync": 0.5, "switch": 3.0}, phase_factors={"sync": 2.0})
    assert found.sync_s == pytest.approx(2 * (plain.sync_s + 0.5))
    for switch in ("switch_to_train_s", "switch_to_rollout_s"):
        assert getattr(found, switch) == pytest.approx(2 * (getattr(plain, switch) + 1.5))
    apart = replace(found, placement="disaggregated")
    assert apart.switch_to_train_s == apart.switch_to_rollout_s == 0


def ran(fixed_s: float, **cluster: Any) -> Result:
    placed = {**STEP["cluster"], **cluster}
    roofline = {"fixed": {"generation": fixed_s}}
    policy = "one_step_off" if cluster else []
    keys = {**STEP, "cluster": placed, "policy": policy, "cost": {"roofline": roofline}}
    return simulate(from_raw(RawScenario({**keys, "steps": 3, "seed": 1})))


def generation_s(result: Result) -> list[float]:
    return [p.end_s - p.start_s for p in result.run.phases if p.kind == "rollout"]


def test_a_step_s_generation_begins_after_its_fixed_seconds() -> None:
    without, with_fixed = generation_s(ran(0.0)), generation_s(ran(4.0))
    assert with_fixed == pytest.approx([4.0 + seconds for seconds in without])


def test_beside_training_each_batch_is_generated_after_its_fixed_seconds() -> None:
    apart = {"placement": "disaggregated", "replicas": 4, "trainer_gpus": 4}
    without, with_fixed = ran(0.0, **apart), ran(30.0, **apart)  # longer than an update
    steps = [step.step_s for step in with_fixed.run.steps]
    assert steps[1] == pytest.approx(30.0 + generation_s(without)[1], rel=0.05)


def test_fixed_seconds_of_generation_are_repriced_by_themselves() -> None:
    result = ran(40.0)
    work, base = Work(result.scenario, result.run), result.scenario.cost
    assert isinstance(base, RooflineCost)
    plain_s, fixed_s = generation_s(ran(0.0)), generation_s(result)
    longer = replace(base, fixed=FixedSeconds(generation=80.0))
    expected = sum(seconds + 80 for seconds in plain_s) / sum(fixed_s)
    assert work.prices(longer)["generation"] == pytest.approx(expected)
    slower = replace(base, phase_factors=PhaseFactors(decode=2.0))
    expected = sum(2 * seconds + 40 for seconds in plain_s) / sum(fixed_s)
    assert work.prices(slower)["generation"] == pytest.approx(expected, rel=0.02)


def spread(phase: str, **factors: float) -> float:
    """Standard deviation of the log of a phase's seconds over draws, beyond the figures'."""
    base = replace(cost(trainer={"log_prob_passes": 2}), phase_factors=PhaseFactors(**factors))
    drawn = [base.drawn(Drawn(np.random.default_rng(seed))) for seed in range(240)]
    if phase in ("decode", "prefill"):
        return float(np.std([math.log(each.factors[phase]) for each in drawn]))
    seconds = [
        dict(each.train(LOAD).phases_s)[phase] / dict(each.inner.train(LOAD).phases_s)["log_prob"]
        for each in drawn
    ]
    return float(np.std(np.log(seconds)))


def test_a_stack_s_deviations_add_to_decoding_and_replace_the_trainer_s() -> None:
    assert spread("decode") == pytest.approx(0.07, rel=0.25)
    assert spread("decode", decode_sd=0.24) == pytest.approx(math.hypot(0.07, 0.24), rel=0.2)
    assert spread("prefill", prefill_sd=0.5) == pytest.approx(math.hypot(0.12, 0.5), rel=0.2)
    assert spread("log_prob") == pytest.approx(0.30, rel=0.2)
    assert spread("log_prob", log_prob_sd=0.1) == pytest.approx(0.1, rel=0.2)
    assert spread("reference") == pytest.approx(0.30, rel=0.2)  # moves with the log-probabilities
    alone = spread("reference", log_prob_sd=0.6, reference_sd=0.3)
    assert alone == pytest.approx(0.3, rel=0.2)


def test_a_stack_s_figures_stand_where_nobody_gave_one() -> None:
    own = FixedSeconds(update=3.0).or_else(FixedSeconds(generation=1.0, update=9.0))
    assert own == FixedSeconds(generation=1.0, update=3.0)
    assert FixedSeconds(update=3.0).times(2.0) == FixedSeconds(update=6.0)
    assert PhaseFactors(decode=1.2).or_else(PhaseFactors(decode_sd=0.3)).decode_sd == 0.3
