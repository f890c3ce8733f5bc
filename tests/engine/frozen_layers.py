"""What FSDP1 keeps of checkpointed layers while their backward runs, on a CPU."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as Sharded
from torch.distributed.fsdp import _init_utils as sharding
from torch.distributed.fsdp import fully_sharded_data_parallel as sharded
from torch.distributed.fsdp._common_utils import _FSDPDeviceHandle
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

LAYERS, WIDTH, TOKENS = 8, 32, 2048


class Layer(nn.Module):
    """A matrix beside an adapter that is a unit of its own, as peft's wrapping makes it."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False)
        self.base.weight.requires_grad_(not frozen)
        adapter = nn.Sequential(nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False))
        self.adapter = Sharded(adapter, device_id=torch.device("cpu"))

    def forward(self, x: torch.Tensor) -> Any:
        """With a residual."""
        return x + self.base(torch.tanh(x)) + self.adapter(x)


class Layers(nn.Module):
    """Of which each is checkpointed."""

    def __init__(self, frozen: bool, reentrant: bool) -> None:
        super().__init__()
        made = (Sharded(Layer(frozen), device_id=torch.device("cpu")) for _ in range(LAYERS))
        self.layers, self.reentrant = nn.ModuleList(made), reentrant

    def forward(self, x: torch.Tensor) -> Any:
        """One after the other."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def on_cpu(state: Any, *_: Any) -> Any:
    """In the place of FSDP1's search for an accelerator."""
    state._device_handle = _FSDPDeviceHandle(torch.device("cpu"), torch.cpu)
    return state


def peak_inputs(frozen: bool, reentrant: bool) -> float:
    """Peak of a second update on one of two ranks, in inputs of a layer."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    for module in (sharding, sharded):
        module._init_device_handle = on_cpu  # type: ignore[attr-defined]
    model = Sharded(Layers(frozen, reentrant), device_id=torch.device("cpu"))
    inputs, held, most = torch.randn(TOKENS, WIDTH, requires_grad=True), 0, 0
    model(inputs).square().mean().backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        model(inputs).square().mean().backward()
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most / (4 * TOKENS * WIDTH)
