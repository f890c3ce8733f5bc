"""Which stack wrote what, by the keys in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from calibration.logs.readers import STACKS
from calibration.logs.readers.stack import TRAIN, Dump, Stack


@cache
def all_keys() -> frozenset[str]:
    """Of metrics, of any stack."""
    return frozenset().union(*(stack.keys for stack in STACKS))


def of_interest(values: Mapping[str, float]) -> dict[str, float]:
    """A row without what no stack is read for."""
    known = all_keys()
    return {
        key: item
        for key, item in values.items()
        if key in known or (key.startswith(TRAIN) and key[len(TRAIN) :] in known)
    }


def by_metrics(keys: Iterable[str]) -> Stack | None:
    """The stack of which most keys are there, one of its marks among them; None if none is."""
    given = set(keys)
    best, most = None, 0
    for stack in STACKS:
        if any(map(stack.marked, given)):
            hits = len(stack.own(dict.fromkeys(given, 0.0)))
            if hits > most:
                best, most = stack, hits
    return best


def by_record(record: Mapping[str, Any]) -> tuple[Stack, Dump] | None:
    """The stack whose dumps hold such records."""
    for stack in STACKS:
        for dump in stack.dumps:
            if dump.fits(record):
                return stack, dump
    return None


def named(name: str) -> Stack | None:
    """A stack by its name."""
    return next((stack for stack in STACKS if stack.name == name), None)
