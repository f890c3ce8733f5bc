"""The report of an import: one page that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibration.imported import text
from calibration.imported.outcome import Outcome
from calibration.logs.draft import missing
from calibration.logs.run_log import RunLog
from simulator.report.markup import Content, Markup
from simulator.report.page import page as whole_page
from simulator.report.parts import (
    Column,
    Row,
    folded,
    headline,
    listed,
    notes,
    paragraphs,
    section,
    table,
)
from simulator.report.series import Series, series


def page(log: RunLog, found: Outcome) -> str:
    """The page; everything that a log said is escaped."""
    judged = [text.judged(each) for each in found.judged] or [_unjudged(found)]
    warnings = [*text.notes(found, log), *(f"{p.key}: {p.source}" for p in missing(found.parts))]
    assumed = [f"{p.key}: {p.value} ({p.source})" for p in found.parts
               if p.assumed and p.key != "seed"]  # fmt: skip
    sources = [(p.key, str(p.value), p.source) for p in found.parts if p.value is not None]
    return whole_page(
        f"{log.name}: imported",
        headline(judged[0], *judged[1:]),
        notes(warnings),
        section(
            "How well it forecasts its own last third",
            series([_series(found, at) for at in range(len(found.judged))]),
            about="Seconds of each step: what the log has, and what the first two thirds say of the"
            " rest.",
        )
        if found.judged
        else None,
        section("What would change it", _advice(found)),
        section("What was fitted", _fitted(found)),
        section(
            "What it rests on",
            folded(f"The scenario, and where each value is from ({len(sources)})",
                   _table(("key", "value", "from"), sources)),
            folded(f"What was assumed ({len(assumed)})", listed(assumed or ["nothing"])),
            folded("What was read", listed(_read(log))),
        ),
        subtitle=f"A run of {log.stack}, read from its logs",
    )  # fmt: skip


def _advice(found: Outcome) -> Content:
    if found.advice is None:
        return paragraphs(["Not asked for, or nothing to simulate."])
    heads = ("change", "speed-up", "90 % interval", "how, in this stack")
    rows = text.advice_rows(found)
    return [listed(found.advice.bottleneck), _table(heads, rows), paragraphs([_caveat(found)])]


def _fitted(found: Outcome) -> Content:
    known = found.fit
    if known is None:
        return paragraphs(["Nothing."])
    parts: list[Content] = [
        paragraphs([f"Costs: {text.shape(known)}."]),
        _table(("phase", "factor", "90 % interval", "from"), text.factors(known)),
    ]
    if known.coefficients:
        rows = [(name, f"{value:.4g}") for name, value in known.cost["linear"].items()]
        parts.append(_table(("coefficient", "seconds"), rows))
    parts.append(_table(("lengths", "value", "standard error"), text.lengths(known, found)))
    return parts


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """A table of words."""
    columns = [Column(head, text=True) for head in heads]
    return table(columns, [Row(list(row)) for row in rows], heads[0])


def _series(found: Outcome, at: int) -> Series:
    judged, used = found.judged[at], found.used
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
    found = [
        f"level {text.levels(log)}",
        f"{len(steps)} steps, {steps.iloc[0]} to {steps.iloc[-1]}; {len(log.rollouts):,} rollouts; "
        f"{len(log.requests):,} requests",
        *(f"{t.file}: {t.used:,} of {t.lines:,} lines or records used, {t.unread:,} unread"
          for t in log.tallies[:12]),
    ]  # fmt: skip
    if len(log.tallies) > 12:
        found.append(f"and {len(log.tallies) - 12} files more")
    found.extend(f"missing: {gap.column}: {gap.why}" for gap in log.gaps)
    return found


def _unjudged(found: Outcome) -> str:
    return f"not judged: {len(found.used)} steps are too few, or their times are not known"


def _caveat(found: Outcome) -> str:
    assert found.advice is not None
    said = (f"Simulated under the fitted costs and lengths; intervals from {found.advice.draws} "
            "draws of both. How well a policy learns is not part of this.")  # fmt: skip
    if found.advice.divided > 1:
        said += (f" To take seconds, a step had {found.advice.divided} times fewer replicas and "
                 "prompts, its updates priced as the whole batch's.")  # fmt: skip
    return said
