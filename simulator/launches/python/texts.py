"""Texts of commands that a script puts together, with the line of each of their parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rollcast.simulator.launches.pieces import (
    Piece,
    Text,
    cut,
    doubted,
    known,
    maybe,
    shown,
    unknown,
    why,
)
from rollcast.simulator.launches.python.script import Partly, Written
from rollcast.simulator.launches.values import Unknown
from rollcast.simulator.stacks.settings import Place

MOST_PIECES = 20_000
_FLAG = re.compile(r"(?<!\S)(?:--?[A-Za-z]|[+~]{0,2}[A-Za-z_][\w.@/-]*=)")
_WORD = re.compile(r"\S+")
_ENDS = (";", "&&", "||", "|", "&", "\n")


def is_command(text: str) -> bool:
    """Whether a constant may be part of a command: it has options or settings."""
    return len(text) < 100_000 and _FLAG.search(text) is not None


def written(text: str, lines: Sequence[str], first: int, file: str) -> Written:
    """A constant, each of its options with its own line. lines: of the source that it may be in,
    first: the number of the first of these."""
    pieces: list[Piece] = []
    at, start, line = 0, 0, 0
    for match in _FLAG.finditer(text):
        word = _WORD.match(text, match.start())
        name = re.split(r"[=\s]", word[0])[0] if word else match[0]
        found = next((n for n in range(line, len(lines)) if _has(lines[n], name)), line)
        if found != line and match.start() > start:
            pieces.append(Piece(text[start : match.start()], Place(file, first + at)))
            start = match.start()
        line = found
        at = line
    pieces.append(Piece(text[start:], Place(file, first + at)))
    return Written(tuple(pieces))


def _has(line: str, name: str) -> bool:
    return name in line and not line.lstrip().startswith("#")


def pieces_of(value: Any, place: Place) -> Text | None:
    """A value as part of a text, None for one that is none."""
    if isinstance(value, Written | Partly):
        return value.pieces
    if isinstance(value, str | int | float):
        return known(str(value), place)
    if isinstance(value, Unknown):
        return unknown("{" + value.text + "}", place, value.why)
    return None


def text_of(pieces: Text) -> Written | Partly:
    """A text put together of such. Raises ValueError for one without end."""
    if len(pieces) > MOST_PIECES:
        raise ValueError("a text of too many parts")
    reason = why(pieces) or maybe(pieces)
    return Partly(shown(pieces)[:200], reason, pieces) if reason else Written(pieces)


def either(one: Any, other: Any, reason: str, place: Place) -> Any:
    """What a text or a list of words is after two ways of which one was taken: what both begin
    with, and what the longer adds, if it is there at all; None for what is neither."""
    if isinstance(one, list) and isinstance(other, list):
        short, long = sorted((one, other), key=len)
        if long[: len(short)] != short:
            return None
        rest = [pieces_of(item, place) for item in long[len(short) :]]
        return [*short, *(text_of(doubted(text, reason)) for text in rest if text is not None)]
    if not any(isinstance(value, Written | Partly) for value in (one, other)):
        return None
    parts = [pieces_of(value, place) for value in (one, other) if isinstance(value, str | Partly)]
    texts = sorted((text for text in parts if text is not None), key=lambda t: len(shown(t)))
    if len(texts) < 2:
        return None
    shorter, longer = texts
    if not shown(longer).startswith(shown(shorter)):
        return None
    before, after = cut(longer, len(shown(shorter)))
    return text_of((*before, *doubted(after, reason)))


def words(text: Text) -> list[Text]:
    """The words of one command, over as many lines as it has."""
    return [word for word in _words(text) if word is not None]


def commands(text: Text) -> Iterator[tuple[Text, ...]]:
    """The commands of a text, in words as a shell splits it, without expansions."""
    found: list[Text] = []
    for word in _words(text):
        if word is None:
            if found:
                yield tuple(found)
            found = []
        else:
            found.append(word)
    if found:
        yield tuple(found)


def _words(text: Text) -> Iterator[Text | None]:
    """Words, None where a command ends."""
    now: list[Piece] = []
    there, quote = False, ""
    for piece in text:
        if piece.why:
            now.append(piece)
            there = True
            continue
        for bit in re.findall(
            r"\\.|&&|\|\||[\"';|&\n]|[ \t]+|[^\\\"';|&\s]+|\\|\s", piece.text, re.S
        ):
            if quote:
                if bit == quote:
                    quote = ""
                    continue
            elif bit in ("'", '"'):
                quote, there = bit, True
                continue
            elif bit.isspace() or bit in _ENDS or bit == "\\\n":
                if there:
                    yield tuple(now)
                now, there = [], False
                if bit in _ENDS:
                    yield None
                continue
            if bit.startswith("\\") and len(bit) == 2 and quote != "'":
                bit = bit[1]
            now.append(Piece(bit, piece.place, "", piece.maybe))
            there = True
    if there:
        yield tuple(now)


def settled(value: Any) -> Any:
    """A value without the lines of its parts."""
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, Partly):
        return Unknown(value.text, value.why)
    if isinstance(value, list):
        return [settled(item) for item in value]
    if isinstance(value, dict):
        return {key: settled(item) for key, item in value.items()}
    return value
