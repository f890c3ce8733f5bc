"""Longest first: the order of dispatch by an expected length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any, Literal

from rollcast.simulator.core.plan import (
    Dispatch,
    GroupProbe,
    History,
    Oracle,
    Placement,
    Predictor,
    StepPlan,
)
from rollcast.simulator.core.policy import Policy, StepOutcome
from rollcast.simulator.values import Above, Doc

DISPATCH = frozenset(
    {"dispatch.order", "dispatch.predictor", "dispatch.placement", "dispatch.window"}
)
WINDOW = Above(0, 1000)
"""Rollouts handed to the replicas at once, as a multiple of the slots that they have."""


@dataclass(frozen=True)
class LongestFirst(Policy):
    """Submits rollouts in the order of their predicted lengths, the longest first, so that no long
    rollout starts late and delays the step (longest processing time first, Graham 1969).

    Strictly on-policy. The prediction is one of:

    - ``oracle``: the true length, which only a simulation knows; an upper bound for every
      predictor.
    - ``probe``: the longest finished rollout of the same group (`seer` is this).
    - ``history``: the mean response of the same prompt when it was last sampled, or of all prompts
      if it was not yet (`rhyme_rl` is this). It needs prompts that return (``workload.prompts``);
      until some have, rollouts keep their order.

    The order matters only where rollouts wait: where there are more of them than slots on the
    replicas, or where the KV pool is full. The state holds what is known of each prompt, for
    ``history``.
    """

    NAME = "longest_first"
    decides = DISPATCH

    predictor: Annotated[
        Literal["oracle", "probe", "history"],
        Doc(
            "how lengths are predicted: oracle (the true lengths, in simulation only), "
            "probe (the longest finished rollout of the group) or history (the prompt's "
            "mean response so far)"
        ),
    ] = "oracle"
    placement: Annotated[
        Placement,
        Doc(
            "which replica a rollout goes to: router (as cluster.routing says) or "
            "balanced (the one with the fewest predicted tokens outstanding)"
        ),
    ] = "balanced"
    window: Annotated[
        float | None,
        WINDOW,
        Doc(
            "number of rollouts submitted to the replicas at once, as a multiple of their "
            "slots (engine.max_seqs each); the others wait, and their order may still "
            "change; null: all",
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
