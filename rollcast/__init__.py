"""rollcast from Python: load a scenario, simulate it, compare policies, plan capacity.

    from rollcast import compare, load

    scenario = load("scenario.yaml", "steps=5")
    results = compare([scenario.with_policy(name) for name in ("sync", "april", "april+sagc")])
    for name, result in results.items():
        print(name, result.summary["step_s"])

Nothing but names from the packages below, listed with their types in ``__init__.pyi`` and imported
when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from rollcast import _old_names

_STUB = Path(__file__).with_suffix(".pyi").read_text("utf-8")
_PLACES = {words[-1]: words[1] for words in map(str.split, _STUB.splitlines())}
"""The module that each name comes from, as the stub says: ``from PLACE import NAME as NAME``."""

__all__ = sorted(_PLACES)

_old_names.serve()


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _PLACES[name]
    if place == __name__:
        return import_module(f"{place}.{name}")
    value = getattr(import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
