"""How a real run fails: the engine's error, and another library's error in one sentence."""

from __future__ import annotations

from rollcast.simulator.errors import RunError


class EngineError(RunError):
    """The real engine cannot start or cannot go on; the message says why in one sentence."""


def sentence(error: BaseException) -> str:
    """The first line of an error of another library, with its type."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class RankLostError(Exception):
    """One of a trainer's ranks is lost, or in another state than the others: they cannot go on, and
    the trainer has to be started anew from its last state."""
