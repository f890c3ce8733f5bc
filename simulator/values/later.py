"""Classes imported at first use, to keep short commands fast."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any, Union


class Later:
    """Stands for a class in an annotation of options, and makes objects of it. The class itself is
    imported for the type checker alone."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    @cached_property
    def kind(self) -> type:
        """The class. Raises ImportError or AttributeError where there is none."""
        kind: type = getattr(import_module(self._module), self._name)
        return kind

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """An object of the class."""
        return self.kind(*arguments, **options)

    def __or__(self, other: Any) -> Any:
        """As a class in an annotation."""
        return Union[self, other]  # noqa: UP007

    def __ror__(self, other: Any) -> Any:
        """As a class in an annotation."""
        return Union[other, self]  # noqa: UP007
