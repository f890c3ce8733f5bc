"""A validation on the terminal, and as a folder with its JSON, picture and page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollcast.calibration.pages.validation_page import draw, page
from rollcast.calibration.pages.validation_text import SETTING, sentences, table_rows, warnings
from rollcast.calibration.validate import Validation
from rollcast.simulator.cli.console import console, fitted, named_column
from rollcast.simulator.results.folder import check_target as check_folder
from rollcast.simulator.results.folder import write_folder
from rollcast.simulator.results.write import write_json

if TYPE_CHECKING:
    from rich.table import Table

FILES = ("validation.json", "validation.png", "report.html")
WHAT = "report"
_NAMES = ("policy", SETTING)
_LONG = 9
_FIRST_TO_GO = (
    "machine speed",
    "staleness",
    "bubble",
    "tokens/s",
    "train",
    "rollout",
    "steps inside",
    "steps",
    "90 % interval",
    "run is",
)


def show(validation: Validation) -> None:
    """Prints the table and what it comes to."""
    from rich.text import Text

    content = validation.to_json()
    rows = table_rows(content)
    screen = console()

    def build(columns: Sequence[str]) -> Table:
        from rich.table import Table

        title = f"{validation.mode}: median absolute error by step"
        grid = Table(title=title, title_justify="left", padding=(0, 0, 0, 1))
        for name in columns:
            if name in _NAMES:
                named_column(grid, name, [row[name] for row in rows], screen.width)
            else:
                heading = name if len(name) <= _LONG else name.replace(" ", "\n")
                left = name == "run is"
                grid.add_column(heading, justify="left" if left else "right", no_wrap=True)
        for row in rows:
            grid.add_row(*(Text(row[name]) for name in columns))
        return grid

    table, left_out = fitted(screen, list(rows[0]), _FIRST_TO_GO, build)
    screen.print(table)
    if left_out:
        screen.print(f"For {', '.join(left_out)}, make the terminal wider.", style="dim")
    for line in sentences(content):
        screen.print(Text(line))
    for line in warnings(content):
        screen.print(Text(f"warning: {line}"), style="yellow")


def check_target(folder: Path, force: bool) -> None:
    """Raises ScenarioError (``--out``) where a report cannot go into ``folder``: it is a file, or
    it holds something else, or another report without ``force``."""
    check_folder(folder, force, holds_report, WHAT)


def holds_report(folder: Path) -> bool:
    """Whether a folder is a report and nothing else."""
    return {entry.name for entry in folder.iterdir()} <= set(FILES)


def write(folder: Path, validation: Validation, force: bool = False) -> None:
    """Writes the three files, all or none. Raises ScenarioError (``--out``) as `check_target`."""
    content = validation.to_json()
    picture = draw(content)

    def fill(work: Path) -> None:
        write_json(work / "validation.json", content)
        (work / "validation.png").write_bytes(picture)
        (work / "report.html").write_text(page(content), encoding="utf-8")

    write_folder(folder, fill, force, holds_report, WHAT)
