"""Which stack wrote what, by the keys in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from rollcast.calibration.logs.readers import readers
from rollcast.simulator.stacks.log_format import TRAIN, WHOLE, Dump, StackLog


@cache
def _all_keys(stacks: tuple[StackLog, ...]) -> frozenset[str]:
    """Of metrics, of any stack."""
    return frozenset().union(*(stack.keys for stack in stacks))


def of_interest(values: Mapping[str, float]) -> dict[str, float]:
    """A row without what no stack is read for."""
    known = _all_keys(readers())
    return {
        key: item
        for key, item in values.items()
        if key in known or (key.startswith(TRAIN) and key[len(TRAIN) :] in known)
    }


def by_metrics(keys: Iterable[str]) -> StackLog | None:
    """The stack of which most keys are there, one of its marks among them; None if none is."""
    given = set(keys)
    best, most = None, 0
    for stack in readers():
        if any(map(stack.marked, given)):
            hits = len(stack.known(dict.fromkeys(given, 0.0)))
            if hits > most:
                best, most = stack, hits
    return best


def spelt(header: Sequence[str]) -> list[str]:
    """The columns of a table by the keys of the stack that wrote it, where what kept the table, as
    databases do, has ``_`` for ``/``."""
    if by_metrics(header) is not None:
        return [*header]
    best, most = [*header], WHOLE - 1
    for stack in readers():
        flat = {key.replace("/", "_"): key for key in stack.keys if "/" in key}
        named = [flat.get(cell, cell) for cell in header]
        hits = sum(cell in flat for cell in header)
        if hits > most and any(map(stack.marked, named)):
            best, most = named, hits
    return best


def unflattened(name: str) -> str:
    """A key whose ``/`` are ``_`` in a file's name, as a stack has it."""
    flat = {key.replace("/", "_"): key for key in _all_keys(readers()) if "/" in key}
    return flat.get(name, name)


def by_record(record: Mapping[str, Any]) -> tuple[StackLog, Dump] | None:
    """The stack whose dumps hold such records."""
    for stack in readers():
        for dump in stack.dumps:
            if dump.fits(record):
                return stack, dump
    return None


def named(name: str) -> StackLog | None:
    """A stack by its name."""
    return next((stack for stack in readers() if stack.name == name), None)
