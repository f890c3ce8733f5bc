"""A scenario, as exports look at it."""

from __future__ import annotations

from rollcast.simulator.costs.trainer.options import TrainerOptions
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.scenario.sections import ScenarioModel, validate
from rollcast.simulator.stacks.exporting import Planned

GPUS_PER_NODE = 8
_SIZES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
_IN_MEMORY = (
    *("recompute", "recompute_layers", "microbatch_tokens", "microbatch_rollouts"),
    *("optimizer_on_host", "states_on_host", "offload_activations", "memory_utilization"),
)


def planned(scenario: Scenario) -> Planned:
    """A scenario, looked at. What it says of the trainer is none of ours where its costs are
    measured ones."""
    policy, model, engine = scenario.policy, validate(scenario.raw.data), scenario.engine
    state = policy.init()
    trainer = _trainer(model)
    sizes = {name: getattr(trainer, name) for name in _SIZES} if trainer else {}
    return Planned(
        policy,
        scenario.plan,
        policy.plan(scenario.plan, state),
        any(part is not None for part in state),
        scenario.shape,
        _steps(scenario, model),
        scenario.seed,
        scenario.workload.max_prompt_tokens,
        scenario.workload.max_new_tokens,
        engine.max_seqs,
        engine.max_batched_tokens,
        engine.prefix_caching,
        model.cluster.routing == "group_affinity",
        trainer.minibatches if trainer else 1,
        {f"cost.roofline.trainer.{name}": size for name, size in sizes.items() if size > 1},
        trainer.microbatch_tokens if trainer else None,
        trainer.gpus_per_node if trainer else GPUS_PER_NODE,
    )


def memory_of(scenario: Scenario) -> dict[str, object]:
    """What of the trainer the fit in memory hangs on, by option of ``cost.roofline.trainer``."""
    trainer = _trainer(validate(scenario.raw.data))
    return {key: getattr(trainer, key) for key in _IN_MEMORY} if trainer else {}


def _trainer(model: ScenarioModel) -> TrainerOptions | None:
    roofline = model.cost.of_the_roofline
    return roofline.trainer if roofline else None


def _steps(scenario: Scenario, model: ScenarioModel) -> int:
    """Updates of the whole run, where the scenario says them: its own steps are those to simulate.
    Raises ScenarioError for a run of another measure."""
    run = model.plan.run if model.plan else None
    if run is None:
        return scenario.steps
    if run.steps is None:
        raise ScenarioError(
            "plan.run",
            "is not in steps, which a launch needs; give steps, or export the recommended.yaml of "
            "rollcast plan, which has them",
        )
    return run.steps
