"""Goes through a script without running it: variables, conditions, files it calls, its commands.

What the script does not decide by itself is followed on every path: what the paths agree on is
known afterwards, and of the rest it is known why it is not. Commands that are not the shell's own
are collected as `Called`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.shell.compound import run
from rollcast.simulator.launches.shell.expand import TooLongError
from rollcast.simulator.launches.shell.found import Found
from rollcast.simulator.launches.shell.session import Exit, Jump, Return, Session
from rollcast.simulator.launches.sources import Sources


def follow(sources: Sources, path: Path, environment: Mapping[str, str]) -> Found:
    """Follows a script. environment: values of variables from outside. Raises ScenarioError for one
    that cannot be read, or has no end."""
    session = Session(sources, environment, path, run)
    try:
        session.script(path, None)
    except (Exit, Return, Jump):
        pass
    except TooLongError:
        raise ScenarioError(session.here(), "its texts or loops grow without end") from None
    return session.found
