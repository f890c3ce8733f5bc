"""What a run on the virtual clock can end with."""

from __future__ import annotations

from rollcast.simulator.errors import RunError


class VirtualError(RunError):
    """Base of these."""


class DeadlockError(VirtualError):
    """Everybody waits, and nothing will ever happen. The message lists who waits where."""


class LimitError(VirtualError):
    """A run that went beyond one of its bounds."""


class RefusedError(VirtualError):
    """A call that cannot be brought into virtual time."""


class NoAnswerError(VirtualError):
    """The trainer was given something that is no answer of an engine."""


class UnseenError(VirtualError):
    """A task or thread that died of an exception which nobody looked at."""


class ExitedError(VirtualError):
    """The code under test called os._exit."""


class Stopped(BaseException):
    """Ends a thread of a run that is over; raised where it waits."""
