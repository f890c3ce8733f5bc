"""The folder that ``rollcast import`` leaves: written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcast.calibration.logs import columns, draft
from rollcast.calibration.logs.errors import Unread
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.parts import Part, to_yaml
from rollcast.simulator.results.folder import check_target as check_folder
from rollcast.simulator.results.folder import write_folder
from rollcast.simulator.results.read import read_json
from rollcast.simulator.results.write import write_json

if TYPE_CHECKING:
    import pandas as pd

SCENARIO = "scenario.yaml"
CONTENT = "import.json"
FITTED, REPORT = "fitted.json", "report.html"
FILES = (
    *(SCENARIO, CONTENT, draft.LENGTHS_FILE, FITTED, REPORT),
    *(table.name for table in columns.TABLES),
)
WHAT = "import"


def check_target(folder: Path, force: bool) -> None:
    """Raises ScenarioError (``--out``) where an import cannot be put into ``folder``."""
    check_folder(folder, force, holds_import, WHAT)


def holds_import(folder: Path) -> bool:
    """Whether a folder is an import and nothing else."""
    names = {entry.name for entry in folder.iterdir()}
    if CONTENT not in names or not names <= set(FILES):
        return False
    try:
        content = read_json(folder / CONTENT, "")
    except ScenarioError:
        return False
    return isinstance(content, dict) and content.get("schema") == columns.LOG_SCHEMA


def write(
    folder: Path,
    log: RunLog,
    parts: Sequence[Part],
    force: bool = False,
    fitted: Mapping[str, Any] | None = None,
    report: str | None = None,
) -> None:
    """Writes tables, settings, scenario, fits and report into ``folder``. Raises ScenarioError as
    `check_target` does, and where the disk refuses."""

    def fill(work: Path) -> None:
        _table(work / columns.STEPS.name, log.steps)
        for table, table_rows in (
            (columns.ROLLOUTS, log.rollouts),
            (columns.REQUESTS, log.requests),
        ):
            if len(table_rows):
                _table(work / table.name, table_rows)
        lengths = draft.lengths_table(log)
        if lengths is not None:
            _table(work / draft.LENGTHS_FILE, lengths)
        head = f"Made by rollcast import from {log.name} ({log.stack}); what is assumed says so."
        (work / SCENARIO).write_text(to_yaml(parts, head), encoding="utf-8")
        write_json(work / CONTENT, to_json(log, parts))
        if fitted is not None:
            write_json(work / FITTED, fitted)
        if report is not None:
            (work / REPORT).write_text(report, encoding="utf-8")

    write_folder(folder, fill, force, holds_import, WHAT)


def _table(path: Path, table: pd.DataFrame) -> None:
    """As CSV: counts without a decimal point, empty cells where there is no number."""
    shown = table.copy(deep=False)
    for name in shown.columns:
        column = shown[name]
        if column.dtype == "float64" and len(column):
            known = column.dropna()
            if (known == known.round()).all() and (known.abs() < 1e15).all():
                shown[name] = column.astype("Int64")
    shown.to_csv(path, index=False, lineterminator="\n")


def to_json(log: RunLog, parts: Sequence[Part]) -> dict[str, Any]:
    """The content of import.json: what was read, and the scenario's parts with their sources."""
    return {
        "schema": columns.LOG_SCHEMA,
        "stack": log.stack,
        "stack_releases": log.releases._asdict(),
        "level": log.level,
        "steps": len(log.steps),
        "rollouts": len(log.rollouts),
        "requests": len(log.requests),
        "overlapped": log.overlapped,
        "outside_step_s": sorted(log.outside),
        "tool_tokens_inside": log.tool_tokens_inside,
        "gaps": [{"level": g.level, "column": g.column, "why": g.why} for g in log.gaps],
        "notes": list(log.notes),
        "settings": {
            key: {"value": s.value, "theirs": s.theirs, "file": s.place.file, "line": s.place.line}
            for key, s in sorted(log.settings.items())
        },
        "scenario": [
            {"key": p.key, "value": p.value, "source": p.source, "assumed": p.assumed}
            for p in parts
        ],
        "files": [
            {
                "file": t.file,
                "lines": t.lines,
                "used": t.used,
                "other": t.other,
                "unread": t.unread,
                "examples": [_unread(line) for line in t.examples],
            }
            for t in log.tallies
        ],
        "files_without_log": log.ignored,
        "unread": log.unread,
    }


def _unread(line: Unread) -> dict[str, Any]:
    return {"line": line.place.line, "why": line.why, "text": line.text}
