"""A tornado on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollcast.simulator.cli.console import console
from rollcast.simulator.results.text import seconds

if TYPE_CHECKING:
    from rollcast.simulator.studies.tornado import Bar

MOST = 14
_BAR = 14
_OTHERS = 2 * 9 + 2 * 9 + 1 + _BAR + 6  # of a line, beside the name


def show_tornado(bars: Sequence[Bar]) -> None:
    """Prints one row an input, the longest bar first."""
    screen = console()
    if not bars:
        screen.print("No input is uncertain, so none changes the step time.", markup=False)
        return
    shown = bars[:MOST]
    least = min(min(bar.step_s_low, bar.step_s_high, bar.step_s) for bar in shown)
    most = max(max(bar.step_s_low, bar.step_s_high, bar.step_s) for bar in shown)
    widest = max(len(_name(bar)) for bar in shown)
    width = max(min(widest, screen.width - _OTHERS), 12)
    head = _line("input", ("at 5 %", "at 95 %"), ("step", "step"), "", "share", width)
    screen.print(
        f"How much each uncertain input changes the step time of {seconds(bars[0].step_s)}:",
        markup=False,
    )
    screen.print(head, style="bold", markup=False, no_wrap=True)
    for bar in shown:
        ends = (seconds(bar.step_s_low), seconds(bar.step_s_high))
        line = _line(
            _name(bar),
            (bar.low, bar.high),
            ends,
            _drawn(bar, least, most),
            f"{100 * bar.share:.0f} %",
            width,
        )
        screen.print(line, markup=False, no_wrap=True)
    notes = ["Each input is varied alone."]
    if any(bar.assumed for bar in shown):
        notes.append(
            "*: its error is not known; its two values are assumed, or given by --tornado-key."
        )
    if len(bars) > MOST:
        notes.append(f"{len(bars) - MOST} with smaller effects are in --out and --json.")
    screen.print(" ".join(notes), style="dim", markup=False)


def _name(bar: Bar) -> str:
    known = bar.input.removeprefix("workload.lengths.").removeprefix("cost.linear.")
    return f"{known} *" if bar.assumed else known


def _line(
    name: str, settings: tuple[str, str], steps: tuple[str, str], drawn: str, share: str, width: int
) -> str:
    kept = name if len(name) <= width else name[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"
    low, high = settings
    return (
        f"{kept:<{width}} {low:>8} {high:>8} {steps[0]:>8} {steps[1]:>8} {drawn:<{_BAR}} {share:>5}"
    )


def _drawn(bar: Bar, least: float, most: float) -> str:
    """From the least to the most of a step, with ``|`` at the step as it is."""
    span = (most - least) or 1.0

    def place(value: float) -> int:
        return round((_BAR - 1) * (value - least) / span)

    ends = sorted((place(bar.step_s_low), place(bar.step_s_high)))
    cells = ["=" if ends[0] <= i <= ends[1] else " " for i in range(_BAR)]
    cells[place(bar.step_s)] = "|"
    return "".join(cells)
