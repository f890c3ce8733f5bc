"""A scenario, as exports look at it."""

from __future__ import annotations

from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.scenario.sections import validate
from rollcast.simulator.stacks.exporting import Planned

GPUS_PER_NODE = 8
_SIZES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")


def planned(scenario: Scenario) -> Planned:
    """A scenario, looked at. What it says of the trainer is none of ours where its costs are
    measured ones."""
    policy, model, engine = scenario.policy, validate(scenario.raw.data), scenario.engine
    state = policy.init()
    roofline = model.cost.tables.roofline if model.cost.tables else model.cost.roofline
    trainer = roofline.trainer if roofline else None
    sizes = {name: getattr(trainer, name) for name in _SIZES} if trainer else {}
    return Planned(
        policy,
        scenario.plan,
        policy.plan(scenario.plan, state),
        any(part is not None for part in state),
        scenario.shape,
        scenario.steps,
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
