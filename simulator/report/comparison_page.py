"""The page of a comparison: which policy is fastest, what it costs, and why."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.planner.measure import bound_by
from rollcast.simulator.planner.words import usd
from rollcast.simulator.policies import label
from rollcast.simulator.report.assumptions import assumptions
from rollcast.simulator.report.front import Axis, Point, front
from rollcast.simulator.report.ledger import (
    bars,
    gpu_use,
    time_key,
    time_parts,
    token_key,
    token_parts,
)
from rollcast.simulator.report.markup import Markup, tag
from rollcast.simulator.report.page import page
from rollcast.simulator.report.parts import (
    Column,
    Row,
    breakable,
    headline,
    notes,
    section,
    table,
    tiles,
)
from rollcast.simulator.report.reproduced import reproduced
from rollcast.simulator.report.timeline import timeline_of, timelines
from rollcast.simulator.report.words import bias, sureness, time_spent
from rollcast.simulator.results.figures import FIGURES, count, seconds, share
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.compare import compared, warnings_of
from rollcast.simulator.studies.ranking import Ranking
from rollcast.simulator.studies.simulate import Result

SYNCHRONOUS = "sync"
_MILLION = 1e6

_FIGURES = tuple(figure for figure in FIGURES if figure.page)
COLUMNS = (
    Column("policy", text=True),
    *(Column(figure.label, figure.meaning, narrow=figure.narrow) for figure in _FIGURES),
)


@dataclass(frozen=True, slots=True)
class Told:
    """A policy's figures. row: as `simulator.studies.compare.compared` has it."""

    name: str
    row: Mapping[str, Any]
    summary: Mapping[str, Any]
    bound_by: str

    @property
    def cost(self) -> tuple[float, str]:
        """Of a million trained tokens, in dollars where the GPU has a price, else in GPU-hours."""
        tokens = max(self.summary["trained_tokens"], 1) / _MILLION
        if "cost_usd" in self.summary:
            return self.summary["cost_usd"] / tokens, "usd"
        return self.summary["gpu_hours"] / tokens, "gpu_hours"


def comparison_page(
    results: Mapping[str, Result], ranking: Ranking | None, draws: int | None = None
) -> str:
    """The whole page. draws: how many the ranking was asked for, None for its own."""
    entries = [
        Told(
            name,
            row,
            result.summary,
            bound_by(result.summary, result.run.steps),
        )
        for (name, result), row in zip(results.items(), compared(results, ranking), strict=True)
    ]
    first = entries[0]
    best = min(entries, key=lambda entry: entry.summary["step_s"])
    base = next((entry for entry in entries if entry.name == SYNCHRONOUS), first)
    scenario = results[best.name].scenario
    uses = {name: gpu_use(result.run) for name, result in results.items()}
    return page(
        scenario.name,
        _headline(best, first, len(entries), ranking, uses[best.name]),
        _tiles(best, first),
        notes(warnings_of(results)),
        section(
            "Side by side",
            table(
                COLUMNS,
                [_row(entry, entry is best) for entry in entries],
                "Policies side by side",
            ),
            about=sureness(ranking),
        ),
        _front(entries, best),
        section(
            "Where the time goes",
            timelines(
                [
                    timeline_of(results[name].run, name, results[name].summary)
                    for name in dict.fromkeys((base.name, best.name))
                ]
            ),
            about="Upper strip: rollouts running. Lower strip: one row per replica, or per several;"
            " hatched GPUs are idle.",
        ),
        section(
            "GPU time and tokens accounted for",
            tag("h3", "GPU time"),
            bars([(name, time_parts(use)) for name, use in uses.items()]),
            time_key(list(uses.values())),
            tag("h3", "Tokens generated"),
            bars([(entry.name, token_parts(entry.summary)) for entry in entries]),
            token_key(),
            _ledger(entries),
            about="Shares of all GPU time, then of all generated tokens by outcome.",
        ),
        assumptions(scenario),
        reproduced(scenario.raw.data, _command([r.scenario for r in results.values()], draws)),
        subtitle=_subtitle(scenario, best),
    )


def _subtitle(scenario: Scenario, entry: Told) -> str:
    batch = scenario.plan.batch
    gpu = f" x {scenario.gpu.name}" if scenario.gpu is not None else " GPUs"
    return (
        f"{scenario.steps} steps of {batch.groups} x {batch.group_size} rollouts on "
        f"{entry.summary['gpus']}{gpu}"
    )


def _headline(
    best: Told, first: Told, policies: int, ranking: Ranking | None, use: Mapping[str, float]
) -> Markup:
    step_s = seconds(best.summary["step_s"])
    if policies == 1:
        lead = f"{best.name} takes {step_s} a step."
    elif best is first:
        lead = f"None of these is faster than {first.name}, which takes {step_s} a step."
    else:
        lead = (
            f"{best.name} is the fastest of these: {step_s} a step, "
            f"{best.row['speedup']:.2f} times as fast as {first.name}"
        )
        if ranking is not None:
            low, high = best.row["speedup_low"], best.row["speedup_high"]
            lead += f" (90 % interval {low:.2f} to {high:.2f})"
        lead += "."
    note = best.summary.get("interval_note")
    trained = bias(best.summary["staleness_mean"], best.summary["length_bias"])
    return headline(
        lead,
        f"The {best.bound_by} is the bottleneck. {time_spent(use)}",
        f"The interval of its step: {note}." if note else None,
        f"{trained} The simulation does not say how well it learns." if trained else None,
    )


def _tiles(best: Told, first: Told) -> Markup:
    s = best.summary
    known = s.get("intervals", {})

    def within(key: str, write: Callable[[float], str], otherwise: str) -> str:
        low, high = known.get(key, (None, None))
        return otherwise if low is None else f"90 %: {write(low)} to {write(high)}"

    text = within("step_s", seconds, f"p95 {seconds(s['step_s_p95'])}")
    figures = [("step time", seconds(s["step_s"]), text)]
    if best is not first:
        figures.append(("speed-up", f"{best.row['speedup']:.2f}x", f"against {first.name}"))
    figures.append(
        (
            "whole run",
            seconds(s["makespan_s"]),
            within("makespan_s", seconds, f"{s['steps']} steps"),
        )
    )
    figures.append(("GPU-hours", f"{s['gpu_hours']:.3g}", f"{s['gpus']} GPUs held"))
    if "cost_usd" in s:
        figures.append(("cost", usd(s["cost_usd"]), within("cost_usd", usd, "")))
    figures.append(("bubble", share(s["bubble_fraction"]), "of GPU time idle"))
    return tiles(figures)


def _row(entry: Told, best: bool) -> Row:
    values = {**entry.row, "bound_by": entry.bound_by}
    cells = [breakable(entry.name), *(figure.text(values) for figure in _FIGURES)]
    return Row(cells, chosen=best)


def _front(entries: Sequence[Told], best: Told) -> Markup:
    """Time of a step against the cost of what is trained on: on the same GPUs a step costs what it
    takes, but not every policy trains on all that it generates."""
    if len(entries) < 2:
        return Markup()
    priced = entries[0].cost[1] == "usd"
    write = usd if priced else lambda value: f"{value:.3g}"
    points = []
    for entry in entries:
        cost = entry.cost[0]
        step_s, speedup = entry.summary["step_s"], entry.row["speedup"]
        of_cost = f"{write(cost)}{'' if priced else ' GPU-hours'} per million trained tokens"
        points.append(
            Point(
                entry.name,
                step_s,
                cost,
                f"{entry.name}\n{seconds(step_s)} a step ({speedup:.2f}x)\n{of_cost}",
                chosen=entry is best,
            )
        )
    unit = "$" if priced else "GPU-hours"
    return section(
        "Time against cost",
        front(
            points,
            Axis("step time, s", lambda value: f"{value:g}"),
            Axis(f"{unit} per million trained tokens", lambda value: f"{value:g}"),
            "the fastest",
        ),
        about="Lower is better in both. The line joins the policies that no other beats in both.",
    )


def _ledger(entries: Sequence[Told]) -> Markup:
    columns = (
        Column("policy", text=True),
        Column("generated", "tokens"),
        Column("trained", "tokens"),
        Column("masked", "tokens of trained responses that the loss leaves out"),
        Column("dropped", "tokens"),
        Column("carried", "tokens of responses unfinished at the end"),
        Column("re-prefilled", "tokens computed again, for resumed rollouts and preemptions"),
        Column("preemptions", narrow=False),
    )
    keys = (
        "generated_tokens",
        "trained_tokens",
        "masked_tokens",
        "dropped_tokens",
        "carried_tokens",
        "reprefilled_tokens",
        "preemptions",
    )
    rows = [
        Row((breakable(entry.name), *(count(entry.summary[key]) for key in keys)))
        for entry in entries
    ]
    return table(columns, rows, "Tokens by what became of them")


def _command(scenarios: Sequence[Scenario], draws: int | None) -> str:
    words = ["rollcast", "compare", "scenario.yaml"]
    for scenario in scenarios:
        spelt = label(scenario.policy)
        name = scenario.policy_name
        words += ["--policy", name if name == spelt else f"{name} = {spelt}"]
    words += [] if draws is None else ["--draws", str(draws)]
    return shlex.join([*words, "--out", "comparison"])
