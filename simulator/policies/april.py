"""APRIL: over-provision, stop at N complete groups, resume the rest next step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.plan import EnoughGroups, StepPlan, Surplus
from rollcast.simulator.policies.ranges import LAUNCHES, MULTIPLE
from rollcast.simulator.policy import Policy
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class APRIL(Policy):
    """Launches more groups than the batch needs, stops once it is full, and resumes the rest in the
    next step (APRIL, active partial rollouts, arXiv 2509.18521; released code and its port in
    slime).

    A step launches ``over_sampling`` times its batch, ends as soon as the batch's groups are
    complete, and keeps the unfinished groups, which the next step resumes first.

    What is marked (c) was read in code, (p) is in the paper, (i) is inferred:

    - the unit is the group: the trigger counts complete groups, the abort is engine-wide, and a
      buffered group keeps the tokens and rewards of its finished members (c)
    - one wave at the start of a step, oldest buffered groups first; completions refill nothing (c)
    - no bound on staleness (c)
    - advantages over the whole group, whichever versions made it (c)
    """

    NAME = "april"
    decides = LAUNCHES | {"staleness.mask_off_policy"}
    builds_on = frozenset({"staleness.mask_off_policy"})

    over_sampling: Annotated[
        float,
        MULTIPLE,
        Doc(
            "groups launched as a multiple of the batch, so that it holds for any batch that a "
            "later policy sets",
            unit="batches",
            source="the published 64 groups for a batch of 32 (p)",
        ),
    ] = 2.0
    surplus: Annotated[
        Surplus,
        Doc(
            "what becomes of groups that complete beyond the batch: carry trains on them next (i), "
            "train adds them to this batch (i), drop loses them as slime does (c), restart queues "
            "their prompts",
        ),
    ] = "carry"
    mask_off_policy: Annotated[
        bool,
        Doc(
            "whether the loss masks the tokens that an earlier version made; their rewards count",
            source="an option of slime that is off by default (c)",
        ),
    ] = False

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
