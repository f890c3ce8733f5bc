"""Tables of the documents, made from results: ``python -m benchmarks.evidence [--only PAPER ...]``.

Computes what papers published and what the simulator forecasts of it (`benchmarks.claims`), keeps
that as data in ``results/published.json``, and writes every table that documents show of it, and of
the other results, between its markers (``<!-- table: NAME -->`` and ``<!-- end of table -->``).
``--tables`` computes nothing and writes the tables of the results that are there. Nothing is tuned
to a published result: each section says what was taken from the paper and what from fits to other
data, each row what had to be assumed, and a miss its likely reason.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.claims.common import Row, Section

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PAPERS = ("april", "sagc", "pods", "prefix_reuse", "frontier")
DOCUMENTS = (ROOT / "docs" / "evidence.md",)
SCHEMA = "rollcast-published/1"

HEAD = ("claim", "published", "forecast", "error", "assumed")
INTRO = """\
# Published behaviour against the forecast

Made by `make evidence` from `published.json`. Nothing is tuned to these figures: where the forecast
misses, the table says so. Error is forecast over published, less one, unless it says points or
words.
"""
_TABLE = re.compile(r"<!-- table: ([\w-]+) -->\n(.*?)<!-- end of table -->", re.DOTALL)


class MarkerError(ValueError):
    """A document asks for a table that nothing makes, or lacks the end of one."""


def section_of(paper: str) -> Section:
    """The rows of a paper, computed. Raises KeyError for one that is not in ``PAPERS``."""
    if paper not in PAPERS:
        raise KeyError(paper)
    made: Section = import_module(f"benchmarks.claims.{paper}").section()
    return made


def read_sections(folder: Path = RESULTS) -> dict[str, Section]:
    """The sections of ``published.json`` by paper."""
    content = json.loads((folder / "published.json").read_text("utf-8"))["sections"]
    return {
        paper: Section(
            **{
                **keys,
                "rows": [Row(**row) for row in keys["rows"]],
                "tables": [(title, table) for title, table in keys["tables"]],
            }
        )
        for paper, keys in content.items()
    }


def write_sections(sections: Mapping[str, Section], folder: Path = RESULTS) -> None:
    """Writes ``published.json`` and ``published.md``."""
    content = {paper: asdict(sections[paper]) for paper in PAPERS if paper in sections}
    text = json.dumps({"schema": SCHEMA, "sections": content}, indent=1, ensure_ascii=False)
    _write(folder / "published.json", f"{text}\n")
    _write(folder / "published.md", page(list(read_sections(folder).values())))


def page(sections: Sequence[Section]) -> str:
    """``published.md``: every section with its rows, misses and further tables."""
    parts = [INTRO]
    for section in sections:
        parts.append(f"## {section.title} ({section.source})\n\n{section.given}\n")
        parts.append(markdown_table(HEAD, [list(asdict(row).values()) for row in section.rows]))
        parts.append("\n".join(f"- {miss}" for miss in section.misses) + "\n")
        for title, table in section.tables:
            parts.append(f"{title}:\n\n{markdown_table(table[0], table[1:])}")
    return "\n".join(parts)


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table as Markdown, the last line ended."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


# Tables of documents


def published(folder: Path) -> str:
    """Every claim of a paper, and its forecast."""
    rows = [
        (section.title, row.claim, row.published, row.forecast, row.error)
        for section in read_sections(folder).values()
        for row in section.rows
    ]
    return markdown_table(("paper", *HEAD[:4]), rows)


def validation(folder: Path) -> str:
    """Each source of the validation suite: how far held-out figures are off, and targets met."""
    content = json.loads((folder / "validation" / "validation.json").read_text("utf-8"))
    rows = []
    for source in content["sources"]:
        checks = [check for check in source["checks"] if check["target"] is not None]
        errors = [abs(c["value"]) for c in checks if c["target"] and "outside" not in c["name"]]
        if errors:
            errors_text = f"{min(errors):.1%} to {max(errors):.1%}"
            met = sum(check["met"] for check in checks)
            rows.append((source["title"], errors_text, f"{met} of {len(checks)}"))
    return markdown_table(("held-out figures", "error of a group, least and most", "targets"), rows)


def real_policies(folder: Path) -> str:
    """The policies on the real engine, as `benchmarks.real_policies` found them."""
    return (folder / "real_policies.md").read_text("utf-8").strip() + "\n"


TABLES: Mapping[str, Callable[[Path], str]] = {
    "published": published,
    "validation": validation,
    "real-policies": real_policies,
}


def filled(text: str, name: str, folder: Path = RESULTS) -> str:
    """A document with its tables anew. Raises MarkerError that names the document."""

    def table(match: re.Match[str]) -> str:
        if match[1] not in TABLES:
            raise MarkerError(f"{name}: no table {match[1]!r}; there are {', '.join(TABLES)}")
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]](folder)}<!-- end of table -->"

    if len(_TABLE.findall(text)) != text.count("<!-- table:"):
        raise MarkerError(f"{name}: a table without <!-- end of table -->")
    return _TABLE.sub(table, text)


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.partial")
    draft.write_text(text, "utf-8")
    draft.replace(path)


def main(arguments: list[str] | None = None) -> int:
    """Computes, keeps and writes; exit code 2 with one sentence for a wrong marker."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("--only", choices=PAPERS, action="append", help="compute this paper")
    parser.add_argument("--tables", action="store_true", help="compute nothing")
    options = parser.parse_args(arguments)
    if not options.tables:
        sections = read_sections()
        for paper in options.only or PAPERS:
            print(paper, file=sys.stderr, flush=True)
            sections[paper] = section_of(paper)
        write_sections(sections)
    try:
        for document in DOCUMENTS:
            _write(document, filled(document.read_text("utf-8"), document.name))
    except MarkerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
