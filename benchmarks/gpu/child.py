"""Measures the cases that it is told to, one after the other in this process: ``python -m
benchmarks.gpu.child LINES DEVICE TINY ASKED NAME...``. Appends a line of JSON to LINES when a case
begins and when it ends. ASKED: the forecasts that vLLM's cases are of, which share an engine here;
empty for the trainer's. Exit code 3: the device is of no more use to this
process, the rest is left."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import all_cases

SPENT = 3
_LEFT_BYTES = 10**9


def main() -> int:
    lines, device, tiny, asked, *names = sys.argv[1:]

    def tell(**told: Any) -> None:
        with Path(lines).open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")

    began_s = time.perf_counter()
    measures = _engine(asked, tiny == "1") if asked else _trainer(device, tiny == "1")
    tell(import_s=time.perf_counter() - began_s)
    for name in names:
        tell(begin=name)
        began_s = time.perf_counter()
        result, spent = measures(name)
        result["seconds"] = time.perf_counter() - began_s
        tell(end=name, result=result)
        if spent:
            return SPENT
    return 0


Result = tuple[dict[str, Any], bool]
"""Outcome, values or error; and whether the process is of no more use."""


def _engine(asked: str, tiny: bool) -> Callable[[str], Result]:
    from benchmarks.gpu.engine import Measured

    engine = Measured(Path(asked), tiny)

    def measured(name: str) -> Result:
        try:
            return {"outcome": "ok", "values": engine.case(name)}, False
        except Exception as error:
            return {"outcome": "failed", "error": _where(error)}, True

    return measured


def _trainer(device_name: str, tiny: bool) -> Callable[[str], Result]:
    import torch

    from benchmarks.gpu import allocator, ceilings, updates

    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.init()
    wanted = {case.name: case for case in all_cases(tiny)}

    def measured(name: str) -> Result:
        case = wanted[name]
        modules = (allocator, ceilings, updates)
        module = next(module for module in modules if hasattr(module, case.kind))
        return _one(partial(getattr(module, case.kind), case, device), device)

    return measured


def _one(measure: Callable[[], Any], device: Any) -> Result:
    import torch

    from benchmarks.gpu import models

    models.tidy(device)
    result: dict[str, Any]
    try:
        result = {"outcome": "ok", "values": measure()}
    except torch.OutOfMemoryError as error:
        result = {"outcome": "out_of_memory", "error": str(error)[:600]}
        result["values"] = {"peak_bytes": torch.cuda.max_memory_allocated(device)}
    except Exception as error:
        result = {"outcome": "failed", "error": _where(error)}
    if result["outcome"] == "ok":
        models.tidy(device)
        return result, False
    try:
        models.forget(device)
        spent = device.type == "cuda" and torch.cuda.memory_allocated(device) > _LEFT_BYTES
    except Exception:  # an error of CUDA stays with the process
        spent = True
    return result, spent


def _where(error: Exception) -> str:
    """What was raised, and the last lines of ours that led there."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]
    return f"{type(error).__name__}: {str(error)[:500]} ({' > '.join(places)})"


if __name__ == "__main__":
    sys.exit(main())
