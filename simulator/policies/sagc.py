"""SAGC: group size as an online choice under a bound on the straggler rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.errors import ScenarioError
from simulator.plan import StepPlan
from simulator.policies.params import between, seed, whole
from simulator.policy import Policy, StepOutcome
from simulator.selection import is_straggler

PSEUDO_COUNT_FLOOR = 1e-3
"""Least value of a Beta parameter; forgetting alone would take it to 0."""

FIELD = "policy.sagc"


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
    """Straggler-aware group control (arXiv 2606.02218).

    Maximises the sum of u(G) subject to a mean straggler rate of at most alpha: dual ascent on the
    multiplier lambda, and Thompson sampling among the current size and its neighbours. B x G stays
    constant. (p) in the paper, (i) inferred or our choice:

    - a group straggles if its longest response exceeds tau times its median (p); one observation
      per complete group, whether or not a filter let it count (i)
    - after each step, in this order: lambda <- clip(lambda + eta (rate - alpha), 0, lambda_max);
      only the current size's posterior, a <- gamma a + events, b <- gamma b + non-events, from
      Beta(1, 1); then the choice, which takes effect at the next step (p; the box, one update of
      lambda a step, and a floor of 0.001 under a and b, i)
    - choice: argmax of u(G) - lambda (p - alpha) with p drawn from each posterior (p); ties go to
      the smaller size (i)
    - u(G) = ln G: the paper asks for increasing and concave, on the scale of a probability (i)
    - groups that began under another size are no observation of this one (i); a step without any
      observation leaves lambda and the posteriors as they are (i)

    candidates: group sizes, two or more responses each, as a ratio needs (p: 4, 8, 16). tau: (p).
    alpha, eta, gamma, lambda0, lambda_max, first: not given by the paper; ours (i).
    first: the size of the first step. seed: of the Thompson draws.

    Raises ScenarioError (``policy.sagc.*``) for values out of range, and from ``plan`` where B x G
    is no multiple of a candidate.
    """

    candidates: tuple[int, ...] = (4, 8, 16)
    tau: float = 1.25
    alpha: float = 0.10
    eta: float = 0.05
    gamma: float = 0.99
    lambda0: float = 0.0
    lambda_max: float = 10.0
    first: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("candidates", _candidates(self.candidates))
        put("tau", between(self.tau, f"{FIELD}.tau", 1, 1000))
        put("alpha", between(self.alpha, f"{FIELD}.alpha", 0, 1))
        put("eta", between(self.eta, f"{FIELD}.eta", 0, 1e6, above=True))
        put("gamma", between(self.gamma, f"{FIELD}.gamma", 0, 1, above=True))
        put("lambda_max", between(self.lambda_max, f"{FIELD}.lambda_max", 0, 1e6))
        put("lambda0", between(self.lambda0, f"{FIELD}.lambda0", 0, self.lambda_max))
        put("first", whole(self.first, f"{FIELD}.first", 2))
        put("seed", seed(self.seed, f"{FIELD}.seed"))
        if self.first not in self.candidates:
            sizes = ", ".join(map(str, self.candidates))
            raise ScenarioError(
                f"{FIELD}.first", f"must be one of the candidates ({sizes}), got {self.first}"
            )

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


def _candidates(value: object) -> tuple[int, ...]:
    """Distinct group sizes, rising."""
    field = f"{FIELD}.candidates"
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ScenarioError(field, f"must be a list of group sizes, got {value!r}")
    sizes = sorted(whole(size, field, 2) for size in value)
    if len(set(sizes)) < len(sizes):
        raise ScenarioError(field, f"must be distinct group sizes, got {list(value)!r}")
    return tuple(sizes)
