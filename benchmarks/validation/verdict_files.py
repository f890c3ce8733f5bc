"""The suite's results as Markdown for people, JSON for programs, and scenarios to run again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.validation.page import page
from benchmarks.validation.verdict import Case, Check, Source, grouped

SCHEMA = "rollcast-validation/1"
INTRO = """\
# Published measurements against the forecast

Made by `make evidence`. Error is forecast over measured, less one. "Calibrated" cases
had a part in fitting a parameter; "held out" ones had none, and only they count towards a target.
Behaviour of APRIL, SAGC, PODS and prefix reuse that their papers publish is judged in
`benchmarks/results/published.md`. Rows of tables that others publish in bulk are summed up, not
repeated. Scenarios of single cases are in `scenarios/`; run one with `rollcast simulate`.
"""


def judged_in(folder: Path) -> set[str]:
    """Keys of the sources that the verdict in ``folder`` judges; none where there is no verdict."""
    try:
        content = json.loads((folder / "validation.json").read_text("utf-8"))
        return {str(source["key"]) for source in content["sources"] if not source["skipped"]}
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def as_json(sources: Sequence[Source]) -> dict[str, Any]:
    """Everything but bulk rows and scenarios; figures rounded to six digits."""
    return {
        "schema": SCHEMA,
        "sources": [
            {
                "key": source.key,
                "title": source.title,
                "citation": source.citation,
                "skipped": source.skipped,
                "calibrated": source.calibrated,
                "held_out": source.held_out,
                "assumed": list(source.assumed),
                "checks": [_check(check) for check in source.checks],
                "cases": [_case(case) for case in source.cases] if source.listed else [],
                "misses": list(source.misses),
            }
            for source in sources
        ],
    }


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _check(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "value": _round(check.value),
        "target": check.target,
        "met": check.met,
        "cases": check.cases,
        "note": check.note,
    }


def _case(case: Case) -> dict[str, Any]:
    content: dict[str, Any] = {
        "group": case.group,
        "name": case.name,
        "unit": case.unit,
        "role": case.role,
        "measured": _round(case.measured),
        "forecast": _round(case.forecast),
        "error": _round(case.error),
        "scenario": case.scenario,
    }
    if case.low is not None:
        content["range"] = [_round(case.low), _round(case.high)]
    return content


def markdown(sources: Sequence[Source]) -> str:
    """The report: targets first, then source by source."""
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
            parts.append(_table(CHECK_HEAD, [_check_cells(c) for c in source.checks]))
        if source.listed:
            parts.append(_table(CASE_HEAD, [_case_cells(case) for case in source.cases]))
        parts += [f"- {text.rstrip('.')}." for text in source.misses]
    return "\n".join(parts).rstrip() + "\n"


CHECK_HEAD = ("figure", "error", "target", "", "cases", "")
CASE_HEAD = ("case", "measured", "forecast", "error", "range", "role")


def _targets(sources: Sequence[Source]) -> str:
    rows: list[tuple[str, ...]] = []
    for source in sources:
        if source.skipped:
            rows.append((source.title, "", "", "skipped", "", source.skipped))
        rows += [_check_cells(check) for check in source.checks if check.target is not None]
    return _table(CHECK_HEAD, rows)


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
    spread = ""
    if case.low is not None and case.high is not None:
        spread = f"{case.low:.3g} to {case.high:.3g}"
    return (
        f"{case.group}: {case.name}",
        f"{case.measured:.4g}{unit}",
        f"{case.forecast:.4g}{unit}",
        f"{case.error:+.1%}",
        spread,
        case.role,
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def write(sources: Sequence[Source], folder: Path) -> list[Path]:
    """Writes ``validation.{md,json,png}``, ``forecasts.md`` and ``scenarios/*.yaml``; the paths."""
    import yaml

    from benchmarks.validation.picture import draw

    folder.mkdir(parents=True, exist_ok=True)
    names = ("validation.md", "validation.json", "validation.png", "forecasts.md")
    written = [folder / name for name in names]
    written[0].write_text(markdown(sources), encoding="utf-8")
    text = json.dumps(as_json(sources), indent=1, ensure_ascii=False)
    written[1].write_text(text + "\n", encoding="utf-8")
    draw(sources, written[2])
    written[3].write_text(page(sources), encoding="utf-8")
    scenarios = folder / "scenarios"
    scenarios.mkdir(exist_ok=True)
    for source in sources:
        for name, keys in source.scenarios.items():
            path = scenarios / f"{name}.yaml"
            path.write_text(yaml.safe_dump(dict(keys), sort_keys=False), encoding="utf-8")
            written.append(path)
    return written


def summary_lines(source: Source) -> list[str]:
    """A source on the terminal: its targets, or its groups where it has none."""
    if source.skipped:
        return [f"{source.title}: skipped, {source.skipped}"]
    with_target = [check for check in source.checks if check.target is not None]
    lines = [source.title]
    for check in with_target or source.checks:
        name, error, target, verdict, cases, _ = _check_cells(check)
        aim = f"target {target}, {verdict.strip('*')}" if target else ""
        lines.append(f"  {name:<68}{error:>8}  {cases:>4} cases  {aim}".rstrip())
    if not source.checks:
        for group, members in grouped(source.cases).items():
            spelt = ", ".join(f"{case.name} {case.error:+.0%}" for case in members)
            lines.append(f"  {group}: {spelt}")
    return lines
