"""What a run leaves on disk: the files and columns of the contract, sums that agree, and folders
that are whole or not there."""

import csv
import gzip
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollcast.simulator.core.spans import StepRecord
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results import folder, schema
from rollcast.simulator.results.folder import check_target, write_folder
from rollcast.simulator.results.metrics import phase_columns, step_columns
from rollcast.simulator.results.phases import in_sum
from rollcast.simulator.results.read import read_document, read_lines, read_table
from rollcast.simulator.results.write import plain, write_run
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from tests.refusals import refuses
from tests.scenarios import COST

pytestmark = pytest.mark.usefixtures("quick_intervals")

SCENARIO = """\
cluster: {replicas: 2, placement: disaggregated, trainer_gpus: 1}
engine: {max_seqs: 6, max_batched_tokens: 256, kv_tokens: 2400}
workload:
  batch_groups: 3
  group_size: 4
  prompt_tokens: {median_tokens: 60, sd: 0.4, max_tokens: 300}
  max_new_tokens: 900
  lengths: {family: lognormal, median_tokens: 200, between_sd: 0.65, within_sd: 0.30, runaway: 0.05}
  rewards: {family: beta_bernoulli, mean: 0.5, between_sd: 0.3}
policy: []
"""
SCENARIO += f"{COST}    log_prob_per_token_s: 3.0e-6\nsteps: 6\n"
POLICIES = [
    "sync",
    "april",
    "april(surplus=drop, mask_off_policy=true)+pods(keep=2)",
    "dapo_filter(refill_when=drained)+prefix_reuse",
    "tail_batching",
    "one_step_off",
    "fully_async(max_staleness=1, in_flight=2)",
    "april+sagc(candidates=[2, 4], first=4)+pods(keep=2)+prefix_reuse",
]
COLUMNS = {  # the contract: at least these, in this order, before any others
    "spans.csv": "step,kind,track,group,index,start_s,end_s,tokens",
    "rollouts.csv": "step,group,index,prompt_tokens,new_tokens,start_s,end_s,finished,trained,"
    "reward,versions,replica",
    "steps.csv": "step,start_s",
}
SUMMARY = (
    "makespan_s",
    "rollout_s",
    "train_s",
    "sync_s",
    "generated_tokens",
    "trained_tokens",
    "dropped_tokens",
    "reprefilled_tokens",
    "bubble_fraction",
    "rollouts",
    "preemptions",
    "straggler_rate",
    "warnings",
)


@cache
def ran(policy: str) -> Result:
    return simulate(from_raw(parse_scenario(SCENARIO), f"policy={policy}"))


def written(result: Result, folder: Path, plot: bool = False) -> Path:
    scenario = {"name": "test", "scenario": result.scenario.raw.data}
    write_folder(folder, lambda work: write_run(work, result.run, result.summary, scenario, plot))
    return folder


def table(path: Path) -> list[dict[str, Any]]:
    """A CSV with every cell that reads as a number as one."""
    with path.open(newline="") as file:
        return [{key: number(cell) for key, cell in row.items()} for row in csv.DictReader(file)]


def number(cell: str) -> Any:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            pass
    return cell


@pytest.mark.parametrize("policy", POLICIES)
def test_the_tables_keep_the_contract_and_agree(tmp_path: Path, policy: str) -> None:
    folder = written(ran(policy), tmp_path / "run")
    for name, columns in COLUMNS.items():
        assert (folder / name).read_text().startswith(columns)
    summary = json.loads((folder / "summary.json").read_text())
    assert set(SUMMARY) <= set(summary)
    steps, segments, spans = (table(folder / f"{n}.csv") for n in ("steps", "rollouts", "spans"))
    assert len(steps) == summary["steps"] == 6

    # Tokens: every one sampled is trained or masked, dropped or carried.
    assert sum(row["new_tokens"] for row in segments) == summary["generated_tokens"]
    ended = summary["trained_tokens"] + summary["masked_tokens"]
    assert sum(row["new_tokens"] for row in segments if row["trained"]) == ended
    assert summary["generated_tokens"] == (
        ended + summary["dropped_tokens"] + summary["carried_tokens"]
    )
    for name in ("generated_tokens", "trained_tokens", "masked_tokens"):
        assert sum(step[name] for step in steps) == summary[name]
    assert summary["rollouts"] == sum(row["finished"] for row in segments)
    assert sum(row["preemptions"] for row in segments) == summary["preemptions"]
    for step in steps:
        own = [row for row in segments if row["step"] == step["step"]]
        assert sum(row["new_tokens"] for row in own) == step["generated_tokens"]
        if policy.startswith("fully_async"):  # the phase ends, and rollouts run on
            assert max((row["end_s"] for row in own), default=0.0) <= step["rollout_end_s"]
        else:
            assert max(row["end_s"] for row in own) == step["rollout_end_s"]
        taught = {(r["group"], r["index"]) for r in segments if r["trained_step"] == step["step"]}
        assert len(taught) == step["trained_rollouts"]

    # Time: the spans are those of the steps, and the makespan is their sum.
    assert math.fsum(step["step_s"] for step in steps) == pytest.approx(summary["makespan_s"])
    assert max(row["end_s"] for row in spans) == summary["makespan_s"]
    for column, kinds in (
        ("rollout_s", {"rollout"}),
        ("train_s", {"train", "log_prob"}),
        ("sync_s", {"sync"}),
    ):
        for step in steps:
            own = [r for r in spans if r["step"] == step["step"] and r["kind"] in kinds]
            lasted = sum(row["end_s"] - row["start_s"] for row in own)
            assert lasted == pytest.approx(step[column], abs=1e-9), (column, step["step"])
        assert sum(step[column] for step in steps) == pytest.approx(summary[column])
    assert all(row["start_s"] <= row["end_s"] for row in [*spans, *segments])
    assert all(row["submitted_s"] <= row["start_s"] for row in segments)
    assert len([row for row in spans if row["kind"] == "segment"]) == len(segments)
    assert 0 <= summary["bubble_fraction"] <= 1

    # Rewards: one for each rollout that finished, none for the others.
    assert all((row["reward"] == "") == (not row["finished"]) for row in segments)


def test_the_policies_above_exercise_what_is_checked() -> None:
    """Preemptions, re-prefills, masked, dropped and carried tokens all occur somewhere."""
    summaries = [ran(policy).summary for policy in POLICIES]
    for key in (
        "preemptions",
        "reprefilled_tokens",
        "masked_tokens",
        "dropped_tokens",
        "carried_tokens",
    ):
        assert any(summary[key] for summary in summaries), key


def test_every_policy_meets_the_same_lengths_and_rewards() -> None:
    drawn: dict[tuple[int, ...], tuple[int, float]] = {}
    met_twice = 0
    for policy in POLICIES:
        segments = ran(policy).run.segments
        columns = ("group", "index", "attempt", "total_tokens", "reward", "finished")
        for *key, tokens, reward, finished in zip(
            *(segments[c].tolist() for c in columns), strict=True
        ):
            if finished:
                met_twice += tuple(key) in drawn
                assert drawn.setdefault(tuple(key), (tokens, reward)) == (tokens, reward)
    assert met_twice > 100


def test_plain_makes_strict_json() -> None:
    given = {1: (math.nan, [math.inf, 2.5]), "a": {"b": -math.inf, "c": None, "d": True}}
    assert plain(given) == {"1": [None, [None, 2.5]], "a": {"b": None, "c": None, "d": True}}


# Whole folders or none


def fill_with(text: str, fail: BaseException | None = None) -> Callable[[Path], None]:
    def fill(work: Path) -> None:
        (work / "summary.json").write_text(json.dumps({"schema": "rollcast-run/1", "text": text}))
        if fail is not None:
            raise fail

    return fill


def says(folder: Path) -> str:
    return str(json.loads((folder / "summary.json").read_text())["text"])


@pytest.mark.parametrize("fail", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("before", ["nothing", "empty", "run"])
def test_a_failure_leaves_what_was_there(tmp_path: Path, fail: BaseException, before: str) -> None:
    out = tmp_path / "p" / "out"
    if before != "nothing":
        out.mkdir(parents=True)
    if before == "run":
        write_folder(out, fill_with("old"))
    kept = sorted(tmp_path.rglob("*"))
    expected = ScenarioError if isinstance(fail, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        write_folder(out, fill_with("new", fail), force=True)
    assert sorted(tmp_path.rglob("*")) == kept
    if before == "run":
        assert says(out) == "old"


def test_a_swap_that_fails_puts_the_old_run_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_folder(out, fill_with("old"))
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.suffix == ".partial":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(ScenarioError, match="Input/output error"):
        write_folder(out, fill_with("new"), force=True)
    assert says(out) == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_move_that_fails_half_way_empties_the_folder_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(work: Path) -> None:
        (work / "a").mkdir()
        (work / "a" / "spans.csv").write_text("x")
        (work / "b").write_text("x")

    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "b":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(ScenarioError, match="Input/output error"):
        write_folder(tmp_path, fill)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [False, True])
def test_one_of_two_that_write_a_folder_at_once_is_refused(tmp_path: Path, there: bool) -> None:
    out = tmp_path / "out"
    if there:
        out.mkdir()

    def fill(work: Path) -> None:
        with pytest.raises(ScenarioError, match=r"--out: another process is writing .*out"):
            write_folder(out, fill_with("second"), force=True)
        fill_with("first")(work)

    write_folder(out, fill)
    assert says(out) == "first"
    assert [path.name for path in out.rglob("*")] == ["summary.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_that_came_in_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check and the lock another process may have written the folder."""
    out = tmp_path / "out"

    @contextmanager
    def late(*given: Any) -> Iterator[None]:
        out.mkdir()
        fill_with("other")(out)
        yield

    monkeypatch.setattr(folder, "locked", late)
    with pytest.raises(ScenarioError, match="holds another run"):
        write_folder(out, fill_with("mine"))
    assert says(out) == "other"


KILLED = """
import os, sys
from pathlib import Path
from rollcast.simulator.results import folder
if sys.argv[2] == "filling":
    def fill(work):
        (work / "summary.json").write_text("{}")
        os._exit(9)
else:
    def fill(work):
        (work / "a.csv").write_text("x")
        (work / "summary.json").write_text('{"schema": "rollcast-run/1", "text": "killed"}')
    rename, calls = Path.rename, []
    def stop(self, target):
        calls.append(self)
        if len(calls) == int(sys.argv[2]):
            os._exit(9)
        return rename(self, target)
    Path.rename = stop
folder.write_folder(Path(sys.argv[1]), fill, force=True, ours=lambda _: True)
"""


@pytest.mark.parametrize(
    ("before", "moment", "left"),
    [
        ("nothing", "filling", None),
        ("run", "filling", "old"),
        ("empty", "1", None),
        ("empty", "2", "killed"),
        ("empty", "3", "killed"),
        ("run", "2", "old"),
    ],
)
def test_what_a_killed_process_leaves_is_cleared_away(
    tmp_path: Path, before: str, moment: str, left: str | None
) -> None:
    """Whether it was killed while it filled its folder, or at the first, second or third rename."""
    out = tmp_path / "out"
    if before != "nothing":
        out.mkdir()
    if before == "run":
        write_folder(out, fill_with("old"))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(out), moment], check=False)
    assert killed.returncode == 9
    if left is None:
        check_target(out, force=False)
    else:
        with pytest.raises(ScenarioError, match="holds another run"):
            check_target(out, force=False, ours=lambda _: True)
        assert says(out) == left
    write_folder(out, fill_with("new"), force=True, ours=lambda _: True)
    assert says(out) == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not any(path.name.startswith(".") for path in out.iterdir())


def test_leftovers_of_earlier_versions_refuse_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / ".out.4711.partial").mkdir(parents=True)
    (tmp_path / ".out.4712.partial").mkdir()
    (tmp_path / ".outer.1.partial").mkdir()
    check_target(out, force=False)
    write_folder(out, fill_with("new"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        ".outer.1.partial",
        "out",
        "summary.json",
    ]


def test_only_our_own_runs_are_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(out, fill_with("old"))
    with pytest.raises(ScenarioError, match="--force"):
        check_target(out, force=False)
    check_target(out, force=True)
    link = tmp_path / "link"
    link.symlink_to(out)
    write_folder(link, fill_with("new"), force=True)
    assert link.is_symlink()
    assert says(out) == "new"
    (out / "sub").mkdir()
    with pytest.raises(ScenarioError, match="holds files that no run wrote"):
        check_target(out, force=True)
    (out / "sub").rmdir()
    (out / "summary.json").write_text("not json")
    with pytest.raises(ScenarioError, match="holds files that no run wrote"):
        check_target(out, force=True)


def test_a_finished_real_run_is_replaced(tmp_path: Path) -> None:
    """Every file that either world writes, whole or compressed, and no other."""
    out = tmp_path / "out"
    write_folder(out, fill_with("old"))
    for file in schema.RUN:
        if file is not schema.SUMMARY:
            (out / file.name).write_text("x")
    assert (out / "speed_probes.csv").exists()
    check_target(out, force=True)
    (out / "steps.csv").rename(out / "steps.csv.gz")
    check_target(out, force=True)
    (out / "notes.csv").write_text("x")
    with pytest.raises(ScenarioError, match="holds files that no run wrote"):
        check_target(out, force=True)


def test_every_field_of_a_step_and_of_a_stay_is_declared() -> None:
    """A new one needs one line in the schema."""
    run = ran("sync").run
    known = {field.name for field in fields(StepRecord)} - {"staleness", "policy", "taken_rollouts"}
    assert known <= set(schema.STEPS.names)
    record, derived = run.steps[0], {**step_columns(run), **phase_columns(run)}
    for name in schema.STEPS.names:
        assert hasattr(record, name) != (name in derived), name
    kept = set(run.segments.columns) - {"outcome"}
    assert set(schema.ROLLOUTS.names) == kept | {"trained"}
    assert len(next(run.spans())) == len(schema.SPANS.names)
    for table in (
        schema.SPANS,
        schema.STEPS,
        schema.ROLLOUTS,
        schema.ITERATIONS,
        schema.SPEED_PROBES,
    ):
        assert len(set(table.names)) == len(table.columns)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_written_is_read_back(tmp_path: Path, policy: str) -> None:
    result = ran(policy)
    folder = written(result, tmp_path / "run")
    for file in (schema.SPANS, schema.STEPS, schema.ROLLOUTS):
        found = read_table(folder, file, "RUN_DIR")
        assert tuple(found) == file.without(schema.EVALUATION).names
    segments = result.run.segments
    assert np.array_equal(found["reward"], segments["reward"], equal_nan=True)
    assert np.array_equal(found["end_s"], segments["end_s"])
    assert read_lines(folder, schema.DECISIONS, "RUN_DIR") == plain(result.run.decisions)
    summary = read_document(folder, schema.SUMMARY, "RUN_DIR")
    assert summary == plain(result.summary)


@pytest.mark.parametrize("policy", ["sync", "fully_async(max_staleness=1)"])
def test_the_phases_of_steps_are_those_of_the_summary(tmp_path: Path, policy: str) -> None:
    result = ran(policy)
    steps = read_table(written(result, tmp_path / "run"), schema.STEPS, "RUN_DIR")
    steady = slice(*result.summary["steady_steps"])
    for name, phase in result.summary["phases"].items():
        assert steps[f"phases_{name}_s"][steady].mean() == pytest.approx(phase["s"]), name
    whole_s = sum(steps[f"phases_{name}_s"] for name in in_sum(result.summary["overlapped"]))
    assert whole_s == pytest.approx(steps["step_s"])


def test_the_share_at_the_cap_by_step(tmp_path: Path) -> None:
    result = ran("april")
    folder = written(result, tmp_path / "run")
    shares = read_table(folder, schema.STEPS, "RUN_DIR")["truncated_share"]
    rows = table(folder / "rollouts.csv")
    for step, share in enumerate(shares.tolist()):
        ended = [row["truncated"] for row in rows if row["step"] == step and row["finished"]]
        assert share == pytest.approx(sum(ended) / len(ended))
    assert 0 < max(shares) < 1
    every = [row["truncated"] for row in rows if row["finished"]]
    assert result.summary["truncated_share"] == pytest.approx(sum(every) / len(every))


def test_targets_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for target in (tmp_path / "loop", tmp_path / ("x" * 300), Path("/dev/null"), Path("a\0b")):
        with refuses("--out"):
            check_target(target, force=True)


def test_a_folder_of_version_0_1_with_its_unpacked_trace_is_a_run(tmp_path: Path) -> None:
    folder = written(ran("april"), tmp_path / "run")
    packed = folder / "trace.json.gz"
    (folder / "trace.json").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    check_target(folder, force=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ScenarioError, match="holds files that no run wrote"):
        check_target(folder, force=True)
