"""A run's figures as functions of prices, lengths and sampling error, without another run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.results.phases import PHASES, PhaseName, bounds, in_sum
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.short_runs import (
    FIGURES,
    LEVEL,
    PASSES,
    Quadratic,
    Responses,
    Sums,
    longer,
)
from rollcast.simulator.studies.work import Work
from rollcast.simulator.workload.lengths import LengthDistribution
from rollcast.simulator.workload.synthetic import SyntheticWorkload

FloatArray = NDArray[np.float64]
_BETWEEN: Sequence[PhaseName] = ("sync", "switch")
_ROLLOUT, _PASSES = FIGURES.index("rollout_s"), FIGURES.index("passes_s")


@dataclass(frozen=True, slots=True)
class Drawn:
    """Draws of a mean step. step_s, phases: seconds. rollout, train, tokens: of rollout phases, of
    all work of the trainer, and of tokens, over the run's own. bound_by: of `phases.SIDES`. All
    have shape (draws,)."""

    step_s: FloatArray
    phases: Mapping[PhaseName, FloatArray]
    rollout: FloatArray
    train: FloatArray
    tokens: FloatArray
    bound_by: NDArray[np.str_]


class Surrogate:
    """Of a run's summary. flows: whether rollouts are launched as others end, and overlap."""

    def __init__(self, summary: Mapping[str, Any], responses: Responses, flows: bool) -> None:
        self.step_s: float = summary["step_s"]
        self._base: dict[PhaseName, float] = {
            name: phase["s"] for name, phase in summary["phases"].items()
        }
        self._overlapped: bool = summary["overlapped"]
        self._waits_s: Mapping[str, float] = summary["replicas_wait_s"]
        self._responses, self._flows = responses, flows
        self._sides = Sides.of(summary, flows)

    @property
    def lengths(self) -> list[str]:
        """Inputs of the lengths."""
        return list(self._responses.lengths)

    def drawn(
        self,
        prices: Mapping[PhaseName, FloatArray],
        levels: Mapping[str, FloatArray],
        errors: FloatArray,
    ) -> Drawn:
        """prices: by phase, shape (draws,). levels: by input, shape (draws,). errors: of `FIGURES`,
        shape (draws, figures)."""
        prices, draws = self._without_away(prices), len(prices["generation"])
        longer = {name: np.exp(self._longer(name, levels, draws)) for name in FIGURES}
        moved = {name: errors[:, k] * longer[name] for k, name in enumerate(FIGURES)}
        phases = {
            name: self._base[name] * prices[name] * (moved["passes_s"] if name in PASSES else 1.0)
            for name in PHASES
        }
        rollout = prices["generation"] * moved["rollout_s"]
        phases["generation"] = self._base["generation"] * rollout
        phases["tail"] = self._base["tail"] * prices["tail"] * moved["rollout_s"]
        if self._overlapped:
            rolls, trains, steps = self._of_sides(longer, errors)
            trainer = self._over(prices, TRAINER)
            grown = self._sides.step(prices["generation"] * rolls, trainer * trains)
            step_s = np.maximum(
                self.step_s * steps * self._between(prices, grown),
                _sum(phases, (name for name in in_sum(True) if name != "wait")),
            )
            phases["wait"] = step_s - _sum(phases, (n for n in in_sum(True) if n != "wait"))
            if self._flows:
                rollout = grown * errors[:, _ROLLOUT]
            phases["generation"] = np.minimum(self._base["generation"] * rollout, step_s)
            needed_s = (self.step_s - self._waits_s["trainer"]) * prices["generation"]
            held_s = np.maximum(step_s - needed_s * rolls * steps, 0.0)
        else:
            step_s, held_s = _sum(phases, in_sum(False)), np.zeros(draws)
        phases["tail"] = np.minimum(phases["tail"], phases["generation"])
        bound_by = bounds(
            phases, overlapped=self._overlapped, held_s=held_s, away_s=self._waits_s["environment"]
        )
        train = self._over({n: phases[n] / max(self._base[n], 1e-12) for n in TRAINER}, TRAINER)
        return Drawn(step_s, phases, rollout, train, moved["tokens"], bound_by)

    def _without_away(self, prices: Mapping[PhaseName, FloatArray]) -> dict[PhaseName, FloatArray]:
        """With what replicas wait for environments, in generation, as it is."""
        made_s = self._base["generation"]
        share = min(self._waits_s["environment"] / made_s, 1.0) if made_s > 0 else 0.0
        rolled = {n: share + (1.0 - share) * prices[n] for n in ("generation", "tail")}
        return {**prices, **rolled}  # type: ignore[dict-item]

    def _of_sides(
        self, longer: Mapping[str, FloatArray], errors: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """By what the rollouts, the trainer and the whole step are longer.

        A step that is one side's as a whole answers to lengths as such; else each side does.
        Sampling error is of either side too, which is what policies of a comparison have in common;
        where rollouts flow from step to step it is of the steps.
        """
        if self._flows:
            return longer["rollout_s"], longer["passes_s"], errors[:, 0]
        return errors[:, _ROLLOUT], errors[:, _PASSES], longer["step_s"]

    def _between(self, prices: Mapping[PhaseName, FloatArray], grown: FloatArray) -> FloatArray:
        """By what a step of two sides that are ``grown`` is longer, with what is between them."""
        share = min(sum(self._base[name] for name in _BETWEEN) / self.step_s, 0.9)
        return np.asarray((1.0 - share) * grown + share * self._over(prices, _BETWEEN))

    def _over(
        self, ratios: Mapping[PhaseName, FloatArray], names: Sequence[PhaseName]
    ) -> FloatArray:
        """The sum of phases of which each takes so many times as long, over the run's own."""
        own_s = sum(self._base[name] for name in names)
        if own_s <= 0:
            return np.ones_like(ratios[names[0]])
        return _sum({n: self._base[n] * ratios[n] for n in names}, names) / own_s

    def _longer(self, figure: str, levels: Mapping[str, FloatArray], draws: int) -> FloatArray:
        """The log of what the lengths do to a figure, shape (draws,)."""
        total = np.zeros(draws)
        for name, z in levels.items():
            total = total + self._responses.lengths[name].log(figure, z)
        return total


def _sum(phases: Mapping[PhaseName, FloatArray], names: Iterable[PhaseName]) -> FloatArray:
    return np.asarray(np.sum([phases[name] for name in names], axis=0))


TRAINER = tuple(
    name for name in PHASES if name not in ("generation", "tail", "wait", "sync", "switch")
)
"""Phases of the trainer, with what else it holds a step for."""
FLOWING, WAVES = 4.0, 8.0
"""Exponents of the norm that stands for the larger of two: of runs that refill, and of others."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Needs of rollouts and trainer as shares of a step. exponent: `FLOWING` or `WAVES`."""

    rollout: float
    train: float
    exponent: float

    @classmethod
    def of(cls, summary: Mapping[str, Any], flows: bool) -> Sides:
        """Of a finished run."""
        step_s = max(summary["step_s"], 1e-12)
        waited = summary["replicas_wait_s"]["trainer"] / step_s
        train = sum(summary["phases"][name]["s"] for name in TRAINER) / step_s
        return cls(min(max(1.0 - waited, 0.01), 1.0), train, FLOWING if flows else WAVES)

    def step(self, rollout: FloatArray, train: FloatArray) -> FloatArray:
        """A step over the run's own, where either side takes so many times as long."""
        p = self.exponent
        now = (self.rollout * rollout) ** p + (self.train * train) ** p
        return np.asarray((now / (self.rollout**p + self.train**p)) ** (1.0 / p))


def refills(scenario: Scenario) -> bool:
    """Whether the policy launches rollouts as others end."""
    plan = scenario.policy.plan(scenario.plan, scenario.policy.init())
    return plan.launch.refill != "none"


def by_tokens(scenario: Scenario, work: Work, inputs: Iterable[str]) -> Responses:
    """Responses to lengths of a step's tokens, and of the time of its rollouts and updates."""
    base = _mean_and_context(scenario)
    result = {}
    for name in inputs:
        tried = []
        for z in (-LEVEL, LEVEL):
            mean, context = _mean_and_context(longer(scenario, name, z))
            tokens = mean / base[0]
            rollout = tokens * work.at_context(context / base[1])
            tried.append(Sums(1.0, rollout, tokens, tokens))
        result[name] = Quadratic.through(*tried)
    return Responses(result)


def _mean_and_context(scenario: Scenario) -> tuple[float, float]:
    """Mean length, and the mean context of a rollout over the time that it runs; tokens."""
    workload = scenario.workload
    if not isinstance(workload, SyntheticWorkload):
        return 1.0, 1.0
    lengths: LengthDistribution = workload.lengths.marginal(workload.max_new_tokens)
    mean = lengths.mean()
    return mean, workload.max_prompt_tokens + 0.5 * (lengths.var() / mean + mean)
