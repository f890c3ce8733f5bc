"""Text from a file as it is shown to people: nothing in it can steer a terminal or a page."""

from __future__ import annotations

_PICTURES = 0x2400  # of the control characters, in Unicode
_SIGNS: dict[int, str] = {
    **{code: chr(_PICTURES + code) for code in range(0x20)},
    0x7F: "\N{SYMBOL FOR DELETE}",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},  # 8-bit control sequences
    # what turns the direction of writing would show a name as another one
    **{code: f"\\u{code:04x}" for code in (*range(0x200E, 0x2010), *range(0x2028, 0x202F))},
    **{code: f"\\u{code:04x}" for code in range(0x2066, 0x206A)},
}
_SIGNS_IN_TEXT = {code: sign for code, sign in _SIGNS.items() if code not in (0x09, 0x0A)}


def visible(text: str) -> str:
    """One line of text, with a sign for each character that would not be seen but obeyed: an
    escape is ``␛``, a new line ``␊``."""
    return text.translate(_SIGNS)


def visible_lines(text: str) -> str:
    """The same, where new lines and tabs are no harm."""
    return text.translate(_SIGNS_IN_TEXT)
