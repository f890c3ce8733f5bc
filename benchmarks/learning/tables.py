"""The campaign's runs as one committed table, and as learning curves that a law is fitted to."""

import json
import lzma
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.arms import ARMS, BY_LENGTH, EDGES
from benchmarks.learning.tasks import EVALUATED, SCHEDULE
from benchmarks.runner import ROOT
from rollcast.calibration.fits.learning import LearningRun
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.learning.signals import Signals
from rollcast.simulator.results.write import write_bytes

TABLE = ROOT / "benchmarks" / "data" / "learning" / "runs.jsonl.xz"
EDGE = TABLE.with_name("edges.jsonl.xz")
"""The runs of arms that may no longer learn."""
LENGTHS = TABLE.with_name("by_length.jsonl.xz")
"""The runs that choose by length."""
SIGNALS = ("rollouts", "groups", "group_size", "kept", "age", "age_spread", "seconds")
"""Columns of the updates that a law of progress reads."""
_DIGITS = 4


def pack(folder: Path, home: Path = TABLE.parent) -> int:
    """Packs the runs in a campaign's folder, sorted by name, each with its arm; how many."""
    kinds = {TABLE: ARMS, EDGE: EDGES, LENGTHS: BY_LENGTH}
    arms = {arm.name: (path, arm) for path, of_it in kinds.items() for arm in of_it}
    found: dict[Path, list[dict[str, Any]]] = {path: [] for path in kinds}
    for file in sorted((folder / "runs").glob("*.json")):
        line = json.loads(file.read_text("utf-8"))
        if line["arm"] in arms:
            path, arm = arms[line["arm"]]
            found[path].append({**line, "settings": asdict(arm)})
    if not any(found.values()):
        raise ScenarioError("DIR", f"{folder} holds no run of the campaign")
    for path, lines in found.items():
        if lines:
            write(lines, home / path.name)
    return sum(map(len, found.values()))


def write(lines: Iterable[dict[str, Any]], path: Path) -> None:
    """Writes a table of runs, whole or not at all."""
    text = "".join(json.dumps(_short(line), separators=(",", ":")) + "\n" for line in lines)
    write_bytes(path, lzma.compress(text.encode(), preset=9))


def _short(value: Any) -> Any:
    """Figures with four digits, and columns that never change as one figure."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [_short(item) for item in value]
        return [items[0], len(items)] if len(items) > 2 and len(set(items)) == 1 else items
    return value


def _long(column: list[Any], count: int) -> list[Any]:
    """A column as it was before `_short`."""
    return column[:1] * count if len(column) == 2 < count else column


def rows(path: Path = TABLE) -> list[dict[str, Any]]:
    """The packed runs."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def curves(tables: Iterable[dict[str, Any]]) -> list[LearningRun]:
    """The runs as learning curves; an origin is a task with a warm start."""
    return [_curve(table) for table in tables]


def _curve(table: dict[str, Any]) -> LearningRun:
    seconds = table["updates"]["seconds"]  # rises, so it is whole
    count = len(seconds)
    columns = {k: _long(v, count) for k, v in table["updates"].items() if isinstance(v, list)}
    evaluations = table["evaluations"]
    updates = np.array(evaluations["updates"], dtype=np.int64)
    arm = table["settings"]

    def evaluated(name: str) -> Any:
        values = _long(evaluations[name], len(updates))
        return np.array([math.nan if value is None else value for value in values], dtype=float)

    return LearningRun(
        name=f"{table['task']}-{arm['name']}-w{table['warm']}-s{table['seed']}",
        origin=f"{table['task']}-w{table['warm']}",
        policy=arm["name"],
        seed=table["seed"],
        rate=arm["rate"],
        signals=Signals(
            **{name: np.array(columns[name]) for name in SIGNALS},
            minibatches=np.full(count, float(arm["minibatches"])),
            selection=table["updates"]["selection"],
            filtered=table["updates"]["filtered"],
            first_come="tail_batching" in arm["policy"],  # the one policy of the table that is
            rates=SCHEDULE.rates(np.arange(count), 1),
        ),
        updates=updates,
        accuracy=evaluated("accuracy"),
        answers=np.full(len(updates), float(EVALUATED)),
        right_tokens=evaluated("right_tokens"),
        wrong_tokens=evaluated("wrong_tokens"),
    )
