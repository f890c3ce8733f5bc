"""RhymeRL: a prompt's last responses tell how long its next ones will be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Policy, StepOutcome
from rollcast.simulator.policies.longest_first import DISPATCH, WINDOW, LongestFirst
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class RhymeRL(Policy):
    """Balances the replicas by the lengths that the same prompts' responses had in the last epoch,
    and submits the longest first (RhymeRL's HistoPipe, arXiv 2508.18588).

    Strictly on-policy. (p) marks what the paper says, (i) what we inferred:

    - The order of prompts by length hardly changes between epochs (p), so the last length of a
      prompt predicts the next. The prediction is the mean over its responses (i).
    - Rollouts are distributed so that the replicas have equal work (p), by longest processing time
      first (i; the paper assigns ranks to groups of workers).
    - Prompts that were not sampled yet, such as all of the first epoch, are predicted to be as long
      as the others on average. In the first step rollouts keep their order (i).

    Needs ``workload.prompts``, the size of the dataset: without it no prompt returns, and nothing
    is learnt. Not modelled: speculative drafts from earlier responses (HistoSpec), and the
    alternation of long and short work between two steps in flight.
    """

    NAME = "rhyme_rl"
    decides = DISPATCH

    window: Annotated[
        float | None,
        WINDOW,
        Doc(
            "number of rollouts submitted to the replicas at once, as a multiple of their "
            "slots (engine.max_seqs each); null: all",
            unit="slots",
            source="our choice",
        ),
    ] = None

    @property
    def _rule(self) -> LongestFirst:
        return LongestFirst("history", "balanced", self.window)

    def init(self) -> Mapping[int, float] | None:
        """Nothing known of any prompt."""
        return self._rule.init()

    def plan(self, plan: StepPlan, state: Mapping[int, float] | None) -> StepPlan:
        """Decides dispatch: in the first step, as it comes."""
        return self._rule.plan(plan, state)

    def observe(
        self, state: Mapping[int, float] | None, outcome: StepOutcome
    ) -> Mapping[int, float] | None:
        """The mean response of each prompt when it last came."""
        return self._rule.observe(state, outcome)

    def describe_state(self, state: Mapping[int, float] | None) -> dict[str, Any]:
        """Of how many prompts a length is known."""
        return self._rule.describe_state(state)
