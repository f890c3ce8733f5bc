"""Dynamic sampling: DAPO's filter of groups without a gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from simulator.plan import AllDone, EnoughGroups, Filter, StepPlan, Surplus
from simulator.policies.params import choice, whole
from simulator.policy import Policy
from simulator.selection import ZeroVariance

RefillWhen = Literal["short", "drained"]


@dataclass(frozen=True)
class DynamicSampling(Policy):
    """Rejects complete groups whose rewards are all equal and launches others in their place (DAPO,
    arXiv 2503.14476, section 3.2). (c) read in code, (i) inferred:

    - ``short``, as in slime: a wave is launched as soon as what is in flight can no longer fill the
      batch, and the step ends once the batch is full (c)
    - ``drained``, as in verl: a wave runs to its end, and while the batch is not full another
      follows; groups beyond the batch are cut off (c)

    refill_groups: groups per refill; None is a whole wave (c, both). refill_when: as above.
    surplus: groups accepted beyond the batch; None drops them where the refill is ``drained`` (c)
        and otherwise leaves the plan as it is (i).

    Raises ScenarioError (``policy.dynamic_sampling.*``) for values out of range.
    """

    refill_groups: int | None = None
    refill_when: RefillWhen = "short"
    surplus: Surplus | None = None

    def __post_init__(self) -> None:
        field = "policy.dynamic_sampling"
        if self.refill_groups is not None:
            groups = whole(self.refill_groups, f"{field}.refill_groups", 1)
            object.__setattr__(self, "refill_groups", groups)
        choice(self.refill_when, f"{field}.refill_when", get_args(RefillWhen))
        if self.surplus is not None:
            choice(self.surplus, f"{field}.surplus", get_args(Surplus))

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
