"""What logs of published runs hold that the logs of quiet runs do not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.errors import LogError
from rollcast.calibration.logs.gather import read_log
from tests.logs.genuine import log


def _bar(done: int, last: int, elapsed_s: int) -> str:
    clock = f"{elapsed_s // 60:02}:{elapsed_s % 60:02}"
    return f"\r {100 * done // last:3}%|#         | {done}/{last} [{clock}<44:18, 85.12s/it]\n"


def _trl(tmp_path: Path, updates: int, each_s: int, window: int) -> Path:
    bars = [_bar(n, updates, n * each_s) for n in range(updates + 1)]
    rows = [
        f"{{'loss': 0.0, 'reward': 0.5, 'completion_length': {100 + n}.0}}\n"
        for n in range(updates // window)
    ]
    path = tmp_path / "train.log"
    path.write_text(
        "".join(["Loading shards:  50%|## | 1/2 [00:01<00:01, 1.98s/it]\n", *bars, *rows])
    )
    return path


@pytest.mark.parametrize("window", [1, 4])
def test_trl_rows_have_the_steps_and_times_of_the_progress_bar(tmp_path: Path, window: int) -> None:
    steps = read_log([_trl(tmp_path, 22, 70, window)]).steps
    assert steps["step"].tolist() == list(range(window, 23, window))[: 22 // window]
    assert (steps["step_s"] == 70.0).all()
    assert (steps["logged_steps"] == window).all()


def test_a_progress_bar_without_its_end_of_line_loses_no_rows(tmp_path: Path) -> None:
    """As a run leaves it that was stopped."""
    path = _trl(tmp_path, 22, 70, 4)
    path.write_text(path.read_text() + _bar(22, 22, 22 * 70).rstrip("\n"))
    assert read_log([path]).steps["step"].tolist() == [4, 8, 12, 16, 20]


def test_two_runs_of_trl_one_after_the_other_are_refused(tmp_path: Path) -> None:
    path = _trl(tmp_path, 22, 70, 4)
    rows = path.read_text()
    path.write_text(rows + rows.replace("'reward': 0.5", "'reward': 0.6"))
    with pytest.raises(LogError, match=r"step 4 begins anew after step 20 .*: two runs"):
        read_log([path])


@pytest.mark.parametrize(
    "banner",
    [
        "  Instantaneous batch size per device = 2\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 48\n"
        "  Gradient Accumulation steps = 4\n  Total optimization steps = 1,200\n",
        "O^O/ \\_/ \\    Batch size per device = 2 | Gradient accumulation steps = 4\n"
        " Data Parallel GPUs = 6 | Total batch size (2 x 4 x 6) = 48\n",
    ],
)
def test_the_batch_that_a_trainer_prints_is_read(banner: str, tmp_path: Path) -> None:
    path = _trl(tmp_path, 22, 70, 1)
    path.write_text(f"***** Running training *****\n{banner}{path.read_text()}")
    log = read_log([path])
    assert (log.steps["rollouts"] == 48).all()
    assert log.settings["cluster.trainer_gpus"].value == 6
    steps = log.settings.get("run.steps")
    assert (steps and steps.value) == (1200 if "optimization" in banner else None)


@pytest.mark.parametrize(
    ("batch", "groups", "size"), [(4, 1, 4), (24, 3, 8), (12, 2, 6), (11, 11, 1)]
)
def test_groups_that_no_setting_names_divide_the_batch(
    batch: int, groups: int, size: int, tmp_path: Path
) -> None:
    path = _trl(tmp_path, 22, 70, 1)
    banner = f" Batch size per device = {batch} | Gradient accumulation steps = 1\n"
    path.write_text(f"{banner} | Total batch size ({batch} x 1 x 1) = {batch}\n{path.read_text()}")
    parts = {part.key: part.value for part in draft(read_log([path]))}
    assert parts["workload.batch_groups"] == groups
    assert parts["workload.group_size"] == size


@pytest.mark.parametrize("form", [{"logging_steps": 5}, {}])
def test_the_digits_of_a_window_s_mean_lengths_tell_its_rollouts(
    form: dict[str, int], tmp_path: Path
) -> None:
    """Five updates of 16 responses a row: in steps of 1/80 token."""
    rows = [
        {"step": 5 * n, "step_time": 9.0, "completions/mean_length": 200 + (37 * n % 80) / 80}
        for n in range(1, 31)
    ]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows, **form} if form else rows))
    parts = {part.key: part.value for part in draft(read_log([path]))}
    assert (parts["workload.batch_groups"], parts["workload.group_size"]) == (2, 8)


def test_responses_that_were_all_cut_tell_the_cap(tmp_path: Path) -> None:
    """Else the longest response, which the log lacks, may be of any length."""
    rows = [
        {"step": n, "step_time": 9.0, "completion_length": 127.8 if n % 9 == 0 else 128.0}
        for n in range(1, 31)
    ]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows}))
    assert read_log([path]).settings["workload.max_new_tokens"].value == 128
    path.write_text(
        json.dumps({"log_history": [*rows, {**rows[0], "step": 31, "completion_length": 129.0}]})
    )
    assert "workload.max_new_tokens" not in read_log([path]).settings


def test_trl_rows_of_a_run_that_goes_on_are_not_given_a_wrong_step(tmp_path: Path) -> None:
    """One row after 39 updates may hold 20 to 39 of them, unless the bar was drawn anew at it."""
    bars = [_bar(n, 100, 70 * n) for n in range(40)]
    row = "{'loss': 0.0, 'reward': 0.5, 'completion_length': 100.0}\n"
    path = tmp_path / "train.log"
    path.write_text("".join([*bars, row]))
    steps = read_log([path]).steps
    assert (steps["step"].item(), steps["step_s"].isna().item()) == (1, True)
    path.write_text("".join([*bars[:21], row, *bars[20:]]))
    steps = read_log([path]).steps
    assert (steps["step"].item(), steps["step_s"].item()) == (20, 70.0)


def test_a_console_may_begin_with_a_clock(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    rows = [
        f"step:{n} - response_length/mean:100.0 - timing_s/gen:3.0 - timing_s/step:5.0\n"
        for n in range(1, 5)
    ]
    path.write_text("".join(["[2026-03-01 10:00:00,123] [INFO] accelerator: cuda\n", *rows]))
    assert len(read_log([path]).steps) == 4


def test_lines_that_a_sink_cut_are_told(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    whole = "step:{} - response_length/mean:100.0 - timing_s/gen:3.0 - timing_s/step:5.0\n"
    cut = "step:{} - global_seqlen/min:160205 - val-core/score:0.5 - val-aux/aime\n"
    path.write_text("".join((cut if n == 3 else whole).format(n) for n in range(1, 7)))
    [tally] = read_log([path]).tallies
    assert tally.unread == 1
    assert "cut off" in tally.examples[0].why


_NEMO = """========================= Step {0}/9 =========================
▶ Generating responses for batch of size 512...
{1}
  • Mean Generation Length: 600.0
⏱️  Timing:
  • Total step time: {2}s
  • generation: 31.0s (38.5%)
  • policy_training: 3.0s (4.1%)

"""
_VALIDATED = """▶ Starting validation at step 3...
  ⏱️  Validation Timing:
    • Total validation time: 30.5s

▶ Saving"""


def test_a_validation_within_a_step_of_nemo_rl_leaves_the_step(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    path.write_text(
        "".join(
            _NEMO.format(n, _VALIDATED if n == 3 else "", 70.5 if n == 3 else 40.0)
            for n in range(1, 7)
        )
    )
    steps = read_log([path]).steps.set_index("step")
    assert steps.index.tolist() == [1, 2, 3, 4, 5, 6]
    assert steps.loc[3, "validation_s"] == 30.5
    assert steps.loc[3, "validation_inside"] == 1


@pytest.mark.parametrize(
    ("run", "count", "last"), [("trl_hotpot", 93, 1860), ("nemo_gemma_b200", 50, 50)]
)
def test_published_runs_are_read_whole(run: str, count: int, last: int) -> None:
    steps = read_log([log(f"public/{run}")]).steps
    assert (len(steps), steps["step"].iloc[-1]) == (count, last)
    assert steps["step_s"].notna().mean() > 0.95


def summary(updates: int, each_s: float) -> str:
    """What TRL prints at the end, whose rate has three places."""
    whole_s = round(updates * each_s, 3)
    rate = round(updates / whole_s, 3)
    return f"{{'train_runtime': {whole_s}, 'train_steps_per_second': {rate}, 'epoch': 0.75}}\n"


@pytest.mark.parametrize(
    ("updates", "window", "each_s"), [(75, 5, 53.8), (300, 1, 4.3), (47, 5, 9)]
)
def test_a_run_of_trl_that_times_itself_alone(
    updates: int, window: int, each_s: float, tmp_path: Path
) -> None:
    rows = "{'loss': 0.0, 'reward': 0.5, 'completion_length': 100.0}\n" * (updates // window)
    (tmp_path / "run.log").write_text(rows + summary(updates, each_s))
    log = read_log([tmp_path / "run.log"])
    assert log.steps["step"].tolist() == list(range(window, updates + 1, window))
    assert log.steps["step_s"].to_numpy() == pytest.approx(each_s, rel=0.01)
    assert log.steps["step_s"].nunique() == 1
    said = [note for note in log.notes if note.startswith("every step has the same time, ")]
    assert len(said) == (len(log.steps) > 3)


def test_a_state_of_trl_with_the_seconds_of_the_run(tmp_path: Path) -> None:
    history = [{"step": 5 * i, "completions/mean_length": 300.0 + i} for i in range(1, 9)]
    whole = {"step": 41, "train_runtime": 400.0, "train_steps_per_second": 0.1}
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": [*history, whole], "logging_steps": 5}))
    assert read_log([path]).steps["step_s"].tolist() == [400 / 41] * 8
    history[3]["step_time"] = 7.0  # of its own: then the others have none
    path.write_text(json.dumps({"log_history": [*history, whole], "logging_steps": 5}))
    assert read_log([path]).steps["step_s"].count() == 1


def test_a_history_of_trl_that_times_nothing_is_timed_by_its_clock(tmp_path: Path) -> None:
    """From row to row; an evaluation is in the row after its own."""
    rows = [
        {"_step": 5 * i, "_timestamp": 1e9 + 50.0 * i, "completion_length": 300.0 + i}
        for i in range(1, 9)
    ]
    rows[3]["eval_runtime"] = 20.0
    path = tmp_path / "history.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    steps = read_log([path]).steps
    assert steps["step_s"].fillna(0).tolist() == [0.0] + [10.0] * 7
    assert steps["validation_inside"].fillna(0).tolist() == [0.0] * 4 + [1.0] + [0.0] * 3
    together = [{**row, "_timestamp": 1e9 + row["_step"] / 1000} for row in rows]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in together))
    assert read_log([path]).steps["step_s"].count() == 0
    rows[5]["step_time"] = 7.0
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert read_log([path]).steps["step_s"].count() == 1


VERL = "step:{} - response_length/mean:{} - timing_s/gen:3.0 - timing_s/step:{}"


def _rows(count: int = 12) -> list[str]:
    return [VERL.format(n, 100.0 + n, 5.0 + n / 100) for n in range(1, count + 1)]


BAR = "Training Progress:  3%|#  | {0}/12 [00:10<00:20, 1.21s/it]"


@pytest.mark.parametrize(
    "around",
    [
        lambda n, line: line.replace(" - ", " \x1b[0m-\x1b[1m "),
        lambda n, line: BAR.format(n) + line,  # a bar's end is not flushed
        lambda n, line: ("\0" * 9 if n == 7 else "") + line,  # of a machine that stopped
        lambda n, line: f"(TaskRunner pid=9) {line}\n(vLLMHttpServer pid=7) GET /health",
        lambda n, line: f"{line}\r",
        lambda n, line: f"step:{n} - val-core/gsm8k/acc/mean@1:0.5\n{line}",
    ],
)
def test_rows_are_found_in_whatever_is_around_them(
    around: Callable[[int, str], str], tmp_path: Path
) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"{around(n, line)}\n" for n, line in enumerate(_rows(), start=1)))
    log = read_log([path])
    assert log.stack == "verl"
    assert log.steps["step"].tolist() == list(range(1, 13))
    assert log.steps["mean_new_tokens"].tolist() == [100.0 + n for n in range(1, 13)]


def test_rows_of_two_runs_that_take_turns_are_refused(tmp_path: Path) -> None:
    others = [VERL.format(n, 900.0 + n, 50.0 + n) for n in range(1, 13)]
    both = [line for pair in zip(_rows(), others, strict=True) for line in pair]
    (tmp_path / "train.log").write_text("\n".join(both))
    with pytest.raises(LogError, match="twice in a row with other numbers: two runs are mixed"):
        read_log([tmp_path / "train.log"])


def test_steps_that_a_resumed_run_repeats_are_counted(tmp_path: Path) -> None:
    again = [VERL.format(n, 200.0 + n, 6.0) for n in range(8, 15)]
    (tmp_path / "train.log").write_text("\n".join(_rows() + again))
    log = read_log([tmp_path / "train.log"])
    assert log.steps["mean_new_tokens"].tolist()[6:9] == [107.0, 208.0, 209.0]
    assert "steps logged more than once: 5 (8 to 12); the later counts" in log.notes


@pytest.mark.parametrize("kept", ["response_length/me", "response_length/mean:10"])
def test_a_row_that_ends_before_its_times_is_told(kept: str, tmp_path: Path) -> None:
    lines = _rows()
    lines[4] = lines[4][: lines[4].index(kept) + len(kept)]
    (tmp_path / "train.log").write_text("".join(f"{line}\n" for line in lines))
    log = read_log([tmp_path / "train.log"])
    assert 5 not in log.steps["step"].tolist()
    assert log.unread == 1


@pytest.mark.parametrize(("update_s", "told"), [(2.5, True), (4.5, False)])
def test_a_phase_under_a_key_of_a_fork_is_told(update_s: float, told: bool, tmp_path: Path) -> None:
    row = "step:{} - response_length/mean:90.0 - timing_s/get_batch_rollout_with_filtering:2.4"
    row += f" - timing_s/update_actor:{update_s} - timing_s/step:5.0\n"
    path = tmp_path / "train.log"
    path.write_text("".join(row.format(n) for n in range(1, 5)))
    notes = read_log([path]).notes
    assert any("2.5 s of a step (50 %) are in no phase" in n for n in notes) == told
