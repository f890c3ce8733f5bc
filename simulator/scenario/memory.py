"""Whether a scenario fits into memory, judged before its run at the longest possible rollout."""

from __future__ import annotations

from rollcast.simulator.cluster.replica import EngineSpec, check_pool
from rollcast.simulator.costs.base import CostModel, TrainLoad
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.plan import Layout
from rollcast.simulator.workload.base import (
    TracedWorkload,
    Workload,
    WorkloadOfTurns,
    longest_context,
    longest_rollout,
)


def check_memory(engine: EngineSpec, cost: CostModel, workload: Workload, layout: Layout) -> None:
    """Raises ScenarioError where the longest rollout fits neither a replica's KV pool nor, as a
    micro-batch of its own, the trainer's GPUs. layout: of the trainer. Runs nothing."""
    longest = workload.max_prompt_tokens
    check_pool(engine, longest, longest_context(workload) - longest)
    prompt, new = longest_rollout(workload)
    try:
        cost.train(TrainLoad([(prompt, [new])], layout == "shared_prefix"))
    except ScenarioError as error:
        key = "the trace" if isinstance(workload, TracedWorkload) else "workload.max_new_tokens"
        if isinstance(workload, WorkloadOfTurns):
            key = "workload.max_context_tokens"
        raise ScenarioError(
            error.field,
            f"{error.message}. Memory is checked for the longest rollout that {key} "
            f"allows: {prompt:,} tokens of prompt and {new:,} new ones",
        ) from None
