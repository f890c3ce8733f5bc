"""Errors for people: what was wrong, where, and what would be right."""

from __future__ import annotations


class RollcastError(Exception):
    """Base of every error that a user can cause: the command line prints it and exits with 2."""


class ScenarioError(RollcastError):
    """A scenario that cannot be run. ``field`` is the dotted key to change, '' if there is none."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


class OldName(FutureWarning):
    """A name that still works, and what it is called now."""


class RunError(RollcastError):
    """A run that could not go on; the message says why."""
