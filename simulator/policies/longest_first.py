"""Longest first: the order of dispatch by an expected length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any, Literal

from rollcast.simulator.plan import (
    Dispatch,
    GroupProbe,
    History,
    Oracle,
    Placement,
    Predictor,
    StepPlan,
)
from rollcast.simulator.policy import Policy, StepOutcome
from rollcast.simulator.values import Above, Doc

DISPATCH = frozenset(
    {"dispatch.order", "dispatch.predictor", "dispatch.placement", "dispatch.window"}
)
WINDOW = Above(0, 1000)
"""Rollouts handed to the replicas at once, as a multiple of the slots that they have."""


@dataclass(frozen=True)
class LongestFirst(Policy):
    """Hands rollouts to the replicas in the order of their expected lengths, the longest first, so
    that none of them starts late and holds up the step (longest processing time first, Graham
    1969).

    Strictly on-policy. What the lengths are expected by:

    - oracle: the truth, which only a simulated world knows: the bound of what any predictor can
      gain
    - probe: the longest finished sibling of the same group (`seer` is this)
    - history: the mean response of the same prompt when it last came, or of all prompts if it has
      not come yet (`rhyme_rl` is this), which takes prompts that come again (``workload.prompts``);
      until some have come, rollouts go as they come

    The order tells only where rollouts wait: more of them than the replicas' slots, or a KV pool
    that is full. The state is what is known of each prompt, under ``history``.
    """

    NAME = "longest_first"
    decides = DISPATCH

    predictor: Annotated[
        Literal["oracle", "probe", "history"], Doc("what the lengths are expected by")
    ] = "oracle"
    placement: Annotated[
        Placement,
        Doc(
            "which replica a rollout goes to: router, as the cluster routes; balanced, to the one "
            "with the fewest expected tokens outstanding"
        ),
    ] = "balanced"
    window: Annotated[
        float | None,
        WINDOW,
        Doc(
            "rollouts handed over at once, as a multiple of the replicas' slots (engine.max_seqs "
            "each); the others wait, and their order may still change. null hands over everything",
            unit="slots",
        ),
    ] = None

    def init(self) -> Mapping[int, float] | None:
        """Nothing known of any prompt; None where nothing is learnt."""
        return {} if self.predictor == "history" else None

    def plan(self, plan: StepPlan, state: Mapping[int, float] | None) -> StepPlan:
        """Decides dispatch: as it comes, where there is nothing to go by yet."""
        if state is not None and not state:
            return replace(plan, dispatch=Dispatch(window=self.window))
        tokens = state or {}
        predictors: dict[str, Predictor] = {
            "oracle": Oracle(),
            "probe": GroupProbe(),
            "history": History(tokens, fmean(tokens.values()) if tokens else None),
        }
        dispatch = Dispatch(
            "longest_first", predictors[self.predictor], self.placement, self.window
        )
        return replace(plan, dispatch=dispatch)

    def observe(
        self, state: Mapping[int, float] | None, outcome: StepOutcome
    ) -> Mapping[int, float] | None:
        """The mean of each prompt's last responses; nothing for prompts that never come again."""
        if state is None or outcome.plan.prompts.dataset is None:
            return state
        return {**state, **{g.prompt: fmean(g.new_tokens) for g in outcome.complete}}

    def describe_state(self, state: Mapping[int, float] | None) -> dict[str, Any]:
        """Of how many prompts a length is known."""
        return {} if state is None else {"known_prompts": len(state)}
