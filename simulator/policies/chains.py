"""Chains of policies: built from a scenario's list or a line of text, spelt again, and checked.

In a scenario, ``policy`` is a list of names, each with its parameters if it needs any::

    policy: [{april: {over_sampling: 2.0}}, sagc, {my_module:MyPolicy: {share: 0.5}}]

On a command line the same chain is ``april(over_sampling=2)+sagc+my_module:MyPolicy(share=0.5)``.
An empty list, or ``sync``, is synchronous RL.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.policy import Chain, Policy, chain
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import decisions, outside
from rollcast.simulator.policies.registry import SYNCHRONOUS, find, is_named, kind_of, name_of
from rollcast.simulator.values import declared, join, read, short
from rollcast.simulator.values.words import require

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
        several = "; + chains policies; compare and plan take each with a --policy of its own"
        remedy = several if _listed(text) else f"; {EXAMPLE}"
        raise ScenarioError("policy", f"cannot read {text[:80]!r}{remedy}")
    return terms


def _listed(text: str) -> bool:
    """Whether it is chains with commas between them."""
    cuts = [at for at, sign in enumerate(text) if sign == "," and _balanced(text[:at])]
    ends = [-1, *cuts, len(text)]
    return bool(cuts) and all(_terms(text[a + 1 : b]) for a, b in pairwise(ends))


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


_FIELD = "policy"


def build_policy(
    name: str,
    params: Mapping[str, Any] | None = None,
    field: str = _FIELD,
    *,
    seed: int = 0,
    folder: Path | None = None,
) -> Policy:
    """The policy called ``name``: one of this package's, an entry point's, or ``module:Class``.

    params: its parameters; those not given have their defaults, and a ``seed`` not given is
    ``seed``. field: the dotted key that errors start with. folder: where modules are looked for,
    beside the Python path and the working directory.

    Raises ScenarioError for an unknown name or parameter (naming the nearest valid ones), for a
    value out of range, and for a class that cannot be imported or made or is no policy.
    """
    where = join(field, str(name))
    kind = find(str(name), where, folder)
    given = {} if params is None else params
    if kind_of(str(name)) is kind:
        return read(kind, given, where, defaults={"seed": seed})
    return outside.make(kind, name, given, where, seed)


def build_chain(
    spec: str | Sequence[Any] | None, *, seed: int = 0, folder: Path | None = None
) -> Chain:
    """The chain of a scenario's ``policy``: a list, or text for `parse_policy`; None and the empty
    list are synchronous.

    Each item is a name, a mapping of one name to its parameters, or text. seed: for policies that
    draw and have no seed of their own. folder: as in `build_policy`.

    Raises ScenarioError (``policy.*``) for what `build_policy` rejects, for a list of another
    shape, and for policies whose declared decisions contradict one another.
    """
    if spec is None:
        return chain()
    if isinstance(spec, str):
        return parse_policy(spec, seed=seed, folder=folder)
    if isinstance(spec, Mapping) or not isinstance(spec, Sequence):
        raise ScenarioError(
            _FIELD,
            f"must be a list such as [{{april: {{over_sampling: 2}}}}, sagc], got {short(spec)}",
        )
    items = [term for position, item in enumerate(spec) for term in _items(item, position)]
    return _build(items, seed, folder)


def parse_policy(text: str, *, seed: int = 0, folder: Path | None = None) -> Chain:
    """The chain spelt as ``april(over_sampling=2)+pods(keep=4, rule=max_reward)``.

    ``+`` composes from left to right; a value is a number, true, false, none, a word, or a list.
    ``sync`` is the empty chain. seed, folder: as in `build_chain`.

    Raises ScenarioError (``policy.*``) for text of another form and for what `build_chain` rejects.
    """
    return _build([(term.name, term.given) for term in read_terms(text)], seed, folder)


def parse_labelled(text: str, *, seed: int = 0, folder: Path | None = None) -> tuple[str, Chain]:
    """(label, chain) of ``LABEL = CHAIN``, or of a chain called as it is spelt, without a seed that
    follows the run's. Raises ScenarioError."""
    label, spelt = split_label(text, _is_policy, outside.is_module)
    built = parse_policy(spelt, seed=seed, folder=folder)
    return label or spell(parse_policy(spelt, seed=0, folder=folder)), built


@lru_cache(maxsize=1024)  # a planner asks it of every choice
def is_synchronous(text: str) -> bool:
    """Whether a chain as in `parse_labelled` is the synchronous policy alone. Imports no module.
    Raises ScenarioError."""
    spelt = split_label(text, _is_policy, outside.is_module)[1]
    return all(term.name == SYNCHRONOUS for term in read_terms(spelt))


def _is_policy(name: str) -> bool:
    return name == SYNCHRONOUS or kind_of(name) is not None


def spell(policy: Policy, always: Container[str] = ()) -> str:
    """The shortest text that `parse_policy` reads as this policy, with the parameters that differ
    from their defaults, and those of the names ``always``. Raises ValueError for a policy whose
    class has no name."""
    require(Policy, policy, "policy", "a policy, such as APRIL()")
    if isinstance(policy, Chain):
        return "+".join(spell(member, always) for member in policy.policies) or SYNCHRONOUS
    if not is_named(policy):
        raise ValueError(f"{policy!r} is not among the named policies")
    if isinstance(policy, outside.Outside):
        return spell_term(policy.called, policy.given)
    given = [(option.key, getattr(policy, option.key), option) for option in declared(type(policy))]
    changed = [
        (key, value) for key, value, option in given if key in always or value != option.default
    ]
    return spell_term(name_of(policy), changed)


def label(policy: Policy) -> str:
    """A text for tables and figures: the spelling; without a name, the repr or class."""
    if isinstance(policy, Chain):
        return "+".join(map(label, policy.policies)) or SYNCHRONOUS
    if is_named(policy):
        return spell(policy)
    return repr(policy) if is_dataclass(policy) else type(policy).__name__


def check_policy(policy: Policy, plan: StepPlan) -> list[str]:
    """Checks the plan that ``policy`` makes of ``plan`` for every group size it may ever choose, so
    that a contradiction shows before the run and not in the middle of it.

    Returns what is worth a warning: decisions of which one policy overrides another's. Raises
    ScenarioError, and RunError where a policy from outside fails.
    """
    members = chain(policy)
    _check_together(members.policies)
    made = decisions.made(members, plan, [name_of(member) for member in members.policies])
    first = made[-1].after if made else plan
    first.check()
    for size in sorted(policy.group_sizes(frozenset({plan.batch.group_size}))):
        batch: Batch = first.batch.with_group_size(size)
        StepPlan(batch=batch, launch=first.launch, select=first.select).check()
    return decisions.overrides(made)


def _items(item: Any, position: int) -> list[tuple[str, Mapping[str, Any] | None]]:
    """(name, parameters) of each policy of one entry of a scenario's list."""
    if isinstance(item, str):
        terms = read_terms(item) if any(sign in item for sign in "(+:") else [Term(item, {})]
        return [(term.name, term.given or None) for term in terms]
    if isinstance(item, Mapping) and len(item) == 1:
        [(name, params)] = item.items()
        return [(name, params)]
    raise ScenarioError(
        f"{_FIELD}[{position}]",
        f"must be a policy's name, or one name with its parameters, got {short(item)}",
    )


def _build(
    items: Sequence[tuple[str, Mapping[str, Any] | None]], seed: int, folder: Path | None
) -> Chain:
    members = [
        build_policy(name, params, seed=seed, folder=folder)
        for name, params in items
        if name != SYNCHRONOUS or params
    ]
    _check_together(members)
    return chain(*members)


def _check_together(members: Sequence[Policy]) -> None:
    decisions.check_together([decisions.claim(member, name_of(member)) for member in members])
