"""Completion of commands and options in the user's shell."""

from __future__ import annotations

import os
from pathlib import Path

import click

from rollcast.simulator.errors import ScenarioError

# What each shell reads when it starts, and the line there that turns completion on, as in click's
# documentation.
_STARTS = {
    "bash": (".bashrc", 'eval "$(_ROLLCAST_COMPLETE=bash_source rollcast)"'),
    "zsh": (".zshrc", 'eval "$(_ROLLCAST_COMPLETE=zsh_source rollcast)"'),
    "fish": (
        ".config/fish/completions/rollcast.fish",
        "_ROLLCAST_COMPLETE=fish_source rollcast | source",
    ),
}


def _show(context: click.Context, option: click.Parameter, asked: bool) -> None:
    """Prints the script, and exits. Raises ScenarioError for an unknown shell."""
    if not asked:
        return
    from click.shell_completion import get_completion_class

    shell = _shell("--show-completion", (*_STARTS, "powershell"))
    kind = get_completion_class(shell)
    assert kind is not None, shell
    print(kind(context.command, {}, "rollcast", "_ROLLCAST_COMPLETE").source())
    context.exit()


def _install(context: click.Context, option: click.Parameter, asked: bool) -> None:
    """Turns completion on, and exits. Raises ScenarioError for an unknown shell, and where its file
    cannot be changed."""
    if not asked:
        return
    place, line = _STARTS[_shell("--install-completion", tuple(_STARTS))]
    path = Path.home() / place
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            file.seek(0)
            before = file.read()
            if line not in before.splitlines():
                file.write(line + "\n" if before.endswith("\n") or not before else f"\n{line}\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError("--install-completion", f"cannot change {path}: {reason}") from None
    print(f"{path} turns completion on; it works in a new shell.")
    context.exit()


def _shell(option: str, known: tuple[str, ...]) -> str:
    named = "pwsh" if os.name == "nt" else Path(os.environ.get("SHELL", "")).name
    named = "powershell" if named == "pwsh" else named
    if named not in known:
        shell = f"is not there for {named}" if named else "needs SHELL, which is not set"
        raise ScenarioError(option, f"{shell}; shells with completion: {', '.join(known)}")
    return named


install_completion = click.option(
    "--install-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_install,
    help="Turn on completion in your shell.",
)
show_completion = click.option(
    "--show-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show,
    help="Show the script that completes commands in your shell.",
)
