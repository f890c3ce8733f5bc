"""The ledger of memory of a scenario: what each of its GPUs holds in every phase of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcast.simulator.costs.base import AdjustedCost, CostModel
from rollcast.simulator.workload.base import longest_rollout

if TYPE_CHECKING:
    from rollcast.simulator.costs.memory.ledger import Ledger
    from rollcast.simulator.costs.roofline.cost import RooflineCost
    from rollcast.simulator.scenario.scenario import Scenario


def ledger_of(scenario: Scenario) -> Ledger | None:
    """The ledger of a scenario, whether it fits or not; None where its costs know of no model and
    GPU. Memory is that of the longest rollout that the scenario allows, and of the microbatch that
    it sets; where it sets none, of one such rollout."""
    cost = roofline_of(scenario.cost)
    if cost is None:
        return None
    from rollcast.simulator.costs.roofline.memory_phases import Batch, cluster_ledger

    plan = scenario.policy.plan(scenario.plan, scenario.policy.init())
    prompt, new = longest_rollout(scenario.workload)
    engine = scenario.engine
    batch = Batch(
        rollouts=plan.batch.rollouts,
        prompt_tokens=prompt,
        new_tokens=new,
        prefix_tokens=prompt if plan.layout == "shared_prefix" else 0,
        mean_tokens=_mean_tokens(scenario, float(prompt + new)),
        kv_tokens=engine.kv_tokens,
        seqs=engine.max_seqs,
        batched_tokens=engine.max_batched_tokens,
    )
    return cluster_ledger(cost, batch)


SAMPLED_GROUPS = 32


def _mean_tokens(scenario: Scenario, longest: float) -> float:
    """Mean tokens of the rollouts of a few groups, prompts included; ``longest`` with turns."""
    total = rollouts = 0
    size = scenario.plan.batch.group_size
    for group in range(min(SAMPLED_GROUPS, scenario.plan.batch.groups)):
        drawn = scenario.workload.draw(group, size)
        if drawn.trajectories is not None:
            return longest
        total += drawn.prompt_tokens * size + sum(drawn.new_tokens)
        rollouts += size
    return total / rollouts


def roofline_of(cost: CostModel) -> RooflineCost | None:
    """The roofline that a cost model is, or adjusts; None for costs of another kind."""
    while isinstance(cost, AdjustedCost):
        cost = cost.inner
    from rollcast.simulator.costs.roofline.cost import RooflineCost

    return cost if isinstance(cost, RooflineCost) else None
