"""Our own packages are found beside this one, whatever lies on PYTHONPATH or in the working
directory: a folder ``engine`` or ``simulator`` is common in repositories that train with RL."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("simulator", "engine", "calibration")


def own(*names: str) -> None:
    """Sees to it that these of our `PACKAGES` are the ones that a later ``import`` gives.

    ``sys.path`` stays as it is, and so do all other imports. Raises ImportError where another
    module of that name has been imported before, or ours is missing.
    """
    for name in names:
        if name not in sys.modules:
            _load(name)
            continue
        found = getattr(sys.modules[name], "__file__", None)
        if found is None or Path(found).resolve().parents[1] != _ROOT:
            raise ImportError(
                f"rollcast needs its own package {name}, but {found or 'a folder of that name'} "
                "was imported in its place; import rollcast first, or rename the other"
            )


def _load(name: str) -> None:
    spec = PathFinder.find_spec(name, [str(_ROOT)])
    if spec is None or spec.loader is None:
        raise ImportError(f"rollcast's own package {name} is missing from {_ROOT}")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
