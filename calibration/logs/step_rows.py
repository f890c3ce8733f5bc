"""The rows of ``steps.csv``: what files say of each step by our columns, checked and completed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollcast.calibration.logs import columns, overlay
from rollcast.calibration.logs.errors import LogError
from rollcast.calibration.logs.rollouts import MOST_TOKENS
from rollcast.simulator.stacks.log_format import Raw, Row, StackLog
from rollcast.simulator.stacks.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

_OF_A_STEP = frozenset(("step_s", "mean_new_tokens", *columns.PHASES, "orchestrator_step_s"))
"""Columns without which a row is a validation by itself, say."""
_LENGTHS = tuple(
    f"{which}_{what}_tokens" for which in ("mean", "max", "min") for what in ("new", "prompt")
)


def counts(rollouts: pd.DataFrame) -> Mapping[int, int]:
    """Dumped rollouts that were trained on, by step."""
    if not len(rollouts):
        return {}
    counts = rollouts.loc[rollouts["trained"] != 0, "step"].value_counts()
    return dict(zip(counts.index.tolist(), counts.tolist(), strict=True))


def rows_of(
    stack: StackLog,
    whole: overlay.Series,
    settings: Settings,
    overlapped: bool,
    dumped: Mapping[int, int],
) -> list[tuple[Row, Raw]]:
    """Rows by our columns, checked. dumped: rollouts by step, for steps that count none."""
    rows: list[tuple[Row, Raw]] = []
    for number, step in sorted(whole.steps.items()):
        row = stack.row(step.values)
        for column in columns.SECONDS:
            if column in row and not 0 <= row[column] < 1e12:
                raise LogError(
                    f"{step.place}: {column} of step {number} is {row[column]:g}; seconds are "
                    "numbers from 0 to 1e12"
                )
        row = {name: item for name, item in row.items() if math.isfinite(item)}
        for column in _LENGTHS:
            if not 0 <= row.get(column, 0.0) <= MOST_TOKENS:
                raise LogError(
                    f"{step.place}: {column} of step {number} is {row[column]:g}; no "
                    "response has so many tokens"
                )
        stack.complete(row, step.values, settings, overlapped)
        if number in dumped:
            row.setdefault("rollouts", float(dumped[number]))
        row["overlapped"] = row.get("overlapped", float(overlapped))
        row["first"] = float(step.first)
        if step.logged_s is not None and math.isfinite(step.logged_s) and step.logged_s >= 0:
            row["logged_s"] = step.logged_s
        row["step"] = float(number)
        row["line"] = float(step.place.line)
        row["file"] = step.place.file  # type: ignore[assignment]
        rows.append((row, step.values))
    timed = [row for row, _ in rows if "step_s" in row]
    if timed and not any(row["step_s"] for row in timed):
        first = whole.steps[min(whole.steps)].place
        raise LogError(f"{first}: step_s is 0 in every step; a step takes more than 0 seconds")
    stack.follow(rows, settings)
    rows = [(row, raw) for row, raw in rows if not _OF_A_STEP.isdisjoint(row)]
    for row, _ in rows:
        if "rest_s" not in row:
            _rest(row, stack)
    return rows


def _rest(row: Row, stack: StackLog) -> None:
    """What a step holds beside its phases, where the larger of them were timed."""
    made = row.keys() & {"generation_s", "wait_s"}
    if "step_s" not in row or "update_s" not in row or not made:
        return
    inside = [row.get(name, 0.0) for name in columns.PHASES if name not in stack.outside]
    for phase in ("validation", "checkpoint"):
        if row.get(f"{phase}_inside") == 1:
            inside.append(row.get(f"{phase}_s", 0.0))
    rest = row["step_s"] - sum(inside)
    if rest > -0.02 * row["step_s"]:  # else the phases overlap each other
        row["rest_s"] = max(rest, 0.0)


def table_of(rows: Sequence[tuple[Row, Raw]], rollouts: pd.DataFrame) -> pd.DataFrame:
    """steps.csv: the rows; empty cells are filled from the dumped rollouts."""
    import numpy as np
    import pandas as pd

    said: list[Row] = [row for row, _ in rows]
    data: dict[str, Any] = {}
    if len(rollouts):
        trained = rollouts[rollouts["trained"] != 0].groupby("step")
        summed = trained.agg(
            rollouts=("group", "size"),
            groups=("group", "nunique"),
            mean_new_tokens=("new_tokens", "mean"),
            max_new_tokens=("new_tokens", "max"),
            min_new_tokens=("new_tokens", "min"),
            mean_prompt_tokens=("prompt_tokens", "mean"),
            mean_tool_tokens=("tool_tokens", "mean"),
            truncated_share=("truncated", "mean"),
            mean_reward=("reward", "mean"),
        )
        said = said or [{"step": step, "first": 0.0} for step in summed.index]
        known = summed.reindex([int(row["step"]) for row in said])
        data = {name: known[name].to_numpy(float) for name in summed.columns}
    for name in columns.STEPS.names:
        if name not in ("step", "file"):  # by itself: a frame converts columns one by one
            own = np.array([row.get(name) for row in said], dtype=float)
            data[name] = np.where(np.isnan(own), data[name], own) if name in data else own
    data["step"] = np.array([row["step"] for row in said], dtype=np.int64)
    data["file"] = pd.Series([row.get("file") or "" for row in said], dtype=object)
    table = pd.DataFrame(data, columns=list(columns.STEPS.names))
    return table.sort_values("step", kind="stable").reset_index(drop=True)
