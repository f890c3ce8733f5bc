"""The policies by name, and how a scenario or a command line spells a chain of them.

In a scenario, ``policy`` is a list of names, each with its parameters if it needs any::

    policy: [{april: {over_sampling: 2.0}}, sagc, {pods: {keep: 4}}]

On a command line the same chain is ``april(over_sampling=2.0)+sagc+pods(keep=4)``. An empty list,
or ``sync``, is synchronous RL.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any

from simulator.errors import ScenarioError
from simulator.options import declared, join, nearest, read, short
from simulator.plan import Batch, StepPlan
from simulator.policies.april import APRIL
from simulator.policies.dynamic_sampling import DynamicSampling
from simulator.policies.fully_async import FullyAsync
from simulator.policies.one_step_off import OneStepOff
from simulator.policies.partial_rollout import PartialRollout
from simulator.policies.pods import PODS
from simulator.policies.prefix_reuse import PrefixReuse
from simulator.policies.sagc import SAGC
from simulator.policies.tail_batching import TailBatching
from simulator.policy import Chain, Policy, chain

POLICIES: Mapping[str, type[Policy]] = MappingProxyType(
    {
        "april": APRIL,
        "dynamic_sampling": DynamicSampling,
        "fully_async": FullyAsync,
        "one_step_off": OneStepOff,
        "partial_rollout": PartialRollout,
        "pods": PODS,
        "prefix_reuse": PrefixReuse,
        "sagc": SAGC,
        "tail_batching": TailBatching,
        "dapo_filter": DynamicSampling,
    }
)
"""Every policy by its name in a scenario; ``dapo_filter`` is another name of dynamic_sampling."""

_NAMES = {kind: name for name, kind in [*POLICIES.items()][::-1]}  # the first name is its own
SYNCHRONOUS = "sync"
_LAUNCHERS = ("april", "fully_async", "partial_rollout", "tail_batching")
_FIELD = "policy"
_MAX_SPELLING = 4000


def build_policy(
    name: str, params: Mapping[str, Any] | None = None, field: str = _FIELD, *, seed: int = 0
) -> Policy:
    """The policy called ``name``.

    params: its parameters; those not given have their defaults, and a ``seed`` not given is
    ``seed``. field: the dotted key that errors start with.

    Raises ScenarioError for an unknown name or parameter (naming the nearest valid ones) and for a
    value out of range.
    """
    if not isinstance(name, str) or name not in POLICIES:
        if name == SYNCHRONOUS:
            raise ScenarioError(join(field, name), "synchronous RL has no parameters")
        hint = nearest(str(name), (*POLICIES, SYNCHRONOUS))
        raise ScenarioError(join(field, str(name)), f"unknown policy; {hint}")
    given = {} if params is None else params
    return read(POLICIES[name], given, join(field, name), defaults={"seed": seed})


def build_chain(spec: Sequence[Any] | None, *, seed: int = 0) -> Chain:
    """The chain that a scenario's ``policy`` list spells; None and the empty list are synchronous.

    Each item is a name or a mapping of one name to its parameters. seed: for policies that draw and
    are given none of their own.

    Raises ScenarioError (``policy.*``) for what `build_policy` rejects, for a list of another
    shape, and for policies that contradict each other: one listed twice (only pods may be), two
    that each decide what is launched and when the step ends, sagc after tail_batching.
    """
    if spec is None:
        return chain()
    if isinstance(spec, str | Mapping) or not isinstance(spec, Sequence):
        raise ScenarioError(
            _FIELD,
            f"must be a list such as [{{april: {{over_sampling: 2}}}}, sagc], got {short(spec)}",
        )
    items = [_item(item, position) for position, item in enumerate(spec)]
    return _build(items, seed)


def parse_policy(text: str, *, seed: int = 0) -> Chain:
    """The chain spelt as ``april(over_sampling=2)+pods(keep=4, rule=max_reward)``.

    ``+`` composes from left to right; a value is a number, true, false, none, a word, or a list.
    ``sync`` is the empty chain. seed: as in `build_chain`.

    Raises ScenarioError (``policy.*``) for text of another form and for what `build_chain` rejects.
    """
    example = "write name(parameter=value)+name, such as april(over_sampling=2)+pods(keep=4)"
    if not isinstance(text, str) or not text.strip() or len(text) > _MAX_SPELLING:
        raise ScenarioError(_FIELD, f"{str(text)[:80]!r} names no policy; {example}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python's, about odd literals
            tree = ast.parse(text.strip(), mode="eval").body
        items: list[tuple[str, dict[str, Any]]] = []
        while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
            items.append(_term(tree.right))
            tree = tree.left
        items.append(_term(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ScenarioError(_FIELD, f"cannot read {text[:80]!r}; {example}") from None
    return _build(items[::-1], seed)


def spell(policy: Policy) -> str:
    """The shortest text that `parse_policy` reads as this policy, with the parameters that differ
    from their defaults: a label for tables and figures. Raises ValueError for a policy that is not
    among `POLICIES`."""
    if isinstance(policy, Chain):
        return "+".join(spell(member) for member in policy.policies) or SYNCHRONOUS
    if type(policy) not in _NAMES:
        raise ValueError(f"{policy!r} is not among the named policies")
    given = [
        f"{option.key}={_spell_value(getattr(policy, option.key))}"
        for option in declared(type(policy))
        if getattr(policy, option.key) != option.default
    ]
    return _NAMES[type(policy)] + (f"({', '.join(given)})" if given else "")


def name_of(policy: Policy) -> str:
    """The name of a single policy. Raises KeyError for one that is not among `POLICIES`."""
    return _NAMES[type(policy)]


def label(policy: Policy) -> str:
    """A text for tables and figures: as it is spelt, or as a policy that is not among `POLICIES`
    shows itself."""
    if isinstance(policy, Chain):
        return "+".join(map(label, policy.policies)) or SYNCHRONOUS
    if type(policy) in _NAMES:
        return spell(policy)
    return repr(policy) if is_dataclass(policy) else type(policy).__name__


def check_policy(policy: Policy, plan: StepPlan) -> None:
    """Checks the plan that ``policy`` makes of ``plan`` for every group size it may ever choose, so
    that a contradiction shows before the run and not in the middle of it. Raises ScenarioError."""
    first = policy.plan(plan, policy.init())
    first.check()
    for size in sorted(policy.group_sizes(frozenset({plan.batch.group_size}))):
        batch: Batch = first.batch.with_group_size(size)
        StepPlan(batch=batch, launch=first.launch, select=first.select).check()


def _item(item: Any, position: int) -> tuple[str, Mapping[str, Any] | None]:
    """(name, parameters) of one entry of a scenario's list."""
    if isinstance(item, str):
        return item, None
    if isinstance(item, Mapping) and len(item) == 1:
        [(name, params)] = item.items()
        return name, params
    raise ScenarioError(
        f"{_FIELD}[{position}]",
        f"must be a policy's name, or one name with its parameters, got {short(item)}",
    )


def _build(items: Sequence[tuple[str, Mapping[str, Any] | None]], seed: int) -> Chain:
    members = [
        build_policy(name, params, seed=seed)
        for name, params in items
        if name != SYNCHRONOUS or params
    ]
    _check_together([name_of(member) for member in members])
    return chain(*members)


def _check_together(names: Sequence[str]) -> None:
    """Raises ScenarioError for policies of which one would silently overrule another."""
    for position, name in enumerate(names):
        if name != "pods" and name in names[:position]:
            raise ScenarioError(f"{_FIELD}.{name}", "is listed twice; keep one of them")
    launchers = [name for name in names if name in _LAUNCHERS]
    if len(launchers) > 1:
        raise ScenarioError(
            f"{_FIELD}.{launchers[1]}",
            f"contradicts {launchers[0]}: each decides what is launched and when the step ends; "
            "keep one of them",
        )
    if "fully_async" in names and "one_step_off" in names:
        raise ScenarioError(
            f"{_FIELD}.one_step_off",
            "contradicts fully_async, which bounds the staleness itself; keep one of them",
        )
    if "tail_batching" in names and "sagc" in names[names.index("tail_batching") :]:
        raise ScenarioError(
            f"{_FIELD}.tail_batching",
            "must come after sagc, which sets how many queued prompts make a long round",
        )


def _term(tree: ast.expr) -> tuple[str, dict[str, Any]]:
    """(name, parameters) of one term of a spelling; ValueError if it has another form."""
    if isinstance(tree, ast.Name):
        return tree.id, {}
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
        raise ValueError("not a term")
    params: dict[str, Any] = {}
    for keyword in tree.keywords:
        if keyword.arg is None or keyword.arg in params:
            raise ValueError("not a parameter, or one given twice")
        params[keyword.arg] = _value(keyword.value)
    return tree.func.id, params


def _value(tree: ast.expr) -> Any:
    """A literal, where a bare word stands for itself."""
    if isinstance(tree, ast.Name):
        words = {"true": True, "false": False, "none": None, "null": None}
        return words.get(tree.id, tree.id)
    return ast.literal_eval(tree)


def _spell_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_spell_value, value))}]"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


__all__ = [
    "APRIL",
    "PODS",
    "POLICIES",
    "SAGC",
    "DynamicSampling",
    "FullyAsync",
    "OneStepOff",
    "PartialRollout",
    "PrefixReuse",
    "TailBatching",
    "build_chain",
    "build_policy",
    "check_policy",
    "label",
    "name_of",
    "parse_policy",
    "spell",
]
