"""How a chain of policies is written in one line of text, and how such a line is read.

``april(over_sampling=2)+my_module:MyPolicy(share=0.5)``: terms joined by ``+``, each a name with
its parameters; a name with a colon is a class of one's own. ``LABEL = CHAIN`` gives it a label.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.errors import ScenarioError

LONGEST = 4000
EXAMPLE = "write name(parameter=value)+name, such as april(over_sampling=2)+pods(keep=4)"

_WORD = r"[^\W\d]\w*"
_DOTTED = rf"{_WORD}(?:\.{_WORD})*"
_TERM = re.compile(rf"\s*({_DOTTED}:{_DOTTED}|[^\W\d][\w.-]*)\s*(\(.*\))?\s*", re.DOTALL)
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None, "null": None}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Term:
    """A policy's name and its parameters, as they are written."""

    name: str
    given: Mapping[str, Any]


def read_terms(text: str) -> list[Term]:
    """The terms of a chain, from left to right. Raises ScenarioError (``policy``)."""
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        raise ScenarioError("policy", f"{str(text)[:80]!r} names no policy; {EXAMPLE}")
    terms = _terms(text)
    if terms is None:
        raise ScenarioError("policy", f"cannot read {text[:80]!r}; {EXAMPLE}")
    return terms


def split_label(
    text: str, is_policy: Callable[[str], bool], is_module: Callable[[str], bool]
) -> tuple[str, str]:
    """(label, chain) of ``LABEL = CHAIN``; the label is '' where there is none.

    A colon does as well as the ``=`` wherever it cannot be one of ``module:Class``: with a blank
    beside it, after what is no module's name, or, as in ``all:april``, between what no module is
    called (``is_module``) and a known policy (``is_policy``).

    Raises ScenarioError (``--policy``) for an empty label.
    """
    if len(text) > LONGEST:
        return "", text
    terms = _terms(text)
    if terms:
        module, _, rest = terms[0].name.partition(":")
        if not rest or not is_policy(rest) or is_module(module):
            return "", text
        return module, text.partition(":")[2]
    for at, sign in enumerate(text):
        if sign in "=:" and _balanced(text[:at]) and _terms(text[at + 1 :]):
            if not (label := text[:at].strip()):
                raise ScenarioError("--policy", f"{text!r} has an empty label before the {sign}")
            return label, text[at + 1 :]
    return "", text


def spell_term(name: str, given: Iterable[tuple[str, Any]]) -> str:
    """A term's text."""
    parameters = ", ".join(f"{key}={spell_value(value)}" for key, value in given)
    return f"{name}({parameters})" if parameters else name


def spell_value(value: Any) -> str:
    """A parameter's text: a word stands for itself."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(spell_value, value))}]"
    if isinstance(value, str):
        plain = value.isidentifier() and not keyword.iskeyword(value)
        return value if plain and value not in _WORDS else repr(value)
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _terms(text: str) -> list[Term] | None:
    """The terms; None for text of another form."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python's, about odd literals
            return [_term(part) for part in _parts(text)]
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return None


def _parts(text: str) -> Iterator[str]:
    """What stands between the ``+`` outside all brackets and quotes."""
    start = 0
    for at, sign, depth in _outside_quotes(text):
        if sign == "+" and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _outside_quotes(text: str) -> Iterator[tuple[int, str, int]]:
    """(position, character, brackets open after it) of everything that is not quoted."""
    depth, quote, escaped = 0, "", False
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote and not escaped else quote
            escaped = sign == "\\" and not escaped
            continue
        if sign in "'\"":
            quote = sign
        depth += (sign in "([{") - (sign in ")]}")
        yield at, sign, depth


def _balanced(text: str) -> bool:
    """Whether every bracket is closed by its like."""
    waiting: list[str] = []
    for sign in text:
        if sign in _CLOSING:
            waiting.append(_CLOSING[sign])
        elif sign in _CLOSING.values() and (not waiting or waiting.pop() != sign):
            return False
    return not waiting


def _term(text: str) -> Term:
    """One term. Raises ValueError or SyntaxError if it has another form."""
    match = _TERM.fullmatch(text)
    if match is None:
        raise ValueError("not a term")
    name, arguments = match.groups()
    if arguments is None:
        return Term(name, {})
    call = ast.parse(f"_{arguments}", mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise ValueError("not a term")
    given: dict[str, Any] = {}
    for argument in call.keywords:
        if argument.arg is None or argument.arg in given:
            raise ValueError("not a parameter, or one given twice")
        given[argument.arg] = _value(argument.value)
    return Term(name, given)


def _value(tree: ast.expr) -> Any:
    """A literal, where a bare word stands for itself."""
    if isinstance(tree, ast.Name):
        return _WORDS.get(tree.id, tree.id)
    if isinstance(tree, ast.List):
        return [_value(item) for item in tree.elts]
    return ast.literal_eval(tree)
