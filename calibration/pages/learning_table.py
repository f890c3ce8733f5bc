"""A fitted law of progress on the terminal, and how it stands against runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollcast.calibration.judge.learning import Judged
from rollcast.simulator.cli.console import console
from rollcast.simulator.learning.law import PARAMETERS, Law

_WORDS = {
    "log_speed": ("progress of an update at the start", "log-odds"),
    "slowing": ("slowing, per log-odds gained", ""),
    "log_noise": ("noise of one rollout's gradient", "rollouts"),
    "lr_power": ("power of the learning rate", ""),
    "log_staleness": ("staleness, per update of age and log-odds", ""),
}


def show(law: Law) -> None:
    """Prints the parameters, each with its standard error, and where the law was fitted."""
    from rich.table import Table

    table = Table(title="law of progress", title_justify="left")
    for column in ("", "value", "standard error"):
        table.add_column(column, justify="left" if not column else "right")
    for at, name in enumerate(PARAMETERS):
        value, error = law.parameters[name], math.sqrt(law.covariance[at][at])
        if name.startswith("log_"):
            value, error = math.exp(value), error * math.exp(value)
        words, unit = _WORDS[name]
        table.add_row(words, f"{value:.3g} {unit}".strip(), f"{error:.2g}")
    screen = console()
    screen.print(table)
    screen.print(
        f"speed of runs differs by {law.run_sd:.1%} from seed to seed, and by {law.policy_sd:.1%} "
        "from policy to policy beyond the law"
    )
    start, reached = law.domain.start, law.domain.reached
    screen.print(
        f"fitted to {law.source}; accuracy from {start[0]:.2f} to {reached:.2f}; what these runs "
        "do not say is as in the prior"
    )


def to_json(runs: Sequence[Sequence[Judged]]) -> dict[str, Any]:
    """What was measured and predicted of each run; null for an infinite time."""
    return {"runs": [_run(figures) for figures in runs]}


def _run(figures: Sequence[Judged]) -> dict[str, Any]:
    run = figures[0].run
    columns = ("what", "target", "measured", "predicted", "low", "high", "inside")
    return {
        "run": run.name,
        "policy": run.policy,
        "seed": run.seed,
        "abstains": figures[0].said,
        "figures": [{name: getattr(figure, name) for name in columns} for figure in figures],
    }


def show_validation(runs: Sequence[Sequence[Judged]]) -> None:
    """Prints them, and how many intervals hold."""
    from rich.table import Table

    table = Table()
    for column in ("run", "policy", "figure", "measured", "predicted", "90 % interval"):
        table.add_column(column)
    for figures in runs:
        for i, one in enumerate(figures):
            name = (Path(one.run.name).name, one.run.policy) if i == 0 else ("", "")
            words = {
                "time": f"updates to {one.target:.2f}",
                "area": "mean accuracy",
                "tokens": "last mean length, tokens",
            }
            form = {"time": "{:.3g}", "tokens": "{:.4g}"}.get(one.what, "{:.3f}")
            cells = [form.format(value) for value in (one.measured, one.predicted)]
            ends = " to ".join(form.format(end) for end in (one.low, one.high))
            table.add_row(*name, words.get(one.what, "last accuracy"), *cells, ends)
    screen = console()
    screen.print(table)
    told = [one for figures in runs for one in figures if one.said is None]
    if told:
        inside = sum(one.inside for one in told)
        screen.print(f"{inside} of {len(told)} intervals hold")
    for figures in runs:
        if figures[0].said is not None:
            screen.print(f"{Path(figures[0].run.name).name}: {figures[0].said}")
