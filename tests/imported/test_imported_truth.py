"""A run whose truth is known, written by each stack: its parameters and its ranking come back."""

import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rollcast.calibration import importing as outcomes
from rollcast.calibration.importing import Outcome
from rollcast.calibration.logs import write
from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.gather import read_log
from rollcast.calibration.logs.run_log import RunLog
from rollcast.calibration.pages.import_file import to_json
from rollcast.calibration.pages.import_page import page
from rollcast.simulator.costs.scaled import ScaledCost
from rollcast.simulator.launches.parts import given
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw, load, simulate
from tests.imported import truth
from tests.imported.whole import simulated_step_s

DUMPED = [name for name, form in truth.FORMS.items() if form.level > 1]
BARE = [name for name in truth.FORMS if name not in DUMPED]
RANKED = ("verl", "openrlhf")  # with dumps, and from steps without a longest one
SIMULATED = (*RANKED, "areal", "prime_rl", "trl")  # and each way in which runs are laid out
Reading = Callable[[str], tuple[RunLog, Outcome]]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reading]:
    """The run as a stack logs it, read and fitted: once."""
    with pytest.MonkeyPatch.context() as patch:

        @cache
        def found(stack: str) -> tuple[RunLog, Outcome]:
            if stack == "trl":
                pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
            log = read_log([truth.write(stack, tmp_path_factory.mktemp(stack), patch)])
            parts = draft(log, given(truth.MODEL, truth.FORMS[stack].gpu))
            return log, outcomes.outcome(log, parts, "freeze", advised=stack in RANKED)

        yield found


@pytest.mark.parametrize("stack", list(truth.FORMS))
def test_the_level_and_the_replay(stack: str, read: Reading) -> None:
    log, found = read(stack)
    form = truth.FORMS[stack]
    assert (log.stack, log.overlapped) == (stack, form.variant == "overlapped")
    assert (log.level, log.unread) == (form.level, 0)
    cluster = truth.VARIANTS[form.variant].get("cluster", truth.SCENARIO["cluster"])
    own = {part.key: part.value for part in found.parts}
    for key, value in cluster.items():  # as the run was laid out
        assert own[f"cluster.{key}"] == value, key
    replays = [each for each in found.judged if each.mode == "replay"]
    assert bool(replays) == (log.level > 1 and not log.overlapped)
    for each in replays:  # the truth has no noise, so what is left is the shape's own error
        assert each.median_error < 0.02
        assert abs(each.total_error) < 0.02
    [predicted] = [each for each in found.judged if each.mode == "predict"]
    assert predicted.total_covered
    assert len(predicted.number) == truth.STEPS // 3


@pytest.mark.parametrize("stack", list(truth.FORMS))
def test_the_step_that_is_printed_is_the_file_s(stack: str, read: Reading, tmp_path: Path) -> None:
    log, found = read(stack)
    # the truth's own: without noise, and to go on as it was
    measured_s = float(np.median(found.used.whole_s[found.used.quiet]))
    assert found.step.low_s <= measured_s <= found.step.high_s
    if log.level > 1:
        assert found.step.seconds == pytest.approx(measured_s, rel=0.15)  # of few steps
    if stack in SIMULATED:
        simulated_s = simulated_step_s(log, found, tmp_path / "mine")
        assert found.step.seconds == pytest.approx(simulated_s, rel=0.01)


@pytest.mark.parametrize("stack", [name for name in truth.FORMS if truth.FORMS[name].gpu])
def test_every_cost_lies_in_its_interval(stack: str, read: Reading) -> None:
    _, found = read(stack)
    assert found.fit.shape == "roofline"
    levels = found.fit.levels
    for phase in truth.FORMS[stack].known:  # without prompts in a log, spreads hold an assumed one
        off = abs(math.log(levels.factors[phase] / truth.SCALE[phase]))
        assert off < 1.96 * levels.spreads[phase], (phase, levels.factors[phase])
        assert phase in levels.seen
    if stack in TOLD_APART:  # so that no prior stands in for either
        assert max(levels.spreads[phase] for phase in ("sync", "switch")) < 0.03


TOLD_APART = ("slime", "nemo_rl", "roll")


def test_every_coefficient_lies_in_its_interval(read: Reading) -> None:
    """TRL's run, on a board that nobody names: its own straight lines come back."""
    _, found = read("trl")
    assert found.fit.shape == "linear"
    assert found.fit.cost["linear"]["padded"] is True
    own, spreads = found.fit.coefficients, found.fit.levels.spreads
    for name, phase in (
        ("train_per_token_s", "update"),
        ("log_prob_per_token_s", "log_prob"),
        ("sync_s", "sync"),
        ("iteration_s", "decode"),
        ("per_prefill_token_s", "prefill"),
    ):
        assert abs(math.log(own[name] / truth.LINEAR[name])) < 1.96 * spreads[phase], name
    assert own["per_rollout_s"] == pytest.approx(truth.LINEAR["per_rollout_s"], rel=0.15)


@pytest.mark.parametrize("stack", DUMPED)
def test_every_length_lies_in_its_interval(stack: str, read: Reading) -> None:
    _, found = read(stack)
    own, errors = (found.fit.rollouts.lengths[k] for k in ("lengths", "standard_errors"))
    for key, true in truth.LENGTHS.items():
        assert abs(own[key] - true) < 1.96 * errors[key] + 0.005 * true, (key, own[key])
    assert own["drift_per_step"] == 0.0
    its = truth.run(truth.FORMS[stack].variant)
    lengths = sorted(n for t in its for group in t.lengths for n in group)
    kept = sorted(n for group in found.fit.rollouts.groups.new_tokens for n in group)
    assert kept == pytest.approx(lengths, abs=1)  # of verl and ROLL by characters, one a token


@pytest.mark.parametrize("stack", BARE)
def test_lengths_from_steps_alone_lie_in_their_intervals(stack: str, read: Reading) -> None:
    _, found = read(stack)
    errors = found.fit.few.errors()
    own = found.fit.few.lengths()
    assert abs(own["median_tokens"] - 600) < 1.96 * errors["median_tokens"]
    total = math.hypot(own["between_sd"], own["within_sd"])
    assert total == pytest.approx(math.hypot(0.6, 0.3), rel=0.15)


@cache
def _true_speedups() -> dict[str, float]:
    own = dict(truth.SCENARIO)
    half = {"placement": "disaggregated", "replicas": 4, "trainer_gpus": 4}
    asked = {
        "as_run": {},
        "april": {"policy": [{"april": {"over_sampling": 1.5}}]},
        "over_sampling": {"policy": ["tail_batching"]},
        "by_group": {"policy": ["seer"]},
        "one_step_off": {"policy": ["one_step_off"], "cluster": half},
    }
    steps = {
        name: simulate(from_raw(RawScenario({**own, **changed, "steps": 24}))).run.steps[2:-1]
        for name, changed in asked.items()
    }
    means = {name: sum(r.step_s for r in each) / len(each) for name, each in steps.items()}
    return {name: means["as_run"] / mean for name, mean in means.items()}


@pytest.mark.parametrize("stack", RANKED)
def test_policies_rank_as_by_the_truth(stack: str, read: Reading) -> None:
    _, found = read(stack)
    own = {each.key: each for each in found.advice.answers}
    true = _true_speedups()
    assert own.keys() == true.keys()
    assert not any(each.why_not for each in own.values())
    for one in true:
        for other in true:
            if true[one] > 1.15 * true[other]:
                assert own[one].speedup > own[other].speedup, (one, other)
    for key, each in own.items():  # 90 % of runs of a few steps; the truth's mean is of many
        assert 0.9 * each.low < true[key] < 1.1 * each.high, key
    words = {"verl": "trainer.v1.trainer_mode=separate_async", "openrlhf": "--async_train"}
    assert own["one_step_off"].words.startswith(words.get(stack, ""))
    assert truth.GENERATION[stack] in " ".join(found.advice.bottleneck)


@pytest.mark.parametrize("stack", ["table", "skyrl"])
def test_what_is_written_runs_as_it_is(stack: str, read: Reading, tmp_path: Path) -> None:
    log, found = read(stack)
    out = tmp_path / "mine"
    write.write(out, log, found.parts, False, to_json(log, found), page(log, found))
    scenario = load(out / "scenario.yaml")
    text = (out / "scenario.yaml").read_text()
    for line in text.splitlines():
        assert line.endswith(":") or "#" in line, line
    assert isinstance(scenario.cost, ScaledCost)
    assert scenario.cost.spreads
    result = simulate(load(out / "scenario.yaml", "steps=30"))
    true = [t.step_s for t in truth.run()]
    assert result.summary["step_s"] == pytest.approx(sum(true) / len(true), rel=0.15)
