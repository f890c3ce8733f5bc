"""verl's plug-in (``VERL_USE_EXTERNAL_MODULES``): a platform "cpu" and a rollout "transformers".

verl ships platforms for accelerators only. Its FSDP workers run on a CPU with gloo once a platform
says so; Ray's resource "GPU" then counts workers (``ray.init(num_gpus=...)``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

ROLLOUT = "transformers"


_BESIDE: dict[str, Any] = {
    **dict.fromkeys(("memory_allocated", "memory_reserved"), lambda *_: 0),
    **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), lambda *_: 0),
    **dict.fromkeys(("empty_cache", "ipc_collect", "reset_peak_memory_stats"), lambda *_: None),
    "mem_get_info": lambda *_: (0, 0),
    "get_device_name": lambda *_: "cpu",
    "get_rng_state": torch.get_rng_state,
    "set_rng_state": torch.set_rng_state,
}
"""What verl asks of an accelerator's module and torch.cpu has not."""

for _name, _function in _BESIDE.items():
    if not hasattr(torch.cpu, _name):
        setattr(torch.cpu, _name, _function)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc,unused-ignore]
    """A CPU; what only accelerators have does nothing."""

    device_name = "cpu"
    vendor_name = "generic"
    device_module = torch.cpu

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        """A name: a number would be an accelerator's to ``Tensor.to``."""
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None: ...


def _one_backend() -> None:
    """verl's default names a backend of the CPU and one of the device, and torch refuses two."""
    from verl.utils import distributed

    begin = distributed.initialize_global_process_group_ray

    def initialize(timeout_second: int | None = None, backend: str | None = None) -> None:
        begin(timeout_second, backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize


def _replica() -> type:
    from benchmarks.in_verl.server import Replica

    return Replica


def _register() -> None:
    from verl.workers.rollout import base, replica

    replica.RolloutReplicaRegistry.register(ROLLOUT, _replica)
    base._ROLLOUT_REGISTRY[ROLLOUT, "async"] = "benchmarks.in_verl.server.Adapter"


_one_backend()  # before the workers' module takes the function by its name
_register()
