"""What cannot be calibrated is refused by name, and nothing is half-written."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollcast.calibration.calibrate import Fitted, calibrate
from rollcast.calibration.fits import updates
from rollcast.calibration.validate import validate
from rollcast.simulator.costs.base import Extremes, Iteration, TrainLoad
from rollcast.simulator.costs.fitted import FittedCost, Packing
from rollcast.simulator.errors import ScenarioError
from tests.calibration.worlds import edit_json, write_world
from tests.refusals import refuses


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("made") / "run", steps=6)


@pytest.fixture(scope="module")
def fitted(made: Path) -> Fitted:
    return calibrate([made])


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(made, tmp_path / "run"))


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


def _scenario(run: Path, section: str, **changes: object) -> None:
    found = json.loads((run / "scenario.json").read_text())["scenario"]
    edit_json(run / "scenario.json", scenario={**found, section: {**found[section], **changes}})


def _simulated(run: Path) -> None:
    edit_json(run / "summary.json", world="simulated")
    (run / "provenance.json").unlink()


def _spoil_text(run: Path, file: str, old: str, new: str) -> None:
    path = run / file
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda run: _spoil_text(run, "iterations.csv", "context_tokens", "context"),
            "iterations.csv has no column 'context_tokens'",
        ),
        (
            lambda run: _spoil_text(run, "iterations.csv", "\n0", "\nsoon"),
            r"line 2, column 'start_s': must be .* got 'soon",
        ),
        (lambda run: _cut(run / "iterations.csv", 100), r"99 iterations in \d steps are too few"),
        (_simulated, "is a simulated run, which has no measured times"),
        (lambda run: edit_json(run / "summary.json", schema="rollcast-run/9"), "schema"),
    ],
)
def test_a_run_that_cannot_be_calibrated_is_named(
    run: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(run)
    with refuses("RUN_DIR", said):
        calibrate([run])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: edit_json(run / "provenance.json", processor="slide rule"), "processor"),
        (lambda run: edit_json(run / "provenance.json", versions={"vllm": "2"}), "versions"),
        (lambda run: _scenario(run, "engine", max_seqs=1), r"in engine\.max_seqs \(64 and 1\)"),
        (
            lambda run: _scenario(run, "engine", task={"name": "collatz"}),
            r"differ in engine\.task \(None and \{'name'",
        ),
        (lambda run: _scenario(run, "cluster", replicas=2), "needs one replica"),
        (lambda run: _scenario(run, "workload", max_new_tokens=199), "max_new_tokens differ"),
    ],
)
def test_runs_that_do_not_belong_together(
    made: Path, run: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(run)
    with refuses("RUN_DIR", said):
        calibrate([made, run])


def test_what_is_no_run_is_refused(made: Path, tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    for folders, said in (
        ([], "no run was given"),
        ([made, made / ".." / made.name], "given twice"),
        ([made / "spans.csv"], "is not a folder"),
        ([circle], "is not a folder"),
        ([tmp_path], "holds no run; give the folder of a finished"),
    ):
        with pytest.raises(ScenarioError, match=said):
            calibrate(folders)


def test_fitted_files_of_another_kind_are_refused(fitted: Fitted, tmp_path: Path) -> None:
    file = tmp_path / "fitted.json"
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


def test_a_file_that_cannot_be_written_leaves_nothing(fitted: Fitted, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="is a folder"):
        fitted.write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_validation_refuses_what_it_does_not_know(made: Path, fitted: Fitted, run: Path) -> None:
    with pytest.raises(ScenarioError, match="'guess' is unknown"):
        validate(fitted, [made], "guess")  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match="no run was given"):
        validate(fitted, [])
    with pytest.raises(ScenarioError, match="at least 1"):
        validate(fitted, [made], draws=0)
    _cut(run / "steps.csv", 4)
    with pytest.raises(ScenarioError, match="holds 3 steps, not all"):
        validate(fitted, [run])


def test_the_cost_model_agrees_with_itself_and_says_where_it_ends(fitted: Fitted) -> None:
    cost = fitted.cost
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


def test_pieces_are_continuous_and_rise(fitted: Fitted) -> None:
    content = copy.deepcopy(fitted.content)
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


def test_runs_of_earlier_versions_computed_each_prefix_by_itself() -> None:
    run: Any = SimpleNamespace(section=lambda *names: {"microbatch_tokens": 100})
    assert updates.packing(run, None) is None
    assert updates.packing(run, [{}]) == Packing(100)
    assert updates.packing(run, [{}, {"prefix_passes": 0}]) == Packing(100, 1, None, 50)
    run.section = lambda *names: {"prefix_microbatch_tokens": 30, "prefix_backend": "attention"}
    assert updates.packing(run, [{"prefix_passes": 2}]) == Packing(4096, 1, None, 30)
    run.section = lambda *names: {"prefix_backend": "cache"}
    assert updates.packing(run, [{"prefix_passes": 2}]) == Packing(4096)
