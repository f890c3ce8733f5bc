"""The page of a plan: what to run, what it takes, how sure, and what else there was."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.simulator.planner import words
from rollcast.simulator.planner.answer import Impossible, Interval, Planned, Row, Unrun
from rollcast.simulator.planner.frontier import behind_front
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
from rollcast.simulator.report.markup import Content, Markup, tag
from rollcast.simulator.report.page import page
from rollcast.simulator.report.parts import (
    Column,
    breakable,
    folded,
    headline,
    listed,
    notes,
    section,
    table,
    tiles,
)
from rollcast.simulator.report.parts import Row as Line
from rollcast.simulator.report.reproduced import reproduced
from rollcast.simulator.report.timeline import timeline_of, timelines
from rollcast.simulator.results.figures import NAMED, seconds, share
from rollcast.simulator.results.lanes import STEPS_SHOWN
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.studies.simulate import Result, simulate

_FIGURES = (NAMED["length_bias"], NAMED["bubble_fraction"])
"""Of `Measured`, the last columns of the table of choices."""

BEST_ROWS, MOST_ROWS, MOST_POINTS, MOST_NAMED = 6, 200, 300, 12


@dataclass(frozen=True, slots=True)
class Shown:
    """A choice of a plan simulated for a few steps, for its picture."""

    row: Row
    result: Result

    @property
    def name(self) -> str:
        """Its policy, and its GPUs."""
        return f"{self.row.choice.policy} on {words.setup(self.row)}"


def shown(planned: Planned, raw: RawScenario, steps: int = 2 * STEPS_SHOWN) -> list[Shown]:
    """The synchronous choice that the others are held against, and what is recommended or comes
    nearest, each simulated for ``steps``. raw: the scenario that was asked about. Raises
    ScenarioError or RunError as `simulator.studies.simulate.simulate` does."""
    rows = {row.choice.said: row for row in (planned.baseline, planned.chosen) if row is not None}
    few = override(raw, [f"steps={steps}"])
    return [Shown(row, simulate(row.choice.scenario(few))) for row in rows.values()]


def plan_page(
    planned: Planned, runs: Sequence[Shown], raw: RawScenario, policies: Sequence[str] = ()
) -> str:
    """The whole page. runs: as `shown` makes them, the chosen one last. raw: the scenario that was
    asked about, with its section ``plan``; policies: what was asked beside it."""
    chosen = planned.chosen
    lead, *more = planned.sentences
    return page(
        planned.name,
        headline(lead, *more),
        None if chosen is None else _tiles(chosen),
        notes(() if chosen is None else chosen.measured.warnings),
        section("What would change the answer", listed(planned.changes))
        if planned.changes
        else None,
        _front(planned),
        _choices(planned),
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
        f"{planned.work.said}; {count:,} choices, {planned.simulated_steps:,} steps simulated "
        f"to choose among them (all: {planned.brute_force_steps:,})"
    )


def _tiles(row: Row) -> Markup:
    measured = row.measured
    figures = [("whole run", words.hours(row.run_cost.hours), _between(row.hours, words.hours))]
    if row.run_cost.usd is not None:
        figures.append(("cost", words.usd(row.run_cost.usd), _between(row.usd, words.usd)))
    figures += [
        ("GPUs", str(row.setup.gpus), row.setup.gpu),
        ("a step", seconds(measured.step_s), f"{row.run_cost.updates:,.0f} of them"),
        ("bound by", measured.bound_by, f"{share(measured.bubble_fraction)} of GPU time idle"),
    ]
    if row.break_even is not None:
        figures.append(("pays up to", f"{row.break_even:.2f}x", "the updates of sync"))
    return tiles(figures)


def _between(interval: Interval | None, write: Callable[[float], str]) -> str:
    return "" if interval is None else f"90 %: {write(interval.low)} to {write(interval.high)}"


def _front(planned: Planned) -> Content:
    """The choices nearest to the front, so that a plan of thousands stays a picture."""
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
    return section(
        "Hours against cost",
        front(
            points,
            Axis("hours of the whole run", lambda value: f"{value:,g}"),
            Axis(
                "$ of the whole run" if priced else "GPU-hours of the whole run",
                lambda value: f"{value:,g}",
            ),
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
    columns = (
        Column("policy", text=True),
        Column(
            "GPUs", "all that are held: replicas x tensor parallelism + the trainer's", text=True
        ),
        Column("whole run", "hours of it, and their 90 % interval"),
        Column("cost", "of the whole run"),
        Column(NAMED["bound_by"].label, NAMED["bound_by"].meaning),
        Column("pays up to", "times the updates of the best synchronous choice"),
        Column("oldest token", "versions behind, of what is trained on"),
        *(Column(figure.label, figure.meaning, narrow=False) for figure in _FIGURES),
    )
    kept = _worth_showing(planned)
    chosen = planned.chosen
    about = "Best first. ~: from a short simulation. Pale: violates a limit."
    rows = [_line(row, row is chosen) for row in kept]
    more = [_line(row, row is chosen) for row in planned.rows[:MOST_ROWS]]
    rest = len(planned.rows) - len(more)
    every = f"The first {len(more)}, and {rest:,} more in plan.csv" if rest else f"All {len(more)}"
    return section(
        "Choices",
        table(columns, rows, "Choices"),
        folded(every, table(columns, more, every)) if len(more) > len(rows) else None,
        about=about,
    )


def _worth_showing(planned: Planned) -> list[Row]:
    """The best, those that no other beats, the best of each policy, and what they are held
    against."""
    held = None if planned.baseline is None else planned.baseline.choice.said
    kept: list[Row] = []
    policies: set[str] = set()
    for place, row in enumerate(planned.rows):
        new = row.choice.policy not in policies
        if place < BEST_ROWS or row.on_front or new or row.choice.said == held:
            kept.append(row)
            policies.add(row.choice.policy)
    return kept


def _line(row: Row, chosen: bool) -> Line:
    m = row.measured
    more = words.others(row)
    spread = tag("small", tag("br"), _ends(row.hours)) if row.hours else None
    cost = (
        f"{row.run_cost.gpu_hours:,.0f} GPU h"
        if row.run_cost.usd is None
        else words.usd(row.run_cost.usd)
    )
    cells: Sequence[Content] = (
        breakable(row.choice.policy),
        [
            f"{row.setup.gpus} {row.setup.gpu}",
            tag("small", tag("br"), words.split(row)),
            tag("small", tag("br"), more) if more else None,
        ],
        [f"{'' if row.exact else '~'}{words.hours(row.run_cost.hours)}", spread],
        cost,
        m.bound_by,
        "" if row.break_even is None else f"{row.break_even:.2f}x",
        str(m.staleness_max),
        *(figure.text({figure.name: getattr(m, figure.name)}) for figure in _FIGURES),
    )
    return Line(cells, chosen=chosen, apart=bool(row.beyond))


def _ends(interval: Interval) -> str:
    return f"{words.hours(interval.low)} to {words.hours(interval.high)}"


def _time(runs: Sequence[Shown]) -> Content:
    if not runs:
        return None
    drawn = [timeline_of(shown.result.run, shown.name, shown.result.summary) for shown in runs]
    uses = [gpu_use(shown.result.run) for shown in runs]
    names = [shown.row.choice.policy for shown in runs]
    return section(
        "Where the time goes",
        timelines(drawn),
        tag("h3", "GPU time"),
        bars(list(zip(names, map(time_parts, uses), strict=True))),
        time_key(uses),
        tag("h3", "Tokens generated"),
        bars(
            [(n, token_parts(shown.result.summary)) for n, shown in zip(names, runs, strict=True)]
        ),
        token_key(),
        about="The synchronous baseline and this choice.",
    )


def _impossible(groups: Sequence[Impossible]) -> Content:
    if not groups:
        return None
    count = sum(len(group.choices) for group in groups)
    parts = [
        folded(
            f"{group.problem} ({len(group.choices)})",
            listed(group.choices[:MOST_NAMED]),
            tag("p", f"and {len(group.choices) - MOST_NAMED} more")
            if len(group.choices) > MOST_NAMED
            else None,
        )
        for group in groups
    ]
    return section(f"What cannot be ({count:,})", parts)


def _unrun(unrun: Sequence[Unrun]) -> Content:
    """Choices whose estimate was enough to leave them out."""
    if not unrun:
        return None
    columns = (
        Column("choice", text=True),
        Column("GPUs"),
        Column("hours, estimated"),
        Column("cost, estimated"),
    )
    lines = [
        Line(
            (
                breakable(choice.choice.said),
                str(choice.setup.gpus),
                words.hours(choice.estimate.hours),
                "" if choice.estimate.usd is None else words.usd(choice.estimate.usd),
            )
        )
        for choice in unrun[:MOST_NAMED]
    ]
    return section(
        f"What was not worth a simulation ({len(unrun):,})",
        folded(f"The nearest {len(lines)}", table(columns, lines, "Choices not simulated")),
        about="Their estimates were enough to leave them out; all are in plan.csv.",
    )


def _command(policies: Sequence[str]) -> str:
    asked = [word for policy in policies for word in ("--policy", policy)]
    return shlex.join(["rollcast", "plan", "scenario.yaml", *asked, "--out", "plan"])
