"""What AReaL's launch settings imply."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from rollcast.simulator.stacks.settings import Setting, Settings, value

_PART = re.compile(r"(?:[a-z]+[.:])?\(?(?:attn:)?((?:[dtpce]\d{1,5})+)(?:\|ffn:[a-z\d]+)?\)?")


def implied(settings: Settings) -> Iterable[Setting]:
    """What ``allocation_mode`` says (areal/api/alloc_mode.py): ``sglang:d4t2+fsdp:d8`` is four
    engines of two GPUs, and a trainer on eight others; with ``|`` in the place of ``+``, on the
    same."""
    mode = settings.get("run.mode")
    match = re.fullmatch(
        rf"({_PART.pattern})([+|])({_PART.pattern})", str(value(settings, "run.mode"))
    )
    if mode is None or match is None:
        return
    engines, trainer = _sizes(match[2]), _sizes(match[5])
    yield mode.implies("cluster.replicas", engines["d"])
    yield mode.implies("cluster.tensor_parallel", engines["t"])
    yield mode.implies("cluster.trainer_gpus", math.prod(trainer[kind] for kind in "dtpc"))
    yield mode.implies("run.rollout_gpus", math.prod(engines[kind] for kind in "dtp"))
    yield mode.implies("run.colocated", match[3] == "|")


def _sizes(dims: str) -> dict[str, int]:
    return dict.fromkeys("dtpce", 1) | {k: int(n) for k, n in re.findall(r"([dtpce])(\d+)", dims)}
