"""vLLM's CPU worker with asynchronous scheduling, which vLLM itself switches off on a CPU.

The parts are there: the CPU's model runner is the GPU's, whose outputs with asynchronous scheduling
wait for a copy on another CUDA stream. On a CPU there is nothing to wait for. Imported by name in
vLLM's worker process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.cpu_worker import CPUWorker


class AheadCPUWorker(CPUWorker):  # type: ignore[misc]
    """Its model runner gives out tokens that are not on their way to the scheduler yet."""

    def init_device(self) -> None:
        """vLLM's, whose runner would ask for CUDA's events."""
        scheduling = self.vllm_config.scheduler_config
        scheduling.async_scheduling = False
        super().init_device()
        scheduling.async_scheduling = self.model_runner.use_async_scheduling = True
        gpu_model_runner.AsyncGPUModelRunnerOutput = _AtOnce


class _AtOnce(gpu_model_runner.AsyncGPUModelRunnerOutput):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["async_output_copy_stream"] = _Nothing()
        with _without_cuda():
            super().__init__(*args, **kwargs)


class _Nothing:
    """In place of a CUDA stream and of an event."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_stream(self, other: Any) -> None: ...

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@contextmanager
def _without_cuda() -> Iterator[None]:
    cuda, kept = torch.cuda, (torch.cuda.Event, torch.cuda.current_stream, torch.cuda.stream)
    cuda.Event, cuda.current_stream, cuda.stream = _Nothing, _Nothing, nullcontext
    try:
        yield
    finally:
        cuda.Event, cuda.current_stream, cuda.stream = kept
