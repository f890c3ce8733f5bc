"""transformers as `engine.engines` asks for an engine."""

from __future__ import annotations

from rollcast.engine.actors.weights import Channel
from rollcast.engine.edges import Engine
from rollcast.engine.engines import EngineStart
from rollcast.engine.hf import environment
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.sections import ClusterSection, EngineSection

HUB_NAMES = False


def prepare(*, local_files: bool = True) -> None:
    """See `engine.engines.Adapter`."""
    environment.prepare(local_files=local_files)


def runs_on(kind: str) -> bool:
    """Any device that torch has."""
    environment.transformers_version()
    return True


def check(section: EngineSection, cluster: ClusterSection) -> None:
    """Raises ScenarioError for what this engine lacks."""
    lacks = None
    if cluster.tensor_parallel > 1:
        lacks = "cluster.tensor_parallel", f"is {cluster.tensor_parallel}", "1"
    elif section.sleep:
        lacks = "engine.sleep", "is true", "false"
    elif section.weights_by != "store":
        lacks = "engine.weights_by", f"is {section.weights_by}", "store"
    elif section.async_scheduling:
        lacks = "engine.async_scheduling", "is true", "false"
    elif section.block_tokens < 4:
        lacks = "engine.block_tokens", f"is {section.block_tokens}", "4 or more"
    if lacks is not None:
        field, is_now, wanted = lacks
        message = f"{is_now}, which engine.name: transformers does not support; make it {wanted}"
        raise ScenarioError(field, message)


def start(asked: EngineStart) -> Engine:
    """A replica."""
    environment.prepare(local_files=not isinstance(asked.model, str))
    from rollcast.engine.hf.replica import HfReplica
    from rollcast.engine.hf.start import HfOptions

    return HfReplica(asked.model, HfOptions.of(asked, shares=asked.shares))


def wire(by: str) -> Channel:
    """None: `check` refuses it."""
    raise NotImplementedError
