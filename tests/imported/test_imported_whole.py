"""What is fitted is what the written scenario simulates; what is far off is not written at all."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from rollcast.calibration.fits.model import Drift, Fit
from rollcast.calibration.fits.noise import going_on
from rollcast.calibration.fits.step_lengths import Spread
from rollcast.calibration.importing import FAR_OFF, HOPELESS, _few_enough, outcome, refusal
from rollcast.calibration.judge.hold_out import Judged, forecast
from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.gather import read_log
from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.launches.parts import Part
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from tests.imported import truth
from tests.imported.test_imported_cli import _rows
from tests.logs import written
from tests.running import exit_code


def test_the_fit_has_the_level_of_the_log_s_end(tmp_path: Path) -> None:
    """Steps that take 1.2 times as long from the middle on, too little to be told as a change."""
    rows = _rows(60)
    for row in rows[30:]:
        for name in ("step_s", "generation_s", "update_s"):
            row[name] *= 1.2
    written.table(tmp_path / "run.csv", rows)
    log = read_log([tmp_path / "run.csv"])
    found = outcome(log, draft(log), advised=False)
    assert not found.changes
    late_s = float(np.median(found.used.whole_s[45:]))
    early_s = float(np.median(found.used.whole_s[:30]))
    assert abs(math.log(found.step.seconds / late_s)) < abs(math.log(late_s / early_s)) / 2


def test_a_padded_batch_is_priced_in_the_order_of_its_prompts() -> None:
    """Whichever group ended first: a stack pads what stands side by side in its batch."""
    padded = {"roofline": {"trainer": {"batching": "padded", "microbatch_rollouts": 4}}}
    scenario = from_raw(RawScenario({**truth.SCENARIO, "cost": padded, "steps": 1}))
    [record] = simulate(scenario).run.steps
    draws = [scenario.workload.draw(g, truth.SIZE) for g in range(truth.GROUPS)]
    groups = [(draw.prompt_tokens, [int(n) for n in draw.new_tokens]) for draw in draws]
    priced_s = scenario.cost.train(TrainLoad(groups)).total_s
    assert record.train_s == pytest.approx(priced_s, rel=1e-6)
    by_length = sorted(groups, key=lambda group: max(group[1]))
    assert scenario.cost.train(TrainLoad(by_length)).total_s < 0.98 * priced_s


# Lengths that change


def _growing(steps: int, slope: float, until: int) -> list[dict[str, float]]:
    rows = _rows(steps)
    for row in rows:
        times = math.exp(slope * min(row["step"], until))
        for name in ("mean_new_tokens", "max_new_tokens", "generation_s", "update_s"):
            row[name] *= times
        row["step_s"] = row["generation_s"] + row["update_s"] + 1
    return rows


def test_lengths_that_still_grow_go_on_growing_and_the_interval_holds_both(tmp_path: Path) -> None:
    written.table(tmp_path / "run.csv", _growing(60, 0.02, 60))
    log = read_log([tmp_path / "run.csv"])
    by = {drift: outcome(log, draft(log), drift, advised=False) for drift in ("auto", "freeze")}
    values = {name: {part.key: part.value for part in found.parts} for name, found in by.items()}
    key = "workload.lengths.drift_per_step"
    assert 0.003 < values["auto"][key] < 0.012  # it fades
    assert values["freeze"][key] == 0.0
    auto, frozen = by["auto"].step, by["freeze"].step
    assert auto.seconds > 1.1 * frozen.seconds
    assert auto.low_s < frozen.seconds < auto.high_s
    assert any("still changed by +2 % a step" in note for note in by["auto"].notes)
    [judged] = [each for each in by["auto"].judged if each.mode == "predict"]
    [stayed] = [each for each in by["freeze"].judged if each.mode == "predict"]
    assert abs(judged.total_error) < abs(stayed.total_error) / 2
    assert judged.total_covered


def test_lengths_that_grew_and_stopped_stay(tmp_path: Path) -> None:
    written.table(tmp_path / "run.csv", _growing(80, 0.03, 25))
    log = read_log([tmp_path / "run.csv"])
    found = outcome(log, draft(log), advised=False)
    own = {part.key: part.value for part in found.parts}
    assert own["workload.lengths.drift_per_step"] == 0.0
    assert not any("still changed" in note for note in found.notes)


@for_all(st.integers(0, 2**32 - 1), st.floats(-0.02, 0.02), st.integers(24, 120))
def test_a_change_that_goes_on_has_the_sign_and_at_most_the_size_of_the_whole(
    seed: int, slope: float, steps: int
) -> None:
    logs = slope * np.arange(steps) + 0.05 * np.random.default_rng(seed).standard_normal(steps)
    found, error = going_on(logs, slope)
    assert 0 < error < 0.05  # noise of 0.05 on half of 24 steps, neighbours erring together
    assert found * slope >= 0
    assert abs(found) <= abs(slope)
    assert going_on(logs - slope * np.arange(steps), 0.0)[0] == 0.0


def test_lengths_that_are_not_told_to_change_may_change(tmp_path: Path) -> None:
    """Noise and few steps hide a slope: the interval grows with the steps ahead by what may be."""
    written.table(tmp_path / "run.csv", _growing(20, 0.0, 20))
    log = read_log([tmp_path / "run.csv"])
    found = outcome(log, draft(log), advised=False)
    assert (found.fit.trend, found.fit.trend_sd > 0) == (0.0, True)

    def width(known: Fit, drift: Drift) -> float:
        totals = forecast(known, list(range(40, 80)), drift).sum(axis=1)
        return float(np.std(np.log(totals)))

    assert width(found.fit, "auto") > width(replace(found.fit, trend_sd=0.0), "auto")
    assert width(found.fit, "freeze") == width(replace(found.fit, trend_sd=0.0), "freeze")


def test_a_longest_response_that_is_surely_the_cap_is_sure() -> None:
    wide = Spread(0.9, 0.4, 0.3)
    assert wide.longest_sd(600.0, 32, 16, 1024) == 0.0
    assert wide.longest_sd(600.0, 32, 16, math.inf) > 0.3
    assert 0 < Spread(0.2, 0.1, 0.3).longest_sd(600.0, 32, 16, 1100) < 0.3


# What is too far off


def _judged(forecast_s: float, low_s: float, high_s: float, measured_s: float = 30.0) -> Judged:
    ones = np.ones(10)
    return Judged(
        measured_s * ones,
        forecast_s * ones,
        low_s * ones,
        high_s * ones,
        10 * forecast_s,
        10 * low_s,
        10 * high_s,
        "predict",
        np.arange(21, 31),
        20,
    )


def test_a_forecast_far_off_is_refused_by_its_size_and_its_interval() -> None:
    assert not refusal(())
    assert not refusal([_judged(30 * 0.99 * FAR_OFF, 44, 45)])  # outside, but not far off
    assert not refusal([_judged(30 * 1.1 * FAR_OFF, 20, 90)])  # it said that it did not know
    assert refusal([_judged(30 * 1.1 * HOPELESS, 20, 900)])  # nothing can be said
    said = refusal([_judged(480, 400, 500)])
    assert said.startswith("steps 21 to 30 took 30 s each, and 480.0 s were forecast from the 20")
    assert "--steps 21: or --steps :20" in said
    assert refusal([_judged(10, 9, 11)])  # too short as well
    assert not refusal([replace(_judged(480, 400, 500), mode="replay")])


def test_a_run_that_collapsed_is_refused_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = _rows(30)  # and then a policy that learned to say nothing
    for row in rows[20:]:
        row.update({"mean_new_tokens": 1.0, "max_new_tokens": 1.0, "generation_s": 0.2})
        row.update({"update_s": 0.3, "step_s": 0.6})
    path, out = tmp_path / "run.csv", tmp_path / "mine"
    written.table(path, rows)
    assert exit_code("import", path, "--out", out) == 2
    printed = capsys.readouterr()
    said = "error: LOG: from step 21 on, responses are 0.0035 times as long as before: "
    assert printed.err.startswith(said)
    assert "--steps 21: or --steps :20" in " ".join(printed.err.split())
    assert "what would make it faster" not in printed.out
    assert not out.exists()
    assert exit_code("import", path, "--out", out, "--steps", ":20", "--no-advise") == 0
    assert (out / "scenario.yaml").is_file()
    assert "20 steps, 1 to 20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("window", "said"),
    [
        ("9:3", "begins after its end"),
        ("31:", "the log has none of these steps; it has steps 1 to 30"),
        ("a:b", "must be FIRST:LAST"),
        ("20", "must be FIRST:LAST"),
        ("-3:4", "must be FIRST:LAST"),
        ("", "must be FIRST:LAST"),
    ],
)
def test_a_window_that_is_none(
    window: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written.table(tmp_path / "run.csv", _rows(30))
    assert exit_code("import", tmp_path / "run.csv", f"--steps={window}") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --steps: ")
    assert said in error


def test_a_large_batch_has_no_more_steps_than_its_step_is_simulated_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollcast.calibration.judge.whole.MOST_STEPS", 60)

    def steps(groups: int, held: int) -> Part:
        batch = [Part("workload.batch_groups", groups, ""), Part("workload.group_size", 5, "")]
        [part] = [p for p in _few_enough((*batch, Part("steps", held, "log"))) if p.key == "steps"]
        return part

    assert steps(64, 60) == Part("steps", 60, "log")
    assert steps(1024, 5).value == 5
    assert steps(1024, 60).value == 11  # 60,000 rollouts of 5,120
    assert "60" in steps(1024, 60).source
