"""A reward function for whole runs, which fails when a test wants it to."""

from typing import Any

FAULT: str | None = None
"""``raise``, once `AFTER` calls have gone well."""
AFTER = 0
_calls = 0


def arm(fault: str | None, after: int = 0) -> None:
    global FAULT, AFTER, _calls
    FAULT, AFTER, _calls = fault, after, 0


def even(prompt: str, response: str, answer: Any) -> float:
    global _calls
    _calls += 1
    if FAULT and _calls > AFTER:
        raise KeyError("the judge is out")
    return float(sum(map(ord, response)) % 2 == 0)
