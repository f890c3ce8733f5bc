"""The engines of a real run, by the scenario's ``engine.name``. Another one is a folder beside
`engine.vllm`, with a module that has an `Adapter`'s functions, and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Self, cast

from rollcast.engine.actors.weights import Channel
from rollcast.engine.edges import Engine, Sampling
from rollcast.engine.hub import folder_of
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.sections import ClusterSection, EngineSection

ENGINES = {"vllm": "rollcast.engine.vllm.adapter", "transformers": "rollcast.engine.hf.adapter"}
"""Modules by name."""


@dataclass(frozen=True)
class EngineStart:
    """Starts an engine, in whatever process. model: its folder, or its name on the hub.
    memory_share: of each GPU, for the engine. width: devices that the model is spread over. shares:
    whether the trainer is in the same process, so that its weights need no copy."""

    model: Path | str
    section: EngineSection
    sampling: Sampling
    seed: int
    memory_share: float
    width: int = 1
    shares: bool = False

    def __call__(self) -> Engine:
        """The engine. Raises EngineError where it cannot start."""
        asked = replace(self, model=folder_of(self.model))
        return adapter(self.section.name).start(asked)


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """What every engine is started with.

    max_seqs, max_batched_tokens: rollouts and tokens in one iteration. kv_tokens: KV pool, in
    tokens, rounded down to whole blocks; None: what ``memory_fraction`` of the device has room for.
    block_tokens: of a KV block. max_model_len: longest prompt and response; None: the model's
    context, or the KV pool if that is smaller. dtype: ``float32``, ``bfloat16``, ...
    memory_fraction: share of the GPU's memory that the engine may take, weights included. device:
    ``cuda:1`` for that GPU.
    """

    max_seqs: int = 64
    max_batched_tokens: int = 2048
    kv_tokens: int | None = None
    block_tokens: int = 32
    prefix_caching: bool = True
    max_model_len: int | None = None
    dtype: str = "float32"
    device: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    memory_fraction: float = 0.3

    @classmethod
    def of(cls, asked: EngineStart, **more: Any) -> Self:
        """As a scenario asks. more: options of this engine alone."""
        names = (
            *("max_seqs", "max_batched_tokens", "kv_tokens", "block_tokens", "prefix_caching"),
            *("max_model_len", "dtype", "device"),
        )
        same = {name: getattr(asked.section, name) for name in names}
        return cls(sampling=asked.sampling, memory_fraction=asked.memory_share, **same, **more)


class Adapter(Protocol):
    """What a real run needs of an engine's folder. HUB_NAMES: whether it loads weights as they are
    named in files on the hub, and not as transformers has them in memory."""

    HUB_NAMES: bool

    def prepare(self, *, local_files: bool = True) -> None:
        """Sets environment variables, before anything that reads them is imported. local_files:
        keeps Hugging Face offline. Raises EngineError where the engine, or a supported version of
        it, is not installed."""
        ...

    def runs_on(self, kind: str) -> bool:
        """Whether the installed engine computes on devices of that kind, ``cpu`` or ``cuda``.
        Raises EngineError as `prepare`."""
        ...

    def check(self, section: EngineSection, cluster: ClusterSection) -> None:
        """Raises ScenarioError for what this engine does not support."""
        ...

    def start(self, asked: EngineStart) -> Engine:
        """The engine. Raises EngineError where it cannot start."""
        ...

    def wire(self, by: str) -> Channel:
        """How weights reach it from GPU to GPU. by: ``engine.weights_by``."""
        ...


def adapter(name: str) -> Adapter:
    """The engine's adapter. Raises ScenarioError (``engine.name``) for an unknown name."""
    if name not in ENGINES:
        known = ", ".join(ENGINES)
        raise ScenarioError("engine.name", f"{name!r} is no engine of a real run; known: {known}")
    return cast(Adapter, import_module(ENGINES[name]))


def prepare_for(scenario: Mapping[str, Any], *, local_files: bool = True) -> None:
    """`Adapter.prepare` of the engine that a scenario, not checked yet, asks for. Raises
    EngineError, and ScenarioError for an unknown name."""
    section = scenario.get("engine")
    name = section.get("name") if isinstance(section, Mapping) else None
    adapter(EngineSection().name if name is None else str(name)).prepare(local_files=local_files)
