"""The parts of a scenario that somebody else's files give, each with its source, and as a file.

A `Part` is a key of a scenario with its value and where that is from: a line of a file, a figure of
a run's tables, an assumption, or nothing at all (then the key is left to the user). What is known
better later replaces parts (`replaced`) and leaves the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.stacks.settings import Settings, whole
from rollcast.simulator.stacks.syntax.json_text import nested
from rollcast.simulator.stacks.syntax.yaml_text import spelt
from rollcast.simulator.values.words import short

HOST_MEMORY = "cost.roofline.host_memory_bytes"


@dataclass(frozen=True, slots=True)
class Part:
    """A key of a scenario. value: None if unknown. source: a comment. assumed: not of the log."""

    key: str
    value: Any
    source: str
    assumed: bool = False


def why_assumed(source: str) -> str | None:
    """Why an assumption was made, by its source; None for the source of anything else."""
    if not source.startswith("assumed"):
        return None
    return source.removeprefix("assumed").lstrip(":; ")


def given(
    model: str | None = None, gpu: str | None = None, host_memory: str | None = None
) -> tuple[Part, ...]:
    """What the user says, which the log seldom does: presets, or for the model the path of a
    config.json or its folder; and the host memory of a node, ``512GB``. Raises ScenarioError
    (``--model``, ``--gpu``, ``--host-memory``) for anything else."""
    from rollcast.simulator.costs.presets.gpus import load_gpu, named_gpu
    from rollcast.simulator.costs.presets.models import load_model, model_presets

    parts = []
    if model is not None:
        load_model(model, "--model")
        here = model if model in model_presets() else str(Path(model).resolve())
        parts.append(Part("model", here, "given by --model"))
    if gpu is not None:
        known = named_gpu(gpu) or gpu
        load_gpu(known, "--gpu")
        parts.append(Part("gpu", known, "given by --gpu"))
    if host_memory is not None:
        parts.append(Part(HOST_MEMORY, _bytes_of(host_memory), "given by --host-memory"))
    return tuple(parts)


_SIZE = re.compile(r"(\d{1,7}(?:\.\d+)?)\s*(?:([GT])(i?)B?)?", re.IGNORECASE | re.ASCII)
_LEAST_BYTES = 1e9


def _bytes_of(text: str) -> float:
    """Of ``512GB``, ``1.5TiB`` or ``512``, in GB. Raises ScenarioError (``--host-memory``)."""
    match = _SIZE.fullmatch(text.strip())
    if match:
        base = 1024 if match[3] else 1000
        size = float(match[1]) * base ** (4 if (match[2] or "G").upper() == "T" else 3)
        if size >= _LEAST_BYTES:
            return size
    raise ScenarioError(
        "--host-memory", f"{short(text)} is no memory of a node; give one such as 512GB or 2TiB"
    )


def setting_part(settings: Settings, key: str) -> Part | None:
    """A setting, if its value is one that a scenario can hold."""
    if key not in settings:
        return None
    setting = settings[key]
    kind = {"engine.prefix_caching": bool, "gpu": str}.get(key)
    if (whole(settings, key) is None) if kind is None else not isinstance(setting.value, kind):
        return None
    return Part(key, setting.value, setting.source)


def nobody(key: str, presets: str, what: str) -> Part:
    """A key that the user has to give, since the log or launch does not."""
    return Part(key, None, f"not in the {what}; give --{key}, one of rollcast presets {presets}")


def replaced(parts: Iterable[Part], others: Iterable[Part]) -> tuple[Part, ...]:
    """``parts`` with ``others`` in the place of those of that key or below it; new ones last."""
    result = list(parts)
    for other in others:
        inside = [
            i
            for i, p in enumerate(result)
            if p.key == other.key or p.key.startswith(f"{other.key}.")
        ]
        at = inside[0] if inside else len(result)
        result = [p for i, p in enumerate(result) if i not in inside]
        result.insert(at, other)
    return tuple(result)


def missing(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Those that the user has to give."""
    return tuple(part for part in parts if part.value is None)


# As a file


def to_yaml(parts: Sequence[Part], head: str = "") -> str:
    """A scenario's text, each value with its source, missing ones as comments. head: at the top."""
    lines = [f"# {line}" for line in head.splitlines()]
    lines.extend(_lines(nested((part.key, part) for part in parts), 0))
    return "\n".join(lines) + "\n"


def _lines(tree: Mapping[str, Any], depth: int) -> Iterable[str]:
    indent = "  " * depth
    for key, item in tree.items():
        if isinstance(item, Part):
            source = " ".join("".join(c if c.isprintable() else " " for c in item.source).split())
            if item.value is None:
                yield f"{indent}# {key}: {source}"
            else:
                yield f"{indent}{key}: {spelt(item.value)}  # {source}"
        else:
            yield f"{indent}{key}:"
            yield from _lines(item, depth + 1)
