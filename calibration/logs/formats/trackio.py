"""trackio's SQLite file: rows of metrics, and the configuration of the run.

Tables (trackio 0.5 and later): metrics(run_name, step, timestamp, metrics) and configs(run_name,
config). A row with ``profiling/`` keys carries the number of updates done before it, another its
own counter: the update is ``train/global_step`` inside (seen of TRL 1.16).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rollcast.calibration.logs.formats import sqlite
from rollcast.calibration.logs.formats.configs import Given
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, flatten, parse
from rollcast.simulator.stacks.syntax.scalars import scalar

_PROFILING = "profiling/"


@dataclass(slots=True)
class Tracked:
    """A run. steps: by number, first row and values, profiles summed. damaged: rows of no JSON."""

    steps: dict[int, tuple[int, dict[str, float]]] = field(default_factory=dict)
    config: list[Given] = field(default_factory=list)
    rows: int = 0
    damaged: list[int] = field(default_factory=list)


def read(content: bytes) -> dict[str, Tracked]:
    """The runs of a file by name. Raises `parquet.CannotReadError`."""
    runs: dict[str, Tracked] = {}
    for name, step, text in sqlite.rows(content, "metrics", ("run_name", "step", "metrics")):
        run = runs.setdefault(str(name), Tracked())
        run.rows += 1
        query = _said(text)
        if not isinstance(query, dict):
            run.damaged.append(run.rows)
            continue
        numbers = {key: scalar(item) for key, item in query.items()}
        _add(run, step, {key: item for key, item in numbers.items() if item is not None})
    for name, text in sqlite.rows(content, "configs", ("run_name", "config")):
        if str(name) in runs:
            runs[str(name)].config.extend(_config(text))
    return runs


def _add(run: Tracked, step: object, values: dict[str, float]) -> None:
    profiled = any(key.startswith(_PROFILING) for key in values)
    at = values.get("train/global_step", step)
    if not isinstance(at, int | float) or not abs(at) < 1e12:
        run.damaged.append(run.rows)
        return
    _, row = run.steps.setdefault(int(at) + profiled, (run.rows, {}))
    for key, item in values.items():
        row[key] = row.get(key, 0.0) + item if key.startswith(_PROFILING) else item


def _said(text: object) -> object:
    """What a cell of JSON says; None where it is damaged."""
    try:
        return parse(text) if isinstance(text, str | bytes) else None
    except NotJsonError:
        return None


def _config(text: object) -> Iterable[Given]:
    query = _said(text)
    return (
        [Given(key, item, 0) for key, item in flatten(query).items()]
        if isinstance(query, dict)
        else []
    )
