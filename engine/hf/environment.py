"""What must hold before transformers is imported: environment variables and its version."""

from __future__ import annotations

import os
from importlib import metadata

from rollcast.engine.errors import EngineError

TESTED = (5, 19)
"""The minor version of transformers whose continuous batching is driven from within; the next ones
move its parts."""

_ALWAYS = {"TOKENIZERS_PARALLELISM": "false"}
_ON_CPU = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
# More OpenMP threads than idle cores slow small models tenfold: waiting threads spin.


def transformers_version() -> str:
    """The installed version. Raises EngineError where it or torch is missing, or is not tested."""
    found = {}
    for name in ("transformers", "torch", "psutil"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise EngineError(
                f"{name} is not installed, which engine.name: transformers needs: pip install "
                "'rollcast[hf]'."
            ) from None
    version = found["transformers"]
    numbers = version.split(".")
    if tuple(int(part) if part.isdigit() else 0 for part in numbers[:2]) != TESTED:
        tested = ".".join(map(str, TESTED))
        raise EngineError(
            f"engine.name: transformers drives the inside of transformers {tested}, and "
            f"{version} is installed: pip install 'transformers=={tested}.*', or use engine.name: "
            "vllm."
        )
    return version


def prepare(*, local_files: bool = True) -> None:
    """Sets environment variables for this process. local_files: keeps Hugging Face offline. Raises
    EngineError where something is missing."""
    transformers_version()
    wanted = dict(_ALWAYS)
    if local_files:
        wanted["HF_HUB_OFFLINE"] = "1"
    if not os.path.exists("/proc/driver/nvidia"):
        wanted.update(_ON_CPU)
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
