"""A parser of shell scripts: of bash's grammar what launch scripts use.

One command of the top level at a time, as bash reads, so that what stands below a launch cannot
keep it from being read.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

from rollcast.simulator.launches.shell.syntax import (
    Assignment,
    Background,
    Block,
    Case,
    Chain,
    Command,
    Condition,
    Count,
    Evaluate,
    For,
    Function,
    Group,
    If,
    Literal,
    Opaque,
    Output,
    Parameter,
    Part,
    Pipeline,
    Redirect,
    Simple,
    Sum,
    While,
    Word,
)

_DEEPEST, _MOST_WORDS = 40, 5_000
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_PLAIN = re.compile(r"[^\\'\"$`\s;&|<>(){}]+")
_PLAIN_QUOTED = re.compile(r"[^\\\"$`]+")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_PARAMETER = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]")
_SHORT_PARAMETER = re.compile(r"[A-Za-z_]\w*|[\d@*#?$!-]")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?=|\[)")
_FUNCTION = re.compile(r"([A-Za-z_][\w:.-]*)[ \t]*\([ \t]*\)")
_REDIRECT = re.compile(r"(\d*|\{\w+\})(<<<|<<-|<<|<>|<&|<(?!\()|>>|>&|>\||>(?!\()|&>>|&>)")
_PLACEHOLDER = re.compile(r"<[A-Za-z](?:[\w .-]{0,80}[\w.-])?>(?=[\s/]|$)")
_WORD_ENDS = " \t\r\n;&|<>()"
_KEYWORDS = (
    *("if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case"),
    *("esac", "function", "in", "select", "time", "{", "}", "!", "[["),
)
_KEYWORD = re.compile(rf"(?:{'|'.join(map(re.escape, _KEYWORDS))})(?=[\s;&|<>()]|$)")
_DECLARES = {"declare", "typeset", "local", "export", "readonly"}
_ESCAPES = {
    **{"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b"},
    **{"f": "\f", "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?"},
}
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))",
    re.DOTALL,
)


class ShellSyntaxError(Exception):
    """What is wrong, as the end of a sentence, and the line."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def commands(text: str, line: int = 1) -> Iterator[Command]:
    """The commands of a script, each as it is parsed. line: of the text's first. Raises
    ShellSyntaxError."""
    parser = _Parser(text, line)
    while True:
        parser.blank_lines()
        if parser.ended:
            return
        command = parser.listed()
        parser.blank_lines()  # a here-document of the command begins after the line
        yield command


def parse(text: str, line: int = 1) -> Block:
    """All of a script. Raises ShellSyntaxError."""
    return Block(tuple(commands(text, line)))


class _Parser:
    def __init__(self, text: str, line: int, depth: int = 0) -> None:
        self._text, self._at, self._first, self._depth = text, 0, line, depth
        self._lines = [match.start() for match in re.finditer("\n", text)]
        self._bodies: list[tuple[str, bool, bool, list[Word]]] = []

    @property
    def ended(self) -> bool:
        return self._at >= len(self._text)

    def _line(self, at: int | None = None) -> int:
        return bisect_left(self._lines, self._at if at is None else at) + self._first

    def _next(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if self._next(text):
            self._at += len(text)
            return True
        return False

    def _fail(self, message: str, line: int | None = None) -> ShellSyntaxError:
        return ShellSyntaxError(message, self._line() if line is None else line)

    def _need(self, keyword: str, opened: str, line: int) -> None:
        self.blank_lines()
        if self._keyword() != keyword:
            raise self._fail(f"{opened} has no {keyword}", line)
        self._at += len(keyword)

    # Blanks, comments, ends of lines

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
        return self._at == 0 or self._text[self._at - 1] in _WORD_ENDS + "`"

    def _newline(self) -> bool:
        """Takes the end of a line, and the here-documents that begin after it."""
        if not self._take("\n"):
            return False
        for end, strip, expands, kept in self._bodies:
            self._document(end, strip, expands, kept)
        self._bodies = []
        return True

    def blank_lines(self) -> None:
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
            inner = _Parser(body, line, self._depth + 1)
            kept.append(inner.quoted("", "heredoc"))
        else:
            kept.append(Word((Literal(body, line, True),), line))

    def _keyword(self) -> str:
        match = _KEYWORD.match(self._text, self._at)
        return match[0] if match else ""

    # Commands

    def listed(self) -> Command:
        """A command and those joined to it, up to the end of the line or ``;``."""
        line = self._line()
        command: Command = self._pipeline()
        rest: list[tuple[str, Command]] = []
        while True:
            self._blanks()
            if self._next("&&") or self._next("||"):
                op = self._text[self._at : self._at + 2]
                self._at += 2
                self.blank_lines()
                rest.append((op, self._pipeline()))
                continue
            break
        if rest:
            command = Chain(command, tuple(rest), line)
        if self._next(";") and not self._next(";;"):
            self._at += 1
        elif self._next("&") and not self._next("&&"):
            self._at += 1
            command = Background(command)
        elif not (self.ended or self._text[self._at] in "\n);"):
            raise self._fail(f"{self._text[self._at]!r} is not expected here")
        return command

    def _block(self, *ends: str) -> Block:
        """Commands up to one of the keywords, or ``)`` or ``;;``, which is left."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._fail("nested too deeply")
        found = []
        while True:
            self.blank_lines()
            if self.ended or self._keyword() in ends:
                break
            if self._next(")") or (";;" in ends and (self._next(";;") or self._next(";&"))):
                break
            found.append(self.listed())
        self._depth -= 1
        return Block(tuple(found))

    def _pipeline(self) -> Command:
        negated = False
        while self._keyword() in ("!", "time"):
            negated ^= self._keyword() == "!"
            self._at += len(self._keyword())
            self._blanks()
            while self._next("-p"):
                self._at += 2
                self._blanks()
        found = [self._command()]
        self._blanks()
        while self._next("|") and not self._next("||"):
            self._at += 2 if self._next("|&") else 1
            self.blank_lines()
            found.append(self._command())
            self._blanks()
        if len(found) == 1 and not negated:
            return found[0]
        return Pipeline(tuple(found), negated)

    def _command(self) -> Command:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._fail("nested too deeply")
        try:
            return self._compound() or self._simple()
        finally:
            self._depth -= 1

    def _compound(self) -> Command | None:
        line, keyword = self._line(), self._keyword()
        command: Command
        if self._next("((") and (sums := self._double()):
            command = Evaluate(sums[0], line)
        elif self._take("("):
            body = self._block()
            if not self._take(")"):
                raise self._fail("( has no )", line)
            command = Group(body, True)
        elif keyword == "{":
            self._at += 1
            body = self._block("}")
            self._need("}", "{", line)
            command = Group(body, False)
        elif keyword == "if":
            command = self._if(line)
        elif keyword in ("while", "until"):
            self._at += len(keyword)
            condition = self._block("do")
            command = While(condition, self._do(keyword, line), keyword == "until", line)
        elif keyword in ("for", "select"):
            self._at += len(keyword)
            command = self._for(line)
        elif keyword == "case":
            self._at += 4
            command = self._case(line)
        elif keyword == "[[":
            self._at += 2
            command = self._condition(line)
        elif keyword == "function":
            self._at += 8
            self._blanks()
            return self._function(self._name("function"), line)
        elif match := _FUNCTION.match(self._text, self._at):
            self._at = match.end()
            return self._function(match[1], line)
        elif keyword and keyword not in ("in", "time", "!"):
            raise self._fail(f"{keyword!r} is not expected here")
        else:
            return None
        redirects = self._redirects()
        return Group(Block((command,)), False, redirects) if redirects else command

    def _name(self, after: str) -> str:
        match = re.compile(r"[^\s;&|<>()$'\"`\\]+").match(self._text, self._at)
        if not match:
            raise self._fail(f"{after} has no name")
        self._at = match.end()
        return match[0]

    def _function(self, name: str, line: int) -> Command:
        self._blanks()
        if self._take("("):
            self._blanks()
            self._take(")")
        self.blank_lines()
        body = self._compound()
        if body is None:
            raise self._fail(f"function {name} has no body", line)
        return Function(name, body, line)

    def _if(self, line: int) -> Command:
        branches = []
        otherwise = Block()
        while True:
            self._at += len(self._keyword())
            condition = self._block("then")
            self._need("then", "if", line)
            branches.append((condition, self._block("elif", "else", "fi")))
            keyword = self._keyword()
            if keyword == "else":
                self._at += 4
                otherwise = self._block("fi")
            if keyword != "elif":
                break
        self._need("fi", "if", line)
        return If(tuple(branches), otherwise, line)

    def _do(self, opened: str, line: int) -> Block:
        self._blanks()
        self._take(";")
        self.blank_lines()
        if self._keyword() == "{":
            self._at += 1
            body = self._block("}")
            self._need("}", opened, line)
            return body
        self._need("do", opened, line)
        body = self._block("done")
        self._need("done", opened, line)
        return body

    def _for(self, line: int) -> Command:
        self._blanks()
        if self._next("(("):
            sums = self._double(";")
            if len(sums) != 3:
                raise self._fail("for (( has not three parts", line)
            return Count(sums[0], sums[1], sums[2], self._do("for", line), line)
        name = self._name("for")
        self.blank_lines()
        words: list[Word] | None = None
        if self._keyword() == "in":
            self._at += 2
            words = []
            while True:
                self._blanks()
                if self.ended or self._text[self._at] in "\n;&|)(<>":
                    break
                words.append(self._word())
        return For(name, None if words is None else tuple(words), self._do("for", line), line)

    def _case(self, line: int) -> Command:
        self._blanks()
        word = self._word()
        self._need("in", "case", line)
        clauses = []
        while True:
            self.blank_lines()
            if self._keyword() == "esac":
                break
            if self.ended:
                raise self._fail("case has no esac", line)
            self._take("(")
            patterns = []
            while True:
                self._blanks()
                patterns.append(self._word())
                self._blanks()
                if not self._take("|"):
                    break
            if not self._take(")"):
                raise self._fail("a pattern of case has no )")
            body = self._block(";;", "esac")
            end = next((end for end in (";;&", ";;", ";&") if self._take(end)), "")
            clauses.append((tuple(patterns), body, end))
        self._need("esac", "case", line)
        return Case(word, tuple(clauses), line)

    def _condition(self, line: int) -> Command:
        tokens: list[Word | str] = []
        while True:
            self.blank_lines()
            if self._next("]]"):
                self._at += 2
                return Condition(tuple(tokens), line)
            if self.ended:
                raise self._fail("[[ has no ]]", line)
            op = next((op for op in ("&&", "||", "(", ")", "<", ">") if self._next(op)), "")
            if tokens and isinstance(tokens[-1], Word) and tokens[-1].bare == "=~":
                tokens.append(self._regex())
            elif op:
                self._at += len(op)
                tokens.append(op)
            else:
                tokens.append(self._word())

    def _regex(self) -> Word:
        line, depth = self._line(), 0
        parts: list[Part] = []
        while not self.ended:
            letter = self._text[self._at]
            if letter in "()":
                depth += 1 if letter == "(" else -1
                parts.append(Literal(letter, self._line()))
                self._at += 1
            elif letter in " \t\n" and depth <= 0:
                break
            elif letter in "\\'\"$`":
                self._part(parts)
            else:
                parts.append(Literal(letter, self._line()))
                self._at += 1
        return Word(tuple(parts), line)

    def _simple(self) -> Command:
        line = self._line()
        assignments: list[Assignment] = []
        words: list[Word | Assignment] = []
        redirects: list[Redirect] = []
        declares = False
        while True:
            self._blanks()
            if self.ended or self._text[self._at] in "\n;)":
                break
            placeholder = _PLACEHOLDER.match(self._text, self._at) if words else None
            redirect = None if placeholder else self._redirect()
            if redirect is not None:
                redirects.append(redirect)
                continue
            if self._text[self._at] in "&|(" or self._next(")"):
                break
            if not words or declares:
                assignment = self._assignment()
                if assignment is not None:
                    (words if words else assignments).append(assignment)
                    continue
            word = self._word(empty=placeholder is not None)
            if len(words) >= _MOST_WORDS:
                raise self._fail(f"a command has more than {_MOST_WORDS:,} words")
            if not words:
                declares = word.bare in _DECLARES
            words.append(word)
        if not (assignments or words or redirects):
            shown = "the end" if self.ended else repr(self._text[self._at])
            raise self._fail(f"{shown} is not expected here")
        return Simple(tuple(assignments), tuple(words), tuple(redirects), line)

    def _assignment(self) -> Assignment | None:
        start, line = self._at, self._line()
        match = _ASSIGNED.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        index, op = None, match[2]
        if op == "[":
            index = self._until("]")
            if not self._take("]") or not (self._next("=") or self._next("+=")):
                self._at = start
                return None
            op = "+=" if self._take("+=") else "="
            self._take("=")
        append = op == "+="
        if self._next("("):
            self._at += 1
            return Assignment(match[1], self._elements(match[1], line), line, index, append)
        return Assignment(match[1], self._word(empty=True), line, index, append)

    def _elements(self, name: str, line: int) -> tuple[tuple[Word | None, Word], ...]:
        found: list[tuple[Word | None, Word]] = []
        while True:
            self.blank_lines()
            if self._take(")"):
                return tuple(found)
            if self.ended or self._text[self._at] in ";&|<>(":
                shown = "the end" if self.ended else repr(self._text[self._at])
                raise self._fail(f"the list {name}, begun in line {line}, has no ) before {shown}")
            index, start = None, self._at
            if self._take("["):
                index = self._until("]")
                if not self._take("]="):
                    self._at, index = start, None
            found.append((index, self._word(empty=index is not None)))

    def _redirects(self) -> tuple[Redirect, ...]:
        found: list[Redirect] = []
        while True:
            self._blanks()
            redirect = self._redirect()
            if redirect is None:
                return tuple(found)
            found.append(redirect)

    def _redirect(self) -> Redirect | None:
        match = _REDIRECT.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        self._blanks()
        if match[2] in ("<<", "<<-"):
            start = self._at
            end, expands = self._delimiter()
            if self._at == start:
                raise self._fail("<< names no end")
            kept: list[Word] = []
            self._bodies.append((end, match[2] == "<<-", expands, kept))
            return Redirect("<<", Word((), self._line()), kept, match[1])
        target = self._word()
        return Redirect(match[2], target, (target,) if match[2] == "<<<" else (), match[1])

    def _delimiter(self) -> tuple[str, bool]:
        start = self._at
        parts = self._word(empty=True).parts
        text = "".join(part.text for part in parts)
        raw = self._text[start : self._at]
        return text, not any(mark in raw for mark in "'\"\\")

    # Words

    def _word(self, empty: bool = False) -> Word:
        """A word. empty: whether there may be none."""
        line, parts = self._line(), list[Part]()
        while not self.ended:
            letter = self._text[self._at]
            if letter in "<>" and self._text.startswith("(", self._at + 1) and not parts:
                parts.append(self._process())
            elif empty and (match := _PLACEHOLDER.match(self._text, self._at)):
                parts.append(Opaque(match[0], line, "a placeholder"))
                self._at = match.end()
            elif letter in "@?*+!" and self._text.startswith("(", self._at + 1):
                parts.append(self._extended())
            elif letter in _WORD_ENDS or not self._part(parts):
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
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._fail("nested too deeply")
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
        self._depth -= 1
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
        inner = _Parser(inside, line, self._depth + 1)
        if inner._depth > _DEEPEST:
            raise self._fail("nested too deeply", line)
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
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._fail("nested too deeply")
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
        self._depth -= 1
        text = self._text[start : self._at]
        return Parameter(name, text, line, quoted, op, argument, second, index, length, keys)

    def _until(self, stops: str, literal_quotes: bool = False) -> Word:
        """Text with expansions up to one of some letters, which is left; blanks belong to it."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._fail("nested too deeply")
        line, parts = self._line(), list[Part]()
        while not self.ended:
            letter, here = self._text[self._at], self._line()
            if letter in stops:
                break
            if literal_quotes and letter == "'":
                parts.append(Literal(letter, here, True))
                self._at += 1
            elif letter in "\\\"'`$":
                if literal_quotes and letter == "\\":
                    self._escaped(parts, '"}')
                elif literal_quotes and letter == "$":
                    parts.extend(self._dollar(True))
                else:
                    self._part(parts)
            else:
                parts.append(Literal(letter, here, literal_quotes))
                self._at += 1
        self._depth -= 1
        return Word(tuple(parts), line)

    def _double(self, between: str = "") -> tuple[Word, ...]:
        """What stands in ``((...))``, in as many parts as ``between`` makes of it; none, with
        nothing taken, where it is no sum after all."""
        start, line = self._at, self._line()
        self._at += 2
        depth, found = 0, list[Word]()
        parts: list[Part] = []
        while not self.ended:
            letter, here = self._text[self._at], self._line()
            if letter == ")" and depth == 0:
                if not self._take("))"):
                    break
                return (*found, Word(tuple(parts), line))
            if between and letter == between and depth == 0:
                found.append(Word(tuple(parts), line))
                parts = []
                self._at += 1
            elif letter == "$":
                parts.extend(self._dollar(True))
            elif letter == "`":
                parts.append(self._backticks(True))
            elif letter == "\\" and self._next("\\\n"):
                self._at += 2
            else:
                depth += {"(": 1, ")": -1}.get(letter, 0)
                if letter not in "\"'":
                    parts.append(Literal(letter, here, True))
                self._at += 1
        self._at = start
        return ()


_DEFAULTS = (":-", ":=", ":+", ":?", "-", "=", "+", "?")
_OPERATORS = (
    *(":-", ":=", ":+", ":?", "##", "#", "%%", "%", "//", "/#", "/%", "/", "^^", "^", ",,", ","),
    *("@", ":", "-", "=", "+", "?"),
)


def _unescaped(match: re.Match[str]) -> str:
    for group in (1, 2, 3):
        if match[group]:
            code = int(match[group], 16)
            return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else ""
    if match[4]:
        return chr(int(match[4], 8) & 255)
    return _ESCAPES.get(match[5], match[0])
