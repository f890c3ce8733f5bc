"""Token budget: tokens or turns of a rollout per step, after which it waits for the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.core.plan import AllDone, StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.policies.ranges import LAUNCHES, MULTIPLE
from rollcast.simulator.values import AtLeast, Doc


@dataclass(frozen=True)
class TokenBudget(Policy):
    """Limits the tokens, and optionally the turns, that a rollout samples per step; unfinished
    rollouts continue in the next step, so no step is longer than the budget (Kimi k1.5's partial
    rollouts, arXiv 2501.12599).

    (p) marks what the paper says, (i) what we inferred:

    - A fixed budget of output tokens limits every rollout of a step. Unfinished rollouts are kept
      and continue in the next step, the oldest first (p).
    - The step ends when every rollout has finished or reached its budget (i). By default enough
      prompts are in flight that a batch of groups is then complete; if it is not, the unfinished
      rollouts get another budget (i).
    - Groups that complete beyond the batch are kept; the oldest are trained on first (i).
    - Tokens of earlier steps may be left out of the loss (p).

    Not modelled: the early end of responses that repeat themselves.
    """

    NAME = "token_budget"
    decides = LAUNCHES | {"budget_tokens", "budget_turns", "take", "staleness.mask_off_policy"}
    builds_on = frozenset({"staleness.mask_off_policy"})

    tokens: Annotated[
        int,
        AtLeast(1),
        Doc(
            "maximum number of tokens that a rollout samples per step",
            unit="tokens",
            source="our choice; the paper gives none",
        ),
    ] = 8192
    over_sampling: Annotated[
        float,
        MULTIPLE,
        Doc(
            "groups in flight at the start of a step, complete ones included, as a "
            "multiple of the batch",
            unit="batches",
            source="our choice",
        ),
    ] = 2.0
    mask_off_policy: Annotated[
        bool,
        Doc(
            "whether the loss masks tokens that an earlier version of the weights "
            "sampled; their rewards still count",
            source="the paper names it as possible",
        ),
    ] = False
    turns: Annotated[
        int | None,
        AtLeast(1),
        Doc(
            "maximum number of turns that a rollout has per step; null: no limit",
            unit="turns",
            source="our choice; the paper's rollouts have one turn",
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
