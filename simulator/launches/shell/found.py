"""What is found on the way through a script: commands, files that are not there, notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollcast.simulator.launches.pieces import Text
from rollcast.simulator.launches.shell.expand import Value
from rollcast.simulator.stacks.settings import Place


@dataclass(frozen=True)
class Called:
    """A command that is not the shell's own. words: with its name. missing: variables of its words
    that had no value. maybe: why it may not be reached. variables: as they were there. folders: in
    which files that it names are looked for first."""

    words: tuple[Text, ...]
    place: Place
    missing: frozenset[str]
    maybe: str
    variables: Mapping[str, Value]
    folders: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Lost:
    """A file that a script calls, and that is not there. sourced: read into the script itself."""

    name: str
    place: Place
    sourced: bool


@dataclass
class Found:
    """What was found on the way. broken: where a script could not be read on, and why."""

    calls: list[Called] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    broken: tuple[Place, str] | None = None

    def note(self, text: str) -> None:
        """A sentence for the user, once."""
        if text not in self.notes and len(self.notes) < 50:
            self.notes.append(text)
