"""An outcome on the terminal, below what was read."""

from __future__ import annotations

from calibration.imported import text
from calibration.imported.outcome import Outcome
from calibration.logs.run_log import RunLog
from simulator.cli.console import console


def show_outcome(log: RunLog, found: Outcome) -> None:
    """Prints fits, their judgement, the advice and notes."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    known = found.fit
    if known is not None:
        screen.print(Text(f"costs: {text.shape(known)}"))
        told = [f"{phase} {factor} ({interval})" for phase, factor, interval, source in
                text.factors(known) if not source.startswith("assumed")]  # fmt: skip
        if told:
            screen.print(Text(f"factors, 90 %: {'; '.join(told)}"))
        lengths = [f"{key} {value} +- {error}" for key, value, error in text.lengths(known, found)]
        if lengths:
            screen.print(Text(f"lengths: {'; '.join(lengths)}"))
    for each in found.judged:
        screen.print(Text(f"forecast of {text.judged(each)}", style="bold"))
    if found.advice is not None:
        for line in found.advice.bottleneck:
            screen.print(Text(line))
        grid = Table(title=Text("what would change it"), title_justify="left")
        for name in ("change", "speed-up", "90 % interval", "how, in this stack"):
            grid.add_column(name, overflow="fold")
        for row in text.advice_rows(found):
            grid.add_row(*(Text(cell) for cell in row))
        screen.print(grid)
    for note in text.notes(found, log):
        if note not in log.notes:
            screen.print(Text(f"note: {note}"))
