"""A published figure beside its forecast, and the errors of many."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from rollcast.simulator.errors import ScenarioError

Role = Literal["calibrated", "held out"]
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Case:
    """One published figure and its forecast, in the same ``unit`` ('' for a ratio).

    group: what it is averaged with. role: whether a parameter behind the forecast was fitted to it.
    low, high: middle 90 % of the forecasts over what is uncertain. scenario: the name of the
    scenario that simulates it, '' where there is none.
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

    def __post_init__(self) -> None:
        for value in (self.measured, self.forecast):
            if not (math.isfinite(value) and value > 0):
                raise ScenarioError(self.name, f"{value!r} is no positive {self.unit or 'ratio'}")

    @property
    def error(self) -> float:
        """Forecast over measured, less one."""
        return self.forecast / self.measured - 1

    @property
    def full_name(self) -> str:
        return f"{self.group}: {self.name}"


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
    """One published source, judged.

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


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ScenarioError("cases", "there are none to average over")
    return sum(values) / len(values)


def mape(cases: Iterable[Case]) -> float:
    """Mean absolute error of the forecasts, as a share. Raises ScenarioError for no case."""
    return _mean([abs(case.error) for case in cases])


def bias(cases: Iterable[Case]) -> float:
    """Mean signed error, as a share: positive where forecasts are too slow."""
    return _mean([case.error for case in cases])


def log_sd(cases: Iterable[Case]) -> float:
    """Root mean square of the logarithm of forecast over measured."""
    return math.sqrt(_mean([math.log(case.forecast / case.measured) ** 2 for case in cases]))


def outside(cases: Sequence[Case]) -> float:
    """Share of the cases measured outside their interval."""
    missed = [c for c in cases if not (c.low or 0.0) <= c.measured <= (c.high or math.inf)]
    return len(missed) / len(cases)


def held_out(cases: Iterable[Case]) -> list[Case]:
    """The cases that nothing was fitted to."""
    return [case for case in cases if case.role == "held out"]


def by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their key, in order of first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def grouped(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Cases by group."""
    return by(cases, lambda case: case.group)


def alternating(rows: Iterable[T], key: Callable[[T], Hashable]) -> list[Role]:
    """Roles of the rows: of each kind the first, third, ... calibrated, the others held out."""
    seen: dict[Hashable, int] = {}
    roles: list[Role] = []
    for row in rows:
        place = seen[key(row)] = seen.get(key(row), -1) + 1
        roles.append("held out" if place % 2 else "calibrated")
    return roles


def error_text(cases: Sequence[Case]) -> str:
    worst = max(cases, key=lambda case: abs(case.error))
    return f"bias {bias(cases):+.1%}, worst {worst.error:+.1%} ({worst.name})"


def spread_text(cases: Iterable[Case]) -> str:
    """Standard deviations of the logarithm by group."""
    spreads = ", ".join(f"{name} {log_sd(errors):.2f}" for name, errors in grouped(cases).items())
    return f"Standard deviation of the logarithm, held out: {spreads}"
