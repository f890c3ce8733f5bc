"""A training stack: its name, and what its folder says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcast.simulator import stacks as package
from rollcast.simulator.values.yaml_file import read_yaml

if TYPE_CHECKING:
    from rollcast.simulator.stacks.exporting import Export, Planned
    from rollcast.simulator.stacks.launch import Implied, Launch
    from rollcast.simulator.stacks.log_format import StackLog
    from rollcast.simulator.stacks.settings import Setting, Settings

LAUNCH_FILE = "launch.yaml"
_COSTS_FILE, _LOG_FILE = "costs.yaml", "log.yaml"


@dataclass(frozen=True, eq=False)
class Stack:
    """A training stack. name: of its folder. folder: where its files are."""

    name: str
    folder: Path

    @cached_property
    def launch(self) -> Launch:
        """Its launch settings, of ``launch.yaml``."""
        from rollcast.simulator.stacks.launch_file import load_launch

        return load_launch(self.folder / LAUNCH_FILE)

    @cached_property
    def implied(self) -> Implied | None:
        """By its ``launch.py``, if it has one, and then by the rules of its ``launch.yaml``."""
        from rollcast.simulator.stacks.implied import follow

        module, rules = self._module("launch"), self.launch.implies
        if module is None and not rules:
            return None

        def implied(settings: Settings) -> Iterable[Setting]:
            yield from module.implied(settings) if module else ()
            yield from follow(rules, settings)

        return implied

    @cached_property
    def costs(self) -> Mapping[str, Any]:
        """Figures with sources of ``costs.yaml``, for `simulator.costs.stacks`; empty if none."""
        path = self.folder / _COSTS_FILE
        content: Mapping[str, Any] = read_yaml(path) if path.is_file() else {}
        return content

    @cached_property
    def log(self) -> StackLog | None:
        """How its log is read: ``log.yaml`` and ``log.py``. None without a ``log.yaml``."""
        from rollcast.simulator.stacks.log_file import load_log

        path = self.folder / _LOG_FILE
        return load_log(path, self._module("log")) if path.is_file() else None

    @property
    def exports(self) -> bool:
        """Whether plans can be exported to it: it has an ``export.py``."""
        return (self.folder / "export.py").is_file()

    def export(self, plan: Planned) -> Export:
        """A plan by the stack's ``export.py``. Raises ScenarioError if it cannot carry it out."""
        export: Export = self._module("export").export(plan, self.launch)
        return export

    def _module(self, name: str) -> Any:
        """A module of its folder; None where there is none."""
        if not (self.folder / f"{name}.py").is_file():
            return None
        return import_module(f"{package.__name__}.{self.name}.{name}")


def all_stacks() -> Mapping[str, Stack]:
    """Every stack whose launch settings are known, by name, in alphabetical order."""
    return _in_folders(tuple(package.__path__), LAUNCH_FILE)


def priced() -> Mapping[str, Stack]:
    """Every stack that has a file of costs, by name, in alphabetical order."""
    return _in_folders(tuple(package.__path__), _COSTS_FILE)


def logged() -> list[str]:
    """The names of the stacks whose logs are read."""
    return [name for name, stack in all_stacks().items() if (stack.folder / _LOG_FILE).is_file()]


def exporters() -> Mapping[str, Stack]:
    """The stacks that a plan can be exported to."""
    return {name: stack for name, stack in all_stacks().items() if stack.exports}


@cache
def _in_folders(folders: tuple[str, ...], file: str) -> Mapping[str, Stack]:
    stacks = sorted(path.parent for folder in folders for path in Path(folder).glob(f"*/{file}"))
    return {folder.name: Stack(folder.name, folder) for folder in stacks}
