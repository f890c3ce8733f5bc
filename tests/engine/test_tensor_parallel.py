"""A replica over two devices, here two processes on CPU cores: it samples what one device does,
takes new weights in every worker, and its workers end with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from rollcast.engine.vllm.start import ReplicaOptions
from tests.engine.conftest import build_tiny

if TYPE_CHECKING:
    from rollcast.engine.vllm.replica import VllmReplica

SEQUENCES = [[5, 9, 33, 60, 2, 7], [44, 3, 8, 90, 11, 12, 13]]


_workers: set[int] = set()


@pytest.fixture(scope="module")
def wide(make_replica: Callable[..., VllmReplica]) -> VllmReplica:
    before = children()
    replica = make_replica(tensor_parallel=2, max_batched_tokens=32)
    _workers.update(children() - before)
    return replica


def responses(replica: VllmReplica, seed: int) -> dict[str, tuple[int, ...]]:
    """Of prompts longer than what one iteration prefills."""
    for index in range(6):
        prompt = [5 + (7 * index + place) % 80 for place in range(20)]
        replica.submit(f"{seed}/{index}", prompt, max_new_tokens=16, seed=seed + index)
    found = []
    while replica.unfinished:
        found += replica.step()
    return {response.request_id: response.token_ids for response in found}


def children() -> set[int]:
    """Worker processes of this one."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdigit() else ""
        except OSError:
            continue
        if stat and int(stat.rpartition(")")[2].split()[1]) == os.getpid():
            found.add(int(entry.name))
    return found


def test_it_samples_what_one_device_does(wide: VllmReplica, replica: VllmReplica) -> None:
    ours, theirs = wide.log_probs(SEQUENCES), replica.log_probs(SEQUENCES)
    for row, other in zip(ours, theirs, strict=True):
        assert row == pytest.approx(other, abs=1e-4)
    assert responses(wide, 3) == responses(replica, 3)


def test_new_weights_reach_every_worker(
    wide: VllmReplica, replica: VllmReplica, tiny_model: Any
) -> None:
    before, other = wide.log_probs(SEQUENCES), build_tiny(1)
    for one in (wide, replica):
        one.load_weights(other.state_dict())
    ours, theirs = wide.log_probs(SEQUENCES), replica.log_probs(SEQUENCES)
    for row, old, expected in zip(ours, before, theirs, strict=True):
        assert row == pytest.approx(expected, abs=1e-4)
        assert row != pytest.approx(old, abs=1e-2)
    wide.load_weights(tiny_model.state_dict())


def test_its_workers_end_with_it(wide: VllmReplica) -> None:
    assert len(_workers) >= 2
    wide.shutdown()
    deadline = time.monotonic() + 60
    while _workers & children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _workers & children()


def test_an_engine_that_sleeps_goes_on_after_it(replica: VllmReplica) -> None:
    """On a CPU there is no memory to give up, and the calls are the same."""
    before = responses(replica, 5)
    replica.sleep()
    replica.wake()
    assert responses(replica, 5) == before


def test_what_vllm_is_asked_for() -> None:
    alone = ReplicaOptions(dtype="bfloat16", memory_fraction=0.9).arguments("m", on_cpu=False)
    assert not {"tensor_parallel_size", "enable_sleep_mode"} & alone.keys()
    assert (alone["dtype"], alone["gpu_memory_utilization"]) == ("bfloat16", 0.9)
    assert not alone["enforce_eager"]
    wide = ReplicaOptions(tensor_parallel=4, sleeps=True).arguments("m", on_cpu=False)
    # Its workers are processes of the actor's, which has all of its GPUs: one machine's.
    assert wide["tensor_parallel_size"] == 4
    assert wide["distributed_executor_backend"] == "mp"
    assert wide["enable_sleep_mode"] is True
