"""APRIL: over-provision, stop at N complete groups, resume the rest next step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

from simulator.plan import EnoughGroups, StepPlan, Surplus
from simulator.policies.params import choice, flag, multiple
from simulator.policy import Policy


@dataclass(frozen=True)
class APRIL(Policy):
    """Active partial rollouts (arXiv 2509.18521; released code and its port in slime).

    A step launches ``over_sampling`` times its batch, ends as soon as the batch's groups are
    complete, and keeps the unfinished groups, which the next step resumes first. (c) read in code,
    (p) in the paper, (i) inferred:

    - the unit is the group: the trigger counts complete groups, the abort is engine-wide, and a
      buffered group keeps the tokens and rewards of its finished members (c)
    - one wave at the start of a step, oldest buffered groups first; completions refill nothing (c)
    - no bound on staleness (c)
    - advantages over the whole group, whichever versions made it (c)

    over_sampling: groups launched as a multiple of the batch, so that it holds for any batch that a
        later policy sets; 2.0 is the published 64 for 32 (p). From 1.
    surplus: what becomes of groups that complete beyond the batch. slime loses them, ``drop`` (c);
        the default ``carry`` trains on them next (i); ``train`` adds them to this batch (i).
    mask_off_policy: masks in the loss the tokens that an earlier version made; their rewards still
        count (c, an option that is off by default).

    Raises ScenarioError (``policy.april.*``) for values out of range.
    """

    over_sampling: float = 2.0
    surplus: Surplus = "carry"
    mask_off_policy: bool = False

    def __post_init__(self) -> None:
        ratio = multiple(self.over_sampling, "policy.april.over_sampling")
        object.__setattr__(self, "over_sampling", ratio)
        choice(self.surplus, "policy.april.surplus", get_args(Surplus))
        flag(self.mask_off_policy, "policy.april.mask_off_policy")

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch.over_sampling, stop, unfinished and surplus; adds masking if asked to."""
        mask = plan.staleness.mask_off_policy or self.mask_off_policy
        return replace(
            plan,
            launch=replace(plan.launch, over_sampling=self.over_sampling),
            stop=EnoughGroups(),
            unfinished="resume",
            surplus=self.surplus,
            staleness=replace(plan.staleness, mask_off_policy=mask),
        )
