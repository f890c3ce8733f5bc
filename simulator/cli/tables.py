"""A run, and several side by side, on the terminal; plain text in a pipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rollcast.simulator.cli.console import console, fitted, named_column
from rollcast.simulator.results.figure import Figure
from rollcast.simulator.results.figures import (
    BOUND_BY,
    BY_PHASE,
    FIGURES,
    NAMED,
    NOTES,
    steps_by_group_size,
)
from rollcast.simulator.results.learning import sentences
from rollcast.simulator.results.phases import bound_text
from rollcast.simulator.results.target_figures import AFTER, SOONER, TO_TARGET
from rollcast.simulator.results.text import interval, memory_said, seconds, share

if TYPE_CHECKING:
    from rich.console import Console

    from rollcast.simulator.studies.ranking import Ranking
    from rollcast.simulator.studies.simulate import Result
    from rollcast.simulator.studies.tornado import Bar


def show_summary(
    summary: Mapping[str, Any], as_json: bool = False, bars: Sequence[Bar] | None = None
) -> None:
    """Prints one run. bars: of its tornado, where one was made."""
    if as_json:
        from rollcast.simulator.results.write import plain

        more = {} if bars is None else {"tornado": [asdict(bar) for bar in bars]}
        print(json.dumps(plain({**summary, **more}), indent=1))
        return
    from rich.table import Table
    from rich.text import Text

    s = summary
    title = Text(f"{s['scenario']}: {s['policy']}")
    grid = Table(title=title, show_header=False, title_justify="left")
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(style="dim")
    rows = list[tuple[str, str, str]]()
    for figure in FIGURES:
        row = figure.line(s)
        if row is not None and row[1]:
            rows.append(row)
        if figure.name == "trained_tokens_per_s" and "turns" in s:
            rows += _turns(s["turns"])
    for cells in rows:
        grid.add_row(*cells)
    screen = console()
    screen.print(grid)
    told = sentences({s["policy"]: s})
    for line in filter(None, (bound_text(s), *_intervals(s), *told, *_lengths(s))):
        screen.print(line, markup=False, highlight=False)
    if bars is not None:
        from rollcast.simulator.cli.tornado_table import show_tornado

        show_tornado(bars)
    _warn(screen, s["warnings"])


def _intervals(s: Mapping[str, Any]) -> list[str]:
    """Where step and run lie in nine of ten draws, and what that comes from."""
    intervals = s.get("intervals")
    if not intervals or "step_s" not in intervals:
        return []
    note = s.get("interval_note", "")
    lines = [
        f"90 % interval of the step time: {interval(intervals['step_s'])}"
        + (f"; its variance: {note}" if note else "")
    ]
    run = f"90 % interval of the run: {interval(intervals['makespan_s'])}"
    run += f"; {interval(intervals['gpu_hours'], '{:,.3g}'.format)} GPU-hours"
    if "cost_usd" in intervals:
        run += f"; {interval(intervals['cost_usd'], '${:,.3g}'.format)}"
    return [*lines, run]


def _lengths(s: Mapping[str, Any]) -> list[str]:
    """The lengths that were solved for."""
    return [f"lengths: {s['lengths']['note']}"] if "lengths" in s else []


def _turns(turns: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What a rollout's turns come to."""
    split = [
        ("model", turns["model_s"]),
        ("its queue", turns["queue_s"]),
        ("environment", turns.get("environment_s")),
        ("its queue", turns.get("environment_queue_s")),
    ]
    ends = ", ".join(f"{name} {count}" for name, count in turns["endings"].items())
    rows = [
        (
            "turns",
            f"{turns['turns_mean']:.1f}",
            f"of a rollout, p95 {turns['turns_p95']:.0f}; ends: {ends}",
        ),
        (
            "  a turn takes",
            seconds(sum(value for _, value in split if value is not None)),
            ", ".join(f"{name} {seconds(value)}" for name, value in split if value is not None),
        ),
    ]
    for name in ("environment", "reward"):
        if name in turns:
            calls = turns[name]
            use = "" if calls["use"] is None else f", {share(calls['use'])} of the slots"
            what = "environments" if name == "environment" else "judges"
            rows.append((f"  {what} busy", f"{calls['busy_slots_mean']:.1f}", f"in the mean{use}"))
    return rows


def _warn(screen: Console, warnings: list[str]) -> None:
    for warning in warnings:
        screen.print(f"warning: {warning}", style="yellow", markup=False)


def show_comparison(
    results: Mapping[str, Result], ranking: Ranking | None = None, as_json: bool = False
) -> None:
    """Prints one row a policy, and how sure their ranking is."""
    from rollcast.simulator.report.words import sureness
    from rollcast.simulator.studies.compare import compared, table, warnings_of

    if as_json:
        from rollcast.simulator.results.write import plain

        print(json.dumps(plain(table(results, ranking)), indent=1))
        return
    from rich.table import Table
    from rich.text import Text

    scenario = next(iter(results.values())).scenario
    batch = scenario.plan.batch
    title = (
        f"{scenario.name}: {scenario.steps} steps of {batch.groups} x {batch.group_size} rollouts"
    )
    screen = console()
    values = compared(results, ranking)
    names = [row["policy"] for row in values]
    figures = [figure for figure in FIGURES if figure.terminal and _shows(figure, values)]

    def build(kept: Sequence[Figure]) -> Table:
        grid = Table(padding=(0, 0, 0, 1), title=Text(title), title_justify="left")
        named_column(grid, "policy", names, screen.width)
        for figure in kept:
            grid.add_column(figure.heading, justify="right", no_wrap=True)
        for row in values:
            grid.add_row(Text(row["policy"]), *(figure.text(row) for figure in kept))
        return grid

    drops = {figure: figure.terminal.drop for figure in figures if figure.terminal}
    leaving = sorted((figure for figure in figures if drops[figure]), key=drops.__getitem__)
    grid, left_out = fitted(screen, figures, leaving, build)
    screen.print(grid)
    notes = ["Times are means per step."]
    notes += [
        f"{figure.label}: {figure.meaning}."
        for figure in figures
        if figure.terminal and figure.terminal.footnote and figure not in left_out
    ]
    if left_out:
        labels = ", ".join(figure.label for figure in left_out)
        notes.append(f"For {labels}, make the terminal wider.")
    screen.print(" ".join(notes), style="dim", markup=False)
    show_phases(screen, names, values)
    show_learning(screen, names, values)
    told = sentences({name: result.summary for name, result in results.items()})
    for line in (sureness(ranking), *told):
        screen.print(line, style="dim", markup=False)
    for line in memory_lines(names, [result.summary for result in results.values()]):
        screen.print(line, style="dim", markup=False)
    for line in _lengths(next(iter(results.values())).summary):
        screen.print(line, style="dim", markup=False)
    for name, result in results.items():
        sizes = result.summary["group_sizes"]
        if len(sizes) > 1:
            steps = steps_by_group_size(result.summary)
            screen.print(
                f"{name}: groups of {' / '.join(sizes)} {steps}.", style="dim", markup=False
            )
    _warn(screen, warnings_of(results))


def memory_lines(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is said of memory (`figures.memory_said`): once where it is the same of all rows."""
    said = [memory_said(row) for row in rows]
    if len(set(said)) == 1:
        return [said[0]] if said[0] else []
    return [f"{name}: {text}" for name, text in zip(names, said, strict=True) if text]


def show_phases(screen: Console, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the seconds of a step by phase, a row each of ``names``. rows: with
    `simulator.results.phases.said`. The shortest leave a narrow terminal first."""
    longest = {
        figure: max((phase["s"] for row in rows if (phase := figure.value_in(row))), default=0.0)
        for figure in BY_PHASE
    }
    figures = [figure for figure in BY_PHASE if longest[figure]]
    if not figures:
        return
    drawn = any("low_s" in phase for row in rows for phase in row["phases"].values())
    title = "seconds of a step by phase" + (", and their 90 % intervals" if drawn else "")
    leaving = sorted(figures, key=longest.__getitem__)
    left_out = _show_beside(screen, title, names, rows, figures, leaving, (BOUND_BY,))
    notes = [note for name, note in NOTES.items() if longest[NAMED[f"phases.{name}"]]]
    if left_out:
        notes.append(f"For {', '.join(f.label for f in left_out)}, make the terminal wider.")
    screen.print(" ".join(notes), style="dim", markup=False)


def show_learning(screen: Console, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints what training takes to the target accuracy, a row for each of ``names``, if any."""
    figures = [f for f in (AFTER, *TO_TARGET, *SOONER) if any(f.value_in(row) for row in rows)]
    if not figures:
        return
    target = next(row["learning"]["target"] for row in rows if row.get("learning"))
    what = "accuracy" if target is None else f"to accuracy {target:g}"
    title = f"{what}, and 90 % intervals"
    _show_beside(screen, title, names, rows, figures, list(reversed(figures[1:])))
    notes = [f"{figure.label}: {figure.meaning}." for figure in SOONER if figure in figures]
    screen.print(" ".join(notes), style="dim", markup=False)


def _show_beside(
    screen: Console,
    title: str,
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    figures: Sequence[Figure],
    leaving: Sequence[Figure],
    always: Sequence[Figure] = (),
) -> Sequence[Figure]:
    """Prints figures side by side, a row each of ``names``; returns those that a narrow terminal
    has no room for, the first of ``leaving`` first."""
    from rich.table import Table
    from rich.text import Text

    def build(kept: Sequence[Figure]) -> Table:
        grid = Table(padding=(0, 0, 0, 1), title=Text(title), title_justify="left")
        named_column(grid, "", names, screen.width)
        shown = (*kept, *always)
        for figure in shown:
            grid.add_column(figure.label, justify="right", no_wrap=True)
        for name, row in zip(names, rows, strict=True):
            grid.add_row(Text(name), *(Text(figure.text(row)) for figure in shown))
        return grid

    grid, left_out = fitted(screen, figures, leaving, build)
    screen.print(grid)
    return left_out


def _shows(figure: Figure, values: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a figure has a column: it has text, and differs if it must."""
    from rollcast.simulator.studies.compare import SAME

    if not any(figure.text(row) for row in values):
        return False
    if not (figure.terminal and figure.terminal.if_differs):
        return True
    numbers = [value for row in values if (value := figure.value_in(row)) is not None]
    return bool(numbers) and max(numbers) > (1.0 + SAME) * min(numbers)
