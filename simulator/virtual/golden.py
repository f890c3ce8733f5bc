"""Golden timelines: who did what when, as a small text that is reviewed like code."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from rollcast.simulator.results.write import write_text
from rollcast.simulator.virtual.journal import Journal

WRITE = "ROLLCAST_WRITE_GOLDEN"


def golden(journal: Journal, path: str | Path, *what: str) -> None:
    """The journal's entries, or those of these words, are those in the file. With the environment
    variable ROLLCAST_WRITE_GOLDEN set, or without the file, writes it."""
    path, text = Path(path), journal.text(*what)
    if os.environ.get(WRITE) or not path.exists():
        write_text(path, text)
        return
    kept = path.read_text("utf-8")
    if kept != text:
        lines = difflib.unified_diff(
            kept.splitlines(), text.splitlines(), str(path), "this run", lineterm="", n=2
        )
        changed = "\n".join(list(lines)[:40])
        raise AssertionError(f"the timeline is another one; set {WRITE}=1 to keep it:\n{changed}")
