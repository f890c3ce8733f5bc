"""A shell's patterns as regular expressions."""

from __future__ import annotations

import re

_LONGEST, _MOST_STARS, _MOST_WORK = 1_000, 4, 3_000_000
_SET = re.compile(r"\[([!^]?)(\]?(?:\[:\w+:\]|[^\]])*)\]", re.DOTALL)
_CLASSES = {
    **{"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "space": r"\s", "blank": " \t"},
    **{"upper": "A-Z", "lower": "a-z", "xdigit": "0-9a-fA-F", "punct": "!-/:-@\\[-`{-~"},
}


def regex(pattern: str) -> re.Pattern[str] | None:
    """What ``*``, ``?``, ``[...]`` and ``\\`` in a pattern match; None for one that is too long, or
    has more stars than a search could end with."""
    if len(pattern) > _LONGEST or len(re.findall(r"\*+", pattern)) > _MOST_STARS:
        return None
    result, at = "", 0
    while at < len(pattern):
        letter, inside = pattern[at], _SET.match(pattern, at)
        at += 1
        if letter == "*":
            result += ".*"
            while pattern[at : at + 1] == "*":
                at += 1
        elif letter == "?":
            result += "."
        elif letter == "\\" and at < len(pattern):
            result += re.escape(pattern[at])
            at += 1
        elif inside:
            result += f"[{'^' if inside[1] else ''}{_letters(inside[2])}]"
            at = inside.end()
        else:
            result += re.escape(letter)
    try:
        return re.compile(result, re.DOTALL)
    except re.error:
        return None


def _letters(text: str) -> str:
    """The inside of a set, its classes as ranges."""
    parts = re.split(r"\[:(\w+):\]", text)
    return "".join(
        _CLASSES.get(part, "") if number % 2 else re.sub(r"[\[\]\\&~|]", r"\\\g<0>", part)
        for number, part in enumerate(parts)
    )


def matches(form: re.Pattern[str], text: str) -> bool | None:
    """Whether all of a text matches; None where a search could take too long."""
    return form.fullmatch(text) is not None if affordable(form, text, 0) else None


def affordable(form: re.Pattern[str], text: str, more: int) -> bool:
    """Whether searches of a text end soon. more: powers of its length beside those of the stars."""
    power = form.pattern.count(".*") + more
    return bool(len(text) ** power <= _MOST_WORK)


def escaped(text: str) -> str:
    """A pattern that matches a text and nothing else."""
    return re.sub(r"[*?\[\]\\]", r"\\\g<0>", text)
