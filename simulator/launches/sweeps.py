"""Hydra's sweeps: a command that stands for several runs, of which the first is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from rollcast.simulator.launches.pieces import known, plain
from rollcast.simulator.launches.words import Option, override_value, value_of

_SWITCHES = ("multirun", "m")
_OPENS, _CLOSES = "([{", ")]}"
_CALL = re.compile(r"(?:choice|range)\((.*)\)", re.DOTALL)


def first_run(given: Sequence[Option]) -> tuple[Sequence[Option], list[str]]:
    """The options of the first run that a command stands for, and a note where there are others.

    Hydra's own sweeper (``hydra/_internal/core_plugins/basic_sweeper.py``) begins with the first
    choice of each override; without ``--multirun`` a value with commas is no list of choices.
    """
    others = [one for one in given if one.kind != "flag" or one.key not in _SWITCHES]
    if len(others) == len(given) or all(one.kind != "override" for one in given):
        return given, []
    chosen = [_first(option) for option in others]
    swept = [one for one, option in zip(chosen, others, strict=True) if one is not option]
    if not swept:
        return others, []
    said = ", ".join(f"{option.key}={plain(option.text)}" for option in swept)
    return chosen, [
        f"{swept[0].place}: a sweep of several runs, of which the first is read: {said}"
    ]


def _first(option: Option) -> Option:
    """An override with the first of its choices; itself where it has none to choose from."""
    text = plain(option.text) if option.kind == "override" else None
    if text is None:
        return option
    call = _CALL.fullmatch(text.strip())
    choice = _before_comma(call[1] if call else text)
    if choice == text:
        return option
    now = known(choice.strip(), option.place)
    return replace(option, text=now, value=value_of(now, override_value))


def _before_comma(text: str) -> str:
    """Up to the first comma outside brackets and quotes."""
    depth, quote = 0, ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "," and not depth:
            return text[:at]
        else:
            depth += (letter in _OPENS) - (letter in _CLOSES)
    return text
