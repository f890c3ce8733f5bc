"""The drafted scenario itself, simulated: what its file gives to the second, as it is or with other
lengths and batches."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcast.calibration.fits.log_scenario import mapping, setting
from rollcast.simulator.launches.parts import Part
from rollcast.simulator.results.fitted_file import SCHEMA
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.scenario.scenario import build_scenario
from rollcast.simulator.studies.simulate import simulate

FITTED_FILE = "fitted.json"
MOST_STEPS = 60
_BUDGET = 60_000
"""Rollouts of one simulation."""


@dataclass(frozen=True)
class Step:
    """A mean step of a simulated run. low_s, high_s: its 90 % interval. steps: simulated."""

    seconds: float
    low_s: float
    high_s: float
    steps: int


def steps_for(parts: Sequence[Part]) -> int:
    """The scenario's own, but so few that they take seconds."""
    groups = int(setting(parts, "workload.batch_groups"))
    size = int(setting(parts, "workload.group_size"))
    most = max(_BUDGET // max(groups * size, 1), 3)
    return min(int(setting(parts, "steps")), most, MOST_STEPS)


def step_s(
    parts: Sequence[Part],
    groups: Mapping[str, Any] | None,
    steps: int,
    changed: Sequence[str] = (),
    trace: str | None = None,
) -> float:
    """Seconds of a mean step of ``steps``, as ``rollcast simulate`` gives them for the file.

    groups: measured ones, of the fitted file that the parts name. changed: ``KEY=VALUE``. trace:
    CSV of lengths in the place of the scenario's. Raises ScenarioError or RunError.
    """
    data = mapping(parts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if groups is not None:
            content = json.dumps({"schema": SCHEMA, "groups": groups})
            (folder / FITTED_FILE).write_text(content, encoding="utf-8")
        if trace is not None:
            (folder / "trace.csv").write_text(trace, encoding="utf-8")
            data["workload"]["lengths"] = {"trace": "trace.csv", "repeat": True}
            data["workload"].pop("prompt_tokens", None)
        raw = RawScenario(data, name=str(data.get("name", "log")), folder=folder)
        scenario = build_scenario(override(raw, [*changed, f"steps={steps}"]))
        result = simulate(scenario)
    return float(result.summary["step_s"])
