"""RhymeRL: a prompt's last responses tell how long its next ones will be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from rollcast.simulator.plan import StepPlan
from rollcast.simulator.policies.longest_first import DISPATCH, WINDOW, LongestFirst
from rollcast.simulator.policy import Policy, StepOutcome
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class RhymeRL(Policy):
    """Spreads rollouts over the replicas by the lengths that the same prompts' responses had in the
    last epoch, the longest first (RhymeRL's HistoPipe, arXiv 2508.18588).

    Strictly on-policy. What is marked (p) is in the paper, (i) is inferred:

    - prompts keep their rank by length from one epoch to the next but for a few per cent (p), so
      that what a prompt had when it last came stands for what it will have; the mean of its
      responses (i)
    - rollouts are dealt out so that the replicas have equal work (p); by longest processing time
      first (i, the paper deals ranks into groups of workers)
    - prompts of which nothing is known yet, all of them in the first epoch, are expected to be as
      long as the others on average; in the first step rollouts go as they come (i)

    Needs prompts that come again: ``workload.prompts`` says how many there are, and without it
    nothing is ever learnt. Not modelled: its drafts from a prompt's last responses (HistoSpec), and
    its alternation of long and short work between two steps in flight.
    """

    NAME = "rhyme_rl"
    decides = DISPATCH

    window: Annotated[
        float | None,
        WINDOW,
        Doc(
            "rollouts handed to the replicas at once, as a multiple of their slots "
            "(engine.max_seqs each); null hands over everything",
            unit="slots",
            source="ours (i)",
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
