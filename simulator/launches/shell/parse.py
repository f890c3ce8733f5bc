"""A parser of shell scripts: of bash's grammar what launch scripts use.

One command of the top level at a time, as bash reads, so that what stands below a launch cannot
keep it from being read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollcast.simulator.launches.shell.cursor import ShellSyntaxError as ShellSyntaxError
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
    Pipeline,
    Redirect,
    Simple,
    While,
    Word,
)
from rollcast.simulator.launches.shell.words import PLACEHOLDER, Words

_MOST_WORDS = 5_000
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?=|\[)")
_FUNCTION = re.compile(r"([A-Za-z_][\w:.-]*)[ \t]*\([ \t]*\)")
_REDIRECT = re.compile(r"(\d*|\{\w+\})(<<<|<<-|<<|<>|<&|<(?!\()|>>|>&|>\||>(?!\()|&>>|&>)")
_DECLARES = {"declare", "typeset", "local", "export", "readonly"}


def commands(text: str, line: int = 1) -> Iterator[Command]:
    """A script's commands, each as parsed. line: the text's first. Raises ShellSyntaxError."""
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


class _Parser(Words):
    def _need(self, keyword: str, opened: str, line: int) -> None:
        self.blank_lines()
        if self._keyword() != keyword:
            raise self._fail(f"{opened} has no {keyword}", line)
        self._at += len(keyword)

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
        with self._deeper():
            found = []
            while True:
                self.blank_lines()
                if self.ended or self._keyword() in ends:
                    break
                if self._next(")") or (";;" in ends and (self._next(";;") or self._next(";&"))):
                    break
                found.append(self.listed())
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
        with self._deeper():
            return self._compound() or self._simple()

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
                tokens.append(self._until(" \t\n", nested=True))
            elif op:
                self._at += len(op)
                tokens.append(op)
            else:
                tokens.append(self._word())

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
            placeholder = PLACEHOLDER.match(self._text, self._at) if words else None
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
