"""Commands declared by annotations, and their completion in a shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click
import pytest

from rollcast.simulator.cli.declare import argument, command, option
from tests.conftest import Cli
from tests.test_cli import refused

GOT: dict[str, Any] = {}
GROUP = click.Group()


@command(GROUP, "try")
def tried(
    files: Annotated[tuple[Path, ...], argument(metavar="FILE", help="What to read.")],
    share: Annotated[float, option("-s", "--share", metavar="X", help="How much.")],
    keys: Annotated[tuple[str, ...], option("--set", metavar="key=value", help="A key.")] = (),
    steps: Annotated[int | None, option("--steps", metavar="N", help="How many.")] = None,
    force: Annotated[bool, option("--force", help="Whether to.")] = False,
    pulse: Annotated[bool | None, option("--pulse/--no-pulse", help="Which.")] = None,
    mode: Annotated[str, option("--mode", metavar="a|b", help="The way.")] = "a",
) -> None:
    """Tries it."""
    GOT.update(locals())


def given(*words: str) -> dict[str, Any]:
    GOT.clear()
    GROUP.main(["try", *words], standalone_mode=False)
    return dict(GOT)


def test_a_command_gets_what_its_annotations_say() -> None:
    files = (Path("f"), Path("g"))
    least = {"files": files, "share": 0.5, "keys": (), "steps": None, "force": False}
    assert given("f", "g", "-s", ".5") == {**least, "pulse": None, "mode": "a"}
    more = ["--set", "a=1", "--set", "b=2", "--steps", "3", "--force", "--no-pulse", "--mode", "b"]
    all_of_it = {"keys": ("a=1", "b=2"), "steps": 3, "force": True, "pulse": False, "mode": "b"}
    assert given("f", "g", "--share", "0.5", *more) == {**least, **all_of_it}
    assert given("f", "g", "--share", "0.5", "--pulse")["pulse"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["f"], "Missing option '-s' / '--share'"),
        (["-s", "1"], "Missing argument 'FILE...'"),
        (["f", "-s", "much"], "'much' is not a valid float"),
    ],
)
def test_what_a_command_needs_is_said(words: list[str], said: str) -> None:
    with pytest.raises(click.UsageError) as wrong:
        given(*words)
    assert said in wrong.value.format_message()


def test_help_says_what_is_needed_and_what_is_the_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    given("--help")
    told = capsys.readouterr().out
    for line in ("[OPTIONS] FILE...", "Tries it.", "FILE...  What to read.", "[default: a]"):
        assert line in told
    assert told.count("[default:") == 1
    assert told.count("[required]") == 1


# Completion

STARTS = {
    "bash": (".bashrc", "bash_source"),
    "zsh": (".zshrc", "zsh_source"),
    "fish": (".config/fish/completions/rollcast.fish", "fish_source"),
}


@pytest.mark.parametrize("shell", STARTS)
def test_completion_is_installed_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    monkeypatch.setenv("HOME", str(tmp_path))
    place, asks = STARTS[shell]
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("mine")  # without an end of its line
    for _ in range(2):
        code, out, _ = cli("--install-completion")
        assert code == 0
        assert str(tmp_path / place) in out
    mine, line = (tmp_path / place).read_text().splitlines()
    assert mine == "mine"
    assert f"_ROLLCAST_COMPLETE={asks} rollcast" in line


@pytest.mark.parametrize("shell", [*STARTS, "pwsh"])
def test_the_script_of_completion_is_shown(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    code, out, _ = cli("--show-completion")
    assert code == 0
    assert "_ROLLCAST_COMPLETE" in out


def test_other_shells_and_files_that_cannot_be_changed_are_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "not there for tcsh" in refused(cli("--install-completion"))
    assert "not there for tcsh" in refused(cli("--show-completion"))
    monkeypatch.delenv("SHELL")
    assert "SHELL" in refused(cli("--install-completion"))
    monkeypatch.setenv("SHELL", "/bin/zsh")
    (tmp_path / ".zshrc").mkdir()
    assert f"cannot change {tmp_path / '.zshrc'}" in refused(cli("--install-completion"))
