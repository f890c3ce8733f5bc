"""Braces in words: ``a{b,c}`` and ``{1..3}``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from rollcast.simulator.launches.shell.syntax import Literal, Part


class TooLongError(Exception):
    """A script whose texts grow without end."""


_MOST_BRACES, _LONGEST_BRACES = 2_000, 2_000
_RANGE = re.compile(r"(-?\d{1,9}|[A-Za-z])\.\.(-?\d{1,9}|[A-Za-z])(?:\.\.(-?\d{1,9}))?")


def braces(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """``a{b,c}`` as ``ab ac``, and ``{1..3}`` as ``1 2 3``. Raises TooLongError."""
    if not any(isinstance(p, Literal) and not p.quoted and "{" in p.text for p in parts):
        return [parts]
    letters: list[Part] = []
    for part in parts:
        if isinstance(part, Literal) and not part.quoted:
            letters.extend(Literal(letter, part.line) for letter in part.text)
        else:
            letters.append(part)
    if len(letters) > _LONGEST_BRACES:
        return [parts]
    return [_together(one) for one in _expanded(letters, 0)]


def _expanded(parts: list[Part], depth: int) -> list[list[Part]]:
    if depth > 10:
        raise TooLongError
    for start, part in enumerate(parts):
        if not _is(part, "{"):
            continue
        level, commas, end = 0, [start], -1
        for at in range(start, len(parts)):
            if _is(parts[at], "{"):
                level += 1
            elif _is(parts[at], "}"):
                level -= 1
                if level == 0:
                    end = at
                    break
            elif _is(parts[at], ",") and level == 1:
                commas.append(at)
        if end < 0:
            continue
        inside = parts[start + 1 : end]
        choices: list[list[Part]] = []
        if len(commas) > 1:
            bounds = [*commas, end]
            for low, high in pairwise(bounds):
                choices.extend(_expanded(parts[low + 1 : high], depth + 1))
        else:
            choices = [[Literal(text, part.line)] for text in _range(inside)]
        if not choices:
            continue
        after = _expanded(parts[end + 1 :], depth + 1)
        if len(choices) * len(after) > _MOST_BRACES:
            raise TooLongError
        return [[*parts[:start], *choice, *rest] for choice in choices for rest in after]
    return [parts]


def _is(part: Part, letter: str) -> bool:
    return isinstance(part, Literal) and not part.quoted and part.text == letter


def _range(inside: Sequence[Part]) -> list[str]:
    text = "".join(part.text for part in inside)
    match = _RANGE.fullmatch(text)
    if not match or not all(isinstance(p, Literal) and not p.quoted for p in inside):
        return []
    low, high = match[1], match[2]
    if low.isalpha() != high.isalpha():
        return []
    first, last = (ord(low), ord(high)) if low.isalpha() else (int(low), int(high))
    step = abs(int(match[3] or 1)) or 1
    if abs(last - first) // step > _MOST_BRACES:
        raise TooLongError
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    wide = 0
    if not low.isalpha() and any(re.match(r"-?0\d", end) for end in (low, high)):
        wide = max(len(low), len(high))
    return [chr(n) if low.isalpha() else f"{n:0{wide}d}" if wide else str(n) for n in numbers]


def _together(parts: Sequence[Part]) -> list[Part]:
    """Letters of a line as one literal again."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if (
            isinstance(part, Literal)
            and isinstance(last, Literal)
            and not part.quoted
            and not last.quoted
            and part.line == last.line
        ):
            result[-1] = Literal(last.text + part.text, last.line)
        else:
            result.append(part)
    return result
