"""Writing a run's folder: whole, or not at all.

Everything is written into a temporary folder beside the target, which takes the target's name in one
rename once it is complete. A run that is interrupted leaves nothing.
"""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from simulator.errors import ScenarioError
from simulator.spans import TRAINED, Run, StepRecord

MARKER = "summary.json"
FILES = (
    "spans.csv",
    "steps.csv",
    "rollouts.csv",
    "decisions.jsonl",
    "scenario.json",
    "summary.json",
    "trace.json",
    "timeline.png",
    "comparison.csv",
    "comparison.json",
    "comparison.png",
    "iterations.csv",
    "updates.jsonl",
    "provenance.json",
)


def check_target(folder: Path, force: bool) -> None:
    """Raises ScenarioError (``--out``) where a run cannot be put into ``folder``: it is a file, holds
    another run without ``force``, or holds something else (which is never removed)."""
    if not folder.exists():
        parent = next((p for p in folder.absolute().parents if p.exists()), Path("/"))
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise ScenarioError("--out", f"cannot write below {parent}")
        return
    if not folder.is_dir():
        raise ScenarioError("--out", f"{folder} is a file; give a folder")
    names = {entry.name for entry in folder.iterdir()}
    if not names:
        return
    if not _is_run(folder):
        raise ScenarioError("--out", f"{folder} is not empty and holds no run; give another folder")
    if not force:
        raise ScenarioError("--out", f"{folder} holds another run; add --force to replace it")


def _is_run(folder: Path) -> bool:
    """Whether everything in it was written by this module."""
    for entry in folder.iterdir():
        if entry.is_dir():
            if not _is_run(entry):
                return False
        elif entry.name not in FILES:
            return False
    return True


def write_folder(folder: Path, fill: Callable[[Path], None], force: bool = False) -> None:
    """Calls ``fill`` with a fresh folder and puts that in the place of ``folder``.

    Raises ScenarioError as `check_target` does, and (``--out``) where the disk refuses; then nothing
    is left behind and what stood there still stands.
    """
    check_target(folder, force)
    folder = folder.absolute()
    work = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        work.chmod(0o755)
        fill(work)
        _swap(work, folder)
    except OSError as error:
        raise ScenarioError("--out", f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def _swap(new: Path, folder: Path) -> None:
    """Renames ``new`` to ``folder``; an older run there is moved aside first and removed last."""
    if not folder.exists():
        new.rename(folder)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        folder.rename(aside / "old")
        try:
            new.rename(folder)
        except OSError:
            with suppress(OSError):
                (aside / "old").rename(folder)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_run(
    folder: Path, run: Run, summary: dict[str, Any], scenario: dict[str, Any], plot: bool
) -> None:
    """Writes one run's tables, summary, trace and, with ``plot``, picture into ``folder``."""
    from simulator.perfetto import write_trace

    _write_csv(folder / "spans.csv", Run.span_columns, run.spans())
    _write_csv(folder / "steps.csv", *_steps_table(run.steps))
    _write_csv(folder / "rollouts.csv", *_rollouts_table(run))
    with (folder / "decisions.jsonl").open("w", encoding="utf-8") as file:
        for decision in run.decisions:
            file.write(json.dumps(decision, separators=(",", ":")) + "\n")
    write_json(folder / "scenario.json", scenario)
    with (folder / "trace.json").open("w", encoding="utf-8") as file:
        write_trace(run, file)
    if plot:
        from simulator.timeline import draw_run

        draw_run(run, folder / "timeline.png", title=scenario.get("name"))
    write_json(folder / "summary.json", summary)


def write_json(path: Path, value: Any) -> None:
    """Writes strict JSON: what is not a finite number becomes null."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(plain(value), file, indent=1, allow_nan=False)
        file.write("\n")


def plain(value: Any) -> Any:
    """``value`` with nan and infinities as None, tuples as lists and keys as strings."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        _rows(file, columns, rows)


def _rows(file: TextIO, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def _steps_table(steps: Sequence[StepRecord]) -> tuple[list[str], Iterable[list[Any]]]:
    """steps.csv: one row a step; the policy's own figures in columns of their own."""
    names = [f.name for f in fields(StepRecord) if f.name not in ("staleness", "policy")]
    names.insert(names.index("train_s"), "rollout_s")
    extra = sorted({key for record in steps for key in record.policy})

    def row(record: StepRecord) -> list[Any]:
        tokens = sum(record.staleness.values())
        behind = sum(age * count for age, count in record.staleness.items())
        own = [json.dumps(plain(record.policy[k])) if k in record.policy else "" for k in extra]
        return [getattr(record, name) for name in names] + [behind / max(tokens, 1), *own]

    return [*names, "mean_staleness", *extra], map(row, steps)


_ROLLOUT_COLUMNS = (
    "step",
    "group",
    "index",
    "prompt_tokens",
    "new_tokens",
    "start_s",
    "end_s",
    "finished",
    "trained",
    "reward",
    "versions",
    "replica",
    "total_tokens",
    "trained_step",
    "attempt",
    "version",
    "resumed",
    "truncated",
    "preemptions",
    "prefill_tokens",
    "recomputed_tokens",
    "submitted_s",
)


def _rollouts_table(run: Run) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
    """rollouts.csv: one row a stay. new_tokens are those sampled in the stay, so that they add up to
    the tokens generated; total_tokens those of the response so far. trained: whether the tokens were
    trained on, in trained_step. Flags are 0 or 1; the reward is empty until there is one."""
    stays = run.stays
    columns: list[list[Any]] = []
    for name in _ROLLOUT_COLUMNS:
        if name == "trained":
            columns.append((stays["fate"] == TRAINED).astype(int).tolist())
        elif name == "reward":
            columns.append(["" if math.isnan(r) else r for r in stays["reward"].tolist()])
        else:
            columns.append(stays[name].tolist())
    return _ROLLOUT_COLUMNS, zip(*columns, strict=True)
