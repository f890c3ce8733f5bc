"""What every source reports: cases, checks against targets, and the errors between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollcast.simulator.errors import ScenarioError

Role = Literal["calibrated", "held out"]


@dataclass(frozen=True, slots=True)
class Case:
    """One published figure and its forecast, in the same ``unit``.

    group: what it is averaged with. role: whether any parameter behind the forecast was fitted to
    it. low, high: range of forecasts over what had to be assumed, where that was varied.
    scenario: the name of the scenario that simulates it, '' where the source has one for all.
    """

    group: str
    name: str
    unit: str
    measured: float
    forecast: float
    role: Role = "held out"
    low: float | None = None
    high: float | None = None
    scenario: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for value in (self.measured, self.forecast):
            if not (math.isfinite(value) and value > 0):
                raise ScenarioError(self.name, f"{value!r} is no positive {self.unit or 'ratio'}")

    @property
    def error(self) -> float:
        """Forecast over measured, less one."""
        return self.forecast / self.measured - 1


@dataclass(frozen=True, slots=True)
class Check:
    """A figure of merit against its target; ``target`` None where there is none to meet.

    value and target are shares (0.05 is 5 %); met if the value's size is at most the target.
    signed: value is an error with its sign, not a mean of sizes.
    """

    name: str
    value: float
    target: float | None = None
    cases: int = 1
    note: str = ""
    signed: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        return None if self.target is None else abs(self.value) <= self.target


@dataclass(frozen=True)
class Source:
    """One published source.

    calibrated, held_out: what the parameters behind the forecasts were fitted to, and what not.
    assumed: what the source leaves open. misses: each target or case missed, with the likely
    reason. scenarios: by name, as a scenario file's keys. listed: whether the cases are published
    one by one; tables of others are summed up only. skipped: why there is nothing, '' if there is.
    """

    key: str
    title: str
    citation: str
    calibrated: str = ""
    held_out: str = ""
    assumed: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()
    checks: tuple[Check, ...] = ()
    misses: tuple[str, ...] = ()
    scenarios: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    listed: bool = True
    skipped: str = ""

    @property
    def short_title(self) -> str:
        """The title without what follows a colon, or "and"."""
        return self.title.split(":")[0].split(", and ")[0]


def mape(cases: Iterable[Case]) -> float:
    """Mean absolute error of the forecasts, as a share. Raises ScenarioError for no case."""
    errors = [abs(case.error) for case in cases]
    if not errors:
        raise ScenarioError("cases", "there are none to average over")
    return sum(errors) / len(errors)


def bias(cases: Iterable[Case]) -> float:
    """Mean signed error, as a share: positive where forecasts are too slow."""
    errors = [case.error for case in cases]
    if not errors:
        raise ScenarioError("cases", "there are none to average over")
    return sum(errors) / len(errors)


def log_sd(cases: Iterable[Case]) -> float:
    """Root mean square of the logarithm of forecast over measured. Raises ScenarioError for no
    case."""
    logs = [math.log(case.forecast / case.measured) for case in cases]
    if not logs:
        raise ScenarioError("cases", "there are none to average over")
    return math.sqrt(sum(log**2 for log in logs) / len(logs))


def grouped(
    cases: Iterable[Case], key: Callable[[Case], str] = lambda case: case.group
) -> dict[str, list[Case]]:
    """Cases by group, in order of first appearance."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return groups


def mape_checks(cases: Iterable[Case], target: float | None, prefix: str = "") -> list[Check]:
    """One check per group: the mean absolute error of its cases, its bias and its worst case."""
    checks = []
    for group, members in grouped(cases).items():
        worst = max(members, key=lambda case: abs(case.error))
        note = f"bias {bias(members):+.1%}, worst {worst.error:+.1%} ({worst.name})"
        checks.append(Check(f"{prefix}{group}", mape(members), target, len(members), note))
    return checks


@dataclass(frozen=True, slots=True)
class Kind:
    """Cases that are off for the same likely reason."""

    name: str
    belongs: Callable[[Case], bool]
    reason: str


def explain(cases: Iterable[Case], kinds: Iterable[Kind], beyond: float) -> list[str]:
    """A sentence for each kind that has cases more than ``beyond`` off, with their range."""
    cases, sentences = list(cases), []
    for kind in kinds:
        errors = [c.error for c in cases if kind.belongs(c) and abs(c.error) > beyond]
        if errors:
            sentences.append(
                f"{kind.name}: {len(errors)} more than {beyond:.0%} off ({min(errors):+.0%} to "
                f"{max(errors):+.0%}); {kind.reason}."
            )
    return sentences
