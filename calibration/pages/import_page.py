"""The report of an import: one page that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollcast.calibration.importing import Outcome
from rollcast.calibration.judge.phases import said_of
from rollcast.calibration.logs.run_log import RunLog
from rollcast.calibration.pages import import_text as text
from rollcast.simulator.launches.parts import missing
from rollcast.simulator.report.page import Content, Markup
from rollcast.simulator.report.page import page as whole_page
from rollcast.simulator.report.parts import (
    Column,
    Row,
    folded,
    headline,
    listed,
    notes,
    paragraphs,
    phase_table,
    section,
    table,
)
from rollcast.simulator.report.plots import Series, series
from rollcast.simulator.values.words import counted


def page(log: RunLog, outcome: Outcome) -> str:
    """The page; everything that a log said is escaped."""
    judged = [text.judged(judgement) for judgement in outcome.judged] or [_unjudged(outcome)]
    if outcome.step is not None:
        judged.append(f"{text.step(outcome).capitalize()}.")
    if outcome.what_if is not None:
        judged.append(f"{text.what_if(outcome).capitalize()}.")
    warnings = [
        *text.notes(outcome, log),
        *(f"{p.key}: {p.source}" for p in missing(outcome.parts)),
    ]
    assumed = [
        f"{p.key}: {p.value} ({p.source})" for p in outcome.parts if p.assumed and p.key != "seed"
    ]
    sources = [(p.key, str(p.value), p.source) for p in outcome.parts if p.value is not None]
    return whole_page(
        f"{log.name}: imported",
        headline(judged[0], *judged[1:]),
        notes(warnings),
        section(
            "Forecast of the last third",
            series([_series(outcome, at) for at in range(len(outcome.judged))]),
            about="Seconds per step: measured, and forecast by a fit to the first two thirds.",
        )
        if outcome.judged
        else None,
        _phases(log, outcome),
        section("What would make it faster", _advice(outcome)),
        section("What was fitted", _fitted(outcome)),
        section(
            "Sources and assumptions",
            folded(
                f"The scenario, and where each value is from ({len(sources)})",
                _table(("key", "value", "from"), sources),
            ),
            folded(f"What was assumed ({len(assumed)})", listed(assumed or ["nothing"])),
            folded("What was read", listed(_read(log))),
        ),
        subtitle=f"A run of {log.stack}{log.releases}, read from its logs",
    )


def _phases(log: RunLog, outcome: Outcome) -> Content:
    said = said_of(log, outcome.used)
    if not said["phases"]:
        return None
    return section(
        "A step by phase",
        phase_table([(log.name, said, False)], "run"),
        about="Median seconds, and between which 90 % of the steps are; what bounds a step, and in "
        "which share of the steps.",
    )


def _advice(outcome: Outcome) -> Content:
    if outcome.advice is None:
        return paragraphs(["Not simulated: --no-advise was given, or too little could be fitted."])
    heads = ("change", "speed-up", "90 % interval", "how, in this stack")
    rows = text.advice_rows(outcome)
    return [listed(outcome.advice.bottleneck), _table(heads, rows), paragraphs([_caveat(outcome)])]


def _fitted(outcome: Outcome) -> Content:
    known = outcome.fit
    if known is None:
        return paragraphs(["Nothing."])
    parts: list[Content] = [
        paragraphs([f"Costs: {text.shape(known)}."]),
        _table(("phase", "factor", "90 % interval", "from"), text.factors(known)),
    ]
    if known.coefficients:
        rows = [(name, f"{value:.4g}") for name, value in known.cost["linear"].items()]
        parts.append(_table(("coefficient", "seconds"), rows))
    parts.append(_table(("lengths", "value", "standard error"), text.lengths(known, outcome)))
    return parts


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """A table of words."""
    columns = [Column(head, text=True) for head in heads]
    return table(columns, [Row(list(row)) for row in rows], heads[0])


def _series(outcome: Outcome, at: int) -> Series:
    judged, used = outcome.judged[at], outcome.used
    steps = zip(used.number.tolist(), used.whole_s.tolist(), strict=True)
    return Series(
        judged.mode,
        [(step, value) for step, value in steps if np.isfinite(value)],
        judged.number.tolist(),
        judged.forecast_s.tolist(),
        judged.low_s.tolist(),
        judged.high_s.tolist(),
    )


def _read(log: RunLog) -> list[str]:
    steps = log.steps["step"]
    lines = [
        f"level {text.levels(log)}",
        f"{counted(len(steps), 'step')}, {steps.iloc[0]} to {steps.iloc[-1]}; "
        f"{len(log.rollouts):,} rollouts; {len(log.requests):,} requests",
        *(
            f"{t.file}: {t.used:,} of {t.lines:,} lines or records used, {t.unread:,} unread"
            for t in log.tallies[:12]
        ),
    ]
    if len(log.tallies) > 12:
        lines.append(f"and {len(log.tallies) - 12} files more")
    lines.extend(f"missing: {gap.column}: {gap.why}" for gap in log.gaps)
    return lines


def _unjudged(outcome: Outcome) -> str:
    return f"Not judged: {len(outcome.used)} steps are too few, or their times are not logged."


def _caveat(outcome: Outcome) -> str:
    assert outcome.advice is not None
    sentence = (
        f"Simulated with the fitted costs and lengths; intervals from {outcome.advice.draws} "
        "draws of both. The simulation does not say how well a policy learns."
    )
    if outcome.advice.divided > 1:
        sentence += (
            f" To be quick, it simulates a {outcome.advice.divided}th of the replicas and prompts; "
            "updates are priced as the whole batch's."
        )
    return sentence
