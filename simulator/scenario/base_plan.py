"""The plan that policies rewrite: what a scenario itself says of a step."""

from __future__ import annotations

from rollcast.simulator.plan import Batch, Prompts, StepPlan
from rollcast.simulator.scenario.sections import ScenarioModel


def base_plan(model: ScenarioModel) -> StepPlan:
    """The only maker of a plan from a scenario, for simulated, real and replayed runs alike."""
    counts, environment = model.workload, model.environment
    return StepPlan(
        Batch(counts.batch_groups, counts.group_size),
        prompts=Prompts(dataset=counts.prompts),
        failed="keep" if environment is None else environment.failed,
    )
