"""The lengths that were solved for in a scenario whose ``workload.lengths`` gives figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcast.simulator.values import read
from rollcast.simulator.workload.known_lengths import KnownLengths
from rollcast.simulator.workload.length_problem import solved
from rollcast.simulator.workload.section import WorkloadSection


def solved_lengths(workload: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was solved for in a scenario's section ``workload``, as ``summary.json`` has it; None
    where its lengths are not given by figures. Raises ScenarioError as `solved`."""
    lengths = workload.get("lengths")
    if not isinstance(lengths, Mapping) or not set(KnownLengths.CHOSEN_BY) & set(lengths):
        return None
    section = read(WorkloadSection, workload, WorkloadSection.FIELD)
    if not isinstance(section.lengths, KnownLengths):
        return None
    return solved(section.lengths, section.sampled).to_mapping(section.lengths)
