"""Stand-ins for packages that a control plane imports but does not need to schedule: torch, ray and
the like. Any name of them is there; whatever is called answers with another stand-in."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VERSION = "99.0.0"
OFTEN = (
    *("torch", "ray", "tqdm", "sympy", "transformers", "datasets", "tensordict", "omegaconf"),
    *("hydra", "PIL", "wandb", "loguru", "jaxtyping", "peft", "accelerate", "psutil", "orjson"),
    *("latex2sympy2_extended", "pylatexenc", "torchdata", "flask", "werkzeug", "msgspec"),
    *("colorlog", "lark", "numba", "einops", "aiofiles", "cloudpathlib", "pyarrow"),
    *(
        "tenacity",
        "torchtitan",
        "veomni",
        "nemo_automodel",
        "huggingface_hub",
        "megatron",
        "regex",
        "httpx",
        "starlette",
        "fastapi",
        "uvicorn",
        "dotenv",
        "openai",
        "requests",
        "pydantic",
        "cachetools",
        "pebble",
        "codetiming",
    ),
)
"""What several of them import; stands in wherever it is not installed."""


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class _AnyClass(type):
    """The class side: attributes, subscripts, unions and comparisons."""

    def __getattr__(cls, name: str) -> Any:
        if _dunder(name):
            raise AttributeError(name)
        return Anything

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __or__(cls, _: Any) -> Any:
        return cls

    def __ror__(cls, _: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __add__(cls, other: Any) -> Any:
        return other

    __radd__ = __add__

    def __lt__(cls, _: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__


class Anything(metaclass=_AnyClass):
    """Has every attribute, takes every call, and hands functions through as a decorator."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __init_subclass__(cls, **_: Any) -> None: ...

    def __call__(self, *args: Any, **options: Any) -> Any:
        return _handed_through(args, options) or Anything()

    def __getattr__(self, name: str) -> Any:
        if _dunder(name):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, _: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __int__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> bool:
        return False

    def __lt__(self, _: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __or__(self, _: Any) -> Any:
        return self

    __ror__ = __add__ = __radd__ = __sub__ = __mul__ = __or__

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


def _handed_through(args: Sequence[Any], options: dict[str, Any]) -> Any:
    """What a bare decorator returns: its function."""
    return args[0] if len(args) == 1 and not options and callable(args[0]) else None


def _decorator(*args: Any, **options: Any) -> Any:
    return _handed_through(args, options) or (lambda function: function)


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if _dunder(name):
            raise AttributeError(name)
        if name in ("remote", "no_grad", "inference_mode"):
            return _decorator
        return sys.modules.get(f"{self.__name__}.{name}", Anything)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = tuple(roots)

    def covers(self, name: str) -> bool:
        return any(name == root or name.startswith(f"{root}.") for root in self._roots)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not self.covers(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _Module(spec.name)
        module.__dict__.update(__version__=VERSION, __file__="<stand-in>", __path__=[])
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


@contextmanager
def code_of(paths: Sequence[Path], absent: Sequence[str]) -> Iterator[None]:
    """Has the code under ``paths`` imported, with stand-ins for the packages ``absent``."""
    missing = [name for name in OFTEN if importlib.util.find_spec(name) is None]
    finder, version = _Finder([*absent, *missing]), importlib.metadata.version
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if finder.covers(name)}

    def stand_in_version(name: str) -> str:
        return VERSION if finder.covers(name.replace("-", "_").lower()) else version(name)

    added = [str(path) for path in paths]
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    importlib.metadata.version = stand_in_version
    sys.meta_path.insert(0, finder)
    sys.path[:0] = added
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for path in added:
            sys.path.remove(path)
        importlib.metadata.version = version
        sys.dont_write_bytecode = bytecode
        for name in [name for name in sys.modules if finder.covers(name)]:
            del sys.modules[name]
        sys.modules.update(hidden)
