"""A ledger in the lines and columns that terminal and page both show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollcast.simulator.costs.memory.ledger import MEMORY_PHASES, Ledger, MemoryPhase

GROUP_OF: Mapping[str, str] = {
    "weights": "weights",
    "gathered_weights": "weights",
    "master_weights": "optimiser",
    "optimizer": "optimiser",
    "gradients": "gradients",
    "activations": "activations",
    "logits": "logits",
    "kv_pool": "KV",
}
OTHER = "other"
PHASE_NAMES: Mapping[MemoryPhase, str] = {
    "start": "start",
    "generation": "generation",
    "switch": "switch",
    "log_prob": "log-probabilities",
    "update": "update",
    "optimizer_step": "optimiser step",
    "sync": "weight sync",
}
"""In tables."""
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
    capacity = {pool.name: pool.capacity_bytes for pool in ledger.pools}
    lines = []
    for phase in MEMORY_PHASES:
        for pool, room in capacity.items():
            parts: dict[str, float] = {}
            for holding in ledger.holdings:
                if holding.phase == phase and holding.pool == pool:
                    for part, size in holding.bytes.items():
                        group = GROUP_OF.get(part, OTHER)
                        parts[group] = parts.get(group, 0.0) + size
            total = ledger.total(phase, pool)
            if total > 0:
                lines.append(Line(phase, pool, parts, total, total / room))
    return lines
