"""What must hold before vLLM is imported: environment variables and versions.

vLLM reads its environment once, at import or at engine start, so `prepare` runs before either, and
again at every start to notice what came too late. Variables that the user has set stay, except
those that make step-by-step control impossible, which are an error. This module imports neither
vLLM nor torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata

from rollcast.engine.errors import EngineError

OLDEST_VLLM = (0, 32)
"""The oldest vLLM that the adapter was tested with."""

_ALWAYS: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler has to live in this process
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process that has threads may hang
    "VLLM_LOGGING_LEVEL": "CRITICAL",  # a failure is one sentence here, not a dump of its state
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_ON_CPU: Mapping[str, str] = {
    # Even in eager mode vLLM compiles one log-probability kernel, which needs a C++ compiler.
    "TORCHDYNAMO_DISABLE": "1",
    # A trainer shares the process: pinning its threads to vLLM's cores would serialise both.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # More OpenMP threads than idle cores slow small models tenfold: waiting threads spin.
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # two lines about memory binding at every start
}


def vllm_version() -> tuple[str, bool]:
    """The installed vLLM's version, and whether it is a CPU build. Raises EngineError when vLLM is
    missing or older than `OLDEST_VLLM`."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return _checked(version), name == "vllm-cpu" or "cpu" in version.partition("+")[2]
    raise EngineError(
        "vLLM is not installed: install the engine's requirements (vllm with a CUDA GPU, "
        "engine/engine-cpu.lock without one)."
    )


def _checked(version: str) -> str:
    numbers = version.partition("+")[0].split(".")
    try:
        release = tuple(int(part) for part in numbers[:2])
    except ValueError:  # a build from a source tree: the calls are checked one by one later
        return version
    if release < OLDEST_VLLM:
        oldest = ".".join(map(str, OLDEST_VLLM))
        raise EngineError(f"vLLM {version} is too old: the engine needs {oldest} or newer.")
    return version


def prepare(*, local_files: bool = True) -> bool:
    """Sets vLLM's environment variables in this process; returns whether vLLM is a CPU build.
    local_files: keeps Hugging Face offline. Raises EngineError when vLLM is missing, too old, or
    imported already with its engine in another process."""
    _, on_cpu = vllm_version()
    wanted = dict(_ALWAYS)
    if not local_files:
        del wanted["HF_HUB_OFFLINE"]
    if on_cpu:
        wanted.update(_ON_CPU)
    multiprocessing = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING")
    if multiprocessing not in (None, "0"):
        raise EngineError(
            "VLLM_ENABLE_V1_MULTIPROCESSING is set to "
            f"{multiprocessing!r}: the engine is driven step by step and needs 0."
        )
    if multiprocessing is None and "vllm" in sys.modules:
        raise EngineError(
            "vLLM was imported before rollcast.engine.vllm.environment.prepare(), which has to "
            "run first."
        )
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    return on_cpu


@contextmanager
def threads_kept() -> Iterator[None]:
    """Undoes vLLM's disabling of ``torch.set_num_threads`` on a CPU, which a trainer needs."""
    import torch

    set_num_threads = torch.set_num_threads
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
