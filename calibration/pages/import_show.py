"""An outcome on the terminal, below what was read."""

from __future__ import annotations

from rollcast.calibration.importing import Outcome
from rollcast.calibration.logs.run_log import RunLog
from rollcast.calibration.pages import import_text as text
from rollcast.simulator.cli.console import console


def show_outcome(log: RunLog, outcome: Outcome) -> None:
    """Prints fits, their judgement, the advice and notes."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    known = outcome.fit
    if known is not None:
        screen.print(Text(f"costs: {text.shape(known)}"))
        rows = [
            f"{phase} {factor} ({interval})"
            for phase, factor, interval, source in text.factors(known)
            if not source.startswith("assumed")
        ]
        if rows:
            screen.print(Text(f"factors, 90 %: {'; '.join(rows)}"))
        lengths = [
            f"{key} {value} +- {error}" for key, value, error in text.lengths(known, outcome)
        ]
        if lengths:
            screen.print(Text(f"lengths: {'; '.join(lengths)}"))
    for judgement in outcome.judged:
        screen.print(Text(f"forecast of {text.judged(judgement)}", style="bold"))
    if outcome.advice is not None:
        for line in outcome.advice.bottleneck:
            screen.print(Text(line))
        grid = Table(title=Text("what would make it faster"), title_justify="left")
        for name in ("change", "speed-up", "90 % interval", "how, in this stack"):
            grid.add_column(name, overflow="fold")
        for row in text.advice_rows(outcome):
            grid.add_row(*(Text(cell) for cell in row))
        screen.print(grid)
    for note in text.notes(outcome, log):
        if note not in log.notes:
            screen.print(Text(f"note: {note}"))
