"""A log that grows under the eyes of ``rollcast import --follow``."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rollcast.calibration.live.follow import Asked, follow, joined
from rollcast.calibration.logs.errors import LogError
from rollcast.calibration.logs.growing import GrowingLog
from tests.live import growing
from tests.live.growing import news, watched
from tests.processes import started
from tests.running import exit_code


def test_steps_are_told_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = growing.lines(6)
    path.write_text(lines[0])

    def add(line: str) -> Any:
        return lambda: growing.append(path, line)

    seen = news(watched(Asked((path,), steps=6), [add(line) for line in lines[1:]]))
    assert [each.state.step for each in seen if each.state] == [1, 2, 3, 4, 5, 6]
    assert [each.over for each in seen] == [""] * 5 + ["all steps are logged"]


def test_a_line_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = growing.lines(4)
    path.write_text("".join(lines[:3]) + lines[3][:-40])
    acts = [lambda: None, lambda: growing.append(path, lines[3][-40:])]
    seen = news(watched(Asked((path,), steps=4), acts, beat_s=10.0))
    assert [each.state.step for each in seen if each.state] == [3, 4]
    assert seen[0].state.unread == 1
    assert seen[-1].state.unread == 0


def test_the_last_figure_of_a_table_may_be_cut(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    rows = "step,mean_new_tokens,step_s\n" + "".join(f"{i},100,12.5\n" for i in range(1, 5))
    path.write_text(rows + "5,100,1")
    seen = watched(Asked((path,), steps=6), [lambda: growing.append(path, "2.5\n")])
    first, *_, last = [each.state for each in seen if each.state]
    assert (first.step, last.step) == (4, 5)
    assert last.longest_s == 12.5


def test_a_log_that_has_no_step_yet_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("")
    lines = growing.lines(1)
    seen = news(watched(Asked((path,), steps=1), [lambda: path.write_text(lines[0])]))
    assert seen[0].state is None
    assert "is no log" in seen[0].waiting
    assert seen[-1].over == "all steps are logged"


def test_patience_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(growing.lines(3)))
    seen = watched(Asked((path,), patience_s=50.0), [], beat_s=20.0)
    assert seen[-1].over == "the log has not grown for 60 s"
    assert len(seen) == 4
    empty = tmp_path / "empty.jsonl"
    empty.write_text("nothing that a trainer says\n")
    with pytest.raises(
        LogError, match=r"empty\.jsonl, line 1: the file ends without a single step"
    ):
        watched(Asked((empty,), patience_s=50.0), [], beat_s=20.0)


@pytest.mark.parametrize("how", ["truncated", "rotated"])
def test_what_a_lost_file_held_is_kept_and_said(tmp_path: Path, how: str) -> None:
    path = tmp_path / "run.jsonl"
    lines = growing.lines(30)
    path.write_text("".join(lines[:20]))

    def lose() -> None:
        if how == "rotated":
            path.rename(tmp_path / "run.jsonl.1")
        else:
            path.write_text("")

    acts = [
        lose,
        lambda: path.write_text("".join(lines[20:25])),
        lambda: growing.append(path, "".join(lines[25:])),
    ]
    seen = news(watched(Asked((path,), steps=30), acts))
    told = [note for each in seen for note in each.notices]
    assert any(("was truncated" if how == "truncated" else "is gone") in note for note in told), (
        told
    )
    states = [each.state for each in seen if each.state]
    assert [each.step for each in states][-2:] == [25, 30]
    assert seen[-1].over == "all steps are logged"
    assert not states[-1].warnings


def test_steps_of_an_earlier_file_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    lines = growing.lines(30)
    early = growing.log_of(tmp_path / "a", lines[:20])
    late = growing.log_of(tmp_path / "b", lines[18:])
    assert joined(early, late).steps["step"].tolist() == list(range(1, 31))
    assert joined(late, early).steps["step"].tolist() == list(range(1, 21))
    assert joined(None, late) is late


def test_a_run_that_begins_anew_forgets_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(growing.lines(20)))
    again = "".join(growing.lines(4, seed=9))
    seen = news(watched(Asked((path,), steps=30), [lambda: path.write_text(again)]))
    [note] = [note for each in seen for note in each.notices]
    assert "was truncated: steps 5 to 20, which it no longer holds, are forgotten" in note
    assert seen[-1].state.step == 4


def test_what_no_line_can_mend_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = growing.lines(4)
    path.write_text("".join(lines).replace('"timing_s/step": ', '"timing_s/step": -', 1))
    with pytest.raises(LogError, match="seconds are numbers from 0"):
        watched(Asked((path,)), [])


def test_reading_is_a_tenth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that grows at every look is read no more often than its reading allows."""
    path = tmp_path / "run.jsonl"
    path.write_text("".join(growing.lines(3)))
    reads = []

    def slow(*arguments: Any) -> Any:
        reads.append(time.perf_counter())
        time.sleep(0.05)
        return real(*arguments)

    real = GrowingLog.read
    monkeypatch.setattr(GrowingLog, "read", slow)
    stop = time.perf_counter() + 2.0
    for each in follow(Asked((path,), every_s=0.05)):
        with path.open("a") as file:
            file.write("\n")
        if time.perf_counter() > stop or each.over:
            break
    assert 2 <= len(reads) <= 2.0 / 0.5 + 1


def test_a_thread_writes_and_the_engine_slows_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    lines = growing.lines(30, generation=lambda step: 1.7 if step >= 18 else 1.0)
    path.write_text("".join(lines[:3]))

    def write() -> None:
        for line in lines[3:]:
            with path.open("a") as file:
                file.write(line[:37])
                file.flush()
                time.sleep(0.01)
                file.write(line[37:])
            time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    assert (
        exit_code("import", path, "--follow", "--steps", 30, "--every", 0.05, "--patience", 60) == 0
    )
    writer.join()
    said = capsys.readouterr().out.splitlines()
    warned = [line for line in said if line.startswith("warning:")]
    assert len(warned) == 1
    assert "generation (timing_s/gen) takes 1." in warned[0]
    assert "since step 18, noticed at step 20" in warned[0]
    [last] = [line for line in said if "over: " in line]
    assert "step 30 of 30 (100 %)" in last
    assert last.endswith("over: all steps are logged")


def test_json_lines_and_the_import_after_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "run.jsonl", tmp_path / "mine"
    path.write_text("".join(growing.lines(12)))
    options = ("--follow", "--steps", 12, "--json", "--no-advise")
    assert exit_code("import", path, *options, "--out", out) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["state"]["done"] == 12
    assert first["over"] == "all steps are logged"
    assert (out / "steps.csv").is_file()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(growing.lines(5)))
    options = ["--follow", "--steps", "9", "--out", str(tmp_path / "mine")]
    process = started([sys.executable, "-m", "rollcast", "import", str(path), *options])
    try:
        assert "step 5 of 9 (56 %)" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert errors == "interrupted; no output folder was written\n"
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--steps", 10), "--steps: must be FIRST:LAST"),
        (("--follow", "--steps", "2:9"), "--steps: must be a number of updates with --follow"),
        (("--every", 1), "--every: belongs to --follow"),
        (("--patience", 1), "--patience: belongs to --follow"),
        (("--follow", "--steps", 0), "--steps: must be 1 or more, got 0"),
        (("--follow", "--every", 0), "--every: must be 0.05 to 86400 seconds, got 0"),
        (("--follow", "--every", "nan"), "--every: must be 0.05 to 86400 seconds, got nan"),
        (("--follow", "--patience", -1), "--patience: must be seconds above 0"),
    ],
)
def test_bad_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[Any, ...], said: str
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(growing.lines(3)))
    assert exit_code("import", path, *options) == 2
    assert said in capsys.readouterr().err


def test_a_path_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("import", tmp_path / "none.log", "--follow") == 2
    assert "none.log does not exist" in capsys.readouterr().err
