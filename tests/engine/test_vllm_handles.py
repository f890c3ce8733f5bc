"""Weights that a replica takes by vLLM's CUDA IPC transfer, bucket by bucket. Both ends are vLLM's
own, beside a real replica on a CPU; only CUDA's calls are replaced: a handle names a tensor of this
process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

import torch
import vllm.distributed.weight_transfer.packed_tensor as packed
from test_vllm_wire import SEQUENCES, meanwhile
from torch.multiprocessing import reductions
from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

from rollcast.engine.errors import EngineError
from rollcast.engine.trainer.adapters import published
from rollcast.engine.trainer.shards import Gathered
from rollcast.engine.vllm.handles import ByVllmHandles
from tests.engine.conftest import build_tiny

if TYPE_CHECKING:
    from rollcast.engine.vllm.replica import VllmReplica


@pytest.fixture(autouse=True)
def own_rotary_embeddings() -> Iterator[None]:
    """Engines of one process share vLLM's rotary embeddings, which a load that is broken off leaves
    without data: no other test's engine gets these."""
    yield
    _ROPE_DICT.clear()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> dict[int, torch.Tensor]:
    """What handles name: the buckets of each transfer."""
    buckets: dict[int, torch.Tensor] = {}
    empty = torch.empty

    def export(tensor: torch.Tensor) -> tuple[None, tuple[Any, ...]]:
        buckets[len(buckets)] = tensor
        # As torch's: the seventh is the device, which the reader puts its own in place of.
        return None, (len(buckets) - 1, tensor.shape, 1, 0, None, tensor.dtype, 0)

    def on_cpu(*shape: Any, device: Any = None, **options: Any) -> torch.Tensor:
        return empty(*shape, device="cpu" if device == "cuda" else device, **options)

    stream = SimpleNamespace(synchronize=lambda: None)
    uuid = SimpleNamespace(uuid="GPU-of-both")
    monkeypatch.setattr(torch, "empty", on_cpu)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: uuid)
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(packed, "reduce_tensor", export)
    monkeypatch.setattr(reductions, "rebuild_cuda_tensor", lambda number, *_: buckets[number])
    return buckets


def test_a_replica_loads_buckets_by_their_handles(
    make_replica: Callable[..., VllmReplica],
    replica: VllmReplica,
    exported: dict[int, torch.Tensor],
) -> None:
    """Again and again, with buckets of any size that holds the largest tensor."""
    by_handles = make_replica(transfer="ipc")
    channel = ByVllmHandles()
    place = channel.meet(3, workers=1)
    meanwhile(lambda: channel.join(3), lambda: by_handles.connect(place))
    for version, size in enumerate((1, 70_000, None), 1):
        model = build_tiny(version)
        tensors = published(model)
        channel.bucket_bytes = size or 1 << 24
        channel.change()
        told = channel.pack(Gathered(tensors, torch.float32))
        assert told.names == tuple(tensors)
        meanwhile(
            lambda: channel.send([3], told),  # noqa: B023
            lambda: by_handles.load_weights(told, version),  # noqa: B023
        )
        largest = max(tensor.numel() * 4 for tensor in model.state_dict().values())
        assert exported[len(exported) - 1].numel() == max(channel.bucket_bytes, largest)
        assert len(exported) == version  # one bucket a transfer, filled as often as it takes
        replica.load_weights(model.state_dict())
        assert by_handles.version == version
        for row, other in zip(
            by_handles.log_probs(SEQUENCES), replica.log_probs(SEQUENCES), strict=True
        ):
            assert row == pytest.approx(other, abs=1e-5)
    channel.change()
    with pytest.raises(EngineError, match="add --resume"):
        channel.send([3], told)
    channel.close()  # as where the trainer is lost
    with pytest.raises(EngineError, match=r"lost in the middle of its weights"):
        by_handles.load_weights(told, 4)
