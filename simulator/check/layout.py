"""A ledger in the lines and columns that terminal and page both show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollcast.simulator.costs.memory.ledger import Ledger, MemoryPhase
from rollcast.simulator.results.text import ENGINE_SHARE

GROUP_OF: Mapping[str, str] = {
    "weights": "weights",
    "gathered_weights": "weights",
    "master_weights": "optim.",
    "optimizer": "optim.",
    "gradients": "grads",
    "activations": "activ.",
    "logits": "logits",
    "kv_pool": "KV",
}
OTHER = "other"
NEAR = 0.9
"""A line for the engine within its own share is told where it nearly fills that."""
POOL_NAMES: Mapping[str, str] = {ENGINE_SHARE: "engine's share"}
"""Where a table calls a pool otherwise."""
GROUPS = (*dict.fromkeys(GROUP_OF.values()), OTHER)


@dataclass(frozen=True, slots=True)
class Line:
    """A phase on a pool of GPUs. parts: bytes by `GROUPS`. share: of a GPU's memory."""

    phase: MemoryPhase
    pool: str
    parts: Mapping[str, float]
    total: float
    share: float


def groups_of(lines: Iterable[Line]) -> list[str]:
    """The groups that hold anything in any line."""
    return [group for group in GROUPS if any(line.parts.get(group) for line in lines)]


def memory_lines(ledger: Ledger) -> list[Line]:
    """A line for each phase and pool that holds anything, in the order of a step."""
    lines = []
    for phase, pool in ledger.places:
        if (
            pool == ENGINE_SHARE
            and ledger.total(phase, pool) < NEAR * ledger.pools[pool].capacity_bytes
        ):
            continue
        parts: dict[str, float] = {}
        for holding in ledger.of(phase, pool):
            for part, size in holding.bytes.items():
                group = GROUP_OF.get(part, OTHER)
                parts[group] = parts.get(group, 0.0) + size
        total = ledger.total(phase, pool)
        lines.append(Line(phase, pool, parts, total, total / ledger.pools[pool].capacity_bytes))
    return lines
