"""What logs of published runs hold that the logs of quiet runs do not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

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
