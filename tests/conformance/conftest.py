"""One real replica for all the laws; it starts when the first test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.arenas import (
    BUDGET,
    ENGINE,
    HAVE_VLLM,
    KV_TOKENS,
    MAX_SEQS,
    Arena,
    Build,
    real,
    simulated,
)

if TYPE_CHECKING:
    from rollcast.engine.vllm.replica import VllmReplica


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., VllmReplica]]:
    """Starts replicas of a tiny random model, each of its own options once."""
    if not HAVE_VLLM:
        pytest.skip("vLLM is not installed (engine-cpu.lock)")
    from rollcast.engine.vllm.replica import VllmReplica
    from rollcast.engine.vllm.start import ReplicaOptions
    from tests.engine.conftest import build_flat

    path = tmp_path_factory.mktemp("conformance-model")
    build_flat().save_pretrained(path)
    started: dict[str, VllmReplica] = {}

    def start(**options: Any) -> VllmReplica:
        if repr(options) not in started:
            usual = {"max_seqs": MAX_SEQS, "max_batched_tokens": BUDGET, "kv_tokens": KV_TOKENS}
            started[repr(options)] = VllmReplica(path, ReplicaOptions(**(usual | options)))
        return started[repr(options)]

    yield start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gc.collect", lambda *args: 0)  # else each of them searches the whole heap
        for replica in started.values():
            replica.shutdown()


@pytest.fixture
def build(request: pytest.FixtureRequest) -> Build:
    def make(kind: str, cap: int = 40) -> Arena:
        if kind == ENGINE:
            return real(request.getfixturevalue("replicas")(), cap)
        return simulated(kind, cap)

    return make
