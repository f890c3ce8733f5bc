"""Writing of a run's files (`simulator.results.schema`) and of JSON."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcast.simulator.core.rollout import CALL_ENDS, CALL_KINDS, ENDINGS
from rollcast.simulator.core.spans import TRAINED, Run, StepRecord
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results import schema
from rollcast.simulator.results.metrics import phase_columns, step_columns


def write_run(
    folder: Path, run: Run, summary: dict[str, Any], scenario: dict[str, Any], plot: bool
) -> None:
    """Writes the files of a run of either world. plot: whether to draw the picture."""
    from rollcast.simulator.results.perfetto import write_trace

    write_table(folder, schema.SPANS, run.spans())
    _write_steps(folder, run)
    write_table(folder, schema.ROLLOUTS, _rollouts(run))
    if len(run.calls):
        write_table(folder, schema.ENVIRONMENTS, _calls(run))
    write_lines(folder, schema.DECISIONS, run.decisions)
    write_json(folder / schema.SCENARIO.name, scenario)
    write_trace(run, folder / f"{schema.TRACE.name}{schema.PACKED}")
    if plot:
        from rollcast.simulator.results.learning_picture import draw_learning
        from rollcast.simulator.results.timeline import draw_run

        draw_run(run, folder / schema.TIMELINE.name, title=scenario.get("name"))
        draw_learning({summary["policy"]: summary}, folder / schema.LEARNING_PICTURE.name)
    write_json(folder / schema.SUMMARY.name, summary)


def write_table(
    folder: Path, table: schema.Table, rows: Iterable[Sequence[Any]], more: Sequence[str] = ()
) -> None:
    """Writes a table. rows: in the order of its columns, then of ``more`` undeclared ones."""
    with (folder / table.name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*table.names, *more))
        writer.writerows(rows)


def write_lines(folder: Path, lines: schema.Lines, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a line of strict JSON per row."""
    with (folder / lines.name).open("w", encoding="utf-8") as file:
        for row in rows:
            text = json.dumps(plain(row), separators=(",", ":"), allow_nan=False)
            file.write(text + "\n")


def write_rows(
    folder: Path,
    table: schema.File,
    document: schema.File | None,
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Writes rows, at least one, as a table and as JSON."""
    write_rows_as_table(folder / table.name, rows)
    if document is not None:
        write_json(folder / document.name, rows)


def write_rows_as_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as a table, flat; missing columns are empty."""
    rows = [flat(row) for row in rows]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """With mappings in it as columns of their own, named ``key_below``."""
    columns: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            columns |= {f"{key}_{below}": cell for below, cell in flat(value).items()}
        else:
            columns[key] = value
    return columns


def _write_steps(folder: Path, run: Run) -> None:
    """steps.csv, with columns of the policies."""
    columns = {**step_columns(run), **phase_columns(run)}
    derived = {name: values.tolist() for name, values in columns.items()}
    table = schema.STEPS if run.evaluations else schema.STEPS.without(schema.EVALUATION)
    more = sorted({key for record in run.steps for key in record.policy})

    def row(i: int, record: StepRecord) -> list[Any]:
        cells = [
            derived[name][i] if name in derived else getattr(record, name) for name in table.names
        ]
        extra = [json.dumps(plain(record.policy[k])) if k in record.policy else "" for k in more]
        return [*map(_cell, cells), *extra]

    write_table(folder, table, (row(i, record) for i, record in enumerate(run.steps)), more)


def _rollouts(run: Run) -> Iterable[tuple[Any, ...]]:
    """The rows of rollouts.csv."""
    segments = run.segments
    columns: list[list[Any]] = []
    for name in schema.ROLLOUTS.names:
        if name == "trained":
            columns.append((segments["outcome"] == TRAINED).astype(int).tolist())
        elif name == "reward":
            columns.append([_cell(reward) for reward in segments["reward"].tolist()])
        elif name == "ending":
            columns.append([ENDINGS[number] for number in segments["ending"].tolist()])
        else:
            columns.append(segments[name].tolist())
    return zip(*columns, strict=True)


def _calls(run: Run) -> Iterable[tuple[Any, ...]]:
    """The rows of environments.csv."""
    words = {"kind": CALL_KINDS, "ended": CALL_ENDS}
    columns: list[list[Any]] = []
    for name in schema.ENVIRONMENTS.names:
        values = run.calls[name].tolist()
        columns.append([words[name][number] for number in values] if name in words else values)
    return zip(*columns, strict=True)


def _cell(value: Any) -> Any:
    """Empty for nan."""
    return "" if isinstance(value, float) and math.isnan(value) else value


def write_text(path: Path, text: str) -> None:
    """Writes a text, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, and its folder where there is none, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        work.write_bytes(content)
        os.replace(work, path)
    finally:
        work.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes strict JSON; numbers that are not finite become null."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(plain(value), file, indent=1, allow_nan=False)
        file.write("\n")


def write_json_file(path: Path, value: Any) -> None:
    """Writes strict JSON, whole or not at all, with lists of numbers on one line.

    Raises ScenarioError (``-o``) if it cannot be written.
    """
    text = _FLAT_LIST.sub(
        lambda match: f"[{' '.join(match[1].split())}]",
        json.dumps(plain(value), indent=1, allow_nan=False),
    )
    try:
        if path.is_dir():
            raise ScenarioError("-o", f"{path} is a folder; give a file")
        write_text(path, text + "\n")
    except OSError as error:
        message = f"cannot write {path}: {error.strerror or error}"
        raise ScenarioError("-o", message) from None


_FLAT_LIST = re.compile(r'\[\n([^\[\]{}"]*)\]')


def plain(value: Any) -> Any:
    """``value`` with None for nan and infinities, lists for tuples, texts for keys."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
