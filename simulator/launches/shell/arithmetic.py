"""A shell's whole numbers: ``$((...))``, in 64 bits as bash has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from operator import add, and_, eq, ge, gt, le, lt, mul, ne, or_, sub, xor

_TOKEN = re.compile(
    r"\s*(?:(\d+#[\w@]+|0[xX][0-9a-fA-F]+|\d+)|([A-Za-z_]\w*)"
    r"|(\*\*|\+\+|--|<<=|>>=|[-+*/%&|^]=|&&|\|\||==|!=|<=|>=|<<|>>|[-+*/%<>=!~&|^?:(),\[\]]))"
)
_LEVELS = {
    op: level
    for level, ops in enumerate(
        ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %", "**"), 1
    )
    for op in ops.split()
}
"""How tightly operators of two sides bind."""
_POWER = _LEVELS["**"]
_ASSIGNS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
_LONGEST, _DEEPEST = 10_000, 50
Get = Callable[[str, int | None], str]
"""A variable's text, of an array that of an index. Raises `UndecidedError` where it is unknown."""
Put = Callable[[str, int | None, int], None]


class UndecidedError(Exception):
    """Why an expression has no value that could be known."""


def value(text: str, get: Get, put: Put, depth: int = 0) -> int:
    """The value of an expression, 0 of an empty one. Raises UndecidedError."""
    if len(text) > _LONGEST or depth > _DEEPEST:
        raise UndecidedError("its arithmetic is too long")
    sums = _Sums(text, get, put, depth)
    result = sums.comma() if sums.tokens else 0
    if sums.at < len(sums.tokens):
        raise UndecidedError(f"{sums.tokens[sums.at]} is not expected in {text.strip()[:60]}")
    return result


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


class _Sums:
    def __init__(self, text: str, get: Get, put: Put, depth: int) -> None:
        self.tokens: list[str] = []
        self.at = 0
        self._get, self._put, self._depth, self._idle, self._nested = get, put, depth, 0, 0
        text, at = text.strip(), 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise UndecidedError(f"{text[at:].strip()[:20]!r} is no arithmetic")
            self.tokens.append(match[1] or match[2] or match[3])
            at = match.end()

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, *tokens: str) -> str:
        token = self._peek()
        if token in tokens and token:
            self.at += 1
            return token
        return ""

    def _need(self, token: str, opened: str) -> None:
        if not self._take(token):
            raise UndecidedError(f"{opened} has no {token}")

    def comma(self) -> int:
        """The last of several, between which commas stand."""
        result = self._assigned()
        while self._take(","):
            result = self._assigned()
        return result

    def _assigned(self, idle: bool = False) -> int:
        """An assignment or a choice. idle: it counts for nothing, and divides by no zero."""
        start, name = self.at, self._peek()
        self._idle += idle
        if name[:1].isidentifier():
            self.at += 1
            index = self._index()
            if op := self._take(*_ASSIGNS):
                left = self._variable(name, index) if op != "=" else 0
                right = self._nest(self._assigned)
                result = self._binary(op[:-1], left, right) if op != "=" else right
                self._store(name, index, result)
                self._idle -= idle
                return result
            self.at = start
        result = self._nest(self._level)
        if self._take("?"):
            first = self._assigned(not result)
            self._need(":", "?")
            second = self._assigned(bool(result))
            result = first if result else second
        self._idle -= idle
        return result

    def _nest(self, inner: Callable[[], int]) -> int:
        self._nested += 1
        if self._nested > _DEEPEST:
            raise UndecidedError("its arithmetic is nested too deeply")
        result = inner()
        self._nested -= 1
        return result

    def _level(self, least: int = 1) -> int:
        """Operators that bind as tightly as ``least``; those that bind tighter come first."""
        left = self._unary()
        while (level := _LEVELS.get(op := self._peek(), 0)) >= least:
            self.at += 1
            idle = (op == "&&" and not left) or (op == "||" and bool(left))
            self._idle += idle
            right = self._nest(partial(self._level, level + (level != _POWER)))
            self._idle -= idle
            left = self._binary(op, left, right)
        return left

    def _unary(self) -> int:
        signs = []
        while op := self._take("-", "+", "!", "~", "--", "++"):
            signs.append(op)
        steps = 0
        if signs and signs[-1] in ("--", "++") and self._peek()[:1].isidentifier():
            steps = 1 if signs.pop() == "++" else -1
        number = self._atom(steps)
        for op in reversed(signs):
            if op == "-":
                number = _wrapped(-number)
            elif op == "!":
                number = int(not number)
            elif op == "~":
                number = ~number
        return number

    def _atom(self, steps: int) -> int:
        if self._take("("):
            number = self._nest(self.comma)
            self._need(")", "(")
            return number
        token = self._peek()
        self.at += 1
        if token[:1].isdigit():
            return _literal(token)
        if not token[:1].isidentifier():
            raise UndecidedError(f"{token or 'its end'} is not expected in arithmetic")
        index = self._index()
        number = self._variable(token, index)
        if steps:
            number = _wrapped(number + steps)
            self._store(token, index, number)
        elif after := self._take("++", "--"):
            self._store(token, index, _wrapped(number + (1 if after == "++" else -1)))
        return number

    def _store(self, name: str, index: int | None, number: int) -> None:
        if not self._idle:
            self._put(name, index, number)

    def _index(self) -> int | None:
        if not self._take("["):
            return None
        index = self.comma()
        self._need("]", "[")
        return index

    def _variable(self, name: str, index: int | None) -> int:
        if self._idle:
            return 0
        text = self._get(name, index)
        return value(text, self._get, self._put, self._depth + 1)

    def _binary(self, op: str, left: int, right: int) -> int:
        if op in ("/", "%"):
            if right == 0:
                if self._idle:
                    return 0
                raise UndecidedError("it divides by zero")
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return _wrapped(quotient if op == "/" else left - quotient * right)
        if op == "**":
            if right < 0 and not self._idle:
                raise UndecidedError("an exponent is negative")
            return _wrapped(pow(left, max(right, 0), 2**64))
        return _wrapped(int(_BINARY[op](left, right)))


_BINARY: Mapping[str, Callable[[int, int], int]] = {
    **{"+": add, "-": sub, "*": mul, "|": or_, "&": and_, "^": xor},
    **{"==": eq, "!=": ne, "<": lt, ">": gt, "<=": le, ">=": ge},
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
    "&&": lambda a, b: bool(a) and bool(b),
    "||": lambda a, b: bool(a) or bool(b),
}


def _literal(token: str) -> int:
    """A number, with its base before ``#``, or as in C. Raises UndecidedError."""
    base, sharp, digits = token.partition("#")
    try:
        if sharp:
            return _wrapped(int(digits, int(base)))
        octal = len(token) > 1 and token[0] == "0" and token[1].isdigit()
        return _wrapped(int(token, 8 if octal else 0 if token[:2] in ("0x", "0X") else 10))
    except ValueError:
        raise UndecidedError(f"{token[:40]} is no number") from None
