"""The whole run from a simulated part of it: updates, hours, GPU-hours, dollars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies.chains import read_terms
from rollcast.simulator.scenario.plan_section import ObjectiveName, RunSection


@dataclass(frozen=True, slots=True)
class Work:
    """The amount of training, in one unit: ``rollouts`` taken in by updates (before selection),
    ``prompts`` used up, ``trained`` rollouts, or an ``accuracy`` to reach. text: in words. assumed:
    not given by the user."""

    text: str
    rollouts: float | None = None
    prompts: float | None = None
    trained: float | None = None
    assumed: bool = False
    accuracy: float | None = None

    def said(self, updates: float) -> str:
        """The text, with the updates that a choice takes where they are its own."""
        if self.accuracy is None:
            return f"{self.text[0].upper()}{self.text[1:]}"
        return f"{updates:,.0f} updates to accuracy {self.accuracy:g}"

    def updates(self, taken: float, used: float, trained: float, level: float | None) -> float:
        """Updates needed, if one takes in ``taken`` rollouts, trains on ``trained`` and uses up
        ``used`` prompts, and synchronous training with its batch needs ``level`` up to the
        accuracy; infinite if it brings nothing."""
        if self.accuracy is not None:
            return math.inf if level is None else level
        for wanted, per_update in (
            (self.rollouts, taken),
            (self.prompts, used),
            (self.trained, trained),
        ):
            if wanted is not None:
                return wanted / per_update if per_update > 0 else math.inf
        raise AssertionError("work of no kind")


ASSUMED_STEPS = 500


def work_of(section: RunSection | None, rollouts_a_step: int) -> Work:
    """The work of ``plan.run``; `ASSUMED_STEPS` steps by default."""
    if section is None or section.steps is not None:
        steps = ASSUMED_STEPS if section is None or section.steps is None else section.steps
        text = f"{steps:,} steps of {rollouts_a_step:,} rollouts"
        return Work(text, rollouts=float(steps) * rollouts_a_step, assumed=section is None)
    if section.prompts is not None:
        times = f", {section.epochs:g} times" if section.epochs != 1 else ""
        return Work(f"{section.prompts:,} prompts{times}", prompts=section.prompts * section.epochs)
    if section.accuracy is not None:
        return Work(f"all updates to accuracy {section.accuracy:g}", accuracy=section.accuracy)
    assert section.trained_rollouts is not None
    count = section.trained_rollouts
    return Work(f"{count:,} rollouts trained on", trained=float(count))


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of the whole run. usd: None without a price."""

    updates: float
    hours: float
    gpu_hours: float
    usd: float | None

    @property
    def cost(self) -> float:
        """Dollars, or GPU-hours without a price."""
        return self.gpu_hours if self.usd is None else self.usd

    def value(self, objective: ObjectiveName) -> float:
        """The figure that ``objective`` minimises. Raises ScenarioError for a missing price."""
        if objective == "hours":
            return self.hours
        if objective == "gpu_hours":
            return self.gpu_hours
        if objective == "balanced":
            return self.hours * self.cost
        if self.usd is None:
            raise ScenarioError(
                "plan.objective",
                "usd needs the price of every GPU; give usd_per_hour of gpu (and of "
                "cluster.trainer_gpu, where it has one), or take gpu_hours",
            )
        return self.usd


def run_cost(
    work: Work,
    *,
    step_s: float,
    taken: float,
    used: float,
    trained: float,
    gpus: int,
    usd_per_gpu_hour: float | None,
    quality: float = 1.0,
    startup_s: float = 0.0,
    startup_steps: int = 0,
    level: float | None = None,
) -> RunCost:
    """The cost of a run whose first ``startup_steps`` updates take ``startup_s`` and the others
    ``step_s`` each. taken, used, trained, level: see `Work.updates`. quality: updates to the target
    over those of synchronous training.
    """
    updates = quality * work.updates(taken, used, trained, level)
    steady = max(updates - startup_steps, 0.0)
    begun = min(updates / startup_steps, 1.0) if startup_steps else 0.0
    hours = (begun * startup_s + steady * step_s) / 3600
    price = usd_per_gpu_hour
    return RunCost(updates, hours, gpus * hours, None if price is None else price * gpus * hours)


def quality_of(policy: str, factors: Mapping[str, float]) -> float:
    """The factor of a chain (`by_hand`); 1 by default."""
    given = by_hand(policy, factors)
    return 1.0 if given is None else given


def by_hand(policy: str, factors: Mapping[str, float]) -> float | None:
    """The factor given for a chain: its own, else the product of its policies'; None without."""
    label = policy.partition("=")[0].strip() if policy not in factors else policy
    for name in (policy, label):
        if name in factors:
            return float(factors[name])
    try:
        terms = read_terms(policy)
    except ScenarioError:
        return None
    given = [float(factors[term.name]) for term in terms if term.name in factors]
    return math.prod(given) if given else None
