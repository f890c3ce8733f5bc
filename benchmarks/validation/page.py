"""``forecasts.md``: how good forecasts from presets alone are, by kind of case, for who plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.validation.coverage import by_source
from benchmarks.validation.verdict import Check, Source

NEAR, FAR = 0.10, 0.20
AREAS: Mapping[str, tuple[str, ...]] = {
    "The engine": (
        "kernel_tables",
        "kernel_mixtures",
        "engine_grid",
        "trace",
        "throughput",
        "serving_points",
        "speculative",
    ),
    "The trainer": ("trainer_baselines", "training_steps", "async_lora"),
    "Phases of steps": ("phases",),
    "Whole steps": ("rl_steps", "rl_mixtures", "peers"),
    "Weight sync": ("weight_updates",),
}
INTRO = f"""\
# How good are the forecasts?

Made by `make evidence` from the same figures as [the whole report](validation.md). Every row is a
published measurement, or a table of them, that no parameter behind the forecast was fitted to. A
held-out half has the host time of its engine from the other half; all else is presets. Your own
calibration (`rollcast calibrate`) replaces all of it.

- **near**: within {NEAR:.0%} in the mean. Plan on it.
- **fair**: within {FAR:.0%}. It ranks choices that differ by more; leave a margin in a budget.
- **far**: beyond. Measure first (`rollcast probe`), or read the interval and not the figure.

![Forecast against measured, one panel a source; grey is a band of 15 %](validation.png)
"""
INTERVALS = """\
## Intervals

Forecasts from presets carry an interval (`--draws`): what their figures leave open, and beyond it
what forecasts of such a kind were off by here. Nine of ten measurements should lie inside. The
spreads by kind were chosen with all of these rows in view, so other measurements may fare worse.
"""


def page(sources: Sequence[Source]) -> str:
    """The page. A source that no area lists comes under "Other"; a check against a target of 0, or
    one that counts, is no error and left out."""
    by_key = {source.key: source for source in sources}
    areas = dict(AREAS)
    others = tuple(key for key in by_key if not any(key in keys for keys in AREAS.values()))
    if others:
        areas["Other"] = others
    parts = [INTRO]
    for area, keys in areas.items():
        shown = [by_key[key] for key in keys if key in by_key]
        lines = [line for source in shown for line in _lines(source)]
        if lines:
            head = "| case | off by, in the mean | rows | verdict |\n| --- | --- | --- | --- |"
            parts.append(f"## {area}\n\n{head}\n" + "\n".join(lines) + "\n")
    return "\n".join([*parts, _intervals(sources)])


def _intervals(sources: Sequence[Source]) -> str:
    """How often a measurement lies inside the interval that is given with its forecast."""
    rows = by_source(sources)
    if not rows:
        return ""
    lines = [f"| {row.name} | {row.share:.0%} | {row.cases} | {row.spread:.0%} |" for row in rows]
    head = "| held out | inside | rows | their spread |\n| --- | --- | --- | --- |"
    return f"{INTERVALS}\n{head}\n" + "\n".join(lines) + "\n"


def _lines(source: Source) -> list[str]:
    """A source's checks, the nearest first."""
    errors = sorted(filter(_is_error, source.checks), key=lambda check: abs(check.value))
    title = source.short_title
    return [
        f"| {title}: {check.name} | {abs(check.value):.1%} | {check.cases} | {verdict(check)} |"
        for check in errors
    ]


def _is_error(check: Check) -> bool:
    counts = "outside" in check.name or check.target == 0
    return not counts and not any(word in check.name for word in ("fitted", "calibration"))


def verdict(check: Check) -> str:
    """near, fair or far, by the size of the error."""
    size = abs(check.value)
    return "near" if size <= NEAR else "fair" if size <= FAR else "**far**"
