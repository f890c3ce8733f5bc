"""Running scenarios: what the command line and a notebook both call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import ScenarioError
from simulator.loop import run
from simulator.results.metrics import run_summary
from simulator.scenario.file import RawScenario, override, read_scenario
from simulator.scenario.scenario import Scenario, build_scenario
from simulator.spans import Run, StepRecord


@dataclass(frozen=True)
class Result:
    """A finished run, the scenario it came from and its summary."""

    scenario: Scenario
    run: Run
    summary: dict[str, Any]


def load(path: str | Path, *settings: str, seed: int | None = None) -> Scenario:
    """The scenario in a file, with ``key=value`` settings applied. Raises ScenarioError."""
    return from_raw(read_scenario(Path(path)), *settings, seed=seed)


def from_raw(raw: RawScenario, *settings: str, seed: int | None = None) -> Scenario:
    """A scenario from its parsed file; see `load`."""
    return build_scenario(override(raw, settings, seed))


def simulate(scenario: Scenario, on_step: Callable[[StepRecord], None] | None = None) -> Result:
    """Runs a scenario on a fresh simulated cluster.

    Raises ScenarioError or RunError where it cannot be run to its end.
    """
    world = scenario.world()
    try:
        with _seldom_searched():
            result = run(world, scenario.policy, scenario.plan, scenario.steps, on_step,
                         scenario.poll_s)  # fmt: skip
    except ScenarioError as error:  # a trace too short, a batch too large for the trainer
        raise scenario.raw.locate(error) from None
    result.warnings.extend(scenario.warnings)
    result.warnings.extend(scenario.cost.warnings(world.extremes))
    result.warnings.extend(scenario.workload.warnings)
    summary = run_summary(result, scenario.name, scenario.policy_name, scenario.seed)
    if scenario.gpu is not None and scenario.gpu.usd_per_hour:
        summary["cost_usd"] = summary["gpu_hours"] * scenario.gpu.usd_per_hour
    return Result(scenario, result, summary)


@contextmanager
def _seldom_searched() -> Iterator[None]:
    """Has Python look for cycles among its objects less often: a run makes many objects and hardly
    a cycle, and the search was a fifth of its time."""
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, 100_000) if young else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
