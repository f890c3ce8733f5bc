"""The suite's results: Markdown for people, JSON for programs, scenarios to run again."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.runner import markdown_table, write_json, write_text
from benchmarks.validation.case import Case, Check, Source, grouped, held_out, outside
from benchmarks.validation.picture import draw

SCHEMA = "rollcast-validation/1"
INTRO = """\
# Published measurements against the forecast

Made by `make evidence`. Error is forecast over measured, less one. "Calibrated" cases
had a part in fitting a parameter; "held out" ones had none, and only they count towards a target.
Behaviour of APRIL, SAGC, PODS and prefix reuse that their papers publish is judged in
`benchmarks/results/published.md`. Rows of tables that others publish in bulk are summed up, not
repeated. Scenarios of single cases are in `scenarios/`; run one with `rollcast simulate`.
"""
CHECK_HEAD = ("figure", "error", "target", "", "cases", "")
CASE_HEAD = ("case", "measured", "forecast", "error", "range", "role")


def judged_in(folder: Path) -> set[str]:
    """Keys of the sources that the results in ``folder`` judge; none where there are no results."""
    try:
        content = json.loads((folder / "validation.json").read_text("utf-8"))
        return {str(source["key"]) for source in content["sources"] if not source["skipped"]}
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def as_json(sources: Sequence[Source]) -> dict[str, Any]:
    """Everything but bulk rows and scenarios; figures rounded to six digits."""
    content = []
    for source in sources:
        keys = {key: getattr(source, key) for key in ("key", "title", "citation", "skipped")}
        keys |= {"calibrated": source.calibrated, "held_out": source.held_out}
        keys["assumed"] = list(source.assumed)
        keys["checks"] = [_check(check) for check in source.checks]
        keys["cases"] = [_case(case) for case in source.cases] if source.listed else []
        content.append({**keys, "misses": list(source.misses)})
    return {"schema": SCHEMA, "sources": content}


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _check(check: Check) -> dict[str, Any]:
    keys = {"name": check.name, "value": _round(check.value), "target": check.target}
    return {**keys, "met": check.met, "cases": check.cases, "note": check.note}


def _case(case: Case) -> dict[str, Any]:
    content: dict[str, Any] = {key: getattr(case, key) for key in ("group", "name", "unit", "role")}
    for key in ("measured", "forecast", "error"):
        content[key] = _round(getattr(case, key))
    content["scenario"] = case.scenario
    if case.low is not None:
        content["range"] = [_round(case.low), _round(case.high)]
    return content


def markdown(sources: Sequence[Source]) -> str:
    """``validation.md``: targets first, then source by source."""
    parts = [INTRO, "## Targets\n", _targets(sources)]
    for source in sources:
        parts.append(f"\n## {source.title}\n\nSource: {source.citation}.\n")
        if source.skipped:
            parts.append(f"Skipped: {source.skipped}.\n")
            continue
        parts.append(f"- Calibrated on: {source.calibrated}.\n- Held out: {source.held_out}.")
        parts += [f"- Assumed: {text}." for text in source.assumed]
        parts.append("")
        if source.checks:
            parts.append(markdown_table(CHECK_HEAD, [_check_cells(c) for c in source.checks]))
        if source.listed:
            parts.append(markdown_table(CASE_HEAD, [_case_cells(case) for case in source.cases]))
        parts += [f"- {text.rstrip('.')}." for text in source.misses]
    return "\n".join(parts).rstrip() + "\n"


def _targets(sources: Sequence[Source]) -> str:
    rows: list[tuple[str, ...]] = []
    for source in sources:
        if source.skipped:
            rows.append((source.title, "", "", "skipped", "", source.skipped))
        rows += [_check_cells(check) for check in source.checks if check.target is not None]
    return markdown_table(CHECK_HEAD, rows)


def _check_cells(check: Check) -> tuple[str, ...]:
    return (
        check.name,
        f"{check.value:+.1%}" if check.signed else f"{check.value:.1%}",
        "" if check.target is None else f"{check.target:.0%}",
        {None: "", True: "met", False: "**missed**"}[check.met],
        str(check.cases),
        check.note,
    )


def _case_cells(case: Case) -> tuple[str, ...]:
    unit = f" {case.unit}" if case.unit else ""
    known = case.low is not None and case.high is not None
    return (
        case.full_name,
        f"{case.measured:.4g}{unit}",
        f"{case.forecast:.4g}{unit}",
        f"{case.error:+.1%}",
        f"{case.low:.3g} to {case.high:.3g}" if known else "",
        case.role,
    )


def write(sources: Sequence[Source], folder: Path) -> list[Path]:
    """Writes ``validation.{md,json,png}``, ``forecasts.md`` and ``scenarios/*.yaml``; the paths."""
    scenarios = folder / "scenarios"
    scenarios.mkdir(parents=True, exist_ok=True)
    names = ("validation.md", "validation.json", "validation.png", "forecasts.md")
    page, data, picture, forecasts = written = [folder / name for name in names]
    write_text(page, markdown(sources))
    write_json(data, as_json(sources))
    draw(sources, picture)
    write_text(forecasts, forecasts_page(sources))
    for source in sources:
        for name, keys in source.scenarios.items():
            path = scenarios / f"{name}.yaml"
            write_text(path, yaml.safe_dump(dict(keys), sort_keys=False))
            written.append(path)
    return written


def summary_lines(source: Source) -> Iterator[str]:
    """A source on the terminal: its targets, or its groups where it has none."""
    if source.skipped:
        yield f"{source.title}: skipped, {source.skipped}"
        return
    yield source.title
    with_target = [check for check in source.checks if check.target is not None]
    for check in with_target or source.checks:
        name, error, target, result, cases, _ = _check_cells(check)
        aim = f"target {target}, {result.strip('*')}" if target else ""
        yield f"  {name:<68}{error:>8}  {cases:>4} cases  {aim}".rstrip()
    if not source.checks:
        for group, members in grouped(source.cases).items():
            spelt = ", ".join(f"{case.name} {case.error:+.0%}" for case in members)
            yield f"  {group}: {spelt}"


# forecasts.md: how good forecasts from presets alone are, by kind of case, for who plans

NEAR, FAR = 0.10, 0.20
AREAS: Mapping[str, tuple[str, ...]] = {
    "Steps of published RL runs, phase by phase": ("runs",),
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
FORECASTS_INTRO = f"""\
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
WIDTH = 2 * 1.645  # of a normal's middle 90 %, in standard deviations
OTHERS = frozenset({"peers"})  # forecasts of other simulators are no measurements


def forecasts_page(sources: Sequence[Source]) -> str:
    """``forecasts.md``. A source that no area lists comes under "Other"."""
    by_key = {source.key: source for source in sources}
    others = tuple(key for key in by_key if not any(key in keys for keys in AREAS.values()))
    parts = [FORECASTS_INTRO]
    for area, keys in {**AREAS, "Other": others}.items():
        rows = [row for key in keys if key in by_key for row in _rated(by_key[key])]
        if rows:
            head = ("case", "off by, in the mean", "rows", "how near")
            parts.append(f"## {area}\n\n{markdown_table(head, rows)}")
    rows = list(coverage(sources))
    head = ("held out", "inside", "rows", "their spread")
    parts.append(f"{INTERVALS}\n{markdown_table(head, rows)}" if rows else "")
    return "\n".join(parts)


def _rated(source: Source) -> list[tuple[str, ...]]:
    """A source's checks, the nearest first; one against a target of 0, or one that counts, is no
    error and left out."""
    errors = [
        check
        for check in source.checks
        if check.target != 0
        and not any(word in check.name for word in ("outside", "fitted", "calibration"))
    ]
    return [
        (f"{source.short_title}: {c.name}", f"{abs(c.value):.1%}", str(c.cases), rating(c))
        for c in sorted(errors, key=lambda check: abs(check.value))
    ]


def rating(check: Check) -> str:
    """near, fair or far, by the size of the error."""
    size = abs(check.value)
    return "near" if size <= NEAR else "fair" if size <= FAR else "**far**"


def coverage(sources: Sequence[Source]) -> Iterator[tuple[str, ...]]:
    """Of each source that has intervals, and of all together: its title, the share of held-out
    cases inside, their number, and the mean standard deviation of the log that they stand for."""
    judged = [source for source in sources if source.key not in OTHERS]
    everything = [case for source in judged for case in source.cases]
    parts = [(source.short_title, source.cases) for source in judged]
    for name, cases in [*parts, ("all", everything)]:
        held = [case for case in held_out(cases) if case.low and case.high]
        if held:
            spread = sum(math.log((c.high or 1) / (c.low or 1)) for c in held) / WIDTH / len(held)
            yield name, f"{1 - outside(held):.0%}", str(len(held)), f"{spread:.0%}"
