"""APRIL: over-provision, stop at N complete groups, resume the rest next step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.core.plan import EnoughGroups, StepPlan, Surplus
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.policies.ranges import LAUNCHES, MULTIPLE
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class APRIL(Policy):
    """Launches more groups than the batch needs, ends the step once the batch is full, and resumes
    the unfinished groups in the next step (APRIL, active partial rollouts, arXiv 2509.18521;
    released code and its port in slime).

    A step launches ``over_sampling`` times its batch and ends as soon as the batch's groups are
    complete. It keeps the unfinished groups, and the next step resumes them first.

    (c) marks what we read in the released code, (p) what the paper says, (i) what we inferred:

    - Groups are counted, not rollouts: the step ends by the number of complete groups, all rollouts
      in flight are aborted, and a suspended group keeps the tokens and rewards of its finished
      rollouts (c).
    - All groups of a step are launched at its start, the oldest suspended ones first; none is
      launched when others complete (c).
    - Staleness is not bounded (c).
    - Advantages are computed over the whole group, whichever versions sampled it (c).
    """

    NAME = "april"
    decides = LAUNCHES | {"staleness.mask_off_policy"}
    builds_on = frozenset({"staleness.mask_off_policy"})

    over_sampling: Annotated[
        float,
        MULTIPLE,
        Doc(
            "groups launched per step as a multiple of the batch",
            unit="batches",
            source="the paper: 64 groups for a batch of 32",
        ),
    ] = 2.0
    surplus: Annotated[
        Surplus,
        Doc(
            "what happens to groups that complete beyond the batch: carry (trained on "
            "next), train (added to this batch), drop (discarded, as in slime) or restart "
            "(their prompts are queued again)"
        ),
    ] = "carry"
    mask_off_policy: Annotated[
        bool,
        Doc(
            "whether the loss masks tokens that an earlier version of the weights "
            "sampled; their rewards still count",
            source="slime, where it is off by default",
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
