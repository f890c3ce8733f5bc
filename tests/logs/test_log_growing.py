"""A log that is read while it grows: each look is a whole reading of what is there."""

import os
import random
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcast.calibration.logs import growing, opened
from rollcast.calibration.logs.errors import LogError, NoStepsError
from rollcast.calibration.logs.gather import read_log
from rollcast.calibration.logs.growing import GrowingLog
from rollcast.calibration.logs.opened import LogFile
from rollcast.calibration.logs.run_log import RunLog
from tests.laws import examples
from tests.logs import written

_FREE = {"group", "index"}  # numbered in the order of reading


def same(a: RunLog, b: RunLog) -> None:
    for field in fields(RunLog):
        one, other = getattr(a, field.name), getattr(b, field.name)
        if isinstance(one, pd.DataFrame):
            free = [name for name in one.columns if name not in _FREE]
            pd.testing.assert_frame_equal(
                one[free].sort_values(free, ignore_index=True),
                other[free].sort_values(free, ignore_index=True),
            )
        else:
            assert one == other, field.name


def looked(log: GrowingLog, paths: list[Path]) -> None:
    """A look at the files, against a whole reading of them."""
    whole: Any
    try:
        whole = read_log(paths)
    except NoStepsError as error:
        whole = error.message
    if isinstance(whole, str):
        with pytest.raises(NoStepsError) as caught:
            log.read()
        assert caught.value.message == whole
    else:
        same(log.read(), whole)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bytes are many."""
    monkeypatch.setattr(growing, "START", 1)
    monkeypatch.setattr(opened, "_BLOCK", 512)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("stack", ["verl", "areal", "nemo_rl"])
@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10_000))
def test_each_look_is_a_whole_reading(
    stack: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)
    folder = tmp_path_factory.mktemp("grows") / stack
    folder.mkdir()
    left = {folder / name: content for name, content in written.files(stack).items()}
    log = GrowingLog([folder])
    for _ in range(5):
        if not left:
            break
        for path in rng.sample(sorted(left), min(len(left), 4)):
            size = len(left[path]) if rng.random() < 0.3 else rng.randrange(1, 1800)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(left[path][:size])
            left[path] = left[path][size:]
            if not left[path]:
                del left[path]
        looked(log, [folder])


def _read_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """What has been read of files since the last time that this was asked."""
    begins: list[int] = []
    whole = LogFile._blocks

    def counted(self: LogFile, start: int) -> Any:
        begins.append(start)
        return whole(self, start)

    monkeypatch.setattr(LogFile, "_blocks", counted)

    def asked() -> int:
        found = min(begins, default=-1)
        begins.clear()
        return found

    return asked


@pytest.mark.usefixtures("small")
def test_only_what_was_added_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = written.run()
    path = written.verl_file(tmp_path / "run.jsonl", truth[:3])
    dumped = written.verl_dump(tmp_path / "rollout_data", truth[:3])
    log = GrowingLog([tmp_path])
    log.read()
    size = path.stat().st_size
    written.verl_dump(dumped, truth[3:4])
    with path.open("a") as file:
        file.write(written.verl_file(tmp_path.parent / "more.jsonl", truth[3:4]).read_text())
    began = _read_bytes(monkeypatch)
    monkeypatch.setattr(
        growing,
        "begun",
        lambda file, take: (
            pytest.fail(file.name) if "4.jsonl" not in file.name else _begun(file, take)
        ),
    )
    found = log.read()
    assert len(found.steps) == 4
    assert began() == 0  # of the new dump
    with path.open("a") as file:
        file.write("{")
    log.read()
    assert began() > size
    log.read()
    assert began() > size  # the half line, each time


_begun = growing.begun


def _truncated(path: Path, text: bytes) -> None:
    path.write_bytes(text)


def _rotated(path: Path, text: bytes) -> None:
    path.rename(path.with_name("run.1.jsonl"))
    path.write_bytes(text)


def _replaced(path: Path, text: bytes) -> None:
    beside = path.with_name("new")
    beside.write_bytes(text + b"\n" * 5000)
    os.replace(beside, path)


def _in_place(path: Path, text: bytes) -> None:
    """Written anew, and by the next look longer than it was."""
    path.write_bytes(text.replace(b'"critic/score/mean"', b'"critic/score/mean" ') + b"\n" * 5000)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("how", [_truncated, _rotated, _replaced, _in_place])
@pytest.mark.parametrize("dumps", [False, True])
def test_a_file_that_was_not_written_on_is_read_anew(
    tmp_path: Path, how: Callable[[Path, bytes], None], dumps: bool
) -> None:
    truth = written.run()
    path = written.verl_file(tmp_path / "run.jsonl", truth[:4])
    if dumps:
        written.verl_dump(tmp_path / "rollout_data", truth[:4])
    log = GrowingLog([tmp_path])
    looked(log, [tmp_path])
    text = path.read_bytes()
    first = text.splitlines(keepends=True)
    how(path, b"".join(first[:2]) if how is not _rotated else b"".join(first[2:]))
    looked(log, [tmp_path])
    if dumps:
        again = tmp_path / "rollout_data" / "2.jsonl"
        again.write_text(again.read_text().replace("xx", "xyx", 1))
        looked(log, [tmp_path])
        again.unlink()
        looked(log, [tmp_path])


@pytest.mark.usefixtures("small")
def test_after_an_error_it_reads_anew(tmp_path: Path) -> None:
    truth = written.run()
    written.verl_dump(tmp_path / "rollout_data", truth)
    written.verl_file(tmp_path / "run.jsonl", truth)
    log = GrowingLog([tmp_path])
    looked(log, [tmp_path])
    other = written.verl_dump(tmp_path / "more", truth[:1]) / "1.jsonl"
    with pytest.raises(LogError, match="two runs are mixed"):
        log.read()
    other.unlink()
    looked(log, [tmp_path])


def test_a_first_look_too_short_to_tell_what_it_is(tmp_path: Path) -> None:
    """An empty file is taken for a console; it may turn out to be lines of JSON."""
    path = tmp_path / "log"
    path.write_text("")
    log = GrowingLog([path])
    looked(log, [path])
    written.verl_file(path, written.run())
    looked(log, [path])
