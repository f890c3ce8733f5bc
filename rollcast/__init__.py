"""rollcast from Python: load a scenario, simulate it, compare policies, plan capacity.

    from rollcast import compare, load

    scenario = load("scenario.yaml", "steps=5")
    results = compare([scenario.with_policy(name) for name in ("sync", "april", "april+sagc")])
    for name, result in results.items():
        print(name, result.summary["step_s"])

Nothing but names from the packages beside this one, listed with their types in ``__init__.pyi``
and imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text("utf-8")
_PLACES = {words[-1]: words[1] for words in map(str.split, _STUB.splitlines())}
"""The module that each name comes from, as the stub says: ``from PLACE import NAME as NAME``."""

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rollcast._own import own

    own("simulator")
    place = _PLACES[name]
    if place == __name__:
        return import_module(f"{place}.{name}")
    found = getattr(import_module(place), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
