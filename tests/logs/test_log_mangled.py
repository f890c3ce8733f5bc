"""Logs of each stack that something happened to: read, or refused in one sentence."""

import gzip
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.errors import LogError
from rollcast.calibration.logs.gather import read_log
from rollcast.simulator.launches.parts import to_yaml
from tests.laws import examples
from tests.logs import written
from tests.running import exit_code

_files = cache(written.files)
Mangle = Callable[[bytes, random.Random], bytes]
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _flipped(content: bytes, rng: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(rng.choice([1, 3, 50])):
        found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


def _numbers(*others: bytes) -> Mangle:
    def mangle(content: bytes, rng: random.Random) -> bytes:
        share = rng.choice([0.01, 0.2])
        return _NUMBER.sub(lambda m: rng.choice(others) if rng.random() < share else m[0], content)

    return mangle


def _lines(change: Callable[[list[bytes], random.Random], None]) -> Mangle:
    def mangle(content: bytes, rng: random.Random) -> bytes:
        found = content.split(b"\n")
        change(found, rng)
        return b"\n".join(found)

    return mangle


def _columns(lines: list[bytes], rng: random.Random) -> None:
    """Swapped, in some lines."""
    between = rng.choice([b",", b" - ", b": "])
    for at in rng.sample(range(len(lines)), min(len(lines), 4)):
        cells = lines[at].split(between)
        rng.shuffle(cells)
        lines[at] = between.join(cells)


def _twice(lines: list[bytes], rng: random.Random) -> None:
    lines += lines[rng.randrange(len(lines)) :]


def _encoded(content: bytes, rng: random.Random) -> bytes:
    name = rng.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037"])
    return content.decode("utf-8", "replace").encode(name, "replace")


def _packed(content: bytes, rng: random.Random) -> bytes:
    return _cut(gzip.compress(content), rng)


MANGLES: dict[str, Mangle] = {
    "cut": _cut,
    "flipped": _flipped,
    "not a number": _numbers(b"NaN", b"nan", b"-Infinity", b"null", b'""'),
    "negative": _numbers(b"-1", b"-0.5"),
    "huge": _numbers(b"9" * 400, b"1e300", b"12345678901234567890", b"1e-300", b"0"),
    "other types": _numbers(b"{}", b"[[1]]", b'"x"', b"true"),
    "shuffled": _lines(lambda lines, rng: rng.shuffle(lines)),
    "twice": _lines(_twice),
    "columns": _lines(_columns),
    "encoded": _encoded,
    "packed": _packed,
    "empty": lambda content, rng: b"",
}


def _says_where(error: LogError, folder: Path) -> None:
    assert str(folder) in error.message
    assert "\n" not in error.message


@contextmanager
def _log(stack: str, mangle: str, seed: int) -> Iterator[Path]:
    """A folder with the stack's files, one or all of them mangled."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = dict(_files(stack))
        for file in sorted(files) if rng.random() < 0.2 else [rng.choice(sorted(files))]:
            files[file] = MANGLES[mangle](files[file], rng)
        for file, content in files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield folder


@pytest.mark.parametrize("stack", written.FILES)
@settings(max_examples=examples(25), deadline=None)
@given(mangle=st.sampled_from(sorted(MANGLES)), seed=st.integers(0, 2**32))
def test_a_mangled_log_is_read_or_refused(stack: str, mangle: str, seed: int) -> None:
    with _log(stack, mangle, seed) as folder:
        try:
            log = read_log([folder])
        except LogError as error:
            _says_where(error, folder)
            return
        assert log.steps["step"].is_unique
        seconds = log.steps[["step_s", "generation_s", "update_s", "sync_s", "wait_s"]]
        assert not (seconds < 0).any().any()
        assert to_yaml(draft(log))


@pytest.mark.parametrize(
    ("stack", "mangle"),
    [("nemo_rl", "cut"), ("table", "huge"), ("trl", "negative"), ("roll", "columns")],
)
def test_nothing_is_half_written(
    stack: str, mangle: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The whole command, fits included."""
    out = tmp_path / "mine"
    with _log(stack, mangle, 0) as folder:
        code = exit_code("import", folder, "--out", out, "--no-advise")
        said = capsys.readouterr().err
        assert code in (0, 2), said
        if code:
            assert said.startswith("error: ")
            assert said.count("\n") == 1
        assert (code == 0) is (out / "scenario.yaml").exists()


def test_folders_that_turn_in_on_themselves(tmp_path: Path) -> None:
    written.verl_file(tmp_path / "run.jsonl", written.run())
    (tmp_path / "within").mkdir()
    (tmp_path / "within" / "again").symlink_to(tmp_path)
    (tmp_path / "self.log").symlink_to(tmp_path / "self.log")
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    assert len(read_log([tmp_path]).steps) == written.STEPS
    with pytest.raises(LogError, match=r"self\.log"):
        read_log([tmp_path / "self.log"])


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = written.verl_file(tmp_path / "run.jsonl", written.run())
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may
        whole = Path.open

        def refused(self: Path, *arguments: object, **more: object) -> object:
            if self.name == path.name:
                raise PermissionError(13, "Permission denied")
            return whole(self, *arguments, **more)  # type: ignore[call-overload]

        with mock.patch.object(Path, "open", refused):
            _not_read(tmp_path)
    else:
        _not_read(tmp_path)


def _not_read(folder: Path) -> None:
    with pytest.raises(LogError, match=r"cannot read .*: Permission denied") as caught:
        read_log([folder])
    assert "run.jsonl" in caught.value.message


def test_event_files_without_a_number(tmp_path: Path) -> None:
    from tensorboardX import SummaryWriter

    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"")
    with pytest.raises(LogError, match=r"tfevents\.1\.host"):
        read_log([tmp_path])
    with SummaryWriter(str(tmp_path / "tb"), write_to_disk=True) as writer:
        writer.add_text("said", "hello", 1)
    with pytest.raises(LogError, match="without a single step"):
        read_log([tmp_path])
    written.verl_file(tmp_path / "run.jsonl", written.run())
    assert len(read_log([tmp_path]).steps) == written.STEPS
