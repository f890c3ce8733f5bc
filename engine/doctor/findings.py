"""What the doctor finds, as a table, as JSON and as an exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["ok", "note", "warning", "fails"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. about: what was looked at. verdict: ``note`` judges nothing; ``fails`` would fail a
    run. says: a sentence. figures: the numbers behind it, units in their names."""

    about: str
    verdict: Verdict
    says: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def exit_code(findings: Sequence[Finding]) -> int:
    """1 where something would fail, else 0."""
    return int(any(finding.verdict == "fails" for finding in findings))


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """All of it as plain data."""
    rows = [asdict(finding) for finding in findings]
    return {"fails": bool(exit_code(findings)), "findings": rows}


def show(findings: Sequence[Finding]) -> None:
    """Prints a line each, and a sentence on all of them."""
    from rich.table import Table
    from rich.text import Text

    from rollcast.simulator.cli.console import console

    colours = {"ok": "green", "note": "dim", "warning": "yellow", "fails": "bold red"}
    grid = Table(show_header=False)
    grid.add_column(style="bold")
    grid.add_column(no_wrap=True)
    grid.add_column()
    for finding in findings:
        colour = colours[finding.verdict]
        verdict = Text(finding.verdict, style=colour)
        grid.add_row(Text(finding.about), verdict, Text(finding.says))  # rollcast[hf] is no markup
    screen = console()
    screen.print(grid)
    counts = {verdict: sum(f.verdict == verdict for f in findings) for verdict in colours}
    what = "Something would fail" if counts["fails"] else "Nothing was found that would fail"
    plural = {"note": "notes", "warning": "warnings", "fails": "fail"}
    told = ", ".join(
        f"{count} {plural.get(verdict, verdict) if count > 1 else verdict}"
        for verdict, count in counts.items()
        if count
    )
    screen.print(f"{what}: {told}.")
