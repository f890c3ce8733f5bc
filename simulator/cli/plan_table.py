"""A plan on the terminal: what can be run, best first, and why the rest cannot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.cli.console import console, count, fitted, named_column, one_line, seconds, share
from simulator.results.write import plain
from simulator.studies.capacity import Choice, by_cause

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_BEST, _USD, _INTERVAL = "best", "$ a\nstep", "90 %"
_COLUMNS = (_BEST, "GPUs", "step\ntime", _INTERVAL, "GPU-s\na step", _USD, "rollout\ntokens/s",
            "bubble", "stale-\nness")  # fmt: skip
_FIRST_TO_GO = ("stale-\nness", "rollout\ntokens/s", "bubble")
_MOST_NAMED = 6


def show_plan(choices: Sequence[Choice], as_json: bool = False) -> None:
    """Prints one row a choice, best first, and each cause for which others cannot be run."""
    if as_json:
        print(json.dumps(plain([choice.row() for choice in choices]), indent=1))
        return
    screen = console()
    run = [choice for choice in choices if choice.figures]
    priced = any(choice.figures["usd_per_step"] is not None for choice in run)
    drawn = any(choice.figures["step_s_low"] is not None for choice in run)
    shown = {_USD: priced, _INTERVAL: drawn}
    columns = [name for name in _COLUMNS if shown.get(name, True)]

    def build(kept: Sequence[str]) -> Table:
        return _table(run, kept, screen.width)

    grid, left_out = fitted(screen, columns, _FIRST_TO_GO, build)
    screen.print(grid)
    note = "* in best: no other choice beats it in both time and GPU time of a step."
    if left_out:
        note += f" For {', '.join(map(one_line, left_out))}, make the terminal wider."
    screen.print(note, style="dim", markup=False)
    for alike in by_cause(choices):
        _say_why(screen, alike)


def _table(choices: Sequence[Choice], columns: Sequence[str], width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table(padding=(0, 0, 0, 1))
    named = [(*map(str, choice.settings.values()), choice.policy) for choice in choices]
    for name, values in zip(
        (*choices[0].settings, "policy"), zip(*named, strict=True), strict=True
    ):
        heading = "=".join(part.rpartition(".")[2] for part in name.split("="))
        named_column(grid, heading.replace("_", "_\n").replace("=", "=\n"), values, width)
    for name in columns:
        grid.add_column(name, justify="center" if name == _BEST else "right", no_wrap=True)
    for choice, names in zip(choices, named, strict=True):
        cells = _cells(choice)
        grid.add_row(*map(Text, names), *(cells[name] for name in columns))
    return grid


def _cells(choice: Choice) -> dict[str, str]:
    f = choice.figures
    values = (
        "*" if choice.best else "",
        str(f["gpus"]),
        seconds(f["step_s"]),
        _interval(f["step_s_low"], f["step_s_high"]),
        count(f["gpu_s_per_step"]),
        f"{f['usd_per_step']:.3g}" if f["usd_per_step"] is not None else "-",
        count(f["rollout_tokens_per_s"]),
        share(f["bubble_fraction"]),
        f"{f['staleness_mean']:.2f}",
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{seconds(low)} to {seconds(high)}"


def _say_why(screen: Console, alike: Sequence[Choice]) -> None:
    """The cause for which these choices cannot be run, as the first met it, and which they are."""
    from rich.padding import Padding
    from rich.text import Text

    cause = f"cannot be run: {alike[0].problem}"
    if len({choice.problem for choice in alike}) > 1:
        cause += "; the others differ in figures"
    screen.print(cause, style="yellow", markup=False)
    chains: dict[str, list[str]] = {}
    for choice in alike:
        named = ", ".join(f"{key}={value}" for key, value in choice.settings.items())
        chains.setdefault(named, []).append(choice.policy)
    lines = [": ".join(filter(None, (key, ", ".join(found)))) for key, found in chains.items()]
    if len(lines) > _MOST_NAMED:
        lines[_MOST_NAMED:] = [f"{len(lines) - _MOST_NAMED} more, which --json and --out list"]
    for line in lines:
        screen.print(Padding(Text(line), (0, 0, 0, 2)))
