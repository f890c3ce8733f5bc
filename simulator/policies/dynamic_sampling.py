"""Dynamic sampling: DAPO's filter of groups without a gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rollcast.simulator.core.plan import AllDone, EnoughGroups, Filter, StepPlan, Surplus
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.loop.selection import ZeroVariance
from rollcast.simulator.values import AtLeast, Doc

RefillWhen = Literal["short", "drained"]


@dataclass(frozen=True)
class DynamicSampling(Policy):
    """Rejects complete groups whose rewards are all equal and launches others in their place (DAPO,
    arXiv 2503.14476, section 3.2).

    (c) marks what we read in the code, (i) what we inferred:

    - ``short``, as in slime: new groups are launched as soon as those in flight can no longer fill
      the batch, and the step ends once the batch is full (c).
    - ``drained``, as in verl: all groups in flight finish first; if the batch is not full, others
      are launched. Groups beyond the batch are dropped (c).
    """

    NAME = "dynamic_sampling"
    ALIASES = ("dapo_filter",)

    refill_groups: Annotated[
        int | None,
        AtLeast(1),
        Doc(
            "number of groups launched per refill; null: as many as a step launches",
            source="slime and verl",
        ),
    ] = None
    refill_when: Annotated[
        RefillWhen,
        Doc(
            "when to refill: short (as soon as the rollouts in flight cannot fill the "
            "batch) or drained (once none is in flight)",
            source="slime (short) and verl (drained)",
        ),
    ] = "short"
    surplus: Annotated[
        Surplus | None,
        Doc(
            "what happens to groups accepted beyond the batch: carry (trained on next), "
            "train (added to this batch), drop (discarded, as in slime) or restart (their "
            "prompts are queued again); null: drop if refill_when is drained, else as the "
            "other policies decide"
        ),
    ] = None

    @property
    def decides(self) -> frozenset[str]:
        """The filter; when to stop, where the refill is ``short``; the surplus, where asked to."""
        others = {"stop"} if self.refill_when == "short" else {"surplus"}
        return frozenset({"filter", *others, *(["surplus"] if self.surplus else [])})

    @property
    def builds_on(self) -> frozenset[str]:
        """When to stop, which another policy's rule decides if there is one."""
        return frozenset({"stop"} if self.refill_when == "short" else ())

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides filter; surplus where asked to; and, unless another rule decides when to stop,
        that ``short`` waits for no rollout it does not need."""
        short = self.refill_when == "short"
        surplus = self.surplus or (plan.surplus if short else "drop")
        return replace(
            plan,
            filter=Filter(ZeroVariance(), self.refill_groups, self.refill_when),
            stop=EnoughGroups() if short and plan.stop == AllDone() else plan.stop,
            surplus=surplus,
        )
