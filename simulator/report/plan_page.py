"""The page of a plan: the recommendation, its cost and interval, and the other choices."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rollcast.simulator.planner import words
from rollcast.simulator.planner.answer import Impossible, Planned, Row, Unrun
from rollcast.simulator.planner.frontier import behind_front
from rollcast.simulator.report import parts
from rollcast.simulator.report.assumptions import assumptions
from rollcast.simulator.report.ledger import gpu_use, time_bars, token_bars
from rollcast.simulator.report.page import Content, Markup, page, tag
from rollcast.simulator.report.parts import Row as Line
from rollcast.simulator.report.parts import phase_table, reproduced
from rollcast.simulator.report.plots import Axis, Point, front
from rollcast.simulator.report.timeline import timeline_of, timelines
from rollcast.simulator.results.figures import NAMED
from rollcast.simulator.results.lanes import STEPS_SHOWN
from rollcast.simulator.results.text import (
    MEMORY_PHASES,
    cost,
    gigabytes,
    hours,
    seconds,
    share,
    usd,
)
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.studies.simulate import Result, simulate

_FIGURES = tuple(
    NAMED[name] for name in ("break_even", "staleness_max", "length_bias", "bubble_fraction")
)
_NARROW = _FIGURES[:2]

_CHANCE = "share of draws within the limits of hours and cost; ~: if spread like the best choice"

BEST_ROWS, MOST_ROWS, MOST_POINTS, MOST_NAMED = 6, 200, 300, 12


@dataclass(frozen=True, slots=True)
class Shown:
    """A choice and a short simulation of it, for its timeline."""

    row: Row
    result: Result


def shown(planned: Planned, raw: RawScenario, steps: int = 2 * STEPS_SHOWN) -> list[Shown]:
    """Simulates the synchronous baseline and the chosen row for ``steps``. Raises ScenarioError or
    RunError as `simulate`."""
    rows = {row.choice.name: row for row in (planned.baseline, planned.chosen) if row is not None}
    few = override(raw, [f"steps={steps}"])
    return [Shown(row, simulate(row.choice.scenario(few))) for row in rows.values()]


def plan_page(
    planned: Planned, runs: Sequence[Shown], raw: RawScenario, policies: Sequence[str] = ()
) -> str:
    """The whole page. runs: of `shown`, the chosen row last. raw: the scenario with its section
    ``plan``. policies: of the command line."""
    chosen = planned.chosen
    lead, *more = planned.sentences
    changes = planned.changes
    return page(
        planned.name,
        parts.headline(lead, *more),
        None if chosen is None else _tiles(chosen),
        parts.notes(() if chosen is None else chosen.measured.warnings),
        parts.section("What would change the answer", parts.listed(changes)) if changes else None,
        _front(planned),
        _choices(planned),
        _phases(planned),
        _time(runs),
        _impossible(planned.impossible),
        _unrun(planned.unrun),
        assumptions(runs[-1].result.scenario) if runs else None,
        reproduced(
            raw.data,
            _command(policies),
            about="Save the scenario, with every setting and the question applied, as "
            "scenario.yaml; paths in it start from its folder. recommended.yaml, beside this page, "
            "is what to simulate or run.",
        ),
        subtitle=_subtitle(planned),
    )


def _subtitle(planned: Planned) -> str:
    count = len(planned.rows) + len(planned.unrun)
    return (
        f"{planned.work.text}; {count:,} choices; {planned.simulated_steps:,} steps "
        f"were simulated (all choices to the end: {planned.brute_force_steps:,})"
    )


def _tiles(row: Row) -> Markup:
    measured, run = row.measured, row.run_cost
    alike = partial(hours, like=run.hours)
    figures = [("whole run", hours(run.hours), _interval(words.between(row.hours, alike)))]
    if run.usd is not None:
        figures.append(("cost", usd(run.usd), _interval(words.between(row.usd, usd))))
    figures += [
        ("GPUs", str(row.setup.gpus), row.setup.kinds),
        ("a step", seconds(measured.step_s), f"{run.updates:,.0f} of them"),
        (
            "bound by",
            measured.said["bound_by"] or "-",
            f"{share(measured.bubble_fraction)} of GPU time idle",
        ),
    ]
    if measured.memory is not None:
        peak, sure = measured.memory["peak"], measured.memory["fits_probability"]
        note = f"of {gigabytes(peak['capacity_bytes'])} of a GPU, {MEMORY_PHASES[peak['phase']]}"
        figures.append(
            ("peak memory", gigabytes(peak["bytes"]), f"{note}; {sure:.0%} likely to fit")
        )
    if row.break_even is not None:
        figures.append(("pays up to", f"{row.break_even:.2f}x", "the updates of sync"))
    return parts.tiles(figures)


def _interval(ends: str) -> str:
    return ends and f"90 %: {ends}"


def _front(planned: Planned) -> Content:
    """The scatter of the `MOST_POINTS` choices nearest to the front."""
    rows = [row for row in planned.rows if np.isfinite(row.run_cost.hours)]
    if not rows:
        return None
    far = behind_front([row.run_cost.hours for row in rows], [row.run_cost.cost for row in rows])
    kept = sorted(np.argsort(far, kind="stable")[:MOST_POINTS].tolist())
    priced = all(row.run_cost.usd is not None for row in rows)
    points = [_point(rows[i], rows[i] is planned.chosen) for i in kept]
    about = "Lower is better in both. The line joins the choices that no other beats in both."
    if len(kept) < len(planned.rows) + len(planned.unrun):
        about += f" The {len(kept)} nearest to it are shown."
    return parts.section(
        "Hours against cost",
        front(
            points,
            Axis("hours of the whole run"),
            Axis(f"{'$' if priced else 'GPU-hours'} of the whole run"),
            "recommended" if planned.recommended else "nearest to the limits",
        ),
        about=about,
    )


def _point(row: Row, chosen: bool) -> Point:
    lines = [row.choice.policy, words.setup(row), words.takes(row)]
    lines += [f"beyond the limits: {', '.join(row.beyond)}"] if row.beyond else []
    lines += [] if row.exact else ["from a short simulation"]
    low, high = (None, None) if row.hours is None else (row.hours.low, row.hours.high)
    name = f"{row.choice.policy}, {row.setup.gpus} GPUs"
    return Point(name, row.run_cost.hours, row.run_cost.cost, "\n".join(lines), low, high, chosen)


def _choices(planned: Planned) -> Markup:
    limited = any(row.chances for row in planned.rows)
    columns = (
        parts.Column("policy", text=True),
        parts.Column(
            "GPUs", "all GPUs in use: replicas x tensor parallelism + the trainer's", text=True
        ),
        parts.Column("whole run", "hours of it, and their 90 % interval"),
        parts.Column(NAMED["cost"].label, NAMED["cost"].meaning),
        *([parts.Column("meets limits", _CHANCE)] if limited else []),
        *(parts.Column(f.label, f.meaning, narrow=f in _NARROW) for f in _FIGURES),
    )
    like = planned.rows[0].run_cost.hours

    def line(row: Row) -> Line:
        return _line(row, row is planned.chosen, limited, partial(hours, like=like))

    notable = planned.notable(BEST_ROWS)
    rows = [line(row) for row in notable]
    about = ["Best first. ~: from a short simulation. Pale: violates a limit."]
    about += words.alike(planned.rows, notable)
    more = [line(row) for row in planned.rows[:MOST_ROWS]]
    rest = len(planned.rows) - len(more)
    every = f"The first {len(more)}, and {rest:,} more in plan.csv" if rest else f"All {len(more)}"
    return parts.section(
        "Choices",
        parts.table(columns, rows, "Choices"),
        parts.folded(every, parts.table(columns, more, every)) if len(more) > len(rows) else None,
        about=" ".join(about),
    )


def _line(row: Row, chosen: bool, limited: bool, long: Callable[[float], str]) -> Line:
    values = row.plain()
    details = [words.split(row), words.others(row)]
    cells: Sequence[Content] = (
        parts.breakable(row.choice.policy),
        [f"{row.setup.gpus} {row.setup.kinds}", *map(parts.below, filter(None, details))],
        [
            f"{'' if row.exact else '~'}{long(row.run_cost.hours)}",
            parts.below(words.between(row.hours, long)) if row.hours else None,
        ],
        NAMED["cost"].text(values),
        *([words.chance(row)] if limited else []),
        *(figure.text(values) for figure in _FIGURES),
    )
    return Line(cells, chosen=chosen, apart=bool(row.beyond))


def _phases(planned: Planned) -> Content:
    rows = [
        (_named(row), row.measured.said, row is planned.chosen)
        for row in planned.notable(BEST_ROWS)
    ]
    if not rows:
        return None
    spread = (
        "; of the finalists with 90 % intervals" if any(row.hours for row in planned.rows) else ""
    )
    return parts.section(
        "A step by phase", phase_table(rows), about=f"Seconds of a mean step{spread}."
    )


def _named(row: Row) -> Content:
    return [
        parts.breakable(row.choice.policy),
        parts.below(f"{row.setup.gpus}: {words.split(row)}"),
    ]


def _time(runs: Sequence[Shown]) -> Content:
    if not runs:
        return None
    named = [(shown.row.choice.policy, shown.result) for shown in runs]
    return parts.section(
        "Where the time goes",
        timelines(
            [
                timeline_of(shown.result.run, words.choice(shown.row), shown.result.summary)
                for shown in runs
            ]
        ),
        tag("h3", "GPU time"),
        time_bars({name: gpu_use(result.run) for name, result in named}),
        tag("h3", "Tokens generated"),
        token_bars({name: result.summary for name, result in named}),
        about="The synchronous baseline and this choice.",
    )


def _impossible(groups: Sequence[Impossible]) -> Content:
    if not groups:
        return None
    count = sum(len(group.choices) for group in groups)
    causes = [
        parts.folded(
            f"{group.problem} ({len(group.choices)})",
            parts.listed(group.choices[:MOST_NAMED]),
            tag("p", f"and {len(group.choices) - MOST_NAMED} more")
            if len(group.choices) > MOST_NAMED
            else None,
        )
        for group in groups
    ]
    return parts.section(f"Impossible choices ({count:,})", causes)


def _unrun(unrun: Sequence[Unrun]) -> Content:
    if not unrun:
        return None
    columns = (
        parts.Column("choice", text=True),
        parts.Column("GPUs"),
        parts.Column("hours, estimated"),
        parts.Column("cost, estimated"),
    )
    lines = [
        Line(
            (
                parts.breakable(choice.choice.name),
                str(choice.setup.gpus),
                hours(choice.estimate.hours, like=unrun[0].estimate.hours),
                cost(choice.estimate.usd, choice.estimate.gpu_hours),
            )
        )
        for choice in unrun[:MOST_NAMED]
    ]
    return parts.section(
        f"Choices not simulated ({len(unrun):,})",
        parts.folded(
            f"The nearest {len(lines)}", parts.table(columns, lines, "Choices not simulated")
        ),
        about="Their estimates ruled them out; all are in plan.csv.",
    )


def _command(policies: Sequence[str]) -> str:
    asked = [word for policy in policies for word in ("--policy", policy)]
    return shlex.join(["rollcast", "plan", "scenario.yaml", *asked, "--out", "plan"])
