"""Running scenarios: what the command line and a notebook both call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.costs.memory.ledger import Ledger
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.metrics import run_summary
from rollcast.simulator.results.text import MEMORY_PHASES, gigabytes, room
from rollcast.simulator.runs.drive import drive
from rollcast.simulator.scenario.file import RawScenario, Trust, override, read_scenario
from rollcast.simulator.scenario.scenario import Scenario, build_scenario
from rollcast.simulator.values.words import require
from rollcast.simulator.workload.base import unlike_file
from rollcast.simulator.workload.solved import solved_lengths

if TYPE_CHECKING:
    from rollcast.simulator.learning.answer import Progress

A_SCENARIO = "a scenario, as load returns it"


@dataclass(frozen=True)
class Result:
    """A finished run, the scenario it came from and its summary. progress: its accuracy, or why the
    law abstains; None where the scenario has no section ``learning``. again: whether `simulate`
    makes it again; not that of a control plane, whose code is run once."""

    scenario: Scenario
    run: Run
    summary: dict[str, Any]
    progress: Progress | str | None = None
    again: bool = True


def load(
    path: str | Path, *settings: str, seed: int | None = None, trust_modules: Trust = False
) -> Scenario:
    """The scenario in a file, with ``key=value`` settings. trust_modules: whether to import
    policies that the file names, which runs their code. Raises ScenarioError."""
    require((str, Path), path, "path", "the path of a scenario file")
    for setting in settings:
        require(str, setting, "settings", "text such as 'steps=20'")
    return from_raw(read_scenario(Path(path), trust_modules), *settings, seed=seed)


def from_raw(raw: RawScenario, *settings: str, seed: int | None = None) -> Scenario:
    """A scenario from its parsed file; see `load`."""
    return build_scenario(override(raw, settings, seed))


def simulate(
    scenario: Scenario, on_step: Callable[[StepRecord], None] | None = None, alone: bool = True
) -> Result:
    """Runs a scenario on a fresh simulated cluster. alone: False where `add_learning` follows for
    several results together.

    Raises ScenarioError or RunError if it cannot run to its end.
    """
    require(Scenario, scenario, "scenario", A_SCENARIO)
    if on_step is not None:
        require(Callable, on_step, "on_step", "a function of a step's record")
    world = scenario.world()
    try:
        result = drive(scenario, world, scenario.steps, on_step)
    except ScenarioError as error:  # a trace too short, a batch too large for the trainer
        raise scenario.raw.locate(error) from None
    result.warnings.extend(scenario.warnings)
    result.warnings.extend(scenario.cost.warnings(world.extremes))
    result.warnings.extend(scenario.workload.warnings)
    result.warnings.extend(unlike_file(scenario.workload, result.segments))
    ledger = scenario.ledger
    if ledger is not None and not ledger.fits:
        result.warnings.append(beyond_memory(ledger))
    summary = run_summary(result, scenario.name, scenario.policy_name, scenario.seed)
    price = scenario.usd_per_gpu_hour
    if price is not None:
        summary["cost_usd"] = summary["gpu_hours"] * price
    if (trainer_gpu := scenario.trainer_gpu) is not None and scenario.gpu is not None:
        held, rollout = scenario.shape.held_gpus, scenario.rollout_gpus
        summary["gpus_of"] = {
            part: {"gpu": gpu.name, "gpus": gpus, "usd_per_hour": gpu.usd_per_hour}
            for part, gpu, gpus in (
                ("rollout", scenario.gpu, rollout),
                ("trainer", trainer_gpu, held - rollout),
            )
        }
    if ledger is not None:
        summary["memory"] = ledger.plain()
        summary["peak_memory_bytes"] = round(ledger.peak.bytes)
    if lengths := solved_lengths(scenario.raw.data["workload"]):
        summary["lengths"] = lengths
    if scenario.learning is None:
        return Result(scenario, result, summary)
    from rollcast.simulator.learning.answer import Progress, progress_of
    from rollcast.simulator.studies.learned import add_learning
    from rollcast.simulator.studies.reacting import reacted

    progress = progress_of(result, scenario.learning, scenario.seed)
    if isinstance(progress, Progress):
        progress = reacted(scenario, result, progress)
    made = Result(scenario, result, summary, progress)
    if alone:
        add_learning({scenario.policy_name: made})
    return made


def beyond_memory(ledger: Ledger) -> str:
    """The sentence on a run that more likely does not fit than it does."""
    peak = ledger.peak
    if ledger.host_decides:
        limit = gigabytes(ledger.host_capacity_bytes or 0.0)
        return (
            f"memory: a node needs {gigabytes(ledger.host_total)} of host memory and may use "
            f"{limit}; it more likely runs out of memory than not "
            f"({1 - ledger.fits_probability:.0%})"
        )
    return (
        f"memory: {gigabytes(peak.bytes)} of {room(peak._asdict())} {MEMORY_PHASES[peak.phase]}; "
        "it more likely runs "
        f"out of memory than not ({1 - ledger.fits_probability:.0%})"
    )
