"""Goes through a script without running it: variables, conditions, files it calls, its commands.

What the script does not decide by itself is followed on every path: what the paths agree on is
known afterwards, and of the rest it is known why it is not. Commands that are not the shell's own
are collected as `Called`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.pieces import Text
from rollcast.simulator.launches.shell.braces import TooLongError
from rollcast.simulator.launches.shell.compound import run
from rollcast.simulator.launches.shell.found import Found
from rollcast.simulator.launches.shell.session import Exit, Jump, Return, Session
from rollcast.simulator.launches.shell.simple import call
from rollcast.simulator.launches.shell.syntax import Simple
from rollcast.simulator.launches.sources import Sources


def follow(sources: Sources, path: Path, environment: Mapping[str, str]) -> Found:
    """Follows a script. environment: values of variables from outside. Raises ScenarioError for one
    that cannot be read, or has no end."""
    session = Session(sources, environment, path, run)
    return _followed(session, lambda: session.script(path, None))


def follow_command(
    sources: Sources, words: Sequence[Text], where: str, environment: Mapping[str, str]
) -> Found:
    """As `follow`, one command by its words. where: it stands."""
    session = Session(sources, environment, sources.first, run)
    session.file = where
    return _followed(session, lambda: call(session, list(words), None, _COMMAND, frozenset()))


_COMMAND = Simple((), (), (), 0)


def _followed(session: Session, start: Callable[[], object]) -> Found:
    try:
        start()
    except (Exit, Return, Jump):
        pass
    except TooLongError:
        raise ScenarioError(session.here(), "its texts or loops grow without end") from None
    return session.found
