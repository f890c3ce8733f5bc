"""What a launch says: a stack's settings by our names, each with the place that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcast.simulator.launches.python.notebook import SCRIPTS
from rollcast.simulator.stacks.launch import Given
from rollcast.simulator.stacks.settings import Place, Settings


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value of the stack's that a launch does not say by itself. key: the stack's, as spelt.
    text: as it stands there. why: a variable without a value, a command that is not run."""

    key: str
    text: str
    place: Place
    why: str


@dataclass(frozen=True)
class Launched:
    """A launch, read without running it.

    stack: name of its folder in `simulator.stacks`. release: as the launch tells it, or None.
    told: what tells it, and which defaults hold, in a sentence; empty where nothing does.
    settings: by our key (`settings.meanings`), what was given and what that implies. defaults: what
    the stack takes for keys that were not given; their place is the stack. given: all that was
    given, by the stack's keys, in the order of reading. unknown: keys of ``given`` that the stack's
    table does not have. unresolved: what no value was found for. entry: module or script that is
    launched. files: read, the first is the one named. notes: sentences for the user.
    """

    stack: str
    settings: Settings
    release: str | None = None
    told: str = ""
    defaults: Settings = field(default_factory=dict)
    given: tuple[Given, ...] = ()
    unknown: tuple[Given, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    entry: str = ""
    files: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> Settings:
        """What holds in the run: what was given or implied, else the stack's defaults."""
        return {**self.defaults, **self.settings}

    @property
    def in_python(self) -> bool:
        """Whether its settings are arguments of calls in a script."""
        return bool(self.files) and self.files[0].suffix in SCRIPTS

    def raw(self) -> Mapping[str, Any]:
        """Values by the stack's own key."""
        return {item.key: item.value for item in self.given}
