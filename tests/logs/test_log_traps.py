"""What the same words mean in other circumstances."""

import bz2
import gzip
import json
import lzma
import math
import re
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.errors import LogError
from rollcast.calibration.logs.gather import read_log
from rollcast.simulator.stacks.settings import value
from tests.logs import written
from tests.logs.written import CAP, GROUPS, SIZE, Truth


def _console(path: Path, lines: list[str], prefix: str = "") -> Path:
    path.write_text("".join(f"{prefix}{line}\n" for line in lines))
    return path


# Rollouts beside the training: generation is a wait


@pytest.mark.parametrize(
    "sign",
    [
        {"training/off_policy/trajectory_staleness/mean": 0.5},
        {"training/off_policy/trajectory_spans/max": 2.0},
        {"fully_async/count/current_param_version": 4.0},
        {"timing_s/switch_wait": 0.2},
        {"timing_s/generate_async": 1.0},
    ],
)
def test_verl_overlapped_by_what_is_logged(tmp_path: Path, sign: dict[str, float]) -> None:
    truth = written.run()
    log = read_log([written.verl_file(tmp_path / "a.jsonl", truth, **sign)])
    assert log.overlapped
    assert log.steps["generation_s"].isna().all()
    assert log.steps["wait_s"].tolist() == [t.generation_s for t in truth]
    assert any("only the wait" in gap.why for gap in log.gaps)
    [policy] = [part.value for part in draft(log) if part.key == "policy"]
    assert policy == ["one_step_off"]


def test_verl_is_overlapped_in_all_of_its_steps_if_in_any(tmp_path: Path) -> None:
    truth = written.run()
    key = "training/off_policy/trajectory_staleness/mean"
    rows = [
        {"step": t.step, "data": written.verl_values(t, **{key: float(t.step > 1)})} for t in truth
    ]
    log = read_log([written.lines(tmp_path / "a.jsonl", rows)])
    assert log.steps["overlapped"].tolist() == [1] * 5
    assert log.steps["generation_s"].isna().all()


@pytest.mark.parametrize(("v1", "overlapped"), [("True", True), ("False", False)])
def test_verls_mode_counts_only_where_its_trainer_ran(
    tmp_path: Path, v1: str, overlapped: bool
) -> None:
    (tmp_path / "overrides.yaml").write_text(
        f"- trainer.use_v1={v1}\n- trainer.v1.trainer_mode=colocate_async\n- trainer.nnodes=1\n"
    )
    written.verl_file(tmp_path / "a.jsonl", written.run())
    assert read_log([tmp_path]).overlapped is overlapped


def test_nemo_rl_exposed_generation_is_a_wait(tmp_path: Path) -> None:
    truth = written.run()
    path = written.history(tmp_path / "a.jsonl", truth, "nemo_rl")
    path.write_text(path.read_text().replace("train/generation", "train/exposed_generation"))
    log = read_log([path])
    assert log.overlapped
    assert log.steps["wait_s"].tolist() == [t.generation_s for t in truth]
    assert log.steps["generation_s"].isna().all()


def test_slime_waits_for_less_than_rollouts_take(tmp_path: Path) -> None:
    def lines(t: Truth, share: float) -> list[str]:
        wait = t.generation_s * share
        return [
            f"perf {t.step}: {{'perf/rollout_time': {t.generation_s}}}",
            f"perf {t.step}: {{'perf/train_wait_time': {wait}, 'perf/step_time': {t.step_s}, "
            f"'perf/actor_train_time': {t.update_s}}}",
        ]

    truth = written.run()
    for share, overlapped in ((1.01, False), (0.2, True)):
        path = _console(tmp_path / "a.log", [line for t in truth for line in lines(t, share)])
        log = read_log([path])
        assert log.overlapped is overlapped
        # made beside or not, rollout_time is what rollouts took
        assert log.steps["generation_s"].tolist() == [t.generation_s for t in truth]
        assert log.steps["wait_s"].notna().all() == overlapped


@pytest.mark.parametrize("overlapped", [False, True])
def test_generation_of_roll_and_skyrl_may_be_a_wait(overlapped: bool, tmp_path: Path) -> None:
    truth = written.run()
    more = {"async/staleness_mean": 1.0} if overlapped else {}
    rows = [{**more, **row} for row in written.rows(written.skyrl_values, truth)]
    skyrl = written.lines(tmp_path / "a.jsonl", rows)
    roll = tmp_path / "roll"
    written.history(roll / "a.jsonl", truth, "roll")
    (roll / "config.yaml").write_text(
        f"async_generation_ratio: {int(overlapped)}\nrollout_batch_size: 4\nresponse_length: 200\n"
    )
    for path in (skyrl, roll):
        log = read_log([path])
        assert log.overlapped is overlapped
        held, empty = ("wait_s", "generation_s") if overlapped else ("generation_s", "wait_s")
        assert log.steps[held].tolist() == [t.generation_s for t in truth]
        assert log.steps[empty].isna().all()


# What lies inside what


def test_sync_inside_generation_before_verl_timed_it(tmp_path: Path) -> None:
    truth = written.run()
    rows = []
    for t in truth:
        values = written.verl_values(t)
        del values["timing_s/update_weights"]
        rows.append({"step": t.step, "data": values})
    log = read_log([written.lines(tmp_path / "old.jsonl", rows)])
    assert log.steps["sync_inside_generation"].tolist() == [1] * 5
    assert log.steps["sync_s"].isna().all()
    assert any("part of generation_s" in gap.why for gap in log.gaps)
    new = read_log([written.verl_file(tmp_path / "new.jsonl", truth)])
    assert new.steps["sync_inside_generation"].tolist() == [0] * 5


def test_verl_validation_is_inside_the_old_trainers_step_only(tmp_path: Path) -> None:
    truth = written.run()
    more = {"timing_s/testing": 4.0, "timing_s/save_checkpoint": 0.1}
    rows = [
        {
            "step": t.step,
            "data": {**written.verl_values(t), **more, "timing_s/step": t.step_s + 4.1},
        }
        for t in truth
    ]
    log = read_log([written.lines(tmp_path / "v0.jsonl", rows)])
    assert log.steps["validation_inside"].tolist() == [1] * 5
    assert log.steps["rest_s"].tolist() == pytest.approx([0.25] * 5)
    off = {"training/off_policy/trajectory_spans/max": 1.0, "timing_s/testing": 4.0}
    log = read_log([written.verl_file(tmp_path / "v1.jsonl", truth, **off)])
    assert log.steps["validation_inside"].tolist() == [0] * 5
    assert log.steps["rest_s"].tolist() == pytest.approx([0.25] * 5)
    assert set(log.steps["poll_s"]) == {2.0}  # V1 polls


def test_verl_clip_ratio_counts_the_longest_of_the_batch(tmp_path: Path) -> None:
    truth = written.run()
    wrong = {"response_length/clip_ratio": 1 / 8, "response_length/max": 150.0}
    alike = read_log([written.verl_file(tmp_path / "a.jsonl", truth, **wrong)])
    cap = alike.settings["workload.max_new_tokens"]  # five equal ones are no chance
    assert (cap.value, cap.theirs) == (150, "the longest response of 5 of 5 steps")
    assert alike.steps["truncated_share"].tolist() == [1 / 8] * 5
    rows = [
        {
            "step": t.step,
            "data": {**written.verl_values(t), **wrong, "response_length/max": 150.0 + t.step},
        }
        for t in truth
    ]
    log = read_log([written.lines(tmp_path / "a.jsonl", rows)])
    assert log.steps["truncated_share_unsure"].tolist() == [1] * 5  # no cap is known
    (tmp_path / "overrides.yaml").write_text(
        f"- data.max_response_length={CAP}\n- trainer.nnodes=1\n- trainer.n_gpus_per_node=8\n"
    )
    log = read_log([tmp_path])
    assert log.steps["truncated_share"].tolist() == [0] * 5  # none reached it
    assert log.steps["truncated_share_unsure"].isna().all()


def test_lengths_with_tool_tokens_are_said_to_hold_them(tmp_path: Path) -> None:
    truth = written.run()
    log = read_log([written.verl_file(tmp_path / "a.jsonl", truth, **{"num_turns/max": 6.0})])
    assert log.tool_tokens_inside
    assert any("tools wrote" in note for note in log.notes)
    alone = read_log([written.verl_file(tmp_path / "b.jsonl", truth, **{"num_turns/max": 2.0})])
    assert not alone.notes
    nemo = read_log([written.nemo_dump(tmp_path / "nemo", truth, tool=5)])
    assert not nemo.tool_tokens_inside
    assert set(nemo.steps["mean_tool_tokens"]) == {5}


def test_trl_updates_that_generate_nothing(tmp_path: Path) -> None:
    truth = written.run()
    history = []
    for t in truth:
        history.append({**written.trl_entry(t), "step": 2 * t.step - 1})
        history.append({"loss": 0.1, "step": 2 * t.step, "step_time": 1.5})
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}, indent=2))
    log = read_log([tmp_path])
    assert log.steps["generates"].tolist() == [1, 0] * 5
    assert log.steps["step"].tolist() == list(range(1, 11))


def test_trl_windows_and_a_console_that_counts(tmp_path: Path) -> None:
    truth = written.run()
    history = [{**written.trl_entry(t), "step": 10 * t.step} for t in truth]
    state = {"log_history": history, "logging_steps": 10, "max_steps": 50}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state, indent=2))
    _console(
        tmp_path / "console.log",
        [
            str({k: str(v) for k, v in written.trl_entry(t).items() if k != "step"})
            .replace("'loss': '0.1', ", "")
            .replace("{", "{'loss': '0.1', ")
            for t in truth
        ],
    )
    log = read_log([tmp_path])
    assert log.steps["step"].tolist() == [10, 20, 30, 40, 50]
    assert log.steps["logged_steps"].tolist() == [10] * 5
    alone = read_log([tmp_path / "console.log"])
    assert alone.steps["step"].tolist() == [1, 2, 3, 4, 5]
    assert alone.steps["step_s"].tolist() == [t.step_s for t in truth]


def test_trackio_phases_are_taken_apart_and_belong_to_the_next_update(tmp_path: Path) -> None:
    truth = written.run()
    config = {"num_generations": 8, "generation_batch_size": 64, "logging_steps": 1}
    path = written.trl_trackio(tmp_path / "run.db", truth, config)
    log = read_log([path])
    assert log.steps["step"].tolist() == [t.step for t in truth]
    for column in ("generation_s", "sync_s", "log_prob_s"):
        assert log.steps[column].tolist() == pytest.approx([getattr(t, column) for t in truth])
    prepared = [t.generation_s + t.sync_s + t.log_prob_s for t in truth]
    assert log.steps["update_s"].tolist() == pytest.approx(
        [t.step_s - p for t, p in zip(truth, prepared, strict=True)]
    )
    assert log.steps["rest_s"].tolist() == pytest.approx([0.0] * 5, abs=1e-9)
    assert log.steps["rollouts"].tolist() == [64] * 5
    with closing(sqlite3.connect(path)) as base:
        microbatch = json.dumps({"profiling/Time taken: GRPOTrainer.vLLM.generate": 1.0})
        base.execute("INSERT INTO metrics VALUES ('r', 0, '', ?)", [microbatch])
        base.commit()
    assert read_log([path]).steps["generation_s"][0] == pytest.approx(truth[0].generation_s + 1)
    with closing(sqlite3.connect(path)) as base:
        base.execute("INSERT INTO metrics VALUES ('other', 1, '', '{}')")
        base.commit()
    with pytest.raises(Exception, match=r"holds 2 runs \(other, r\): two runs are mixed"):
        read_log([path])


# Consoles


def test_everything_around_verls_lines(tmp_path: Path) -> None:
    truth = written.run()
    lines = []
    for t in truth:
        lines.append("(WorkerDict pid=77) step of another kind [repeated 3x across cluster]")
        lines.append(
            f" 10%|█ | 1/10 [00:10<01:30]\r\x1b[36m(TaskRunner pid=12)\x1b[0m "
            f"{written.verl_line(t)}"
        )
    lines.insert(0, "(TaskRunner pid=12) step:0 - val-core/openai/gsm8k/reward/mean@1:0.212")
    config = written.VERL_CONFIG.splitlines()
    config.insert(3, "(OtherActor pid=5) a line in between")
    lines[1:1] = [
        line if line.startswith("(") else f"(TaskRunner pid=12) {line}" for line in config
    ]
    log = read_log([_console(tmp_path / "console.log", lines)])
    assert log.steps["step"].tolist() == [1, 2, 3, 4, 5]
    assert log.steps["mean_new_tokens"].tolist() == [t.mean for t in truth]
    assert log.unread == 0
    assert value(log.settings, "workload.group_size") == 2
    assert value(log.settings, "model") == "/models/Qwen/Qwen3-8B"
    size = log.settings["workload.group_size"]
    path = tmp_path / "console.log"
    assert "'rollout': {'n': 2" in path.read_text().splitlines()[size.place.line - 1]


def test_numpys_spelling_and_old_decimals(tmp_path: Path) -> None:
    line = (
        "step:3 - response_length/mean:np.float64(157.25) - num_turns/max:np.int32(2) - "
        "timing_s/gen:45.900 - timing_s/step:211.1 - actor/lr:0.000 - "
        "timing_s/update_actor:np.float32(1.5e+01)"
    )
    row = read_log([_console(tmp_path / "a.log", [line])]).steps.iloc[0]
    assert (row["mean_new_tokens"], row["generation_s"], row["update_s"]) == (157.25, 45.9, 15.0)


@pytest.mark.parametrize(
    ("stack", "line", "steps"),
    [
        (
            "verl",  # counts from 0
            "step:{} - timing/gen:3.0 - timing/update_actor:2.0 - response_length/mean:9.0",
            [0, 1, 2],
        ),
        (
            "trl",
            "{{'loss': 0.0, 'grad_norm': 0.{}, 'completion_length': 9.0, 'reward': 0.5}}",
            [1, 2, 3],
        ),
    ],
)
def test_consoles_before_steps_were_timed(
    stack: str, line: str, steps: list[int], tmp_path: Path
) -> None:
    log = read_log([_console(tmp_path / "a.log", [line.format(step) for step in range(3)])])
    assert (log.stack, log.level) == (stack, 0)
    assert log.steps["step"].tolist() == steps
    assert log.steps["mean_new_tokens"].tolist() == [9.0] * 3
    assert log.gaps[0].column == "step_s"


# Several files, resumed runs


def test_sinks_of_one_run_are_laid_over_each_other(tmp_path: Path) -> None:
    truth = written.run()
    written.verl_file(tmp_path / "run.jsonl", truth)
    _console(
        tmp_path / "console.log", [f"{written.verl_line(t)} - timing_s/ref:2.5" for t in truth]
    )
    log = read_log([tmp_path])
    assert len(log.steps) == 5
    assert log.steps["reference_s"].tolist() == [2.5] * 5  # what only one of them has
    assert set(log.steps["file"]) == {str(tmp_path / "run.jsonl")}  # the exact one leads


def _resumed(path: Path, how: str, first: list[Truth], again: list[Truth]) -> list[Path]:
    """The log of a run that went on from step 3."""
    if how == "appends":
        lines = [*map(written.verl_line, first), "resuming", *map(written.verl_line, again)]
        return [_console(path / "console.log", lines)]
    if how == "overwrites":  # the file logger; the console of both starts is kept
        written.verl_file(path / "run.jsonl", again)
        lines = [*map(written.verl_line, first[:4]), *map(written.verl_line, again)]
        _console(path / "console.log", lines)
        return [path]
    files = [written.verl_file(path / "1.jsonl", first), written.verl_file(path / "2.jsonl", again)]
    return files if how == "beside" else files[::-1]


@pytest.mark.parametrize("how", ["appends", "overwrites", "beside", "beside, named first"])
def test_a_resumed_run(how: str, tmp_path: Path) -> None:
    first, again = written.run(seed=0), written.run(first=3, seed=1)
    log = read_log(_resumed(tmp_path, how, first, again))
    assert log.steps["step"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert log.steps["step_s"].tolist() == [t.step_s for t in (*first[:2], *again)]
    assert log.steps["step"][log.steps["first"] == 1].tolist() == [1, 3]
    if how == "appends":
        assert log.place(3).line == 7
        assert any("more than once" in note for note in log.notes)


def test_a_resumed_run_goes_back_further_than_it_comes_again(tmp_path: Path) -> None:
    first, again = written.run(seed=0), written.run(first=2, seed=1)[:2]
    lines = [*map(written.verl_line, first), *map(written.verl_line, again)]
    log = read_log([_console(tmp_path / "console.log", lines)])
    assert log.steps["step"].tolist() == [1, 2, 3]  # 4 and 5 were undone
    assert log.steps["step_s"].tolist() == [t.step_s for t in (first[0], *again)]


def test_the_first_step_is_the_lowest_however_a_file_is_sorted(tmp_path: Path) -> None:
    path = written.verl_file(tmp_path / "newest_first.jsonl", written.run()[::-1])
    log = read_log([path])
    assert log.steps["step"][log.steps["first"] == 1].tolist() == [1]


def test_slimes_two_writers_in_any_order(tmp_path: Path) -> None:
    truth = written.run()
    made, trained, share = zip(*map(written.slime_lines, truth), strict=True)
    order = [*made[:2], trained[0], made[2], trained[1], made[3], trained[2], made[4], trained[3]]
    order += [share[0], share[1], share[3], share[2], trained[4], share[4]]
    log = read_log([_console(tmp_path / "a.log", order)])
    assert log.steps["mean_prompt_tokens"].tolist() == pytest.approx([written.PROMPT] * 5)
    assert log.steps["update_s"].tolist() == [t.update_s for t in truth]
    assert log.steps["generation_s"].tolist() == [t.generation_s for t in truth]
    assert log.steps["step"][log.steps["first"] == 1].tolist() == [1]
    assert not log.notes


def test_packed_files(tmp_path: Path) -> None:
    truth = written.run()
    plain = written.verl_file(tmp_path / "plain" / "run.jsonl", truth)
    content = plain.read_bytes()
    (tmp_path / "run.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "run.jsonl.bz2").write_bytes(bz2.compress(content))
    (tmp_path / "run.jsonl.xz").write_bytes(lzma.compress(content))
    with zipfile.ZipFile(tmp_path / "run.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside/run.jsonl", content)
        for t in truth:
            [row] = (json.dumps({"input": "p", "output": "x" * 9, "score": 1.0, "step": t.step}),)
            archive.writestr(f"inside/rollout_data/{t.step}.jsonl", row + "\n")
    expected = read_log([plain]).steps.drop(columns="file")
    for name in ("run.jsonl.gz", "run.jsonl.bz2", "run.jsonl.xz", "run.zip"):
        log = read_log([tmp_path / name])
        found = log.steps.drop(columns=["file", "groups"])
        pd.testing.assert_frame_equal(found, expected.drop(columns="groups"))
    assert len(log.rollouts) == 5
    assert log.steps["file"].iloc[0] == f"{tmp_path / 'run.zip'}:inside/run.jsonl"


@pytest.mark.parametrize("form", ["utf-16", "utf-16-be"])
def test_what_powershell_redirects(form: str, tmp_path: Path) -> None:
    """``python train.py > run.log`` is UTF-16 there, with the ends of line of that system."""
    text = "".join(
        f"\ufeff{line}\r\n" if i == 0 and form != "utf-16" else f"{line}\r\n"
        for i, line in enumerate(["größer →", *map(written.verl_line, written.run())])
    )
    (tmp_path / "run.log").write_bytes(text.encode(form))
    log = read_log([tmp_path / "run.log"])
    assert log.steps["generation_s"].tolist() == [t.generation_s for t in written.run()]
    assert log.steps["line"].tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("key", ["log", "textPayload", "message"])
def test_consoles_in_lines_of_json(key: str, tmp_path: Path) -> None:
    """As Docker keeps them, cloud services export them and Ray's logger writes them."""
    texts = ["größer →", *map(written.verl_line, written.run())]
    lines = [{"time": "2026-03-01T00:00:00Z", key: f"{text}\n"} for text in texts]
    log = read_log([written.lines(tmp_path / "run.log", lines)])
    assert log.steps["generation_s"].tolist() == [t.generation_s for t in written.run()]
    assert log.steps["line"].tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_a_spreadsheets_separators(between: str, tmp_path: Path) -> None:
    rows = [{"_step": t.step, **written.verl_values(t)} for t in written.run()]
    lines = [between.join(rows[0]), *(between.join(map(str, row.values())) for row in rows)]
    (tmp_path / "h.csv").write_text("\n".join(lines) + "\n")
    log = read_log([tmp_path / "h.csv"])
    assert log.steps["generation_s"].tolist() == [t.generation_s for t in written.run()]
    (tmp_path / "h.csv").write_text("\n".join(lines)[:-30])
    assert (read_log([tmp_path / "h.csv"]).unread, len(log.steps)) == (1, 5)
    decimals = [re.sub(r"(\d)\.(\d)", r"\1,\2", line) for line in lines[1:]]
    (tmp_path / "h.csv").write_text("\n".join([lines[0], *decimals]) + "\n")
    if between == ";":
        steps = read_log([tmp_path / "h.csv"]).steps
        assert steps["generation_s"].tolist() == [t.generation_s for t in written.run()]
    (tmp_path / "h.csv").write_text("\n".join([f"sep={between}", *lines]) + "\n")
    assert read_log([tmp_path / "h.csv"]).steps["line"].tolist() == [3, 4, 5, 6, 7]


def _parquet(folder: Path, rows: list[dict[str, float]]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "0000.parquet")


def _with_nan(folder: Path, rows: list[dict[str, float]]) -> None:
    """As pandas writes a history in which a validation has a row of its own."""
    validation = {"_step": 0.0, "val/score": 0.5} | dict.fromkeys(list(rows[0])[1:], math.nan)
    written.lines(folder / "history.jsonl", [validation, *rows])


def _frame(folder: Path, rows: list[dict[str, float]]) -> None:
    pd.DataFrame(rows).to_json(folder / "history.json")


def _split_frame(folder: Path, rows: list[dict[str, float]]) -> None:
    pd.DataFrame(rows).to_json(folder / "history.json", orient="split")


def _tags(folder: Path, rows: list[dict[str, float]]) -> None:
    """As TensorBoard's page exports them."""
    for key in list(rows[0])[1:]:
        lines = [f"{1.7e9 + row['_step']},{row['_step']},{row[key]}\n" for row in rows]
        path = folder / f"run-.-tag-{key.replace('/', '_')}.csv"
        path.write_text("".join(["Wall time,Step,Value\n", *lines]))


def _mlflow(folder: Path, rows: list[dict[str, float]]) -> None:
    for key in list(rows[0])[1:]:
        path = folder / "mlruns/0/5f/metrics" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{1700000000000 + row['_step']} {row[key]} {row['_step']}\n" for row in rows]
        path.write_text("".join(lines))


def _wandb(folder: Path, rows: list[dict[str, float]]) -> None:
    written.wandb_run(folder / "run-5f.wandb", rows, {})


@pytest.mark.parametrize(
    "keep", [_parquet, _with_nan, _frame, _split_frame, _tags, _mlflow, _wandb]
)
def test_histories_as_others_keep_them(
    keep: Callable[[Path, list[dict[str, float]]], None], tmp_path: Path
) -> None:
    rows = [{"_step": t.step, **written.verl_values(t)} for t in written.run()]
    keep(tmp_path, rows)
    log = read_log([tmp_path])
    assert log.stack == "verl"
    for column, of in (("generation_s", "generation_s"), ("mean_new_tokens", "mean")):
        assert log.steps[column].tolist() == [getattr(t, of) for t in written.run()]


def test_a_run_of_weights_and_biases_and_one_that_breaks_off(tmp_path: Path) -> None:
    rows = [{"_step": t.step, **written.verl_values(t)} for t in written.run()]
    config = {"trainer": {"n_gpus_per_node": 4, "nnodes": 2}, "data": {"train_batch_size": GROUPS}}
    path = written.wandb_run(tmp_path / "run-5f.wandb", rows, config)
    log = read_log([path])
    assert value(log.settings, "run.gpus_per_node") == 4
    assert value(log.settings, "workload.batch_groups") == GROUPS
    path.write_bytes(path.read_bytes()[:-30_000])
    log = read_log([path])
    assert (len(log.steps), log.unread) == (3, 1)
    path.write_bytes(path.read_bytes()[:7] + b"\xff" * 9000)
    with pytest.raises(LogError, match="it breaks off within a record; no step could be read"):
        read_log([path])


def test_settings_by_their_surest_source(tmp_path: Path) -> None:
    truth = written.run()
    _console(
        tmp_path / "console.log",
        [
            "++ python3 -m verl.trainer.main_ppo data.train_batch_size=999 trainer.nnodes=1 "
            "actor_rollout_ref.rollout.n=99",
            *written.VERL_CONFIG.splitlines(),
            "GPU KV cache size: 1,234,560 tokens",
            *map(written.verl_line, truth),
        ],
    )
    (tmp_path / "config.yaml").write_text(
        "data: {train_batch_size: 7, max_prompt_length: 64}\ntrainer: {nnodes: 3}\n"
        "actor_rollout_ref: {rollout: {max_num_seqs: '${oc.env:X}'}}\n"
    )
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.3, "max_steps": 4}')
    log = read_log([tmp_path])
    known = log.settings
    assert value(known, "workload.batch_groups") == 4  # what was printed resolved
    assert value(known, "run.nodes") == 1
    assert value(known, "run.max_prompt_tokens") == 64  # said nowhere else
    assert value(known, "engine.kv_tokens") == 1_234_560
    assert "engine.max_seqs" not in known  # a reference is no value
    assert "run.temperature" not in known  # of another kind of file
    assert known["workload.batch_groups"].theirs == "data.train_batch_size"
    assert (value(known, "workload.batch_groups"), value(known, "workload.group_size")) == (
        GROUPS,
        SIZE,
    )


def test_a_prompt_asked_twice_in_a_step_is_two_groups(tmp_path: Path) -> None:
    truth = written.run()
    written.verl_file(tmp_path / "run.jsonl", truth)
    rows = [{"input": "p", "output": "x" * n, "score": 1.0, "step": 1} for n in range(1, 9)]
    written.lines(tmp_path / "rollout_data" / "1.jsonl", rows)
    log = read_log([tmp_path])
    assert log.rollouts.groupby("group").size().tolist() == [8]  # the group's size is not known
    (tmp_path / "overrides.yaml").write_text(
        "- actor_rollout_ref.rollout.n=4\n- trainer.nnodes=1\n- trainer.n_gpus_per_node=8\n"
    )
    log = read_log([tmp_path])
    assert log.rollouts.groupby("group")["characters"].apply(list).tolist() == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
    ]


def test_validations_are_dumped_in_the_same_form(tmp_path: Path) -> None:
    truth = written.run()
    written.verl_file(tmp_path / "run.jsonl", truth)
    written.verl_dump(tmp_path / "rollout_data", truth)
    written.verl_dump(tmp_path / "validation_data", written.run(seed=9))
    assert len(read_log([tmp_path]).rollouts) == 5 * GROUPS * SIZE


def test_trls_evaluations_are_rows_of_their_own(tmp_path: Path) -> None:
    history: list[dict[str, float]] = []
    for t in written.run():
        history += [written.trl_entry(t), {"step": t.step, "eval_runtime": 2.5, "eval_reward": 0.5}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}, indent=2))
    log = read_log([tmp_path])
    assert log.steps["validation_s"].tolist() == [2.5] * 5
    assert log.steps["validation_inside"].tolist() == [0] * 5
    assert log.steps["mean_reward"].tolist() == [t.reward for t in written.run()]


def test_settings_of_launchers_and_of_weights_and_biases(tmp_path: Path) -> None:
    truth = written.run()
    folder = tmp_path / "slime"
    folder.mkdir()
    lines = [line for t in truth for line in written.slime_lines(t)]
    _console(folder / "train.log", lines)
    (folder / "run.sh").write_text(
        "NUM=8\nARGS=(\n   --rollout-batch-size 32 # prompts\n   --n-samples-per-prompt=8 \\\n"
        "   #--rollout-max-response-len 1\n   --rollout-max-response-len 8192\n"
        "   --rollout-num-gpus ${NUM}\n)\n"
    )
    known = read_log([folder]).settings
    assert {key: (s.value, s.place.line) for key, s in known.items()} == {
        "workload.batch_groups": (32, 3),
        "workload.group_size": (8, 4),
        "workload.max_new_tokens": (8192, 6),
    }
    folder = tmp_path / "verl"
    written.verl_file(folder / "run.jsonl", truth)
    (folder / "config.yaml").write_text(
        "_wandb:\n  value: {python_version: '3'}\ndata:\n  value:\n    train_batch_size: 64\n"
        "trainer:\n  value: {nnodes: 2, n_gpus_per_node: 8}\n"
    )
    known = read_log([folder]).settings
    assert value(known, "workload.batch_groups") == 64
    assert value(known, "run.nodes") == 2


def test_checkpoints_beside_a_log_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.verl_file(tmp_path / "run.jsonl", written.run())
    (tmp_path / "optim_world_size_8_rank_0.pt").write_bytes(b"PK\x03\x04" + bytes(3000))
    log = read_log([tmp_path])
    assert (log.unread, log.ignored) == (0, 1)
    from rollcast.calibration.logs.opened import LogFile

    (tmp_path / "rollout_7.pt").write_bytes(b"PK\x03\x04" + bytes(3000))
    monkeypatch.setattr(LogFile.content, "__defaults__", (2**10,))
    log = read_log([tmp_path])
    assert "larger than 0 MiB" in next(e.why for t in log.tallies for e in t.examples)


def test_lines_of_other_processes_within_a_block(tmp_path: Path) -> None:
    truth = written.run()
    for block in (written.nemo_console, written.areal_console, written.skyrl_console):
        lines = [line for t in truth for line in block(t).splitlines()]
        path = _console(tmp_path / "plain.log", lines)
        noisy = [x for line in lines for x in (line, "(Worker pid=5) {'a': 1} │ a │ 1.0 │")]
        other = _console(tmp_path / "noisy.log", noisy)
        columns = ["file", "line"]
        pd.testing.assert_frame_equal(
            read_log([path]).steps.drop(columns=columns),
            read_log([other]).steps.drop(columns=columns),
        )


def test_a_last_block_that_nothing_follows(tmp_path: Path) -> None:
    truth = written.run()
    text = "\n".join(map(written.nemo_console, truth))
    text = text[: text.rindex("🔍")].rstrip() + "\n"
    (tmp_path / "a.log").write_text(text)
    assert len(read_log([tmp_path]).steps) == 5
    (tmp_path / "a.log").write_text(text[:-9])  # cut off: phases would be missing
    assert len(read_log([tmp_path]).steps) == 4


def test_another_programs_metrics_beside_a_run(tmp_path: Path) -> None:
    """Words that all share, such as reward, make no file a stack's."""
    written.verl_file(tmp_path / "run.jsonl", written.run())
    written.lines(tmp_path / "eval.jsonl", ({"step": s, "reward": 0.5} for s in range(9)))
    log = read_log([tmp_path])
    assert (log.stack, len(log.steps)) == ("verl", 5)


@pytest.mark.parametrize("filtered", [True, False])
def test_filtered_groups_are_told(tmp_path: Path, filtered: bool) -> None:
    """What is rejected takes its time, and no length of it is logged."""
    written.verl_file(tmp_path / "run.jsonl", written.run())
    said = {
        "algorithm.filter_groups.enable": filtered,
        "trainer.nnodes": 1,
        "data.train_batch_size": 4,
    }
    (tmp_path / "config.json").write_text(json.dumps(said))
    notes = read_log([tmp_path]).notes
    assert any("algorithm.filter_groups.enable" in note for note in notes) is filtered


def test_the_step_of_an_early_slime(tmp_path: Path) -> None:
    """0.1 called it total_train_time."""
    text = "\n".join(line for t in written.run() for line in written.slime_lines(t))
    path = tmp_path / "console.log"
    path.write_text(text)
    now = read_log([path]).steps["step_s"]
    path.write_text(text.replace("perf/step_time", "perf/total_train_time"))
    assert now.notna().all()
    assert read_log([path]).steps["step_s"].tolist() == now.tolist()


# GPUs that no setting names


@pytest.mark.parametrize(
    ("counted", "more", "gpus"),
    [
        ([16.0] * 5, {}, 16),
        ([6.0] * 5, {}, 6),
        ([16.0] * 4 + [8.0], {}, None),  # a run that went on with fewer
        ([2.5] * 5, {}, None),
        ([16.0] * 5, {"timing_s/switch_wait": 0.2}, None),  # overlapped: of all GPUs or some
    ],
)
def test_gpus_follow_from_the_tokens_of_each(
    tmp_path: Path, counted: list[float], more: dict[str, float], gpus: int | None
) -> None:
    rows = []
    for t, number in zip(written.run(), counted, strict=True):
        values = written.verl_values(t) | more | {"perf/total_num_tokens": 4000.0}
        values["perf/throughput"] = 4000.0 / (number * values["timing_s/step"])
        rows.append({"step": t.step, "data": values})
    parts = {
        part.key: part for part in draft(read_log([written.lines(tmp_path / "a.jsonl", rows)]))
    }
    if gpus is None:
        assert "cluster.trainer_gpus" not in parts
        return
    assert parts["cluster.trainer_gpus"].value == parts["cluster.replicas"].value == gpus
    assert "perf/throughput" in parts["cluster.trainer_gpus"].source
