"""An interrupted plan: what is kept, and what of it is of use."""

from pathlib import Path

import pytest

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.planner.journal import Journal, journal_path


def entries(path: Path, question: str = "q") -> dict[str, object]:
    journal = Journal(path, question)
    found = {key: journal.get(key) for key in ("a", "b", "c") if journal.get(key)}
    journal.close(done=False)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = journal_path(tmp_path / "out")
    journal = Journal(path, "q")
    journal.put("a", {"x": 1.5})
    journal.put("b", {"x": 2})
    journal.put("a", {"x": "a second time"})
    journal.close(done=False)
    return path


def test_two_plans_do_not_share_one(path: Path) -> None:
    first = Journal(path, "q")
    with pytest.raises(ScenarioError, match="--out: another process is planning"):
        Journal(path, "q")
    first.close(done=False)
    assert entries(path) == {"a": {"x": 1.5}, "b": {"x": 2}}


def test_another_question_begins_anew(path: Path) -> None:
    assert entries(path, "other") == {}
    assert entries(path, "other") == {}
    assert entries(path) == {}


@pytest.mark.parametrize(
    "tail", ['{"key": "c", "resu', '{"key": "c"}', "\n\n", "\x00\x00", "[1]\n"]
)
def test_what_was_cut_off_is_cut(path: Path, tail: str) -> None:
    path.write_text(path.read_text() + tail)
    journal = Journal(path, "q")
    assert journal.found == 2
    journal.put("c", {"x": 3})
    journal.close(done=False)
    assert entries(path) == {"a": {"x": 1.5}, "b": {"x": 2}, "c": {"x": 3}}


def test_garbage_is_no_journal(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00garbage")
    assert entries(path) == {}


def test_without_a_path_nothing_is_written(tmp_path: Path) -> None:
    journal = Journal(None, "q")
    journal.put("a", {"x": 1})
    assert journal.get("a") == {"x": 1}
    journal.close(done=False)
    assert list(tmp_path.iterdir()) == []


def test_folders_are_made_for_it_and_go_with_it(tmp_path: Path) -> None:
    path = journal_path(tmp_path / "not" / "there" / "out")
    Journal(path, "q").close(done=False)  # before anything was found
    assert list(tmp_path.iterdir()) == []
    journal = Journal(path, "q")
    journal.put("a", {"x": 1})
    journal.close(done=False)
    assert entries(path) == {"a": {"x": 1}}
    path.with_name("another").write_text("")
    Journal(path, "q").close(done=True)
    assert [each.name for each in path.parent.iterdir()] == ["another"]
