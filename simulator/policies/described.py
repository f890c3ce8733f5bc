"""A policy's description, from its docstring.

The first sentence is its mechanism and ends with its source in brackets; the rest is how it works.
Sentences that begin with "Raises" are left out.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Description:
    """mechanism: one sentence. source: where that comes from, '' where the docstring names none.
    paragraphs: the rest, each of one line; an item of a list begins with ``- ``."""

    mechanism: str
    source: str
    paragraphs: tuple[str, ...]


def describe(kind: type) -> Description:
    """The description of a policy's class."""
    paragraphs = _paragraphs(_own_doc(kind))
    mechanism, rest = _first_sentence(paragraphs[0]) if paragraphs else ("", "")
    sourced = re.fullmatch(r"(.*?) \(([^()]*(?:\([^()]*\)[^()]*)*)\)\.?", mechanism)
    source = ""
    if sourced:
        mechanism, source = f"{sourced[1].rstrip('.')}.", sourced[2]
    others = [text for text in (rest, *paragraphs[1:]) if text]
    return Description(mechanism, source, tuple(others))


def _own_doc(kind: type) -> str:
    """A docstring; '' where there is none, or only the signature that a dataclass makes up."""
    text = inspect.getdoc(kind) or ""
    return "" if text.startswith(f"{kind.__name__}(") else text


def _first_sentence(text: str) -> tuple[str, str]:
    """The first sentence and the rest; a full stop inside brackets ends none."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "." and depth == 0 and text[at + 1 : at + 2] in ("", " "):
            return text[: at + 1], text[at + 1 :].strip()
    return text, ""


def _paragraphs(text: str) -> list[str]:
    """Each paragraph, and each item of a list, on one line, without marks for code."""
    paragraphs: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=- )", text.strip()):
        line = " ".join(block.split()).replace("``", "")
        line = re.sub(r"`([^`]*)`", r"\1", line)
        line = re.sub(r"\s*\bRaises \w+Error\b.*$", "", line)
        if line:
            paragraphs.append(line)
    return paragraphs
