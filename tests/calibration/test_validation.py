"""Forecasts of runs that the calibration has not seen, and the report on them."""

import dataclasses
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from rollcast.calibration.calibrate import Fitted, calibrate
from rollcast.calibration.cli import register
from rollcast.calibration.folder import RunFolder
from rollcast.calibration.forecast import MeasuredWorkload, forecast, measured_by_step
from rollcast.calibration.pages import validation_report, validation_text
from rollcast.calibration.validate import Validation, machine_noise, noise_floor, ranking, validate
from rollcast.simulator.cli.app import main
from rollcast.simulator.scenario.file import kept
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.values.chance import Drawn
from rollcast.simulator.workload.measured import ResampledWorkload
from rollcast.simulator.workload.recorded import RecordedWorkload
from tests.calibration.worlds import edit_json, slow_down, write_world

Capture = pytest.CaptureFixture[str]
APRIL = "april(over_sampling=2)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("runs")
    made = {"sync-0": ("sync", 0), "sync-1": ("sync", 1), "april-0": (APRIL, 0)}
    return {
        name: write_world(place / name, policy=policy, seed=seed, steps=10, outliers=0.02)
        for name, (policy, seed) in made.items()
    }


@pytest.fixture(scope="module")
def fitted(runs: dict[str, Path]) -> Fitted:
    return calibrate([runs["sync-0"]])


@pytest.fixture(scope="module")
def replayed(fitted: Fitted, runs: dict[str, Path]) -> Validation:
    return validate(fitted, list(runs.values()), "replay", draws=6)


@pytest.fixture(scope="module")
def predicted(fitted: Fitted, runs: dict[str, Path]) -> Validation:
    return validate(fitted, list(runs.values()), "predict", draws=20)


def test_a_replay_of_unseen_runs_is_close(replayed: Validation) -> None:
    """Calibrated on one synchronous run only; 2 % of the iterations take four times as long."""
    for check in replayed.checks:
        assert np.median(np.abs(check.step_errors("step_s"))) < 0.05, check.run.name
        assert abs(check.total_error) < 0.05
        assert np.allclose(check.step_errors("staleness"), 0.0, atol=1e-9)
    assert [check.held_out for check in replayed.checks] == [False, True, True]
    assert [check.run.policy for check in replayed.checks] == ["sync", "sync", "april"]


def test_without_noise_a_replay_is_exact(tmp_path: Path) -> None:
    run = write_world(tmp_path / "quiet", policy=APRIL, spread=0.0, outliers=0.0, steps=8)
    found = forecast(calibrate([run]), RunFolder.open(run), "replay", draws=0)
    real = measured_by_step(RunFolder.open(run))
    assert found.point["step_s"] == pytest.approx(real["step_s"], rel=2e-3)
    assert found.unmeasured == 0 or found.point["staleness"] == pytest.approx(real["staleness"])


def test_a_prediction_is_near_and_knows_its_doubt(predicted: Validation) -> None:
    content = predicted.to_json()
    for run in content["runs"]:
        assert abs(run["total"]["error"]) < 0.15, run["name"]
        low, high = run["total"]["interval_s"]
        assert low < run["total"]["forecast_s"] < high
    coverage = content["coverage"]["held_out"]
    assert coverage["step_count"] == 20
    assert coverage["steps"] >= 0.6  # nominal 90 %; these 20 steps are of two short runs


def test_ranking_says_who_is_faster_and_how_sure(predicted: Validation) -> None:
    found = ranking(predicted.checks)
    [pair] = found["pairs"]
    [alike] = found["sets"]
    assert alike["measured"] == alike["forecast"] == ["april", "sync"]
    assert pair["exceeds_noise"]
    assert pair["right"]
    assert pair["sure"] > 0.95
    assert not pair["may_flip"]
    assert ranking(predicted.checks[:2])["sets"] == []


def test_equal_policies_are_not_called_different(predicted: Validation) -> None:
    """The same run under another name: a tie, in which the draws go either way."""
    one, other = predicted.checks[:2]
    renamed = dataclasses.replace(
        other.run, description={"scenario": {**other.run.scenario, "policy": "prefix_reuse"}}
    )
    found = ranking([one, dataclasses.replace(other, run=renamed)])
    assert found["pairs"][0]["may_flip"]


def test_noise_floors(replayed: Validation, fitted: Fitted) -> None:
    floor = noise_floor(replayed.checks)
    a, b = (check.measured["step_s"] for check in replayed.checks[:2])
    assert floor["pairs"] == 1
    assert floor["step_s"] == pytest.approx(np.median(np.abs(a - b) / b))
    assert noise_floor(replayed.checks[1:])["step_s"] is None
    assert 0 < machine_noise(fitted)["rollout_s"] < 0.1


def test_what_was_not_calibrated_is_flagged(replayed: Validation) -> None:
    sync, _, april = replayed.checks
    assert not any("calibrated policies" in flag for flag in sync.forecast.flags)
    assert any("not among the calibrated policies" in flag for flag in april.forecast.flags)


def test_another_layout_is_flagged(fitted: Fitted, tmp_path: Path) -> None:
    run = write_world(tmp_path / "shared", policy="prefix_reuse", steps=6)
    flags = forecast(fitted, RunFolder.open(run), "replay", draws=0).flags
    assert any("has no update with a shared prefix" in flag for flag in flags)


def test_draws_differ_and_stay_within_bounds(fitted: Fitted) -> None:
    rng = np.random.default_rng(0)
    drawn = [fitted.cost.drawn(Drawn(rng)) for _ in range(50)]
    slopes = [draw.iteration.rollout_pieces[0][1] for draw in drawn]
    [[_, centre]] = fitted.content["cost"]["iteration"]["rollout_pieces"]
    assert np.std(slopes) > 0
    assert abs(np.mean(slopes) - centre) < 0.2 * centre
    assert min(slopes) >= 0


def test_the_report_says_what_the_terminal_warns_of(
    replayed: Validation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = replayed.checks[0]
    summary = {**first.run.summary, "warnings": ["a <strange> thing"]}
    warned = dataclasses.replace(first, run=dataclasses.replace(first.run, summary=summary))
    checked = dataclasses.replace(replayed, checks=[warned, *replayed.checks[1:]])
    validation_report.show(checked)
    shown = " ".join(capsys.readouterr().out.split())
    validation_report.write(tmp_path / "out", checked)
    assert {entry.name for entry in (tmp_path / "out").iterdir()} == set(validation_report.FILES)
    assert (tmp_path / "out" / "validation.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "report.html").read_text()
    assert not re.search(r'(src|href)=["\'](?!data:)', page)
    listed = page.partition("<h3>Warnings</h3>")[2].partition("</aside>")[0]
    found = validation_text.warnings(checked.to_json())
    assert any("the run itself warned: a <strange> thing [" in warning for warning in found)
    assert any("not among the calibrated policies" in warning for warning in found)
    for warning in found:
        assert f"warning: {warning}" in shown
        assert html.escape(warning) in listed


def test_only_like_is_ranked_with_like(fitted: Fitted, tmp_path: Path) -> None:
    """Fewer steps, or another group size: a set of its own, or none where it has one policy."""
    folders = [
        write_world(tmp_path / f"{i}", policy=policy, steps=steps, group_size=size)
        for i, (policy, steps, size) in enumerate(
            [("sync", 8, 6), (APRIL, 8, 6), ("sync", 5, 6), ("sync", 8, 4), (APRIL, 8, 4)]
        )
    ]
    content = validate(fitted, folders, "replay", draws=1).to_json()
    sets = content["ranking"]["sets"]
    assert [(s["steps"], s["setting"]) for s in sets] == [(8, ""), (8, "workload.group_size=4")]
    assert [sorted(s["measured"]) for s in sets] == [["april", "sync"]] * 2
    assert [pair["set"] for pair in content["ranking"]["pairs"]] == [0, 1]
    said = "\n".join(validation_text.sentences(content))
    assert "Fastest first, measured, 8 steps: " in said
    assert "Fastest first, measured, 8 steps with group_size=4: " in said
    assert "5 steps" not in said


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_the_table_fits_the_terminal(
    replayed: Validation,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    validation_report.show(replayed)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert not any("\u2026" in line for line in lines)  # no figure is cut short


def test_the_command_line(runs: dict[str, Path], tmp_path: Path) -> None:
    app = typer.Typer()
    register(app)
    runner, file = CliRunner(), tmp_path / "fitted.json"
    done = runner.invoke(app, ["calibrate", str(runs["sync-0"]), "-o", str(file)])
    assert done.exit_code == 0, done.output
    assert Fitted.read(file).policies == ["sync"]
    arguments = ["validate", str(file), str(runs["sync-1"]), "--mode", "replay", "--draws", "1"]
    done = runner.invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "held out" in done.output
    assert (tmp_path / "out" / "report.html").exists()
    wrong = runner.invoke(app, ["validate", str(tmp_path), str(runs["sync-1"])])
    assert str(wrong.exception).startswith("FITTED.json: ")
    again = runner.invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert "add --force" in str(again.exception)


def test_runs_at_several_levels_widen_the_interval(tmp_path: Path) -> None:
    """A machine that is slow all through one run of three: a fourth may be anywhere near."""
    made = [write_world(tmp_path / f"{s}", seed=s, steps=10, outliers=0.0) for s in range(4)]
    for factor, run in zip((1.0, 1.25, 0.9), made, strict=False):
        slow_down(run, factor)
    target = RunFolder.open(made[3])
    one = forecast(calibrate(made[:1]), target, "replay", draws=10)
    three = forecast(calibrate(made[:3]), target, "replay", draws=10)
    widths = [float(np.ptp(ends(found.total_s, 0.9))) for found in (one, three)]
    assert widths[1] > 2 * widths[0]
    assert any("one run" in flag for flag in one.flags)
    assert not any("one run" in flag for flag in three.flags)
    level = np.exp(np.mean(np.log([1.0, 1.25, 0.9])))
    real = measured_by_step(target)["step_s"].sum()
    assert three.point["step_s"].sum() == pytest.approx(level * real, rel=0.05)


def test_lengths_that_a_run_never_had_are_drawn_and_unfinished_ones_go_on(
    runs: dict[str, Path], fitted: Fitted
) -> None:
    run = RunFolder.open(runs["april-0"])
    table = run.rollouts
    columns = (table[n].tolist() for n in ("group", "attempt", "index", "finished", "total_tokens"))
    finished: dict[tuple[int, int, int], bool] = {}
    reached: dict[tuple[int, int, int], int] = {}
    for group, attempt, index, done, tokens in zip(*columns, strict=True):
        finished[group, attempt, index] = bool(done)
        reached[group, attempt, index] = max(tokens, reached.get((group, attempt, index), 0))
    model = ResampledWorkload(fitted.groups, 200, 1)
    workload = MeasuredWorkload(RecordedWorkload(run.segments(), 200), model, finished)
    for group in {key[0] for key in finished}:
        drawn = workload.draw(group, 6).new_tokens
        for index in range(6):
            key = (group, 0, index)
            if key in finished:
                same = drawn[index] == reached[key]
                assert same if finished[key] else drawn[index] >= reached[key]
    before = workload.unmeasured
    assert before >= sum(not done for done in finished.values())
    assert list(workload.draw(10**6, 2).new_tokens) == list(model.draw(10**6, 2).new_tokens)
    assert workload.unmeasured == before + 2


def test_a_run_of_a_policy_of_ones_own_is_validated_from_another_folder(
    fitted: Fitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Its folder keeps ``modules``, by which the policy is found; trusted only when told so."""
    home = tmp_path / "home"
    home.mkdir()
    text = "from rollcast.simulator.policies.pods import PODS\nclass Mine(PODS): NAME = ''\n"
    (home / "validated_here.py").write_text(text)
    run = write_world(tmp_path / "run", policy="pods(keep=3)", seed=3, steps=5)
    assert RunFolder.open(run).policy == "pods(keep=3)"  # its seed makes no other policy
    scenario = json.loads((run / "scenario.json").read_text())["scenario"]
    own = kept({**scenario, "policy": "validated_here:Mine(keep=3)"}, home)
    edit_json(run / "scenario.json", scenario=own, policy_spelt="validated_here:Mine(keep=3)")
    fitted.write(tmp_path / "fitted.json")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    asked = ["validate", "../fitted.json", "../run", "--draws", "1", "--json"]
    for options, code in (([], 2), (["--trust-modules"], 0)):
        with pytest.raises(SystemExit) as stop:
            main([*asked, *options])
        assert stop.value.code == code
        out, said = capsys.readouterr()
        assert ("add --trust-modules" in said) is bool(code)
    [checked] = json.loads(out)["runs"]
    assert checked["policy"] == "validated_here:Mine(keep=3)"
    assert abs(checked["total"]["error"]) < 0.3
