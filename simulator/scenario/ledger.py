"""The ledger of memory of a scenario: what each of its GPUs holds in every phase of a step."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, cast

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Chain
from rollcast.simulator.costs.base import AdjustedCost, CostModel
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.workload.base import Workload, longest_rollout

if TYPE_CHECKING:
    from rollcast.simulator.costs.memory.ledger import Ledger
    from rollcast.simulator.costs.roofline.cost import RooflineCost
    from rollcast.simulator.costs.roofline.memory_phases import Batch


class Sized(Protocol):
    """What memory must know of a scenario: a `Scenario` has it."""

    @property
    def cost(self) -> CostModel:
        """Its costs."""

    @property
    def workload(self) -> Workload:
        """Its rollouts."""

    @property
    def policy(self) -> Chain:
        """Its policy."""

    @property
    def plan(self) -> StepPlan:
        """A step without the policy."""

    @property
    def engine(self) -> EngineSpec:
        """Its engines' limits."""

    @property
    def no_pool(self) -> ScenarioError | None:
        """Why engines have no room for KV; None where they have."""

    @property
    def ledger(self) -> Ledger | None:
        """As `ledger_of` makes it."""


def ledger_of(scenario: Sized) -> Ledger | None:
    """The ledger of a scenario, whether it fits or not; None where its costs know of no model and
    GPU. Memory is that of the longest rollout that the scenario allows, and of the microbatch that
    it sets; where it sets none, of one such rollout."""
    cost = roofline_of(scenario.cost)
    if cost is None:
        return None
    return ledger_of_batch(cost, batch_of(scenario))


def ledger_of_batch(cost: RooflineCost, batch: Batch) -> Ledger:
    """The ledger of a cluster that works on such batches."""
    from rollcast.simulator.costs.roofline.memory_phases import cluster_ledger

    return cluster_ledger(cost, batch)


def batch_of(scenario: Sized) -> Batch:
    """What a step of a scenario works on, as its memory sees it."""
    from rollcast.simulator.costs.roofline.memory_phases import Batch

    plan = scenario.policy.plan(scenario.plan, scenario.policy.init())
    prompt, new = longest_rollout(scenario.workload)
    engine = scenario.engine
    kv_tokens: int | None = engine.kv_tokens
    with suppress(ScenarioError):
        kv_tokens = None if kv_tokens == scenario.cost.kv_pool_tokens else kv_tokens
    return Batch(
        rollouts=plan.batch.rollouts,
        prompt_tokens=prompt,
        new_tokens=new,
        prefix_tokens=prompt if plan.layout == "shared_prefix" else 0,
        mean_tokens=_mean_tokens(scenario, float(prompt + new)),
        kv_tokens=None if scenario.no_pool is not None else kv_tokens,
        seqs=engine.max_seqs,
        batched_tokens=engine.max_batched_tokens,
        groups=plan.batch.groups,
    )


SAMPLED_GROUPS = 64


def _mean_tokens(scenario: Sized, longest: float) -> float:
    """Mean tokens of the rollouts of some groups, prompts included, of several batches where one
    has few groups; ``longest`` with turns."""
    total = rollouts = 0
    size = scenario.plan.batch.group_size
    for group in range(SAMPLED_GROUPS):
        try:
            drawn = scenario.workload.draw(group, size)
        except ScenarioError:  # a trace has no more
            break
        if drawn.trajectories is not None:
            return longest
        total += drawn.prompt_tokens * size + sum(drawn.new_tokens)
        rollouts += size
    return total / rollouts if rollouts else longest


def roofline_of(cost: CostModel) -> RooflineCost | None:
    """The roofline that a cost model is, or adjusts; None for costs of another kind."""
    if not cost.knows_memory:  # nor imports what would
        return None
    while isinstance(cost, AdjustedCost):
        cost = cost.inner
    return cast("RooflineCost", cost)
