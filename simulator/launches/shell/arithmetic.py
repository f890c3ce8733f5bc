"""A shell's whole numbers: ``$((...))``, in 64 bits as bash has them."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(?:(\d+#[\w@]+|0[xX][0-9a-fA-F]+|\d+)|([A-Za-z_]\w*)"
    r"|(\*\*|\+\+|--|<<=|>>=|[-+*/%&|^]=|&&|\|\||==|!=|<=|>=|<<|>>|[-+*/%<>=!~&|^?:(),\[\]]))"
)
_LEVELS: tuple[tuple[str, ...], ...] = (
    *(("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">=")),
    *(("<<", ">>"), ("+", "-"), ("*", "/", "%")),
)
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

    def comma(self) -> int:
        result = self._assigned()
        while self._take(","):
            result = self._assigned()
        return result

    def _assigned(self) -> int:
        self._nested += 1
        if self._nested > _DEEPEST:
            raise UndecidedError("its arithmetic is nested too deeply")
        try:
            return self._assignment()
        finally:
            self._nested -= 1

    def _assignment(self) -> int:
        start = self.at
        name = self._peek()
        if name and (name[0].isalpha() or name[0] == "_"):
            self.at += 1
            index = self._index()
            op = self._peek()
            if op == "=" or (len(op) > 1 and op[-1] == "=" and op not in ("==", "!=", "<=", ">=")):
                self.at += 1
                right = self._assigned()
                if op != "=":
                    right = self._binary(op[:-1], self._variable(name, index), right)
                self._store(name, index, right)
                return right
            self.at = start
        return self._ternary()

    def _store(self, name: str, index: int | None, number: int) -> None:
        if not self._idle:
            self._put(name, index, number)

    def _index(self) -> int | None:
        if not self._take("["):
            return None
        index = self.comma()
        if not self._take("]"):
            raise UndecidedError("[ has no ]")
        return index

    def _ternary(self) -> int:
        condition = self._level(0)
        if not self._take("?"):
            return condition
        first = self._branch(not condition)
        if not self._take(":"):
            raise UndecidedError("? has no :")
        second = self._branch(bool(condition))
        return first if condition else second

    def _branch(self, idle: bool) -> int:
        """A part that counts for nothing where ``idle``: it divides by no zero."""
        self._idle += idle
        result = self._assigned()
        self._idle -= idle
        return result

    def _level(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._power()
        left = self._level(level + 1)
        while op := self._take(*_LEVELS[level]):
            idle = (op == "&&" and not left) or (op == "||" and bool(left))
            self._idle += idle
            right = self._level(level + 1)
            self._idle -= idle
            left = self._binary(op, left, right)
        return left

    def _power(self) -> int:
        base = self._unary()
        if not self._take("**"):
            return base
        self._nested += 1
        if self._nested > _DEEPEST:
            raise UndecidedError("its arithmetic is nested too deeply")
        exponent = self._power()
        self._nested -= 1
        return self._binary("**", base, exponent)

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
            self._nested += 1
            if self._nested > _DEEPEST:
                raise UndecidedError("its arithmetic is nested too deeply")
            number = self.comma()
            self._nested -= 1
            if not self._take(")"):
                raise UndecidedError("( has no )")
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


_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "|": lambda a, b: a | b,
    "&": lambda a, b: a & b,
    "^": lambda a, b: a ^ b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
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
