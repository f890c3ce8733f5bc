"""A scenario, as exports look at it."""

from __future__ import annotations

from rollcast.engine.export.memory import Held, held
from rollcast.simulator.costs.trainer.options import TrainerOptions
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.plan import StepPlan
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.scenario.sections import ScenarioModel, validate
from rollcast.simulator.stacks.exported import trained_size
from rollcast.simulator.stacks.exporting import Planned
from rollcast.simulator.stacks.stack import Stack

GPUS_PER_NODE = 8
_SIZES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")


def planned(scenario: Scenario, stack: Stack | None = None) -> Planned:
    """A scenario, looked at for a stack. What it says of the trainer is none of ours where its
    costs are measured ones."""
    policy, model, engine = scenario.policy, validate(scenario.raw.data), scenario.engine
    state = policy.init()
    trainer = _trainer(model)
    sizes = {name: getattr(trainer, name) for name in _SIZES} if trainer else {}
    split = {f"cost.roofline.trainer.{name}": size for name, size in sizes.items() if size > 1}
    memory = Held() if stack is None else held(scenario, stack, bool(split))
    first = policy.plan(scenario.plan, state)
    return Planned(
        policy,
        scenario.plan,
        first,
        any(part is not None for part in state),
        scenario.shape,
        _steps(scenario, model, first),
        scenario.seed,
        scenario.workload.max_prompt_tokens,
        scenario.workload.max_new_tokens,
        engine.max_seqs,
        engine.max_batched_tokens,
        engine.prefix_caching,
        model.cluster.routing == "group_affinity",
        trainer.minibatches if trainer else 1,
        split,
        trainer.microbatch_tokens if trainer else None,
        trainer.gpus_per_node if trainer else GPUS_PER_NODE,
        memory.settings,
        memory.unsaid,
        memory.run,
    )


def _trainer(model: ScenarioModel) -> TrainerOptions | None:
    roofline = model.cost.of_the_roofline
    return roofline.trainer if roofline else None


def _steps(scenario: Scenario, model: ScenarioModel, first: StepPlan) -> int:
    """Updates of the whole run, where the scenario says it: its own steps are those to simulate.
    Raises ScenarioError for a run in prompts, of which a filter uses up nobody knows how many."""
    run = model.plan.run if model.plan else None
    if run is None:
        return scenario.steps
    if run.prompts is not None and first.filter is not None:
        raise ScenarioError(
            "plan.run.prompts",
            "cannot be told in steps, which a launch needs, since the policy rejects groups; give "
            "plan.run.steps, or export the recommended.yaml of rollcast plan, which has them",
        )
    return run.updates(first.batch.groups, trained_size(first))
