"""Lines of a console: what launchers, Ray and terminals put around a trainer's own text."""

from __future__ import annotations

import re
from typing import NamedTuple

_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|(?<![\w\]])\[\d{1,3}(?:;\d{1,3})*m")
"""Escapes; copied out of a page, they have lost their first character."""
_ACTOR = re.compile(r"\s*\(([^()]*?\bpid=\d+[^()]*)\)(?: ?\[[^\]]*\])? ?")
_REPEATED = re.compile(
    r"\s*\[repeated \d+x across [^\]]*\](?:.*RAY_DEDUP_LOGS.*)?$|\s*\[repeated \d+x\]$"
)


class Piece(NamedTuple):
    """A text, and the process that printed it ('' if unknown)."""

    actor: str
    text: str


def plain(raw: bytes) -> bytes:
    """A line without colours."""
    return _ESCAPES.sub(b"", raw) if b"\x1b" in raw else raw


def pieces(raw: bytes) -> list[Piece]:
    """The texts of a line: a progress bar overwrites itself with carriage returns."""
    text = raw.decode("utf-8", "replace").replace("\0", "")
    return [_clean(piece) for piece in text.split("\r")] if "\r" in text else [_clean(text)]


def _clean(text: str) -> Piece:
    if "\x1b" in text or "[" in text:
        text = _ANSI.sub("", text)
    actor = ""
    if "pid=" in text:
        match = _ACTOR.match(text)
        if match:
            actor, text = match[1], text[match.end() :]
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    return Piece(actor, text)
