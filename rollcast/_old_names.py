"""Old names of modules: ``simulator``, ``engine`` and ``calibration`` for the packages of rollcast,
and ``rollcast.simulator.policy`` and its neighbours for those of ``rollcast.simulator.core``.

For one version they still give the same modules, with a warning. A package of the user's that has
one of the short names comes first. Nothing of these names is installed: an import of an old name
works once ``rollcast`` has been imported, as it has been where the command loads a policy.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, cast

PACKAGES = ("simulator", "engine", "calibration")
CORE = ("plan", "policy", "rollout", "spans", "world")
_HERE = Path(__file__).parent


class OldNames:
    """Finds a module by its old name and gives the one that has the new name.

    A finder and a loader without their base classes, whose module brings tempfile and zipfile.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, or None where the name is not an old one or is the user's own."""
        if name.startswith("rollcast."):
            return ModuleSpec(name, cast(Any, self)) if _new(name) != name else None
        package, _, below = name.partition(".")
        if package not in PACKAGES:
            return None
        if below:
            ours = getattr(sys.modules.get(package), "__name__", "") == f"rollcast.{package}"
        else:
            ours = _is_ours(package)
        return ModuleSpec(name, cast(Any, self)) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module of the new name."""
        new = _new(spec.name)
        if spec.name in PACKAGES or spec.name.startswith("rollcast."):
            message = f"{spec.name} is called {new} now; its old name goes in 0.3"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        module = import_module(new)
        spec.loader_state = module.__spec__  # the import system is about to put the old one there
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed under its new name: only its spec is put back."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def _new(name: str) -> str:
    """The name that a module has now."""
    new = name if name.startswith("rollcast.") else f"rollcast.{name}"
    before, _, last = new.rpartition(".")
    return f"{before}.core.{last}" if before == "rollcast.simulator" and last in CORE else new


def _is_ours(package: str) -> bool:
    """Whether nothing else has the name; in a checkout, our folder itself is on the path."""
    spec = PathFinder.find_spec(package)
    if spec is None or spec.origin is None:
        return True
    return (_HERE / package / "__init__.py").samefile(spec.origin)


def again(package: str) -> None:
    """The package is being imported as a second copy, by its old name: gives the first instead."""
    del sys.modules[package]
    import_module(package)


def serve() -> None:
    """Old names are found from here on."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNames())
