"""The engines of a real run, by the scenario's ``engine.name``. Another one is a folder beside
`engine.vllm`, with a module that has an `Adapter`'s functions, and a line here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from rollcast.engine.actors.weights import Channel
from rollcast.engine.edges import Engine, Sampling
from rollcast.engine.hub import folder_of
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.sections import EngineSection

ENGINES = {"vllm": "rollcast.engine.vllm.adapter"}
"""Modules by name."""


@dataclass(frozen=True)
class EngineStart:
    """Starts an engine, in whatever process. model: its folder, or its name on the hub.
    memory_share: of each GPU, for the engine. width: devices that the model is spread over."""

    model: Path | str
    section: EngineSection
    sampling: Sampling
    seed: int
    memory_share: float
    width: int = 1

    def __call__(self) -> Engine:
        """The engine. Raises EngineError where it cannot start."""
        asked = replace(self, model=folder_of(self.model))
        return adapter(self.section.name).start(asked)


class Adapter(Protocol):
    """What a real run needs of an engine's folder."""

    def on_cpu(self) -> bool:
        """Whether the installed engine computes on CPUs. Raises EngineError where none, or an
        unsupported one, is installed."""
        ...

    def check(self, section: EngineSection) -> None:
        """Raises ScenarioError for what this engine does not support."""
        ...

    def start(self, asked: EngineStart) -> Engine:
        """The engine. Raises EngineError where it cannot start."""
        ...

    def wire(self) -> Channel:
        """How weights reach it from GPU to GPU."""
        ...


def adapter(name: str) -> Adapter:
    """The engine's adapter. Raises ScenarioError (``engine.name``) for an unknown name."""
    if name not in ENGINES:
        known = ", ".join(ENGINES)
        raise ScenarioError("engine.name", f"{name!r} is no engine of a real run; known: {known}")
    return cast(Adapter, import_module(ENGINES[name]))
