"""Every reader of a log: those of the stacks (`simulator.stacks`), of our own runs' folders, and of
tables with our columns."""

from __future__ import annotations

from functools import cache

from rollcast.calibration.logs.readers import own, table
from rollcast.simulator.stacks.launch import Implied, Launch
from rollcast.simulator.stacks.log_format import StackLog
from rollcast.simulator.stacks.stack import Stack, all_stacks

_OURS = {module.LOG.name: module.LAUNCH for module in (own, table)}


def readers() -> tuple[StackLog, ...]:
    """Every reader. Where the keys of two fit equally well, the first is taken."""
    return _of(tuple(all_stacks().values()))


@cache
def _of(stacks: tuple[Stack, ...]) -> tuple[StackLog, ...]:
    return (*(stack.log for stack in stacks if stack.log is not None), own.LOG, table.LOG)


def launch_of(reader: StackLog) -> tuple[Launch, Implied | None]:
    """The launch settings of what a reader reads, and what they imply."""
    stack = all_stacks().get(reader.name)
    return (_OURS[reader.name], None) if stack is None else (stack.launch, stack.implied)
