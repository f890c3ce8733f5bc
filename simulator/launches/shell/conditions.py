"""Conditions of a script, as far as its own text decides them: ``[ ]``, ``[[ ]]``, ``test``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollcast.simulator.launches.pieces import Text, plain, shown, why
from rollcast.simulator.launches.shell import arithmetic
from rollcast.simulator.launches.shell.arithmetic import UndecidedError
from rollcast.simulator.launches.shell.expand import absent
from rollcast.simulator.launches.shell.patterns import matches, regex
from rollcast.simulator.launches.shell.session import Session, Status

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_TEXTS = ("=", "==", "!=", "<", ">", "=~")
_OF_A_RUN = "bcdefghkprstuwxGLNOS"
"""Letters of tests that ask the machine, such as whether a file is there."""
Operand = tuple[Text, str | None]
"""A word's text, and as a pattern, None where unknown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a condition holds; None, and why, where the script does not say."""

    holds: bool | None
    why: str = ""

    def __invert__(self) -> Answer:
        return self if self.holds is None else Answer(not self.holds)


class Conditions:
    """Evaluates the tokens of a condition. number: the value of an operand in arithmetic, or why it
    has none. is_set: whether a variable has a value, None where that is not known. taken: variables
    and arguments that nobody gave, and that are taken to be empty."""

    def __init__(
        self,
        tokens: Sequence[Operand | str],
        number: Callable[[Text], int | str],
        is_set: Callable[[str], bool | None],
        patterns: bool,
    ) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0
        self._number, self._is_set, self._patterns = number, is_set, patterns
        self.taken: list[str] = []

    def answer(self) -> Answer:
        """Of all tokens; undecided where they are no condition."""
        if not self._tokens:
            return Answer(False)
        result = self._or()
        return result if self._at == len(self._tokens) else Answer(None, "it cannot be read")

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            return ""
        token = self._tokens[self._at]
        return token if isinstance(token, str) else shown(token[0])

    def _or(self) -> Answer:
        left = self._and()
        while self._next() in ("||", "-o"):
            self._at += 1
            right = self._and()
            if left.holds is False or right.holds is True:
                left = right
        return left

    def _and(self) -> Answer:
        left = self._not()
        while self._next() in ("&&", "-a"):
            self._at += 1
            right = self._not()
            if left.holds is True or right.holds is False:
                left = right
        return left

    def _not(self) -> Answer:
        self._depth += 1
        if self._depth > 40:
            return Answer(None, "it is nested too deeply")
        left = len(self._tokens) - self._at
        if self._next() == "!" and left > 1:
            self._at += 1
            return ~self._not()
        if self._next() == "(" and left > 2:
            self._at += 1
            inside = self._or()
            if self._next() == ")":
                self._at += 1
            return inside
        return self._primary()

    def _operand(self) -> Operand:
        token = self._tokens[self._at]
        self._at += 1
        return ((), token) if isinstance(token, str) else token

    def _primary(self) -> Answer:
        if self._at >= len(self._tokens):
            return Answer(None, "it cannot be read")
        left = len(self._tokens) - self._at
        first = self._next()
        second = ""
        if left >= 3:
            token = self._tokens[self._at + 1]
            second = token if isinstance(token, str) else plain(token[0]) or ""
        if second in _TEXTS or second in _NUMBERS:
            return self._binary(second)
        if left >= 2 and re.fullmatch(r"-[a-zA-Z]", first):
            self._at += 1
            return self._unary(first[1], self._operand()[0])
        return self._unary("n", self._operand()[0])

    def _unary(self, letter: str, text: Text) -> Answer:
        if letter == "v":
            is_set = self._is_set(shown(text))
            return Answer(is_set, f"{shown(text)} has no value in what was read")
        if letter in _OF_A_RUN:
            return Answer(None, f"-{letter} {shown(text)} asks the machine")
        known = any(piece.text and not piece.why for piece in text)
        if plain(text) is None and not known:
            if not (name := absent(text)):
                return Answer(None, why(text))
            self.taken.append(name)
        empty = not known
        return Answer(empty if letter == "z" else not empty)

    def _binary(self, op: str) -> Answer:
        left, _ = self._operand()
        self._at += 1
        right, pattern = self._operand()
        if op in _NUMBERS:
            a, b = self._number(left), self._number(right)
            if isinstance(a, str) or isinstance(b, str):
                return Answer(None, a if isinstance(a, str) else str(b))
            return Answer(_NUMBERS[op](a, b))
        one, other = plain(left), plain(right)
        for text, with_ in ((left, other), (right, one)):
            if op in ("=", "==", "!=") and with_ == "" and (name := absent(text)):
                self.taken.append(name)
                return Answer(op != "!=")
        if one is None or other is None:
            return Answer(None, why(left) or why(right))
        if op in ("<", ">"):
            return Answer(one < other if op == "<" else one > other)
        if op == "=~":
            return _matches(other, one)
        if self._patterns and pattern is not None:
            form = regex(pattern)
            found = None if form is None else matches(form, one)
            if found is None:
                return Answer(None, "its pattern is too long")
            return Answer(found == (op != "!="))
        return Answer((one == other) == (op != "!="))


_SAFE_REGEX = re.compile(r"\^?(?:\[[^\[\]]+\][+*]?|[\w ./:=,@-])*\$?")


def _matches(form: str, text: str) -> Answer:
    """``text =~ form``, for forms that a search always ends with."""
    repeated = form.count("+") + form.count("*")
    if not _SAFE_REGEX.fullmatch(form) or repeated > 2 or len(form) > 200 or len(text) > 2_000:
        return Answer(None, "its pattern is not read")
    try:
        return Answer(re.search(form, text) is not None)
    except re.error:
        return Answer(None, "its pattern is not read")


def answered(session: Session, tokens: Sequence[Operand | str], patterns: bool) -> Status:
    """Whether the tokens of a condition hold. patterns: as ``[[ ]]`` compares."""

    def number(text: Text) -> int | str:
        return whole(session, text)

    def is_set(name: str) -> bool | None:
        return True if name in session.state.variables else None

    conditions = Conditions(tokens, number, is_set, patterns)
    answer = conditions.answer()
    for name in conditions.taken:
        given = f"; --env {name}=... gives one" if " " not in name else ""
        session.found.note(f"{session.here()}: {name} is taken to have no value{given}")
    if answer.holds is None:
        return session.undecided(answer.why)
    return Status.YES if answer.holds else Status.NO


def whole(session: Session, text: Text) -> int | str:
    """The value of an expression, or why it has none."""
    if plain(text) is None:
        return why(text)
    try:
        expander = session.expander()
        return arithmetic.value(shown(text), expander.number_text, expander.store)
    except UndecidedError as error:
        return str(error)
