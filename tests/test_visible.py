"""What a scenario is called can steer neither a terminal nor a page."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.cli.console import console
from rollcast.simulator.report.page import Markup, joined, tag
from rollcast.simulator.values.words import visible, visible_lines
from tests.conftest import Cli
from tests.processes import ROLLCAST, on_a_terminal
from tests.refusals import ran
from tests.scenarios import TINY

NAME = "<script>x</script>\x1b[31m\x1b]0;owned\x07\x9b2J\u202e[bold]{x}"
SHOWN = r"<script>x</script>\x1b[31m\x1b]0;owned\x07\x9b2J\u202e[bold]{x}"
LABEL = "<i>[red]{y}</i>\x1bc = april"
SHOWN_LABEL = r"<i>[red]{y}</i>\x1bc"


@given(st.text())
def test_nothing_shown_is_obeyed(text: str) -> None:
    assert not any(c in visible(text) for c in map(chr, (*range(0x20), *range(0x7F, 0xA0))))
    assert visible_lines(text).count("\n") == text.count("\n")
    assert visible(visible(text)) == visible(text)


@given(st.text())
def test_text_is_no_markup(text: str) -> None:
    made = tag("p", text, title=text)
    inside = made.removeprefix("<p title=").removesuffix("</p>")
    assert "<" not in inside
    assert inside.count('"') == 2 + inside.partition(">")[2].count('"')
    assert joined(made) == made
    assert joined([Markup("<b/>"), "<b/>", None, 3]) == "<b/>&lt;b/&gt;3"


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A scenario with a name that would do harm."""
    path = tmp_path / "named.yaml"
    escapes = {"\x1b": "\\e", "\x07": "\\a", "\x9b": "\\x9b", "\u202e": "\\u202e"}
    spelt = "".join(escapes.get(c, c) for c in NAME)
    path.write_text(f'name: "{spelt}"\n{TINY}')
    return path


@pytest.mark.parametrize(
    "asked",
    [
        ("simulate",),
        ("compare", "--policy", "sync", "--policy", LABEL),
        (
            *("plan", "--choose=workload.group_size=2", "--policy=sync", "--policy=april"),
            *("--run=steps=5", "--no-intervals", "--workers=1"),
        ),
    ],
    ids=lambda asked: asked[0],
)
def test_commands_show_names_as_text(named: Path, cli: Cli, asked: Sequence[str]) -> None:
    command, *more = asked
    quick = () if command == "plan" else ("--draws", 0)
    out = ran(cli(command, named, *more, *quick))
    assert out.isprintable() or all(c.isprintable() or c == "\n" for c in out)
    if command != "plan":
        assert SHOWN in out.replace("\n", "")
    if command == "compare":
        assert SHOWN_LABEL in out


def test_a_terminal_is_sent_our_own_colours_alone(named: Path) -> None:
    """On a terminal there are escapes, those of rich, and none that the scenario wrote."""
    said = on_a_terminal([*ROLLCAST, "compare", str(named), "--policy", LABEL, "--draws", "0"])
    assert b"\x1b[" in said
    for harm in (b"\x1b[31m\x1b]", b"\x1b]0;", b"\x07", b"\x1bc", "\x9b".encode(), b"\xe2\x80\xae"):
        assert harm not in said
    assert rb"\x1b]0;owned" in said


def test_a_progress_bar_shows_its_label_as_text() -> None:
    code = (
        "from rollcast.simulator.cli.stopping import progress_bar\n"
        "with progress_bar('[/red]{x}[b]', 2, text='[/i]', transient=False) as update:\n"
        "    update(advance=2)"
    )
    said = on_a_terminal([sys.executable, "-c", code])
    assert b"[/red]{x}[b]" in said
    assert b"[/i]" in said


def test_the_console_is_safe_for_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    screen = console()
    screen.print("a\x1b[2Jb\x9b", markup=False)
    assert capsys.readouterr().out == "a\\x1b[2Jb\\x9b\n"


@pytest.mark.parametrize("columns", ["0", "20"])
def test_a_screen_without_room_loses_no_figure(
    columns: str, named: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = ran(cli("simulate", str(named), "--draws", "0"))
    assert "step time" in out
    assert "3.01 s" in out


def test_pages_hold_no_escape(named: Path, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert (
        cli("compare", named, "--policy", "sync", "--policy", LABEL, "--draws", 0, "--out", out)[0]
        == 0
    )
    page = (out / "report.html").read_text("utf-8")
    assert "<script>x" not in page
    assert "<i>" not in page
    assert not set(page) & set(map(chr, (*range(9), *range(11, 32), *range(0x7F, 0xA0))))
