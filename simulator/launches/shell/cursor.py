"""A place in the text of a shell script: its line, what comes next, blanks and comments."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager

_DEEPEST = 40
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_KEYWORDS = (
    *("if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case"),
    *("esac", "function", "in", "select", "time", "{", "}", "!", "[["),
)
_KEYWORD = re.compile(rf"(?:{'|'.join(map(re.escape, _KEYWORDS))})(?=[\s;&|<>()]|$)")
WORD_ENDS = " \t\r\n;&|<>()"


class ShellSyntaxError(Exception):
    """What is wrong, as the end of a sentence, and the line."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class Cursor:
    """A text and how far it is read. line: of the text's first. depth: of what it stands in."""

    def __init__(self, text: str, line: int, depth: int = 0) -> None:
        self._text, self._at, self._first, self._depth = text, 0, line, depth
        self._lines = [match.start() for match in re.finditer("\n", text)]

    @property
    def ended(self) -> bool:
        """Whether all of the text is read."""
        return self._at >= len(self._text)

    def _line(self) -> int:
        return bisect_left(self._lines, self._at) + self._first

    def _next(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if self._next(text):
            self._at += len(text)
            return True
        return False

    def _fail(self, message: str, line: int | None = None) -> ShellSyntaxError:
        return ShellSyntaxError(message, self._line() if line is None else line)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        """Inside something. Raises ShellSyntaxError beyond 40 levels."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._fail("nested too deeply")
        yield
        self._depth -= 1

    def _blanks(self) -> None:
        while True:
            match = _BLANK.match(self._text, self._at)
            if match:
                self._at = match.end()
            elif self._next("#") and self._starts_word():
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return

    def _starts_word(self) -> bool:
        return self._at == 0 or self._text[self._at - 1] in WORD_ENDS + "`"

    def _keyword(self) -> str:
        match = _KEYWORD.match(self._text, self._at)
        return match[0] if match else ""
