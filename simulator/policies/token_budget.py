"""Token budget: tokens or turns of a rollout per step, after which it waits for the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.plan import AllDone, StepPlan
from rollcast.simulator.policies.ranges import LAUNCHES, MULTIPLE
from rollcast.simulator.policy import Policy
from rollcast.simulator.values import AtLeast, Doc


@dataclass(frozen=True)
class TokenBudget(Policy):
    """Gives each rollout a number of tokens a step, and of turns if asked to; one that has had them
    waits for the next step and goes on there, so that no step is longer than the budget (Kimi
    k1.5's partial rollouts, arXiv 2501.12599).

    What is marked (p) is in the paper, (i) is inferred:

    - a fixed output budget caps every rollout of an iteration; what exceeds it is kept and goes on
      in the next one, after earlier ones first (p)
    - the iteration ends when every rollout has finished or had its budget (i), and so many prompts
      are in flight that a batch of groups is complete then (i); where it is not, those that wait
      have another round (i)
    - complete groups beyond the batch are kept, the oldest are trained on first (i)
    - tokens of earlier iterations may be left out of the loss (p)

    Not modelled: its end of responses that repeat themselves.
    """

    NAME = "token_budget"
    decides = LAUNCHES | {"budget_tokens", "budget_turns", "take", "staleness.mask_off_policy"}
    builds_on = frozenset({"staleness.mask_off_policy"})

    tokens: Annotated[
        int,
        AtLeast(1),
        Doc(
            "tokens that a rollout may sample in a step",
            unit="tokens",
            source="ours; the paper gives none (i)",
        ),
    ] = 8192
    over_sampling: Annotated[
        float,
        MULTIPLE,
        Doc(
            "groups in flight at a step's start, complete ones that wait included, as a multiple "
            "of the batch",
            unit="batches",
            source="ours (i)",
        ),
    ] = 2.0
    mask_off_policy: Annotated[
        bool,
        Doc(
            "whether the loss masks the tokens that an earlier version made; their rewards count",
            source="the paper names it as possible (p)",
        ),
    ] = False
    turns: Annotated[
        int | None,
        AtLeast(1),
        Doc(
            "turns that a rollout may have in a step; null is no limit",
            unit="turns",
            source="ours (i): the paper's rollouts have one",
        ),
    ] = None

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch.over_sampling, stop, unfinished, budget_tokens, budget_turns, surplus and
        take; adds masking if asked to."""
        mask = plan.staleness.mask_off_policy or self.mask_off_policy
        return replace(
            plan,
            launch=replace(plan.launch, over_sampling=self.over_sampling),
            stop=AllDone(),
            unfinished="resume",
            budget_tokens=self.tokens,
            budget_turns=self.turns,
            surplus="carry",
            take="oldest",
            staleness=replace(plan.staleness, mask_off_policy=mask),
        )
