"""Published runs whose memory is known: they ran, ran out of memory, or their peak was measured.

A file of ``benchmarks/data/published/memory`` is a source: a table, a thread or a folder of
scripts. Those of the part ``seen`` were there while the formulas were made. Those of ``blind`` and
``held`` were found and written down afterwards, and judged once before any formula was changed;
``held`` (half of them, by a hash) was looked at by nobody while formulas were changed then. Those
of ``later`` were found when the formulas had been changed with all of these in view, and judged
once; those of ``fresh`` again so, after those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from benchmarks.validation.files import PUBLISHED
from rollcast.simulator import values
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.stacks.yaml_file import read_yaml

Part = Literal["seen", "blind", "held", "later", "fresh"]
Outcome = Literal["ran", "out_of_memory", "peak_gb"]
Kind = Literal["allocated", "active", "reserved", "device", "host"]
Phase = Literal["start", "generation", "switch", "log_prob", "update", "optimizer_step", "sync"]
Role = Literal["trainer", "engine"]
Unit = Literal["GB", "GiB"]

FOLDER = PUBLISHED / "memory"
PARTS: tuple[Part, ...] = get_args(Part)
UNIT_BYTES: Mapping[Unit, float] = {"GB": 1e9, "GiB": 2.0**30}


@dataclass(frozen=True)
class MemoryCase:
    """A run as its source describes it.

    launched: what the user set, in words. gb: the measured peak of one GPU in ``unit``, or of a
    node's host memory; of host memory that was not measured, what the node has. memory: what was
    measured (tensors allocated or active, what the allocator reserved, the device's, the host's).
    phase, role: where the peak was or the memory ran out, where the source says it. open: dotted
    keys that the source leaves open. beyond: what it sets and no key says.
    """

    stack: str
    launched: str
    scenario: Mapping[str, Any]
    outcome: Outcome
    gb: float | None = None
    unit: Unit = "GiB"
    memory: Kind = "device"
    phase: Phase | None = None
    role: Role | None = None
    open: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    note: str = ""

    @property
    def figure_bytes(self) -> float | None:
        """``gb`` in bytes: a measured peak, or the memory that the node has."""
        return None if self.gb is None else self.gb * UNIT_BYTES[self.unit]

    @property
    def on_host(self) -> bool:
        """Whether the outcome is of host memory."""
        return self.memory == "host"


@dataclass(frozen=True)
class MemorySource:
    """The cases of one source."""

    source: str
    part: Part
    cases: Mapping[str, MemoryCase]


def memory_sources(folder: Path = FOLDER) -> dict[str, MemorySource]:
    """Every source by the name of its file. Raises ScenarioError naming file and key."""
    return {path.stem: _read(path) for path in sorted(folder.glob("*.yaml"))}


def _read(path: Path) -> MemorySource:
    content = read_yaml(path)
    part = cast("Part", values.choice(content["part"], f"{path.name}: part", PARTS))
    cases = {
        name: _checked(values.read(MemoryCase, keys, f"{path.name}: {name}"), path.name, name)
        for name, keys in content["cases"].items()
    }
    return MemorySource(content["source"], part, cases)


def _checked(case: MemoryCase, file: str, name: str) -> MemoryCase:
    """The case. Raises ScenarioError where its figure is missing or belongs to no such outcome."""
    has = case.outcome == "peak_gb" or case.on_host
    if has != (case.gb is not None):
        raise ScenarioError(
            f"{file}: {name}.gb", "belongs to peak_gb and to host memory, and to no other"
        )
    return case


def all_cases(
    sources: Mapping[str, MemorySource], *parts: Part
) -> Iterator[tuple[str, str, MemoryCase]]:
    """Source, name and case of each, or of these parts."""
    for key, source in sources.items():
        if not parts or source.part in parts:
            for name, case in source.cases.items():
                yield key, name, case
