"""Overrides as Hydra and OmegaConf spell them: ``a.b=c``, ``+a.b=[1,2]``, ``~a.b``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.stacks.syntax.scalars import word

_KEY = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w.@/:$-]{0,300})(?:=(.*))?", re.DOTALL)
_BARE = re.compile(r"[^,\[\]{}:]+(?::[^,\[\]{} ][^,\[\]{}]*)*")
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class Override:
    """An override. drops: ``~key``. value: None where it drops."""

    key: str
    value: str
    drops: bool = False


def split(text: str) -> Override | None:
    """The override that a word is, or None."""
    match = _KEY.fullmatch(text)
    if match is None or (match[3] is None and match[1] != "~"):
        return None
    return Override(match[2], match[3] or "", match[1] == "~")


def value(text: str) -> Any:
    """The value of an override: a list, a mapping, a quoted text or a plain value; any text that is
    none of these as it stands."""
    text = text.strip()
    if not text[:1] or text[0] not in "[{'\"":
        return _scalar(text)
    reader = _Reader(text)
    try:
        found = reader.value(0)
    except (ValueError, IndexError):
        return text
    return found if reader.at >= len(text) else text


def _scalar(text: str) -> Any:
    if text in ("null", ""):
        return None if text else ""
    if text.lower() in ("yes", "no", "on", "off", "y", "n", "~"):
        return text
    return word(text)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self.at = text, 0

    def _skip(self) -> str:
        while self.at < len(self._text) and self._text[self.at].isspace():
            self.at += 1
        return self._text[self.at : self.at + 1]

    def value(self, depth: int) -> Any:
        """What stands here. Raises ValueError for what is no value."""
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        letter = self._skip()
        if letter == "[":
            return self._list(depth)
        if letter == "{":
            return self._mapping(depth)
        if letter and letter in "'\"":
            return self._quoted(letter)
        if letter == "$":
            return self._interpolation()
        match = _BARE.match(self._text, self.at)
        if match is None:
            raise ValueError("no value")
        self.at = match.end()
        return _scalar(match[0].strip())

    def _interpolation(self) -> str:
        start, depth = self.at, 0
        while self.at < len(self._text):
            letter = self._text[self.at]
            if depth == 0 and letter in ",]}":
                break
            depth += {"{": 1, "}": -1}.get(letter, 0)
            self.at += 1
        return self._text[start : self.at]

    def _quoted(self, mark: str) -> str:
        match = re.compile(rf"{mark}((?:[^{mark}\\]|\\.)*){mark}", re.DOTALL).match(
            self._text, self.at
        )
        if match is None:
            raise ValueError("a quote is not closed")
        self.at = match.end()
        self._skip()
        return match[1].replace(f"\\{mark}", mark).replace("\\\\", "\\")

    def _list(self, depth: int) -> list[Any]:
        self.at += 1
        found: list[Any] = []
        while self._skip() != "]":
            found.append(self.value(depth + 1))
            if self._skip() == ",":
                self.at += 1
            elif self._skip() != "]":
                raise ValueError("a list is not closed")
        self.at += 1
        self._skip()
        return found

    def _mapping(self, depth: int) -> dict[str, Any]:
        self.at += 1
        found: dict[str, Any] = {}
        while self._skip() != "}":
            match = re.compile(r"\s*(?:'([^']*)'|\"([^\"]*)\"|([\w./-]+))\s*:").match(
                self._text, self.at
            )
            if match is None:
                raise ValueError("a mapping has no key")
            self.at = match.end()
            key = next(group for group in match.groups() if group is not None)
            found[key] = self.value(depth + 1)
            if self._skip() == ",":
                self.at += 1
            elif self._skip() != "}":
                raise ValueError("a mapping is not closed")
        self.at += 1
        self._skip()
        return found
