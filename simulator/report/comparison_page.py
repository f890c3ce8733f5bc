"""The page of a comparison: the fastest policy, its cost, and where the time goes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollcast.simulator.policies import label
from rollcast.simulator.policies.registry import SYNCHRONOUS
from rollcast.simulator.report import parts
from rollcast.simulator.report.assumptions import assumptions
from rollcast.simulator.report.ledger import gpu_use, time_bars, token_bars
from rollcast.simulator.report.page import Markup, page, tag
from rollcast.simulator.report.parts import phase_table, reproduced
from rollcast.simulator.report.plots import Axis, Box, Point, front
from rollcast.simulator.report.timeline import timeline_of, timelines
from rollcast.simulator.report.words import bias, sureness, time_spent
from rollcast.simulator.results.curves import Curves, Panel, curves_of
from rollcast.simulator.results.figures import FIGURES
from rollcast.simulator.results.learning import sentences, soonest
from rollcast.simulator.results.phases import bound_text
from rollcast.simulator.results.scale import marks, time_unit
from rollcast.simulator.results.target_figures import AFTER, SOONER, TO_TARGET
from rollcast.simulator.results.text import cost, count, factor, interval, seconds, share, usd
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.compare import compared, warnings_of
from rollcast.simulator.studies.ranking import Ranking
from rollcast.simulator.studies.simulate import Result

_MILLION = 1e6
_FIGURES = tuple(figure for figure in FIGURES if figure.page)
COLUMNS = (
    parts.Column("policy", text=True),
    *(parts.Column(figure.label, figure.meaning, narrow=figure.narrow) for figure in _FIGURES),
)
_TOKENS = {
    "generated_tokens": parts.Column("generated", "tokens"),
    "trained_tokens": parts.Column("trained", "tokens"),
    "masked_tokens": parts.Column("masked", "tokens of trained responses that the loss leaves out"),
    "dropped_tokens": parts.Column("dropped", "tokens"),
    "carried_tokens": parts.Column("carried", "tokens of responses unfinished at the end"),
    "reprefilled_tokens": parts.Column(
        "re-prefilled", "tokens computed again, for resumed rollouts and preemptions"
    ),
    "preemptions": parts.Column("preemptions", narrow=False),
}

Values = Mapping[str, Any]
"""A policy's figures: a row of `simulator.studies.compare.compared`."""


def comparison_page(
    results: Mapping[str, Result], ranking: Ranking | None, draws: int | None = None
) -> str:
    """The whole page. draws: those that the user asked for; None for the default."""
    entries = compared(results, ranking)
    first = entries[0]
    best = min(entries, key=lambda entry: entry["step_s"])
    base = SYNCHRONOUS if SYNCHRONOUS in results else first["policy"]
    scenario = results[best["policy"]].scenario
    uses = {name: gpu_use(result.run) for name, result in results.items()}
    summaries = {name: result.summary for name, result in results.items()}
    rows = [
        parts.Row(
            [parts.breakable(entry["policy"]), *(figure.text(entry) for figure in _FIGURES)],
            chosen=entry is best,
        )
        for entry in entries
    ]
    return page(
        scenario.name,
        _headline(best, first, len(entries), ranking, uses[best["policy"]], soonest(summaries)),
        _tiles(best, first),
        parts.notes(warnings_of(results)),
        parts.section(
            "Side by side",
            parts.table(COLUMNS, rows, "Policies side by side"),
            about=sureness(ranking),
        ),
        learning_section(summaries, best["policy"]),
        _front(entries, best),
        parts.section(
            "A step by phase",
            phase_table(
                [(parts.breakable(entry["policy"]), entry, entry is best) for entry in entries]
            ),
            about="Seconds of a mean step, and their 90 % intervals.",
        ),
        parts.section(
            "Where the time goes",
            timelines(
                [
                    timeline_of(results[name].run, name, results[name].summary)
                    for name in dict.fromkeys((base, best["policy"]))
                ]
            ),
            about="Upper strip: rollouts running. Lower strip: one row per replica, or per several;"
            " hatched GPUs are idle.",
        ),
        parts.section(
            "GPU time and tokens accounted for",
            tag("h3", "GPU time"),
            time_bars(uses),
            tag("h3", "Tokens generated"),
            token_bars(summaries),
            _ledger(entries),
            about="Shares of all GPU time, then of all generated tokens by outcome.",
        ),
        assumptions(scenario),
        reproduced(scenario.raw.data, _command([r.scenario for r in results.values()], draws)),
        subtitle=_subtitle(scenario, best["gpus"]),
    )


def _subtitle(scenario: Scenario, gpus: int) -> str:
    batch = scenario.plan.batch
    held = f"{gpus} GPUs"
    if scenario.gpu is not None:
        held = f"{gpus} x {scenario.gpu.name}" if not scenario.trainer_gpu else scenario.gpu_names
    return f"{scenario.steps} steps of {batch.groups} x {batch.group_size} rollouts on {held}"


def _headline(
    best: Values,
    first: Values,
    policies: int,
    ranking: Ranking | None,
    use: Mapping[str, float],
    learns: str,
) -> Markup:
    name, step_s = best["policy"], seconds(best["step_s"])
    if policies == 1:
        lead = f"{name} takes {step_s} a step."
    elif best is first:
        lead = f"None of these is faster than {name}, which takes {step_s} a step."
    else:
        lead = (
            f"{name} is the fastest of these: {step_s} a step, "
            f"{best['speedup']:.2f} times as fast as {first['policy']}"
        )
        if ranking is not None:
            low, high = best["speedup_low"], best["speedup_high"]
            lead += f" (90 % interval {low:.2f} to {high:.2f})"
        lead += "."
    note = best.get("interval_note")
    trained = bias(best["staleness_mean"], best["length_bias"])
    if trained and not learns:
        trained += " The simulation does not say how well it learns."
    return parts.headline(
        lead,
        learns,
        f"{bound_text(best)} {time_spent(use)}",
        f"Variance of its step time: {note}." if note else None,
        trained,
    )


def _tiles(best: Values, first: Values) -> Markup:
    def note(key: str, otherwise: str, write: Callable[[float], str] | None = None) -> str:
        ends = best.get("intervals", {}).get(key)
        return f"90 %: {interval(ends, write)}" if ends else otherwise

    text = note("step_s", f"p95 {seconds(best['step_s_p95'])}")
    figures = [("step time", seconds(best["step_s"]), text)]
    if best is not first:
        figures.append(("speed-up", factor(best["speedup"]), f"against {first['policy']}"))
    text = note("makespan_s", f"{best['steps']} steps")
    figures.append(("whole run", seconds(best["makespan_s"]), text))
    figures.append(("GPU-hours", f"{best['gpu_hours']:.3g}", f"{best['gpus']} GPUs held"))
    if "cost_usd" in best:
        figures.append(("cost", usd(best["cost_usd"]), note("cost_usd", "", usd)))
    figures.append(("bubble", share(best["bubble_fraction"]), "of GPU time idle"))
    return parts.tiles(figures)


def _front(entries: Sequence[Values], best: Values) -> Markup:
    """Step time against the cost of a million trained tokens."""
    if len(entries) < 2:
        return Markup()
    priced = "cost_usd" in entries[0]
    points = []
    for entry in entries:
        millions = max(entry["trained_tokens"], 1) / _MILLION
        spent = entry["cost_usd" if priced else "gpu_hours"] / millions
        text = cost(spent if priced else None, spent)
        lines = (
            entry["policy"],
            f"{seconds(entry['step_s'])} a step ({entry['speedup']:.2f}x)",
            f"{text} per million trained tokens",
        )
        points.append(
            Point(entry["policy"], entry["step_s"], spent, "\n".join(lines), chosen=entry is best)
        )
    unit = "$" if priced else "GPU-hours"
    return parts.section(
        "Time against cost",
        front(
            points, Axis("step time, s"), Axis(f"{unit} per million trained tokens"), "the fastest"
        ),
        about="Lower is better in both. The line joins the policies that no other beats in both.",
    )


def _ledger(entries: Sequence[Values]) -> Markup:
    columns = (parts.Column("policy", text=True), *_TOKENS.values())
    rows = [
        parts.Row((parts.breakable(entry["policy"]), *(count(entry[key]) for key in _TOKENS)))
        for entry in entries
    ]
    return parts.table(columns, rows, "Tokens by outcome")


def _command(scenarios: Sequence[Scenario], draws: int | None) -> str:
    words = ["rollcast", "compare", "scenario.yaml"]
    for scenario in scenarios:
        spelt = label(scenario.policy)
        name = scenario.policy_name
        words += ["--policy", name if name == spelt else f"{name} = {spelt}"]
    words += [] if draws is None else ["--draws", str(draws)]
    return shlex.join([*words, "--out", "comparison"])


def learning_section(summaries: Mapping[str, Mapping[str, Any]], chosen: str = "") -> Markup:
    """The part of a page on learning; empty for runs without a law. summaries: of runs, by policy,
    the baseline first. chosen: the page's policy."""
    said = sentences(summaries)
    if not said:
        return Markup()
    curves = curves_of(summaries)
    picture = None if curves is None else parts.figure(_panels(curves), "", _key(curves))
    return parts.section(
        "Accuracy over time", picture, _table(summaries, chosen), about=" ".join(said)
    )


def _table(summaries: Mapping[str, Mapping[str, Any]], chosen: str) -> Markup | None:
    rows = list(summaries.values())
    figures = [f for f in (AFTER, *TO_TARGET, *SOONER) if any(f.value_in(row) for row in rows)]
    if not figures:
        return None
    columns = (
        parts.Column("policy", text=True),
        *(parts.Column(figure.label, figure.meaning) for figure in figures),
    )
    lines = [
        parts.Row(
            [parts.breakable(name), *(parts.lines(figure.text(row)) for figure in figures)],
            chosen=name == chosen,
        )
        for name, row in summaries.items()
    ]
    return parts.table(columns, lines, "Accuracy")


def _panels(curves: Curves) -> Markup:
    return tag("div", [_panel(panel, curves) for panel in curves.panels], class_="panels")


def _panel(panel: Panel, curves: Curves) -> Markup:
    box = Box((0.0, curves.hours), (curves.least, curves.most))
    unit_s, unit = time_unit(3600 * curves.hours)
    ticks = marks(0.0, 3600 * curves.hours / unit_s, 5)
    ends = (0.0, curves.hours)
    lines = [box.band(panel.hours, panel.low, panel.high)]
    if curves.target is not None:
        lines.append(box.line(ends, (curves.target, curves.target), "target"))
    if panel.base is not None:
        lines.append(box.line(*panel.base, "base"))
    lines.append(box.line(panel.hours, panel.accuracy, "forecast"))
    return box.panel(
        panel.title,
        f"{panel.title}: accuracy over {unit}",
        (
            (value * unit_s / 3600, f"{value:g} {unit}" if value == ticks[-1] else f"{value:g}")
            for value in ticks
        ),
        ((value, f"{value:g}") for value in marks(curves.least, curves.most, 4)),
        box.stretched(*lines),
        panel.note,
    )


def _key(curves: Curves) -> Markup:
    entries: Sequence[tuple[str, str]] = [
        ("line-forecast", "accuracy"),
        ("band", "90 % interval"),
        *([("line-base", curves.first)] if curves.first else []),
        *([] if curves.target is None else [("line-target", f"target {curves.target:g}")]),
    ]
    return parts.key(entries)
