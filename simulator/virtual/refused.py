"""Calls that leave the process, and so virtual time: refused, with the line that makes them."""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rollcast.simulator.virtual.errors import RefusedError
from rollcast.simulator.virtual.kernel import Kernel
from rollcast.simulator.virtual.report import caller


def _called_by(package: str) -> bool:
    frame: Any = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).split(".")[0] == package:
            return True
        frame = frame.f_back
    return False


def _while_importing() -> bool:
    """Whether a module asks for it as it is imported: for its version, mostly, and at once."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _refuse(call: str, why: str) -> None:
    if _called_by("ray"):
        call, why = "ray", "real Ray runs in processes of its own; see ray_in_threads"
    raise RefusedError(f"{call} is out of reach of the virtual clock: {why}; at {caller()}")


PROCESS = "a child process has a clock of its own"


def refusals(kernel: Kernel) -> list[tuple[Any, str, Any]]:
    """(owner, name, replacement) of what is refused to the threads of a run."""

    def refuse(owner: Any, name: str, call: str) -> tuple[Any, str, Callable[..., Any]]:
        original = getattr(owner, name)

        def refused(*args: Any, **options: Any) -> Any:
            if kernel.mine() and not _while_importing():
                _refuse(call, PROCESS)
            return original(*args, **options)

        return owner, name, refused

    return [
        refuse(subprocess.Popen, "__init__", "subprocess.Popen"),
        refuse(multiprocessing.process.BaseProcess, "start", "multiprocessing.Process.start"),
        *(
            refuse(os, name, f"os.{name}")
            for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system")
            if hasattr(os, name)
        ),
    ]
