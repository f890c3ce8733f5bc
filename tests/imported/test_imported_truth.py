"""A run whose truth is known, written by each stack: its parameters and its ranking come back."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest

from calibration.imported import outcome as outcomes
from calibration.imported.fitted import to_json
from calibration.imported.outcome import Outcome
from calibration.imported.page import page
from calibration.logs import write
from calibration.logs.draft import draft, given
from calibration.logs.gather import read_log
from calibration.logs.run_log import RunLog
from simulator.costs.scaled import ScaledCost
from simulator.scenario.file import RawScenario
from simulator.studies.simulate import from_raw, load, simulate
from tests.imported import truth

NAMED = [name for name in truth.FORMS if name != "roll"]  # which says nowhere how many nodes
_FOUND: dict[str, tuple[RunLog, Outcome]] = {}


def _found(stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunLog, Outcome]:
    if stack not in _FOUND:
        folder = truth.write(stack, tmp_path, monkeypatch)
        log = read_log([folder])
        parts = draft(log, given(truth.MODEL, truth.GPU))
        _FOUND[stack] = log, outcomes.outcome(log, parts, "freeze", advised=stack == "verl")
    return _FOUND[stack]


@pytest.mark.parametrize("stack", list(truth.FORMS))
def test_the_level_and_the_replay(
    stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, found = _found(stack, tmp_path, monkeypatch)
    assert (log.stack, log.overlapped) == (stack, False)
    assert log.level == truth.FORMS[stack].level
    replays = [each for each in found.judged if each.mode == "replay"]
    assert bool(replays) == (log.level == 2)
    for each in replays:  # the truth has no noise, so what is left is the shape's own error
        assert each.median_error < 0.02
        assert abs(each.total_error) < 0.02
    [predicted] = [each for each in found.judged if each.mode == "predict"]
    assert predicted.total_covered
    assert len(predicted.number) == truth.STEPS // 3


@pytest.mark.parametrize("stack", NAMED)
def test_every_cost_lies_in_its_interval(
    stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = _found(stack, tmp_path, monkeypatch)
    assert found.fit is not None
    assert found.fit.shape == "roofline"
    levels = found.fit.levels
    phases = ["decode", "prefill"]
    phases += ["log_prob", "update"]  # SkyRL logs no prompts: its spreads hold an assumed length
    if stack != "nemo_rl":  # whose switch is another figure
        phases += ["sync", "switch"]
    for phase in phases:
        off = abs(math.log(levels.factors[phase] / truth.SCALE[phase]))
        assert off < 1.96 * levels.spreads[phase], (phase, levels.factors[phase])
    for phase in ("decode", "log_prob", "update"):
        assert phase in levels.seen


@pytest.mark.parametrize("stack", [s for s, form in truth.FORMS.items() if form.level == 2])
def test_every_length_lies_in_its_interval(
    stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = _found(stack, tmp_path, monkeypatch)
    assert found.fit is not None
    assert found.fit.rollouts is not None
    own, errors = (found.fit.rollouts.lengths[k] for k in ("lengths", "standard_errors"))
    for key, true in truth.LENGTHS.items():
        assert abs(own[key] - true) < 1.96 * errors[key] + 0.005 * true, (key, own[key])
    assert own["drift_per_step"] == 0.0
    lengths = sorted(n for t in truth.run() for group in t.lengths for n in group)
    kept = sorted(n for group in found.fit.rollouts.groups.new_tokens for n in group)
    assert kept == pytest.approx(lengths, abs=1)  # of verl and ROLL by characters, one a token


def test_lengths_from_steps_alone_lie_in_their_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = _found("skyrl", tmp_path, monkeypatch)
    assert found.fit is not None
    assert found.fit.few is not None
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


def test_policies_rank_as_by_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = _found("verl", tmp_path, monkeypatch)
    assert found.advice is not None
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
    assert own["one_step_off"].words.startswith("trainer.v1.trainer_mode=separate_async")
    assert "timing_s/gen" in " ".join(found.advice.bottleneck)


@pytest.mark.parametrize("stack", ["table", "skyrl"])
def test_what_is_written_runs_as_it_is(
    stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, found = _found(stack, tmp_path, monkeypatch)
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
