"""The committed runs: packed small, and unpacked whole."""

import lzma
import tarfile
from pathlib import Path

import pytest

from benchmarks import measured

MOST_BYTES = 13 * 2**19


def test_all_measured_runs_together_are_small() -> None:
    files = [measured.DATA / f"{name}{measured.SUFFIX}" for name in measured.archives()]
    assert len(files) == 7
    assert sum(file.stat().st_size for file in files) < MOST_BYTES


def test_what_is_packed_is_unpacked_once_and_again_where_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source" / "sync-0"
    source.mkdir(parents=True)
    (source / "summary.json").write_text("{}")
    monkeypatch.setattr(measured, "DATA", tmp_path)
    archive = tmp_path / "mine.tar.xz"
    measured.pack(source.parent, archive)
    folder = measured.runs("mine")
    assert (folder / "sync-0" / "summary.json").read_text() == "{}"
    stamp = (folder / "sync-0").stat().st_mtime_ns
    assert measured.runs("mine") == folder
    assert (folder / "sync-0").stat().st_mtime_ns == stamp
    (source / "summary.json").write_text("[]")
    measured.pack(source.parent, archive)
    assert (measured.runs("mine") / "sync-0" / "summary.json").read_text() == "[]"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".unpacked", archive.name, "source"]


def test_an_archive_that_is_cut_short_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "DATA", tmp_path)
    (tmp_path / "bad.tar.xz").write_bytes(lzma.compress(b"x" * 600))
    with pytest.raises(tarfile.ReadError):
        measured.runs("bad")
    assert [path.name for path in (tmp_path / measured.UNPACKED).iterdir()] == []
