"""A fitted law of progress on the terminal."""

from __future__ import annotations

import math
import sys

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
    from rich.console import Console
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
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(table)
    console.print(
        f"speed of runs differs by {law.run_sd:.1%} from seed to seed, and by {law.policy_sd:.1%} "
        "from policy to policy beyond the law"
    )
    start, reached = law.domain.start, law.domain.reached
    console.print(
        f"fitted to {law.source}; accuracy from {start[0]:.2f} to {reached:.2f}; what these runs "
        "do not say is as in the prior"
    )
