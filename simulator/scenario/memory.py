"""Whether a scenario fits into memory, judged once and before its run: at the longest rollout that
it may have, whatever is drawn, however many steps there are."""

from __future__ import annotations

from simulator.cluster.replica import EngineSpec, check_pool
from simulator.costs.base import CostModel, TrainLoad
from simulator.errors import ScenarioError
from simulator.plan import Layout
from simulator.workload.build import Workload
from simulator.workload.from_trace import TraceWorkload


def longest_rollout(workload: Workload) -> tuple[int, int]:
    """(prompt, new tokens) of the longest rollout that there may be: the longest prompt with a
    response at the cap, or what a trace holds."""
    if isinstance(workload, TraceWorkload):
        return workload.longest
    return workload.max_prompt_tokens, workload.max_new_tokens


def check_memory(engine: EngineSpec, cost: CostModel, workload: Workload, layout: Layout) -> None:
    """Raises ScenarioError where the longest rollout does not fit: into the KV pool of a replica,
    or, as a micro-batch of its own, into the trainer's GPUs. Prices one rollout and runs nothing.

    layout: how the trainer packs rollouts; a prefix that is shared takes other memory.
    """
    check_pool(engine, workload.max_prompt_tokens, workload.max_new_tokens)
    prompt, new = longest_rollout(workload)
    try:
        cost.train(TrainLoad([(prompt, [new])], layout == "shared_prefix"))
    except ScenarioError as error:
        key = "the trace" if isinstance(workload, TraceWorkload) else "workload.max_new_tokens"
        raise ScenarioError(
            error.field,
            f"{error.message}. This is judged at the longest rollout that {key} allows, "
            f"{prompt:,} tokens of prompt and {new:,} new ones",
        ) from None
