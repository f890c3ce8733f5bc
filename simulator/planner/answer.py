"""The answer of a plan, as data: what to run, what else there is, what cannot be, and how sure.

Everything that is said or drawn of a plan (the terminal, ``plan.json``, the page) is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rollcast.simulator.planner.choices import Choice
from rollcast.simulator.planner.measure import Measured, Setup
from rollcast.simulator.planner.whole_run import RunCost, Work
from rollcast.simulator.scenario.plan_section import LimitSection, ObjectiveName


@dataclass(frozen=True, slots=True)
class Interval:
    """The ends of a 90 % interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """A choice that was simulated.

    exact: whether for the steps of the last rung. beyond: the limits that it breaks, by name.
    on_front: whether no other within the limits of GPUs and staleness takes fewer hours and costs
    less. break_even: how many times the updates of the best synchronous choice it may take before
    that is the better one; None where there is no synchronous one. hours, usd, gpu_hours: the whole
    run's intervals, of those that may win.
    """

    choice: Choice
    setup: Setup
    measured: Measured
    run_cost: RunCost
    quality: float
    exact: bool
    beyond: tuple[str, ...] = ()
    on_front: bool = False
    break_even: float | None = None
    hours: Interval | None = None
    usd: Interval | None = None

    def plain(self) -> dict[str, Any]:
        """One flat row of a table, as JSON types."""
        content: dict[str, Any] = {f"chosen_{k}": v for k, v in self.choice.chosen.items()}
        content |= {"policy": self.choice.policy, **asdict(self.setup)}
        content |= {
            "hours": self.run_cost.hours,
            "hours_low": self.hours.low if self.hours else None,
            "hours_high": self.hours.high if self.hours else None,
            "usd": self.run_cost.usd,
            "usd_low": self.usd.low if self.usd else None,
            "usd_high": self.usd.high if self.usd else None,
            "gpu_hours": self.run_cost.gpu_hours,
            "updates": self.run_cost.updates,
            "step_s": self.measured.step_s,
            "fill_s": self.measured.fill_s,
            "s_per_1000_rollouts": _per_thousand(self.measured.step_s, self.measured.trained),
            "usd_per_1000_rollouts": self._usd_per_thousand(),
            "quality": self.quality,
            "break_even": self.break_even,
            "bound_by": self.measured.bound_by,
            "bubble_fraction": self.measured.bubble_fraction,
            "rollout_tokens_per_s": self.measured.rollout_tokens_per_s,
            "staleness_mean": self.measured.staleness_mean,
            "staleness_max": self.measured.staleness_max,
            "length_bias": self.measured.length_bias,
            "on_front": self.on_front,
            "beyond": "; ".join(self.beyond),
            "simulated_steps": self.measured.steps,
            "exact": self.exact,
            "warnings": "; ".join(self.measured.warnings),
        }
        return content

    def _usd_per_thousand(self) -> float | None:
        price = self.setup.usd_per_gpu_hour
        each_s = _per_thousand(self.measured.step_s, self.measured.trained)
        if price is None or each_s is None:
            return None
        return price * self.setup.gpus * each_s / 3600


def _per_thousand(step_s: float, trained: float) -> float | None:
    return 1000 * step_s / trained if trained else None


@dataclass(frozen=True, slots=True)
class Unrun:
    """A choice that no simulation was spent on: its estimate, hours and cost of the whole run."""

    choice: Choice
    setup: Setup
    estimate: RunCost

    def plain(self) -> dict[str, Any]:
        """As JSON types, the keys a part of `Row.plain`'s."""
        content: dict[str, Any] = {f"chosen_{k}": v for k, v in self.choice.chosen.items()}
        return {
            **content,
            "policy": self.choice.policy,
            **asdict(self.setup),
            "estimated_hours": self.estimate.hours,
            "estimated_usd": self.estimate.usd,
            "simulated_steps": 0,
            "exact": False,
        }


@dataclass(frozen=True, slots=True)
class Impossible:
    """Choices that cannot be, for one cause: its sentence, as the first met it, and which."""

    problem: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rival:
    """A runner-up. behind: its objective over the recommended one's, less 1. wins: in which share
    of the draws it is the better one; None where nothing was drawn."""

    row: Row
    behind: float
    wins: float | None


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan.

    work, objective, limits: the question. recommended: None where nothing meets the limits, and
    then ``nearest`` is what comes nearest, and ``give_up`` the limits of which one would have to
    go, each with what could then be run. rows: best first, those beyond the limits last. unrun: by
    their estimates. sentences: the recommendation in words. changes: what would change it.
    simulated_steps: of the search; brute_force_steps: what simulating every choice would take.
    """

    name: str
    work: Work
    objective: ObjectiveName
    limits: LimitSection
    recommended: Row | None
    nearest: Row | None
    give_up: Mapping[str, Row]
    rows: Sequence[Row]
    unrun: Sequence[Unrun]
    impossible: Sequence[Impossible]
    rivals: Sequence[Rival]
    baseline: Row | None
    sentences: tuple[str, ...]
    changes: tuple[str, ...]
    simulated_steps: int
    brute_force_steps: int
    scenario: Mapping[str, Any] | None

    @property
    def front(self) -> list[Row]:
        """What no other choice beats in both hours and cost, fewest hours first."""
        rows = [row for row in self.rows if row.on_front]
        return sorted(rows, key=lambda row: row.run_cost.hours)

    @property
    def chosen(self) -> Row | None:
        """The recommended row, else the nearest."""
        return self.recommended or self.nearest

    def notable(self, best: int) -> list[Row]:
        """The first ``best`` rows, the front, the first row of each policy and the baseline."""
        baseline = None if self.baseline is None else self.baseline.choice.name
        kept: list[Row] = []
        policies: set[str] = set()
        for place, row in enumerate(self.rows):
            new = row.choice.policy not in policies
            if place < best or row.on_front or new or row.choice.name == baseline:
                kept.append(row)
                policies.add(row.choice.policy)
        return kept

    def table(self) -> Any:
        """A pandas table of `rows`, best first."""
        import pandas

        return pandas.DataFrame([row.plain() for row in self.rows])
