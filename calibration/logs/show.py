"""An import on the terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rollcast.calibration.logs import columns
from rollcast.calibration.logs.run_log import LEVELS, RunLog
from rollcast.simulator.cli.console import console
from rollcast.simulator.launches.parts import Part, missing
from rollcast.simulator.results.text import seconds, share
from rollcast.simulator.values.words import counted

_EXAMPLES = 3
_WORDS = {1: "", 2: "for each rollout: ", 3: "for each request: "}


def show(log: RunLog, parts: Sequence[Part]) -> None:
    """Prints what was read, the level, what is missing, and what could not be read."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        title=Text(f"{log.name}: {log.stack}{log.releases}"),
        show_header=False,
        title_justify="left",
    )
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in _rows(log, parts):
        grid.add_row(Text(name), Text(text))
    screen = console()
    screen.print(grid)
    for note in log.notes:
        screen.print(Text(f"note: {note}"))


def _rows(log: RunLog, parts: Sequence[Part]) -> list[tuple[str, str]]:
    steps = log.steps["step"]
    held = f"{counted(len(steps), 'step')}, {steps.iloc[0]} to {steps.iloc[-1]}"
    if len(log.rollouts):
        held += f"; {len(log.rollouts):,} rollouts"
    if len(log.requests):
        held += f"; {len(log.requests):,} requests"
    files = f"{len(log.tallies)} files" if len(log.tallies) != 1 else "1 file"
    beside = f", {log.ignored} others beside" if log.ignored else ""
    rows = [("read", f"{held} from {files}{beside}"), ("level", LEVELS[log.level])]
    rows.extend(_figures(log))
    rows.extend(("missing", f"{_WORDS[gap.level]}{gap.column}: {gap.why}") for gap in log.gaps)
    rows.extend(("to give", f"{part.key}: {part.source}") for part in missing(parts))
    assumed = [part.key for part in parts if part.assumed and part.key != "seed"]
    if assumed:
        rows.append(("assumed", ", ".join(assumed)))
    if log.unread:
        rows.append(("could not read", f"{log.unread} lines or records; the first:"))
        examples = [example for tally in log.tallies for example in tally.examples]
        for example in examples[:_EXAMPLES]:
            place = f"{os.path.relpath(example.place.file)}, line {example.place.line}"
            rows.append(("", f"{place}: {example.why}"))
    else:
        rows.append(("could not read", "nothing"))
    return rows


def _figures(log: RunLog) -> list[tuple[str, str]]:
    later = log.steps[log.steps["first"] != 1]
    table = later if len(later) else log.steps
    median = table.median(numeric_only=True)
    figures = []
    if not median.isna()["step_s"]:
        phases = [
            f"{name.removesuffix('_s').replace('_', '-')} {seconds(median[name])}"
            for name in columns.PHASES
            if median[name] > 0
        ]
        figures.append(
            (
                "median step",
                f"{seconds(median['step_s'])}" + (f" ({', '.join(phases)})" if phases else ""),
            )
        )
    if not median.isna()["mean_new_tokens"]:
        text = f"mean {median['mean_new_tokens']:.0f}"
        if not median.isna()["max_new_tokens"]:
            text += f", longest {median['max_new_tokens']:.0f}"
        if not median.isna()["truncated_share"]:
            text += f", cut {share(table['truncated_share'].mean())}"
        figures.append(("tokens", f"{text} (median step)"))
    return figures
