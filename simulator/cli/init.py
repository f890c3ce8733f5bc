"""``rollcast init``: an example scenario to start from."""

from __future__ import annotations

import sys

from rollcast.simulator.cli.console import console
from rollcast.simulator.scenario import examples


def show(name: str | None) -> None:
    """Prints an example, or the list of examples. Raises ScenarioError for an unknown name."""
    if name is not None:
        sys.stdout.write(examples.text(name))
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for example in examples.names():
        grid.add_row(Text(example, style="bold"), Text(_about(examples.text(example))))
    console().print(grid)
    print("rollcast init NAME > scenario.yaml", file=sys.stderr)


def _about(text: str) -> str:
    """The first sentence of an example's comment."""
    comment = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    return " ".join(comment).split(". ")[0].rstrip(".")
