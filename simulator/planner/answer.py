"""The answer of a plan as data; the terminal, ``plan.json`` and the page show it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from rollcast.simulator.planner.choices import Choice
from rollcast.simulator.planner.measure import Measured, Setup
from rollcast.simulator.planner.whole_run import RunCost, Work
from rollcast.simulator.results.write import flat
from rollcast.simulator.scenario.plan_section import LimitSection, ObjectiveName


@dataclass(frozen=True, slots=True)
class Interval:
    """The ends of a 90 % interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """A simulated choice.

    exact: simulated for the last rung's steps. beyond: sentences of broken limits. on_front:
    whether no choice within the limits of GPUs and staleness beats it in hours and cost.
    break_even: updates at which the best synchronous choice equals it, as a multiple of that one's.
    hours, usd: 90 % intervals of the last rung's; chances: of meeting each limit of these, by name,
    of other rows as if they spread like the best one.
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
    chances: Mapping[str, float] = field(default_factory=dict)

    def alike(self, other: Row) -> bool:
        """Whether another policy took the same decisions in the same set-up: each step of both
        lasted exactly as long."""
        both = zip(self.measured.series_s, other.measured.series_s, strict=False)
        return (
            self.setup == other.setup
            and self.choice.policy != other.choice.policy
            and self.choice.unasked == other.choice.unasked
            and all(one == another for one, another in both)
        )

    @property
    def chance(self) -> float | None:
        """Of meeting all limits of hours and cost, which go together; None without draws."""
        return min(self.chances.values(), default=None)

    def plain(self) -> dict[str, Any]:
        """A row of plan.json, as JSON types."""
        m, run, price = self.measured, self.run_cost, self.setup.usd_per_gpu_hour
        each_s = 1000 * m.step_s / m.trained if m.trained else None
        each_usd = None
        if price is not None and each_s is not None:
            each_usd = price * self.setup.gpus * each_s / 3600
        none = (None, None)
        hours_low, hours_high = none if self.hours is None else astuple(self.hours)
        usd_low, usd_high = none if self.usd is None else astuple(self.usd)
        return {
            **_chosen(self.choice, self.setup),
            "hours": run.hours,
            "hours_low": hours_low,
            "hours_high": hours_high,
            "usd": run.usd,
            "usd_low": usd_low,
            "usd_high": usd_high,
            "hours_chance": self.chances.get("hours"),
            "usd_chance": self.chances.get("usd"),
            "gpu_hours": run.gpu_hours,
            "updates": run.updates,
            "step_s": m.step_s,
            "startup_s": m.startup_s,
            "startup_steps": m.startup_steps,
            "s_per_1000_rollouts": each_s,
            "usd_per_1000_rollouts": each_usd,
            "quality": self.quality,
            "break_even": self.break_even,
            **m.said,
            "bubble_fraction": m.bubble_fraction,
            "rollout_tokens_per_s": m.rollout_tokens_per_s,
            "staleness_mean": m.staleness_mean,
            "staleness_max": m.staleness_max,
            "length_bias": m.length_bias,
            "peak_memory_bytes": m.peak_memory_bytes,
            "fits_probability": None if m.memory is None else m.memory["fits_probability"],
            "on_front": self.on_front,
            "beyond": "; ".join(self.beyond),
            "simulated_steps": m.steps,
            "exact": self.exact,
            "warnings": "; ".join(m.warnings),
        }


def _chosen(choice: Choice, setup: Setup) -> dict[str, Any]:
    chosen = {f"chosen_{key}": value for key, value in choice.chosen.items()}
    unasked = "; ".join(f"{key}: {json.dumps(value)}" for key, value in choice.unasked.items())
    return {**chosen, "policy": choice.policy, **asdict(setup), "unasked": unasked}


@dataclass(frozen=True, slots=True)
class Unrun:
    """A choice that was estimated only."""

    choice: Choice
    setup: Setup
    estimate: RunCost

    def plain(self) -> dict[str, Any]:
        """As JSON types, with a part of `Row.plain`'s keys."""
        return {
            **_chosen(self.choice, self.setup),
            "estimated_hours": self.estimate.hours,
            "estimated_usd": self.estimate.usd,
            "simulated_steps": 0,
            "exact": False,
        }


@dataclass(frozen=True, slots=True)
class Impossible:
    """Choices that cannot run for one cause; problem: as the first met it."""

    problem: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rival:
    """A runner-up. behind: its objective over the recommended one's, less 1. wins: share of draws
    in which it is better; None without draws."""

    row: Row
    behind: float
    wins: float | None


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan.

    work, objective, limits: the question. recommended: None if nothing meets the limits; then
    ``nearest`` comes nearest and ``give_up`` has, by limit, the best choice without it. rows: best
    first, those beyond limits last. sentences: the recommendation. changes: what would change it.
    simulated_steps: of the search; brute_force_steps: of all choices. narrowed: what of the search
    the user chose, in a sentence; empty where all was open.
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
    narrowed: str = ""

    @property
    def front(self) -> list[Row]:
        """The rows on the front, fewest hours first."""
        rows = [row for row in self.rows if row.on_front]
        return sorted(rows, key=lambda row: row.run_cost.hours)

    @property
    def chosen(self) -> Row | None:
        """The recommended row, else the nearest."""
        return self.recommended or self.nearest

    def notable(self, best: int) -> list[Row]:
        """The first ``best`` rows, the front, the first row of each policy and the baseline;
        without rows that are `Row.alike` one of these."""
        baseline = None if self.baseline is None else self.baseline.choice.name
        kept: list[Row] = []
        policies: set[str] = set()
        for place, row in enumerate(self.rows):
            new = row.choice.policy not in policies
            asked = row.choice.name == baseline
            if not asked and any(row.alike(one) for one in kept):
                policies.add(row.choice.policy)
            elif place < best or row.on_front or new or asked:
                kept.append(row)
                policies.add(row.choice.policy)
        return kept

    def table(self) -> Any:
        """`rows` as a pandas table."""
        import pandas

        return pandas.DataFrame([flat(row.plain()) for row in self.rows])
