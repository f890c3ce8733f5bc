"""What a scenario names as ``package.module:name``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollcast.engine.errors import sentence
from rollcast.engine.time_limit import time_limit
from rollcast.simulator.errors import ScenarioError

IMPORT_LIMIT_S = 300.0
"""For the import of a module: libraries on a slow disk take minutes, and not more."""


def load_named(
    path: str, field: str, methods: Sequence[str] = (), folder: Path | None = None
) -> Any:
    """The function that ``package.module:function`` names, or with ``methods`` the class that has
    them; the working folder is importable, and after all else ``folder``, which stays on the path
    for what the module imports later.

    Raises ScenarioError(field, ...) when the path is not of that form, when the module cannot be
    imported within `IMPORT_LIMIT_S`, or when nothing of that kind is there.
    """
    kind = "Class" if methods else "function"
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise ScenarioError(field, f"{path!r} is not of the form package.module:{kind}.")
    added = os.getcwd() not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, os.getcwd())
    if folder is not None and str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))
    try:
        with time_limit(IMPORT_LIMIT_S, f"not done after {IMPORT_LIMIT_S:g} s"):
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        message = f"module {module_name} cannot be imported ({sentence(error)})."
        raise ScenarioError(field, message) from error
    finally:
        if added:
            sys.path.remove(os.getcwd())
    value: Any = getattr(module, name, None)
    if not callable(value):
        raise ScenarioError(field, f"module {module_name} has no {kind.lower()} {name}.")
    for method in methods if isinstance(value, type) else ():
        if not callable(getattr(value, method, None)):
            raise ScenarioError(
                field, f"{path} has no method {method}; it needs {', '.join(methods)}."
            )
    return value
