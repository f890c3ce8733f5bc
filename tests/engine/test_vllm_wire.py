"""Weights that a replica takes by vLLM's own weight transfer, from meeting the trainer to the last
tensor. NCCL needs GPUs: an engine of our own stands in for it under vLLM's interfaces, on a socket,
and everything else is as it is with NCCL."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
)
from vllm.distributed.weight_transfer.factory import (
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo

from rollcast.engine.vllm.wire import ByVllm
from tests.engine.conftest import build_tiny

if TYPE_CHECKING:
    from rollcast.engine.vllm.replica import VllmReplica

SEQUENCES = [[5, 9, 33, 60, 2, 7], [44, 3, 8, 90, 11, 12, 13]]


@dataclass
class SocketInit(WeightTransferInitInfo):
    host: str
    port: int
    size: int


class SocketWorker(WeightTransferEngine[SocketInit, NCCLWeightTransferUpdateInfo]):
    """The life cycle of vLLM's NCCL engine, tensor by tensor."""

    init_info_cls = SocketInit
    update_info_cls = NCCLWeightTransferUpdateInfo

    def init_transfer_engine(self, info: SocketInit) -> None:
        self.group = StatelessProcessGroup.create(
            info.host, info.port, self.parallel_config.rank + 1, info.size
        )

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def receive_weights(self, info: NCCLWeightTransferUpdateInfo) -> None:
        for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            tensor = self.group.broadcast_obj(None, src=0)
            assert (str(tensor.dtype), list(tensor.shape)) == (f"torch.{dtype}", shape)
            self.model.load_weights([(name, tensor)])

    def shutdown(self) -> None: ...


@dataclass
class SocketTrainerInit(TrainerInitInfo):
    backend: ClassVar[str] = "socket"
    host: str
    port: int
    size: int


class SocketTrainer(TrainerWeightTransferEngine[SocketTrainerInit]):
    init_info_cls = SocketTrainerInit

    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Any:
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        client.init_weight_transfer_engine({})
        engine.group = StatelessProcessGroup.create(
            init_info.host, init_info.port, 0, init_info.size
        )
        return engine

    def send_weights(self) -> None:
        names = [meta.name for meta in self.source.metadata()]
        self.client.start_weight_update()
        for expected, (name, tensor) in zip(names, self.source, strict=True):
            assert name == expected
            self.group.broadcast_obj(tensor, src=0)
        self.client.finish_weight_update()


class BySocket(ByVllm):
    def infos(self, host: str, port: int, size: int) -> tuple[Any, dict[str, Any]]:
        mine = SocketTrainerInit(host="127.0.0.1", port=port, size=size, rank=0)
        return mine, {"host": "127.0.0.1", "port": port, "size": size}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    WeightTransferEngineFactory.register_engine("socket", SocketWorker)
    WeightTransferTrainerFactory.register_engine("socket", SocketTrainer)
    yield
    del WeightTransferEngineFactory._registry["socket"]
    del WeightTransferTrainerFactory._registry["socket"]


@pytest.fixture(scope="module")
def wired(make_replica: Callable[..., VllmReplica], registered: None) -> VllmReplica:
    return make_replica(transfer="socket")


def meanwhile(call: Callable[[], Any], other: Callable[[], Any]) -> None:
    """Both at once, as trainer and replica do it."""
    failed: list[BaseException] = []

    def trainer() -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=trainer)
    thread.start()
    other()
    thread.join(60)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def test_weights_come_by_wire_again_and_again(
    wired: VllmReplica, replica: VllmReplica, tiny_model: Any
) -> None:
    wire = BySocket()
    place = wire.meet(0, workers=1)
    meanwhile(lambda: wire.join(0), lambda: wired.connect(place))
    for version, model in enumerate((build_tiny(1), tiny_model), 1):
        weights = wire.pack(model.state_dict())
        meanwhile(lambda: wire.send(0, weights), lambda: wired.load_weights(weights, version))  # noqa: B023
        replica.load_weights(model.state_dict())
        assert wired.version == version
        for row, other in zip(
            wired.log_probs(SEQUENCES), replica.log_probs(SEQUENCES), strict=True
        ):
            assert row == pytest.approx(other, abs=1e-5)


def test_a_new_trainer_is_met_again(wired: VllmReplica) -> None:
    other, wire = build_tiny(2), BySocket()
    before = wired.log_probs(SEQUENCES)
    place = wire.meet(0, workers=1)
    meanwhile(lambda: wire.join(0), lambda: wired.connect(place))
    weights = wire.pack(other.state_dict())
    meanwhile(lambda: wire.send(0, weights), lambda: wired.load_weights(weights))
    assert wired.log_probs(SEQUENCES)[0] != pytest.approx(before[0], abs=1e-2)


def test_vllms_buckets_carry_what_several_ranks_gathered(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Any
) -> None:
    """vLLM's packed producer and consumer, of its NCCL engines, over a queue in place of NCCL: bit
    for bit, and no more on its way at a time than a bucket and a tensor."""
    import torch
    import vllm.distributed.weight_transfer.packed_tensor as packed

    from rollcast.engine.trainer.adapters import published
    from rollcast.engine.trainer.shards import Gathered
    from rollcast.engine.vllm.wire import source_of

    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(packed, "_get_streams", lambda device, count: (stream,) * count)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    limit = 20_000
    wire = ByVllm()
    told = wire.pack(Gathered(published(tiny_model), torch.bfloat16))
    source = source_of(wire._tensors(told))
    buckets: queue.Queue[Any] = queue.Queue()
    sizes: list[int] = []

    class Group:
        def __init__(self, sends: bool) -> None:
            self.sends = sends

        def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
            if self.sends:
                sizes.append(tensor.numel() * tensor.element_size())
                buckets.put(tensor.clone())
            else:
                tensor.copy_(buckets.get(timeout=30))

    got: dict[str, Any] = {}
    given = [
        (name, (list(shape), getattr(torch, dtype)))
        for name, dtype, shape in zip(told.names, told.dtypes, told.shapes, strict=True)
    ]

    def receive() -> None:
        packed.packed_nccl_broadcast_consumer(
            iter(given),
            Group(False),
            0,
            lambda pairs: got.update({name: tensor.clone() for name, tensor in pairs}),
            buffer_size_bytes=limit,
            num_buffers=2,
            device="cpu",
        )

    def send() -> None:
        packed.packed_nccl_broadcast_producer(
            iter(source), Group(True), 0, lambda pair: pair[1], limit, 2
        )

    meanwhile(send, receive)
    truth = {name: tensor.bfloat16() for name, tensor in tiny_model.state_dict().items()}
    assert got.keys() == truth.keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in truth.items())
    largest = max(tensor.numel() * 2 for tensor in truth.values())
    assert len(sizes) > 3
    assert max(sizes) <= limit + largest
