"""Modules that a file names are imported, which runs their code, only where the user trusts the
file; those named on the command line or in Python always are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies.outside import is_module
from rollcast.simulator.policies.registry import kind_of

Trust = bool | Callable[[Sequence[str]], bool]
"""Whether the modules that a file names may be imported, or what asks the user about them."""

_REFERENCE = re.compile(r"([^\W\d][\w.]*):([^\W\d][\w.]*)")


def require_trust(data: Mapping[str, Any], trust: Trust, name: str, field: str = "policy") -> None:
    """Raises ScenarioError (``field``) where a scenario file names modules and ``trust`` does not
    allow them. name: of the file."""
    named = named_modules(data)
    if not named or (trust if isinstance(trust, bool) else trust(named)):
        return
    raise ScenarioError(
        field,
        f"{name} names {', '.join(named)}, whose code would run; add --trust-modules (in Python "
        "trust_modules=True) if you trust it",
    )


def named_modules(data: Mapping[str, Any]) -> list[str]:
    """The classes, ``module:Class``, that a scenario's policies and plan name, in order."""
    references = [*_references(data.get("policy")), *_references(data.get("plan"))]
    return list(dict.fromkeys(references))


def kept(data: Mapping[str, Any], modules: Path | None) -> dict[str, Any]:
    """A scenario as kept with its results: with the folder of its modules, if it names any."""
    if modules is None or not named_modules(data):
        return dict(data)
    return {**data, "modules": str(modules.resolve())}


def kept_modules(data: Mapping[str, Any]) -> Path | None:
    """The folder that `kept` notes; None where there is none."""
    folder = data.get("modules")
    return Path(folder) if isinstance(folder, str) else None


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        for match in _REFERENCE.finditer(value):
            module, rest = match.groups()
            label = "." not in module and kind_of(rest) is not None and not is_module(module)
            if not label:
                yield match.group()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _references(key)
            yield from _references(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _references(item)
