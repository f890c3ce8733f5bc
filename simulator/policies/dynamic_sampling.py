"""Dynamic sampling: DAPO's filter of groups without a gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rollcast.simulator.loop.selection import ZeroVariance
from rollcast.simulator.plan import AllDone, EnoughGroups, Filter, StepPlan, Surplus
from rollcast.simulator.policy import Policy
from rollcast.simulator.values import AtLeast, Doc

RefillWhen = Literal["short", "drained"]


@dataclass(frozen=True)
class DynamicSampling(Policy):
    """Rejects complete groups whose rewards are all equal and launches others in their place (DAPO,
    arXiv 2503.14476, section 3.2).

    What is marked (c) was read in code, (i) is inferred:

    - ``short``, as in slime: a wave is launched as soon as what is in flight can no longer fill the
      batch, and the step ends once the batch is full (c)
    - ``drained``, as in verl: a wave runs to its end, and while the batch is not full another
      follows; groups beyond the batch are cut off (c)
    """

    NAME = "dynamic_sampling"
    ALIASES = ("dapo_filter",)

    refill_groups: Annotated[
        int | None,
        AtLeast(1),
        Doc("groups per refill; null is a whole wave", source="slime and verl (c)"),
    ] = None
    refill_when: Annotated[
        RefillWhen,
        Doc(
            "short launches as soon as what is in flight cannot fill the batch; drained waits for "
            "the wave's end",
            source="slime and verl (c)",
        ),
    ] = "short"
    surplus: Annotated[
        Surplus | None,
        Doc(
            "what becomes of groups accepted beyond the batch; null drops them where the refill is "
            "drained (c) and otherwise leaves it to the other policies (i)"
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
