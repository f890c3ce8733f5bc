"""The policies by name: every `Policy` with a ``NAME`` in this package, and those from outside."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType

from rollcast.simulator.core.policy import Policy
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import outside
from rollcast.simulator.values import nearest

SYNCHRONOUS = "sync"


@cache
def built_in() -> Mapping[str, type[Policy]]:
    """Every policy of this package by its name, in order, then by its other names."""
    kinds: dict[str, type[Policy]] = {}
    others: dict[str, type[Policy]] = {}
    for module in sorted(iter_modules(_folders()), key=lambda info: info.name):
        for kind in _defined(f"{__package__}.{module.name}"):
            for name, names in ((kind.NAME, kinds), *((also, others) for also in kind.ALIASES)):
                if name in kinds or name in others:
                    raise RuntimeError(f"two policies are called {name}")
                names[name] = kind
    return MappingProxyType({**kinds, **others})


def _folders() -> list[str]:
    return list(sys.modules[__package__].__path__)


def _defined(module: str) -> list[type[Policy]]:
    return [
        kind
        for kind in vars(import_module(module)).values()
        if isinstance(kind, type) and issubclass(kind, Policy)
        if kind.__module__ == module and vars(kind).get("NAME")
    ]


def kind_of(name: str) -> type[Policy] | None:
    """The policy of this package with this name; found in the module of that name first."""
    if name.isidentifier() and any(Path(at, f"{name}.py").is_file() for at in _folders()):
        for kind in _defined(f"{__package__}.{name}"):
            if name == kind.NAME:
                return kind
    return built_in().get(name)


def names() -> list[str]:
    """Every known name: this package's, then the entry points'."""
    return [*built_in(), *(name for name in outside.named() if name not in built_in())]


def find(name: str, where: str, folder: Path | None = None) -> type:
    """The class that a name stands for: one of this package's, an entry point's, ``module:Class``.

    where: the dotted key that errors start with. folder: the scenario's, where modules are looked
    for too. Raises ScenarioError for an unknown name, with the nearest ones, and for a class that
    cannot be imported or is no policy.
    """
    kind = kind_of(name)
    if kind is not None:
        return kind
    if outside.is_reference(name) or name in outside.named():
        return outside.load(name, where, folder)
    if name == SYNCHRONOUS:
        raise ScenarioError(where, "synchronous RL has no parameters")
    hint = nearest(name, (*names(), SYNCHRONOUS))
    if "." in name:
        hint = "a class of your own is module:Class"
    raise ScenarioError(where, f"unknown policy; {hint}")


def name_of(policy: Policy) -> str:
    """What a single policy is called; a class without a name of its own by that of its class."""
    if isinstance(policy, outside.Outside):
        return policy.called
    return type(policy).NAME or type(policy).__name__


def is_named(policy: Policy) -> bool:
    """Whether there is a name by which a spelling finds the policy's class again."""
    return isinstance(policy, outside.Outside) or kind_of(type(policy).NAME) is type(policy)
