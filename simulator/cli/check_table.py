"""An answer to a launch on the terminal: sentences, the ledger with bars, changes, assumptions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rollcast.simulator.check.answer import Answer, Priced
from rollcast.simulator.check.layout import POOL_NAMES, Line, groups_of, memory_lines
from rollcast.simulator.check.words import effect, sentences, to_fit
from rollcast.simulator.cli.console import console
from rollcast.simulator.launches.parts import why_assumed
from rollcast.simulator.results.phases import STEP_PHASES
from rollcast.simulator.results.text import MEMORY_PHASE_NAMES, interval, seconds
from rollcast.simulator.results.write import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BAR = 12
_MOST_NAMED = 12


def show_answer(answer: Answer, as_json: bool = False) -> None:
    """Prints an answer: the sentences first."""
    if as_json:
        print(json.dumps(plain(answer.plain()), indent=1))
        return
    screen = console()
    first, *others = sentences(answer)
    screen.print(first, markup=False, style="bold" if answer.fits else "bold red")
    for sentence in others:
        screen.print(sentence, markup=False)
    screen.print()
    screen.print(_memory(memory_lines(answer.ledger)))
    screen.print(_time(answer))
    _changes(screen, to_fit(answer), answer.fixes, answer)
    _changes(screen, "What would make it faster", answer.faster, answer)
    _listed(screen, "warning", answer.forecast.summary["warnings"])
    open_parts = [part for part in answer.question.draft.assumed if part.key != "seed"]
    texts = [f"{p.key} is {p.value}; {why_assumed(p.source)}" for p in open_parts]
    _listed(screen, "assumed", texts)
    launch = answer.question.launch
    _listed(screen, "note", launch.notes)
    texts = [f"{i.key} ({i.text} in {i.place}: {i.why})" for i in answer.question.unresolved]
    if texts:
        _listed(screen, "could not be resolved", [", ".join(texts[:_MOST_NAMED])])
    if launch.unknown:
        names = sorted({item.key for item in launch.unknown})
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        _listed(screen, "keys without a meaning here", [", ".join(names[:_MOST_NAMED]) + more])


def _memory(lines: Sequence[Line]) -> Table:
    """The ledger: a row a phase and pool, its parts in GB, and a bar of the GPU's memory."""
    from rich.table import Table
    from rich.text import Text

    groups, several = groups_of(lines), len({line.pool for line in lines}) > 1
    grid = Table(title="GB of a GPU, by phase", title_justify="left", padding=(0, 0, 0, 1))
    grid.add_column("phase", no_wrap=True)
    if several:
        grid.add_column("on", no_wrap=True)
    for group in groups:
        grid.add_column(group, justify="right")
    grid.add_column("all", justify="right", style="bold")
    grid.add_column("of its memory", no_wrap=True)
    for line in lines:
        cells = [
            f"{line.parts[group] / 1e9:.1f}" if line.parts.get(group) else "" for group in groups
        ]
        filled = min(round(BAR * line.share), BAR)
        style = "red" if line.share > 1 else "yellow" if line.share > 0.9 else "green"
        bar = Text("█" * filled + "░" * (BAR - filled), style=style)
        bar.append(f" {line.share:.0%}")
        pool = [POOL_NAMES.get(line.pool, line.pool)] if several else []
        grid.add_row(MEMORY_PHASE_NAMES[line.phase], *pool, *cells, f"{line.total / 1e9:.1f}", bar)
    return grid


def _time(answer: Answer) -> Table:
    """Time of a step by phase, with intervals."""
    from rich.table import Table

    found = answer.forecast
    title = "Time of a step, by phase" if answer.fits else "Time of a step, by phase, if it fit"
    grid = Table(title=title, title_justify="left")
    grid.add_column("phase")
    grid.add_column("median", justify="right")
    grid.add_column("90 % interval", justify="right")
    for name, phase in found.phases.items():
        words = STEP_PHASES[name].words.removeprefix("the ")
        grid.add_row(words, seconds(phase.median, phase.high), interval((phase.low, phase.high)))
    step = found.step
    grid.add_row("step", seconds(step.median, step.high), interval((step.low, step.high)))
    return grid


def _changes(screen: Console, title: str, changes: Iterable[Priced], answer: Answer) -> None:
    for number, one in enumerate(changes):
        if not number:
            screen.print(f"{title}:", style="bold")
        for line in one.change.lines:
            screen.print(f"    {line}", markup=False, style="cyan")
        screen.print(
            f"  {effect(one, answer.forecast.step, host=answer.ledger.host_matters)}", markup=False
        )


def _listed(screen: Console, label: str, texts: Iterable[str]) -> None:
    for text in texts:
        screen.print(f"{label}: {text}", style="dim", markup=False)
