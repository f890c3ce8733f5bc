"""A validation on the terminal, and as a folder with its JSON, picture and page."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from calibration.validate import Validation
from calibration.validation_page import draw, page
from calibration.validation_text import COLUMNS, flags, sentences, table_rows
from simulator.errors import ScenarioError
from simulator.results.write import write_json

FILES = ("validation.json", "validation.png", "report.html")


def show(validation: Validation) -> None:
    """Prints the table and what it comes to."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    content = validation.to_json()
    console = Console(width=None if sys.stdout.isatty() else 170, highlight=False)
    table = Table(title=f"{validation.mode}: median absolute error by step", title_justify="left")
    for i, column in enumerate(COLUMNS):
        table.add_column(Text(column), justify="left" if i in (0, 2) else "right", overflow="fold")
    for row in table_rows(content):
        table.add_row(*map(Text, row))
    console.print(table)
    for line in sentences(content):
        console.print(Text(line), soft_wrap=True)
    for line in flags(content):
        console.print(Text(f"warning: {line}"), soft_wrap=True)


def check_target(folder: Path, force: bool) -> None:
    """Raises ScenarioError (``--out``) where a report cannot go into ``folder``: it is a file, or
    it holds something else, or another report without ``force``."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ScenarioError("--out", f"{folder} is a file; give a folder")
    names = {entry.name for entry in folder.iterdir()}
    if names - set(FILES):
        raise ScenarioError("--out", f"{folder} holds something else; give another folder")
    if names and not force:
        raise ScenarioError("--out", f"{folder} holds a report; add --force to replace it")


def write(folder: Path, validation: Validation, force: bool = False) -> None:
    """Writes validation.json, validation.png and report.html into ``folder``, each once all three
    are complete. Raises ScenarioError (``--out``) as `check_target` does, and for a full disk."""
    check_target(folder, force)
    content = validation.to_json()
    picture = draw(content)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report.", dir=folder.parent) as name:
            work = Path(name)
            write_json(work / "validation.json", content)
            (work / "validation.png").write_bytes(picture)
            (work / "report.html").write_text(page(content, picture), encoding="utf-8")
            for file in FILES:
                (work / file).replace(folder / file)
    except OSError as error:
        raise ScenarioError("--out", f"cannot write {folder}: {error.strerror or error}") from None
