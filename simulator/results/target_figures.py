"""Figures of what training takes to a target accuracy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rollcast.simulator.results.figure import Figure, Line, Values
from rollcast.simulator.results.text import hours, interval, usd


def to_target(v: Values, name: str) -> tuple[float | None, float | None, float | None]:
    """Of what a run takes to its target (`simulator.studies.learned.learned`): the figure and the
    ends of its interval; None for what is not known."""
    told = v.get("learning") or {}
    return told.get(name), told.get(f"{name}_low"), told.get(f"{name}_high")


def _target_figure(
    name: str, label: str, run_label: str, meaning: str, write: Callable[..., str]
) -> Figure:
    """A figure of what training takes to the target accuracy. write: of it and of its ends, in the
    unit of the number ``like``."""

    def value(v: Values) -> tuple[str, str] | None:
        own, low, high = to_target(v, name)
        if low is None or (name == "gpu_hours" and to_target(v, "usd")[1] is not None):
            return None
        said = partial(write, like=own or low)
        ends = f"{said(low)} or more" if high is None else interval((low, high), said)
        return "-" if own is None else said(own), ends

    def text(v: Values) -> str:
        return (value(v) or ("", ""))[0]

    def note(v: Values) -> str:
        return f"{meaning}, 90 % interval {(value(v) or ('', ''))[1]}"

    line = Line(run_label, text, note)
    return Figure(f"learning.{name}", label, "\n".join, meaning, value, saved=False, run=line)


TO_TARGET: tuple[Figure, ...] = (
    _target_figure("hours", "time", "to target", "time until the target accuracy", hours),
    _target_figure(
        "updates",
        "updates",
        "  updates",
        "up to there",
        lambda value, like: f"{value:,.0f}" if value >= 1 else f"{value:.1g}",
    ),
    _target_figure("usd", "cost", "  cost", "up to there", lambda value, like: usd(value)),
    _target_figure(
        "gpu_hours", "GPU-hours", "  GPU-hours", "up to there", lambda value, like: f"{value:,.3g}"
    ),
)
"""What training takes to a target accuracy: a line each in the table of one run, a column each in
tables of several."""


def _after(v: Values) -> tuple[str, str] | None:
    """Accuracy and hours at the end of a curve without a target, and the ends of its interval."""
    told = (v.get("learning") or {}).get("after")
    if told is None:
        return None
    said = f"{told['accuracy']:.2f} after {hours(told['hours'])}"
    return said, interval((told["low"], told["high"]), "{:.2f}".format)


def _after_note(v: Values) -> str:
    updates = ((v.get("learning") or {}).get("after") or {}).get("updates", 0)
    return f"{updates:,} updates, 90 % interval {(_after(v) or ('', ''))[1]}"


AFTER = Figure(
    "learning.after",
    "accuracy",
    "\n".join,
    "after updates that are like the simulated ones",
    _after,
    saved=False,
    run=Line(text=lambda v: (_after(v) or ("",))[0], note=_after_note),
)
"""Of a run without a target accuracy."""


def _speedup_to_target(v: Values) -> tuple[str, str] | None:
    own, low, high = to_target(v, "speedup")
    if own is None or low is None:
        return None
    return f"{own:.2f}x", f"{low:.2f}-{high:.2f}" if high is not None else f"{low:.2f} or more"


SOONER: tuple[Figure, ...] = (
    Figure(
        "learning.speedup",
        "speed-up",
        "\n".join,
        "time of the first policy to the target over this one's",
        _speedup_to_target,
        saved=False,
    ),
    Figure(
        "learning.sooner",
        "sooner",
        "{:.0%}".format,
        "share of draws in which it reaches the target before the first policy",
        lambda v: (v.get("learning") or {}).get("sooner"),
        saved=False,
    ),
)
"""Of tables of several runs, against the first."""
