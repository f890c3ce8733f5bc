"""Arguments and options that several commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ScenarioPath = Annotated[
    Path,
    typer.Argument(
        metavar="SCENARIO.yaml",
        show_default=False,
        help="Scenario file; rollcast init lists examples.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write all results into this folder."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="key=value",
        help="Set a key of the scenario: workload.group_size=16. Repeatable.",
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Set the random seed.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the results that --out holds.")]
NoPlot = Annotated[bool, typer.Option("--no-plot", help="Write no picture.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Draws = Annotated[
    int | None,
    typer.Option(
        "--draws",
        metavar="N",
        show_default=False,
        help="Number of full re-runs for the 90 % intervals (10 or more). Default: a fast "
        "approximation; 0: none.",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="CHAIN",
        help="Policies to apply in order: april(over_sampling=2)+pods(keep=4). sync: none; "
        "module:Class(parameter=value): your own class. Repeatable.",
    ),
]
Tornado = Annotated[
    bool,
    typer.Option(
        "--tornado", help="Show which uncertain inputs move the step time most, one at a time."
    ),
]
