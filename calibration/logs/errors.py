"""What is wrong with a log: what ends an import, and what was passed over, counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.stacks.settings import Place

FIELD = "LOG"


class LogError(ScenarioError):
    """A log that cannot be imported; the message names file and line."""

    def __init__(self, message: str) -> None:
        super().__init__(FIELD, message)


class TooLargeError(LogError):
    """A file of a kind that has to be read whole, and is too large for that."""


class NoStepsError(LogError):
    """A log without a single step, to which one may yet be added."""


EXAMPLES = 5
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read: where, why, and how it begins."""

    place: Place
    why: str
    text: str = ""


@dataclass(slots=True)
class Tally:
    """Counts of a file's lines or records: each is used, other (no business of ours), or unread."""

    file: str
    lines: int = 0
    used: int = 0
    unread: int = 0
    examples: list[Unread] = field(default_factory=list)

    @property
    def other(self) -> int:
        """Lines that say nothing about steps or rollouts."""
        return self.lines - self.used - self.unread

    def skip(self, line: int, why: str, text: str = "") -> None:
        """Counts a line or record that could not be read."""
        self.unread += 1
        if len(self.examples) < EXAMPLES:
            shown = "".join(c if c.isprintable() else " " for c in text[:_SHOWN])
            self.examples.append(Unread(Place(self.file, line), why, shown.strip()))
