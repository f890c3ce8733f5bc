"""What cannot be calibrated is refused by name, and nothing is half-written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rollcast.calibration.calibrate import Fitted, calibrate
from rollcast.calibration.validate import validate
from rollcast.simulator.costs.base import Extremes, Iteration, TrainLoad
from rollcast.simulator.costs.fitted import FittedCost, Packing
from rollcast.simulator.errors import ScenarioError
from tests.calibration.worlds import edit_json, write_world


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("made") / "run", steps=6)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def _without_column(path: Path, column: str) -> None:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    at = rows[0].index(column)
    path.write_text("\n".join(",".join(row[:at] + row[at + 1 :]) for row in rows) + "\n")


def _cut(path: Path, lines: int) -> None:
    path.write_text("\n".join(path.read_text().splitlines()[:lines]) + "\n")


FILES = (
    "iterations.csv",
    "steps.csv",
    "rollouts.csv",
    "spans.csv",
    "summary.json",
    "scenario.json",
    "provenance.json",
    "decisions.jsonl",
)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(run: Path, file: str) -> None:
    (run / file).unlink()
    with pytest.raises(ScenarioError, match=f"cannot read .*{file}"):
        calibrate([run])


@pytest.mark.parametrize("file", FILES)
def test_rubbish_in_a_file_is_named(run: Path, file: str) -> None:
    (run / file).write_bytes(b"\x00\xff{[,")
    with pytest.raises(ScenarioError, match=file):
        calibrate([run])


@pytest.mark.parametrize(
    ("file", "column"),
    [("iterations.csv", "context_tokens"), ("steps.csv", "sync_s"), ("rollouts.csv", "reward")],
)
def test_a_missing_column_is_named(run: Path, file: str, column: str) -> None:
    _without_column(run / file, column)
    with pytest.raises(ScenarioError, match=f"{file} has no column '{column}'"):
        calibrate([run])


def test_a_value_that_is_no_number_is_named(run: Path) -> None:
    path = run / "iterations.csv"
    path.write_text(path.read_text().replace("\n0", "\nsoon", 1))
    with pytest.raises(
        ScenarioError,
        match=r"line 2, column 'start_s': must be .* got 'soon",
    ):
        calibrate([run])


def test_too_few_samples_are_refused(run: Path) -> None:
    _cut(run / "iterations.csv", 100)
    with pytest.raises(ScenarioError, match=r"99 iterations in \d steps are too few"):
        calibrate([run])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: edit_json(run / "provenance.json", processor="slide rule"), "processor"),
        (lambda run: edit_json(run / "provenance.json", versions={"vllm": "2"}), "versions"),
        (lambda run: _scenario(run, "engine", {"max_seqs": 1}), "engine"),
        (lambda run: edit_json(run / "summary.json", schema="rollcast-run/9"), "schema"),
        (lambda run: _scenario(run, "cluster", {"replicas": 2}), "needs one replica"),
        (lambda run: _workload(run, max_new_tokens=99), "max_new_tokens differ"),
    ],
)
def test_runs_that_do_not_belong_together(
    made: Path, run: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(run)
    with pytest.raises(ScenarioError, match=said) as caught:
        calibrate([made, run])
    assert caught.value.field == "RUN_DIR"


def _scenario(run: Path, section: str, value: dict[str, int]) -> None:
    found = json.loads((run / "scenario.json").read_text())["scenario"]
    edit_json(run / "scenario.json", scenario={**found, section: value})


def _workload(run: Path, **changes: int) -> None:
    found = json.loads((run / "scenario.json").read_text())["scenario"]
    found["workload"].update(changes)
    edit_json(run / "scenario.json", scenario=found)


def test_no_run_and_a_run_given_twice(made: Path) -> None:
    with pytest.raises(ScenarioError, match="no run was given"):
        calibrate([])
    with pytest.raises(ScenarioError, match="given twice"):
        calibrate([made, made / ".." / made.name])
    with pytest.raises(ScenarioError, match="is not a folder"):
        calibrate([made / "spans.csv"])


def test_fitted_files_of_another_kind_are_refused(made: Path, tmp_path: Path) -> None:
    file = tmp_path / "fitted.json"
    fitted = calibrate([made])
    fitted.write(file)
    assert [entry.name for entry in tmp_path.iterdir()] == ["fitted.json"]
    assert Fitted.read(file).cost == fitted.cost
    good = json.loads(file.read_text())
    for spoilt, said in (
        ({"schema": "rollcast-fitted/9"}, "is of schema 'rollcast-fitted/9'"),
        (
            {**good, "cost": {**good["cost"], "sync_s": -1}},
            "cost.sync_s: must be a number from 0 to",
        ),
        ({**good, "cost": {**good["cost"], "surprise": 1}}, "cost.surprise: unknown key"),
        ({**good, "range": {}}, "range.rollouts"),
        ({key: value for key, value in good.items() if key != "lengths"}, "has no 'lengths'"),
        ([], "names no schema"),
    ):
        file.write_text(json.dumps(spoilt))
        with pytest.raises(ScenarioError, match=said):
            Fitted.read(file)
    file.write_text("{")
    with pytest.raises(ScenarioError, match="not a file of JSON"):
        Fitted.read(file)
    with pytest.raises(ScenarioError, match="cannot read"):
        Fitted.read(tmp_path / "nowhere.json")


def test_a_file_that_cannot_be_written_leaves_nothing(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="is a folder"):
        calibrate([made]).write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_validation_refuses_what_it_does_not_know(made: Path, run: Path) -> None:
    fitted = calibrate([made])
    with pytest.raises(ScenarioError, match="'guess' is unknown"):
        validate(fitted, [made], "guess")  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match="no run was given"):
        validate(fitted, [])
    with pytest.raises(ScenarioError, match="at least 1"):
        validate(fitted, [made], draws=0)
    _cut(run / "steps.csv", 4)
    with pytest.raises(ScenarioError, match="holds 3 steps, not all"):
        validate(fitted, [run])


def test_the_cost_model_agrees_with_itself_and_says_where_it_ends(made: Path) -> None:
    cost = calibrate([made]).cost
    for rollouts, context in ((1, 10), (30, 900), (60, 3000)):
        mixed = cost.mixed_iteration_s(Iteration(rollouts, context))
        assert cost.decode_curve(rollouts).seconds(context) == pytest.approx(mixed, rel=1e-12)
    most = cost.covered
    inside = Extremes(
        most.rollouts[1],
        most.context_tokens[1],
        most.prefill_tokens[1],
        most.train_tokens[1],
        most.rollout_tokens[1],
    )
    assert cost.warnings(inside) == []
    inside.context_tokens += 1
    [said] = cost.warnings(inside)
    assert "context_tokens" in said
    assert "extrapolated" in said


def test_pieces_are_continuous_and_rise(made: Path) -> None:
    content = calibrate([made]).content
    content["cost"]["iteration"]["rollout_pieces"] = [[0, 1e-4], [8, 3e-5], [32, 6e-5]]
    cost = FittedCost.from_mapping(content)
    fixed = content["cost"]["iteration"]["fixed_s"]
    for rollouts, slopes in ((4, 4e-4), (8, 8e-4), (20, 8e-4 + 36e-5), (40, 8e-4 + 72e-5 + 48e-5)):
        assert cost.iteration.rollouts_s(rollouts) == pytest.approx(fixed + slopes)


def test_packing_by_hand() -> None:
    """Rows of 12, 9 and 5 tokens (prompt + response - 1) in microbatches of 20: one row of 12 (two
    would take 24), then two rows of 9."""
    load = TrainLoad([(3, [10, 7]), (3, [3])])
    assert Packing(20).fed(load) == (12 + 18, 2, 12 * 12 + 2 * 9 * 9)
    assert Packing(20, minibatches=2).fed(load) == (12 + 9 + 5, 3, 12 * 12 + 9 * 9 + 5 * 5)
    # a prefix of 2 once, responses of 10 and 7 padded to 10; the lone rollout stays dense
    shared = TrainLoad(load.groups, shared_prefix=True)
    assert Packing(20).fed(shared) == (2 + 20 + 5, 2, 2 * 2 + 2 * 10 * (10 + 2) + 5 * 5)


def test_runs_that_differ_say_in_which_key(run: Path, tmp_path: Path) -> None:
    other = write_world(tmp_path / "other", steps=4)
    content = json.loads((other / "scenario.json").read_text())
    content["scenario"]["engine"]["task"] = {"name": "collatz", "log_sd": 0.3}
    (other / "scenario.json").write_text(json.dumps(content))
    with pytest.raises(ScenarioError, match=r"differ in engine\.task \(None and \{'name'"):
        calibrate([run, other])
    content["scenario"]["engine"].pop("task")
    content["scenario"]["engine"]["max_seqs"] = 65
    (other / "scenario.json").write_text(json.dumps(content))
    with pytest.raises(ScenarioError, match=r"differ in engine\.max_seqs \(64 and 65\)"):
        calibrate([run, other])


def test_a_folder_without_a_run_and_a_simulated_run_are_told_apart(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScenarioError, match="empty holds no run; give the folder of a finished"):
        calibrate([tmp_path / "empty"])
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "world": "simulated"}))
    (run / "provenance.json").unlink()
    with pytest.raises(ScenarioError, match="is a simulated run, which tells nothing of a machine"):
        calibrate([run])
