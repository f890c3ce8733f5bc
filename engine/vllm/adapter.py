"""vLLM as `engine.engines` asks for an engine."""

from __future__ import annotations

from rollcast.engine.actors.weights import Channel
from rollcast.engine.edges import Engine
from rollcast.engine.engines import EngineStart
from rollcast.engine.vllm import environment
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.sections import ClusterSection, EngineSection

CPU_BLOCK_TOKENS = 32


HUB_NAMES = True


def prepare(*, local_files: bool = True) -> None:
    """See `engine.engines.Adapter`."""
    environment.prepare(local_files=local_files)


def runs_on(kind: str) -> bool:
    """The devices that vLLM was built for."""
    return environment.vllm_version()[1] == (kind == "cpu")


def check(section: EngineSection, cluster: ClusterSection) -> None:
    """Raises ScenarioError for what vLLM does not take."""
    if runs_on("cpu") and section.block_tokens % CPU_BLOCK_TOKENS:
        raise ScenarioError(
            "engine.block_tokens",
            f"is {section.block_tokens}; vLLM on a CPU needs a multiple of {CPU_BLOCK_TOKENS}",
        )


def start(asked: EngineStart) -> Engine:
    """A replica."""
    from rollcast.engine.vllm.replica import VllmReplica
    from rollcast.engine.vllm.start import ReplicaOptions

    section = asked.section
    options = ReplicaOptions.of(
        asked,
        seed=asked.seed,
        tensor_parallel=asked.width,
        sleeps=section.sleep,
        transfer=None if section.weights_by == "store" else section.weights_by,
        async_scheduling=section.async_scheduling,
    )
    return VllmReplica(asked.model, options)


def wire(by: str) -> Channel:
    """vLLM's own weight transfer."""
    from rollcast.engine.vllm.handles import ByVllmHandles
    from rollcast.engine.vllm.wire import ByVllm

    return ByVllmHandles() if by == "ipc" else ByVllm()
