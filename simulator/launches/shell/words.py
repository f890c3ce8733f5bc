"""Words of a shell script: quotes, expansions, here-documents."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from rollcast.simulator.launches.shell.cursor import WORD_ENDS, Cursor
from rollcast.simulator.launches.shell.syntax import (
    Block,
    Literal,
    Opaque,
    Output,
    Parameter,
    Part,
    Sum,
    Word,
)

_PLAIN = re.compile(r"[^\\'\"$`\s;&|<>(){}]+")
_PLAIN_QUOTED = re.compile(r"[^\\\"$`]+")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_PARAMETER = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]")
_SHORT_PARAMETER = re.compile(r"[A-Za-z_]\w*|[\d@*#?$!-]")
PLACEHOLDER = re.compile(r"<[A-Za-z](?:[\w .-]{0,80}[\w.-])?>(?=[\s/]|$)")
_ESCAPES = {
    **{"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b"},
    **{"f": "\f", "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?"},
}
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL
)
_DEFAULTS = (":-", ":=", ":+", ":?", "-", "=", "+", "?")
_OPERATORS = (
    *(":-", ":=", ":+", ":?", "##", "#", "%%", "%", "//", "/#", "/%", "/", "^^", "^", ",,", ","),
    *("@", ":", "-", "=", "+", "?"),
)


class Words(Cursor, ABC):
    """Reads words; commands inside them are another's."""

    def __init__(self, text: str, line: int, depth: int = 0) -> None:
        super().__init__(text, line, depth)
        self._bodies: list[tuple[str, bool, bool, list[Word]]] = []

    @abstractmethod
    def _block(self, *ends: str) -> Block:
        """Commands up to one of the keywords, or ``)`` or ``;;``, which is left."""

    def _newline(self) -> bool:
        """Takes the end of a line, and the here-documents that begin after it."""
        if not self._take("\n"):
            return False
        for end, strip, expands, kept in self._bodies:
            self._document(end, strip, expands, kept)
        self._bodies = []
        return True

    def blank_lines(self) -> None:
        """Takes blanks, comments and ends of lines."""
        while True:
            self._blanks()
            if not self._newline():
                return

    def _document(self, end: str, strip: bool, expands: bool, kept: list[Word]) -> None:
        line, lines = self._line(), []
        while self._at < len(self._text):
            stop = self._text.find("\n", self._at)
            stop = len(self._text) if stop < 0 else stop
            one = self._text[self._at : stop].rstrip("\r")
            self._at = min(stop + 1, len(self._text))
            if strip:
                one = one.lstrip("\t")
            if one == end:
                break
            lines.append(one + "\n")
        body = "".join(lines)
        if expands:
            inner = type(self)(body, line, self._depth + 1)
            kept.append(inner.quoted("", "heredoc"))
        else:
            kept.append(Word((Literal(body, line, True),), line))

    def _word(self, empty: bool = False) -> Word:
        """A word. empty: whether there may be none."""
        line, parts = self._line(), list[Part]()
        while not self.ended:
            letter = self._text[self._at]
            if letter in "<>" and self._text.startswith("(", self._at + 1) and not parts:
                parts.append(self._process())
            elif empty and (match := PLACEHOLDER.match(self._text, self._at)):
                parts.append(Opaque(match[0], line, "a placeholder"))
                self._at = match.end()
            elif letter in "@?*+!" and self._text.startswith("(", self._at + 1):
                parts.append(self._extended())
            elif letter in WORD_ENDS or not self._part(parts):
                break
        if not parts and not empty:
            shown = "the end" if self.ended else repr(self._text[self._at])
            raise self._fail(f"{shown} is not expected here")
        return Word(tuple(parts), line)

    def _extended(self) -> Part:
        """A pattern such as ``@(a|b)``, as it stands."""
        start, line, depth = self._at, self._line(), 0
        while not self.ended:
            letter = self._text[self._at]
            self._at += 1
            depth += {"(": 1, ")": -1}.get(letter, 0)
            if letter == ")" and depth == 0:
                break
        return Literal(self._text[start : self._at], line)

    def _process(self) -> Part:
        start, line = self._at, self._line()
        self._at += 2
        self._block()
        if not self._take(")"):
            raise self._fail("<( has no )", line)
        return Opaque(self._text[start : self._at], line)

    def _part(self, parts: list[Part]) -> bool:
        """Takes one part of a word outside of quotes. Always takes something."""
        line, letter = self._line(), self._text[self._at]
        match = _PLAIN.match(self._text, self._at)
        if match:
            self._at = match.end()
            parts.append(Literal(match[0], line))
        elif letter == "\\":
            if self._next("\\\n") or self._next("\\\r\n"):
                self._at = self._text.index("\n", self._at) + 1
                if not parts:
                    parts.append(Literal("", line))
            else:
                parts.append(Literal(self._text[self._at + 1 : self._at + 2] or "\\", line, True))
                self._at += 2
        elif letter == "'":
            end = self._text.find("'", self._at + 1)
            if end < 0:
                raise self._fail("a quote ' is not closed", line)
            parts.append(Literal(self._text[self._at + 1 : end], line, True))
            self._at = end + 1
        elif letter == '"':
            self._at += 1
            parts.extend(self.quoted('"', "string").parts)
            if not self._take('"'):
                raise self._fail('a quote " is not closed', line)
        elif letter == "$":
            parts.extend(self._dollar(False))
        elif letter == "`":
            parts.append(self._backticks(False))
        else:
            self._at += 1
            parts.append(Literal(letter, line))
        return True

    def quoted(self, end: str, within: str) -> Word:
        """The inside of double quotes, up to ``end``, which is left; of all text for ''. within:
        ``string``, or ``heredoc``, where quotes are characters."""
        with self._deeper():
            line = self._line()
            parts: list[Part] = [Literal("", line, True)]
            while not self.ended and not (end and self._next(end)):
                here, letter = self._line(), self._text[self._at]
                match = _PLAIN_QUOTED.match(self._text, self._at)
                if match and letter != end:
                    self._at = match.end()
                    for number, one in enumerate(_LINES.findall(match[0])):
                        parts.append(Literal(one, here + number, True))
                elif letter == "\\":
                    self._escaped(parts, '"' if within == "string" else "")
                elif letter == "$":
                    parts.extend(self._dollar(True))
                elif letter == "`":
                    parts.append(self._backticks(True))
                else:
                    parts.append(Literal(letter, here, True))
                    self._at += 1
            return Word(tuple(parts), line)

    def _escaped(self, parts: list[Part], also: str) -> None:
        """A backslash inside double quotes."""
        line, letter = self._line(), self._text[self._at + 1 : self._at + 2]
        if letter == "\n" or self._next("\\\r\n"):
            self._at = self._text.index("\n", self._at) + 1
            return
        if letter and letter in "$`\\" + also:
            parts.append(Literal(letter, line, True))
        else:
            parts.append(Literal("\\" + letter, line, True))
        self._at += 2

    def _backticks(self, quoted: bool) -> Part:
        start, line = self._at, self._line()
        inside = ""
        self._at += 1
        while not self.ended and not self._next("`"):
            if self._next("\\") and self._text[self._at + 1 : self._at + 2] in ("`", "\\", "$"):
                self._at += 1
            inside += self._text[self._at : self._at + 1]
            self._at += 1
        if not self._take("`"):
            raise self._fail("a backtick is not closed", line)
        inner = type(self)(inside, line, self._depth + 1)
        body = inner._block()
        return Output(body, self._text[start : self._at], line, quoted)

    def _dollar(self, quoted: bool) -> list[Part]:
        """What begins with ``$``."""
        start, line = self._at, self._line()
        if self._next("$'") and not quoted:
            return [self._ansi()]
        if self._next('$"') and not quoted:
            self._at += 2
            parts = list(self.quoted('"', "string").parts)
            if not self._take('"'):
                raise self._fail('a quote " is not closed', line)
            return parts
        if self._next("${"):
            self._at += 2
            return [self._braced(start, line, quoted)]
        if self._next("$(("):
            self._at += 1
            sums = self._double()
            if sums:
                return [Sum(sums[0], self._text[start : self._at], line, quoted)]
            self._at = start
        if self._next("$("):
            self._at += 2
            body = self._block()
            if not self._take(")"):
                raise self._fail("$( has no )", line)
            return [Output(body, self._text[start : self._at], line, quoted)]
        match = _SHORT_PARAMETER.match(self._text, self._at + 1)
        if match:
            self._at = match.end()
            index = Word((Literal(match[0], line),), line) if match[0] in ("@", "*") else None
            return [Parameter(match[0], "$" + match[0], line, quoted, index=index)]
        self._at += 1
        return [Literal("$", line, quoted)]

    def _ansi(self) -> Part:
        line = self._line()
        match = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self._text, self._at)
        if match is None:
            raise self._fail("a quote $' is not closed", line)
        self._at = match.end()
        return Literal(_ESCAPE.sub(_unescaped, match[1]), line, True)

    def _braced(self, start: int, line: int, quoted: bool) -> Part:
        """The rest of ``${``."""
        with self._deeper():
            length = keys = False
            if self._next("#") and not (self._next("#}") or self._next("#-") or self._next("#:")):
                self._at += 1
                length = True
            elif self._next("!") and not self._next("!}"):
                self._at += 1
                keys = True
            match = _PARAMETER.match(self._text, self._at)
            if match is None:
                raise self._fail("${ has no name", line)
            name = match[0]
            self._at = match.end()
            index = Word((Literal(name, line),), line) if name in ("@", "*") else None
            if self._take("["):
                index = self._until("]")
                if not self._take("]"):
                    raise self._fail("${ has no ]", line)
            op, argument, second = "", None, None
            op = next((op for op in _OPERATORS if self._next(op)), "")
            self._at += len(op)
            if op:
                plain = op in _DEFAULTS
                stops = "/}" if op in ("/", "//", "/#", "/%") else ":}" if op == ":" else "}"
                argument = self._until(stops, quoted and plain)
                if stops != "}" and self._text[self._at : self._at + 1] == stops[0]:
                    self._at += 1
                    second = self._until("}")
            if not self._take("}"):
                raise self._fail("${ has no }", line)
            text = self._text[start : self._at]
            return Parameter(name, text, line, quoted, op, argument, second, index, length, keys)

    def _until(self, stops: str, quoted: bool = False, nested: bool = False) -> Word:
        """Text with expansions up to one of some letters, which is left; blanks belong to it.
        quoted: as in double quotes. nested: no letter in parentheses stops it."""
        with self._deeper():
            line, parts, depth = self._line(), list[Part](), 0
            while not self.ended:
                letter, here = self._text[self._at], self._line()
                if letter in stops and depth <= 0:
                    break
                if quoted and letter == "\\":
                    self._escaped(parts, '"}')
                elif quoted and letter == "$":
                    parts.extend(self._dollar(True))
                elif letter in '\\"`$' or (letter == "'" and not quoted):
                    self._part(parts)
                else:
                    depth += nested * {"(": 1, ")": -1}.get(letter, 0)
                    parts.append(Literal(letter, here, quoted))
                    self._at += 1
            return Word(tuple(parts), line)

    def _double(self, between: str = "") -> tuple[Word, ...]:
        """What stands in ``((...))``, in as many parts as ``between`` makes of it; none, with
        nothing taken, where it is no sum after all."""
        start = self._at
        self._at += 2
        found = [self._until(")" + between, True, True)]
        while between and self._take(between):
            found.append(self._until(")" + between, True, True))
        if self._take("))"):
            return tuple(found)
        self._at = start
        return ()


def _unescaped(match: re.Match[str]) -> str:
    for group in (1, 2, 3):
        if match[group]:
            code = int(match[group], 16)
            return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else ""
    if match[4]:
        return chr(int(match[4], 8) & 255)
    return _ESCAPES.get(match[5], match[0])
