"""The reward of a response: 1 where the last number in it is the answer, else 0."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d+")


def last_number(prompt: str, response: str, answer: int) -> float:
    """Called once for each finished response: the prompt's text, the response's without special
    tokens, and the ``answer`` of the prompt's line."""
    numbers = _NUMBER.findall(response)
    return float(bool(numbers) and int(numbers[-1]) == answer)
