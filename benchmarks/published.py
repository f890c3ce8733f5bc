"""What papers published against what the simulator forecasts: ``python -m benchmarks.published``.

Nothing is tuned to a published result. Each section says what was taken from the paper and what
from fits to other data; each row says what had to be assumed, and a miss says its likely reason.
The tables go to the terminal and to ``benchmarks/results/published.md`` (``--out`` elsewhere).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.claims import april, frontier, pods, prefix_reuse, sagc
from benchmarks.claims.common import Row, Section

RESULTS = Path(__file__).parent / "results" / "published.md"

HEAD = ["claim", "published", "forecast", "error", "assumed"]
INTRO = """\
# Published behaviour against the forecast

Made by `python -m benchmarks.published` (`make published`). Nothing is tuned to these figures:
where the forecast misses, the table says so. Error is forecast over published, less one, unless it
says points or words.
"""


def cells(row: Row) -> list[str]:
    return [row.claim, row.published, row.forecast, row.error, row.assumed]


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown(sections: Sequence[Section]) -> str:
    parts = [INTRO]
    for section in sections:
        parts.append(f"## {section.title} ({section.source})\n\n{section.given}\n")
        parts.append(markdown_table(HEAD, [cells(row) for row in section.rows]) + "\n")
        parts.append("\n".join(f"- {miss}" for miss in section.misses) + "\n")
        for title, table in section.tables:
            parts.append(f"{title}:\n\n{markdown_table(table[0], table[1:])}\n")
    return "\n".join(parts)


def show(section: Section) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    main = (f"{section.title} ({section.source})", [HEAD, *map(cells, section.rows)])
    for title, lines in [main, *section.tables]:
        table = Table(*lines[0], title=title, title_justify="left", show_lines=len(lines[0]) == 5)
        for line in lines[1:]:
            table.add_row(*line)
        console.print(table)
    for miss in section.misses:
        console.print(f"- {miss}", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE.md")
    target = parser.parse_args().out
    sections = []
    for paper in (april, sagc, pods, prefix_reuse, frontier):
        sections.append(paper.section())
        show(sections[-1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(markdown(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
