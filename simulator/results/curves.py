"""Accuracy over time, a panel per policy: the layout of the pictures.

Painters (`simulator.results.learning_picture`, `simulator.report.comparison_page`) only add
colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.results.target_figures import TO_TARGET

_ROOM = 0.04  # above the highest accuracy


@dataclass(frozen=True, slots=True)
class Panel:
    """A policy's accuracy and its 90 % band at ``hours``; ``base``: hours and accuracy of the first
    policy, where it is another. note: its time to the target in words."""

    title: str
    note: str
    hours: Sequence[float]
    accuracy: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    base: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass(frozen=True, slots=True)
class Curves:
    """All panels on one pair of axes: hours up to ``hours``, accuracy from ``least`` to ``most``.
    target: None without one. first: name of the baseline; '' if alone."""

    panels: Sequence[Panel]
    hours: float
    least: float
    most: float
    target: float | None
    first: str


def curves_of(summaries: Mapping[str, Mapping[str, Any]]) -> Curves | None:
    """The curves of runs by policy, the first of which is the baseline; None without any. Those of
    which the law says nothing are left out."""
    told = {name: summary.get("learning") or {} for name, summary in summaries.items()}
    known = {name: one["curve"] for name, one in told.items() if "curve" in one}
    if not known:
        return None
    first = next(iter(summaries))
    base = known.get(first)
    panels = []
    for name, curve in known.items():
        other = base if base is not None and name != first else None
        panels.append(
            Panel(
                name,
                _note(summaries[name]),
                **curve,
                base=None if other is None else (other["hours"], other["accuracy"]),
            )
        )
    target = next(one["target"] for one in told.values() if "curve" in one)
    values = [value for panel in panels for value in (*panel.low, *panel.high)]
    values += [] if target is None else [target]
    return Curves(
        panels,
        max(panel.hours[-1] for panel in panels),
        max(min(values) - _ROOM, 0.0),
        min(max(values) + _ROOM, 1.0),
        target,
        first if len(panels) > 1 and base is not None else "",
    )


def _note(summary: Mapping[str, Any]) -> str:
    """Time to the target with its interval."""
    found = TO_TARGET[0].value_in(summary)
    if found is None:
        return ""
    return f"to {summary['learning']['target']:g}: {found[0]} ({found[1]})"
