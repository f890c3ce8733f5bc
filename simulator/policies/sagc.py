"""SAGC: group size as an online choice under a bound on the straggler rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Policy, StepOutcome
from rollcast.simulator.loop.selection import is_straggler
from rollcast.simulator.values import SEED, SHARE, Above, AtLeast, Between, Doc

PSEUDO_COUNT_FLOOR = 1e-3
"""Least value of a Beta parameter; forgetting alone would take it to 0."""

OURS = "our choice; the paper gives none"


@dataclass(frozen=True, slots=True)
class SAGCState:
    """What the controller has learnt.

    multiplier: lambda, the price of a straggler event.
    posteriors: the Beta parameters (events, non-events) of each candidate's straggler rate.
    current: index of the candidate that the next step uses.
    draws: decisions taken so far; with the seed it addresses the next Thompson draw.
    """

    multiplier: float
    posteriors: tuple[tuple[float, float], ...]
    current: int
    draws: int = 0


@dataclass(frozen=True)
class SAGC(Policy):
    """Chooses the group size online under a bound on the straggler rate (SAGC, straggler-aware
    group control, arXiv 2606.02218).

    It maximises the sum of u(G) subject to a mean straggler rate of at most alpha, by dual ascent
    on the multiplier lambda and Thompson sampling among the current group size and its neighbours.
    B x G stays constant.

    (p) marks what the paper says, (i) what we inferred or chose:

    - A group straggles if its longest response exceeds tau times its median (p). Every complete
      group is one observation, also if a filter rejects it (i).
    - After each step, in this order: lambda <- clip(lambda + eta (rate - alpha), 0, lambda_max);
      then the posterior of the current group size alone, a <- gamma a + events, b <- gamma b +
      non-events, from Beta(1, 1); then the choice, which holds from the next step (p). The bounds
      of lambda, its one update per step, and a floor of 0.001 under a and b are ours (i).
    - The choice is the argmax of u(G) - lambda (p - alpha), with p drawn from each posterior (p).
      Of equal ones the smaller group size wins (i).
    - u(G) = ln G; the paper asks for an increasing, concave function on the scale of a probability
      (i).
    - Groups that started under another group size are not observations of this one (i). A step
      without observations changes neither lambda nor the posteriors (i).

    eta was chosen so that the controller does what the paper's curves show: every group size tried
    and the posterior means in order after about 30 steps of 64 rollouts. Of 0.05, 1, 2, 3, 4, 5 and
    8, 4 is the smallest that does so in all four of the paper's settings: after 31, 5, 8 and 17
    steps (Qwen2.5-3B and Llama-3.2-3B, each GRPO and DAPO; medians of 60 seeds). In the first, 3
    takes 40 steps, 8 takes 30, and 0.05 more than 120. On four presets of measured lengths 4 takes
    6 to 73 steps, most where nearly every group straggles at every group size
    (``benchmarks/results/published.md``). lambda then stays near its maximum wherever even the
    smallest group size straggles more often than alpha.

    Raises ScenarioError (``policy.sagc.*``) for values out of range, and from ``plan`` where B x G
    is no multiple of a candidate.
    """

    NAME = "sagc"
    decides = frozenset({"batch"})
    builds_on = frozenset({"batch.groups"})

    candidates: Annotated[
        tuple[int, ...],
        AtLeast(2),
        Doc("group sizes to choose from, each at least 2", unit="rollouts", source="the paper"),
    ] = (4, 8, 16)
    tau: Annotated[
        float,
        Between(1, 1000),
        Doc(
            "a group straggles if its longest response exceeds tau times its median response",
            unit="medians",
            source="the paper",
        ),
    ] = 1.25
    alpha: Annotated[
        float, SHARE, Doc("maximum mean straggler rate", unit="share of groups", source=OURS)
    ] = 0.10
    eta: Annotated[
        float,
        Above(0, 1e6),
        Doc(
            "step size of the dual ascent on the multiplier lambda",
            unit="per unit of rate",
            source=(
                "our choice, so that the sizes' rates separate after about 30 steps, as in "
                "the paper, which gives none"
            ),
        ),
    ] = 4.0
    gamma: Annotated[
        float,
        Above(0, 1),
        Doc("discount per step of earlier observations", unit="factor", source=OURS),
    ] = 0.99
    lambda0: Annotated[
        float,
        Between(0, 1e6),
        Doc("initial value of the multiplier lambda", unit="utility", source=OURS),
    ] = 0.0
    lambda_max: Annotated[
        float, Between(0, 1e6), Doc("maximum of the multiplier lambda", unit="utility", source=OURS)
    ] = 10.0
    first: Annotated[
        int,
        AtLeast(2),
        Doc("group size of the first step; one of candidates", unit="rollouts", source=OURS),
    ] = 8
    seed: Annotated[int, SEED, Doc("seed of the Thompson draws; default: the seed of the run")] = 0

    def agree(self) -> None:
        """Candidates are distinct, kept rising, and hold the first size."""
        sizes = sorted(set(self.candidates))
        if not sizes or len(sizes) < len(self.candidates):
            raise self.refuse(
                "candidates", f"must be distinct group sizes, got {list(self.candidates)}"
            )
        object.__setattr__(self, "candidates", tuple(sizes))
        if self.lambda0 > self.lambda_max:
            raise self.refuse(
                "lambda0", f"must be at most lambda_max, {self.lambda_max:g}, got {self.lambda0:g}"
            )
        if self.first not in sizes:
            listed = ", ".join(map(str, sizes))
            raise self.refuse("first", f"must be one of {listed}, the candidates, got {self.first}")

    def init(self) -> SAGCState:
        """Uniform posteriors, and the first size."""
        uniform = tuple((1.0, 1.0) for _ in self.candidates)
        return SAGCState(self.lambda0, uniform, self.candidates.index(self.first))

    def plan(self, plan: StepPlan, state: SAGCState) -> StepPlan:
        """Decides the batch: the current size at the same number of rollouts."""
        size = self.candidates[state.current]
        return replace(plan, batch=plan.batch.with_group_size(size))

    def observe(self, state: SAGCState, outcome: StepOutcome) -> SAGCState:
        """Updates lambda, then the posterior of the size the step used, then chooses."""
        size = outcome.plan.batch.group_size
        straggled = [
            is_straggler(group.new_tokens, self.tau)
            for group in outcome.complete
            if group.size == size
        ]
        multiplier, posteriors = state.multiplier, state.posteriors
        if straggled and size in self.candidates:
            events, seen = sum(straggled), len(straggled)
            raised = multiplier + self.eta * (events / seen - self.alpha)
            multiplier = min(max(raised, 0.0), self.lambda_max)
            arm = self.candidates.index(size)
            updated = self._updated(posteriors[arm], (events, seen - events))
            posteriors = (*posteriors[:arm], updated, *posteriors[arm + 1 :])
        chosen = self._choose(multiplier, posteriors, state)
        return SAGCState(multiplier, posteriors, chosen, state.draws + 1)

    def group_sizes(self, sizes: frozenset[int]) -> frozenset[int]:
        """The candidates."""
        return frozenset(self.candidates)

    def describe_state(self, state: SAGCState) -> dict[str, Any]:
        """lambda, the size in use, and each candidate's posterior mean straggler rate."""
        rates = {
            f"sagc_rate_{size}": events / (events + others)
            for size, (events, others) in zip(self.candidates, state.posteriors, strict=True)
        }
        size = self.candidates[state.current]
        return {"sagc_lambda": state.multiplier, "sagc_group_size": size, **rates}

    def _updated(
        self, posterior: tuple[float, float], counts: tuple[int, int]
    ) -> tuple[float, float]:
        """(events, non-events) after forgetting and the step's counts."""
        events, others = (
            max(self.gamma * was + count, PSEUDO_COUNT_FLOOR)
            for was, count in zip(posterior, counts, strict=True)
        )
        return events, others

    def _choose(
        self, multiplier: float, posteriors: Sequence[tuple[float, float]], state: SAGCState
    ) -> int:
        """Index of the size for the next step, among the current one and its neighbours."""
        address = np.random.SeedSequence([self.seed, state.draws])
        generator = np.random.Generator(np.random.Philox(address))
        near = range(max(state.current - 1, 0), min(state.current + 2, len(self.candidates)))
        rates = {arm: float(generator.beta(*posteriors[arm])) for arm in near}
        return max(
            near,
            key=lambda arm: math.log(self.candidates[arm]) - multiplier * (rates[arm] - self.alpha),
        )
