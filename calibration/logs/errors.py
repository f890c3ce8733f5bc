"""What is wrong with a log, in one sentence."""

from __future__ import annotations

from rollcast.simulator.errors import ScenarioError

FIELD = "LOG"


class LogError(ScenarioError):
    """A log that cannot be imported; the message names file and line."""

    def __init__(self, message: str) -> None:
        super().__init__(FIELD, message)


class TooLargeError(LogError):
    """A file of a kind that has to be read whole, and is too large for that."""


class NoStepsError(LogError):
    """A log without a single step, to which one may yet be added."""
