"""Text of which a part may not be known: what a shell's word becomes, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rollcast.simulator.stacks.settings import Place


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a text. text: its value, or as it stands in the file where that is not known. place:
    where it was written. why: what keeps it from being known; empty where it is. maybe: why it may
    not be there at all, as what an undecided condition adds."""

    text: str
    place: Place
    why: str = ""
    maybe: str = ""


Text = tuple[Piece, ...]


def plain(text: Text) -> str | None:
    """The text; None where a part of it is not known."""
    if any(piece.why for piece in text):
        return None
    return "".join(piece.text for piece in text)


def shown(text: Text) -> str:
    """The text, with what is not known as it stands in the file."""
    return "".join(piece.text for piece in text)


def why(text: Text) -> str:
    """What keeps the text from being known, empty where it is and is there for sure."""
    return next((piece.why for piece in text if piece.why), "")


def maybe(text: Text) -> str:
    """Why the text may not be there at all, empty where it is."""
    return next((piece.maybe for piece in text if piece.maybe), "")


def doubted(text: Text, reason: str) -> Text:
    """The text, of which it is not known whether it is there."""
    return tuple(piece if piece.maybe else replace(piece, maybe=reason) for piece in text)


def place_of(text: Text, default: Place) -> Place:
    """Where it begins."""
    written = next((piece for piece in text if piece.text), text[0] if text else None)
    return written.place if written else default


def known(text: str, place: Place) -> Text:
    """A text all of which is known."""
    return (Piece(text, place),)


def unknown(text: str, place: Place, reason: str) -> Text:
    """A text of which nothing is known but how it is written."""
    return (Piece(text, place, reason),)


def joined(texts: Iterable[Text], between: str, place: Place) -> Text:
    """Texts one after another."""
    result: list[Piece] = []
    for text in texts:
        if result and between:
            result.append(Piece(between, place))
        result.extend(text)
    return tuple(result)


def cut(text: Text, at: int) -> tuple[Text, Text]:
    """The text before and from a position in what `shown` gives."""
    before: list[Piece] = []
    after: list[Piece] = []
    for piece in text:
        size = len(piece.text)
        if at >= size:
            before.append(piece)
        elif at <= 0:
            after.append(piece)
        else:
            before.append(replace(piece, text=piece.text[:at]))
            after.append(replace(piece, text=piece.text[at:]))
        at -= size
    return tuple(before), tuple(after)
