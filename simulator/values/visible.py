"""Text from a file as it is shown to people: nothing in it can steer a terminal or a page."""

from __future__ import annotations

# Control characters of 7 and 8 bits, and what turns the direction of writing or ends a line, which
# would show a name as another one.
_OBEYED = (
    *range(0x20),
    *range(0x7F, 0xA0),
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)
_AS_ESCAPES = {code: repr(chr(code))[1:-1] for code in _OBEYED}
_IN_LINES = {code: sign for code, sign in _AS_ESCAPES.items() if chr(code) not in "\t\n"}


def visible(text: str) -> str:
    r"""One line of text, with control characters escaped as in Python: ``\x1b``, ``\n``."""
    return text.translate(_AS_ESCAPES)


def visible_lines(text: str) -> str:
    """The same, where new lines and tabs are no harm."""
    return text.translate(_IN_LINES)
