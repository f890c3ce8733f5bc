"""Lines of a console: what launchers, Ray and terminals put around a trainer's own words."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|(?<![\w\]])\[\d{1,3}(?:;\d{1,3})*m")
"""Escapes; copied out of a page, they have lost their first character."""
_ACTOR = re.compile(r"\s*\(([^()]*?\bpid=\d+[^()]*)\)(?: ?\[[^\]]*\])? ?")
_REPEATED = re.compile(
    r"\s*\[repeated (\d+)x across [^\]]*\](?:.*RAY_DEDUP_LOGS.*)?$|"
    r"\s*\[repeated (\d+)x\]$"
)


@dataclass(frozen=True, slots=True)
class Said:
    """A line: the process that said it ('' if it does not say), the words, and how often Ray saw
    the same from other processes."""

    actor: str
    text: str
    times: int = 1


def said(raw: bytes) -> list[Said]:
    """What a line says. A progress bar overwrites itself with carriage returns: the pieces between
    them are lines of their own."""
    text = raw.decode("utf-8", "replace")
    return [_clean(piece) for piece in text.split("\r")] if "\r" in text else [_clean(text)]


def _clean(text: str) -> Said:
    if "\x1b" in text or "[" in text:
        text = _ANSI.sub("", text)
    actor = ""
    if "pid=" in text:
        match = _ACTOR.match(text)
        if match:
            actor, text = match[1], text[match.end() :]
    times = 1
    if "[repeated " in text:
        again = _REPEATED.search(text)
        if again:
            times, text = int((again[1] or again[2])[:9]), text[: again.start()]
    return Said(actor, text, times)
