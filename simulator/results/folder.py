"""Writing a run's folder: whole, or not at all.

Everything is written into a hidden folder beside the target, which takes the target's name in one
rename once it is complete. A run that is interrupted leaves nothing.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from simulator.errors import ScenarioError
from simulator.spans import TRAINED, Run, StepRecord

MARKER, COMPARISON, PLAN = "summary.json", "comparison.json", "plan.json"
FILES = (
    "spans.csv",
    "steps.csv",
    "rollouts.csv",
    "decisions.jsonl",
    "scenario.json",
    "summary.json",
    "trace.json.gz",
    "trace.json",  # as version 0.1 wrote it
    "timeline.png",
    "comparison.csv",
    "comparison.json",
    "comparison.png",
    "iterations.csv",
    "updates.jsonl",
    "provenance.json",
    "plan.csv",
    "plan.json",
)


def check_target(folder: Path, force: bool) -> None:
    """Raises ScenarioError (``--out``) where a run cannot be put into ``folder``: it is a file, it
    holds another run and ``force`` is not set, or it holds something else (never removed)."""
    try:
        folder = folder.resolve()
        if not folder.exists():
            parent = next(p for p in folder.parents if p.exists())
            if not parent.is_dir():
                raise ScenarioError("--out", f"{parent} is a file; give a folder")
            if not os.access(parent, os.W_OK | os.X_OK):
                raise ScenarioError("--out", f"cannot write below {parent}")
            return
        if not folder.is_dir():
            raise ScenarioError("--out", f"{folder} is a file; give a folder")
        if not any(folder.iterdir()):
            return
        if not _is_run(folder):
            message = f"{folder} is not empty and holds no run alone; give another folder"
            raise ScenarioError("--out", message)
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, a loop of links
        said = getattr(error, "strerror", None) or error
        raise ScenarioError("--out", f"cannot use {folder}: {said}") from None
    if not force:
        raise ScenarioError("--out", f"{folder} holds another run; add --force to replace it")


def _is_run(folder: Path) -> bool:
    """Whether ``folder`` is a run, a comparison's folder of runs, or a plan, with nothing else in
    it."""
    entries = list(folder.iterdir())
    files = {entry.name for entry in entries if not entry.is_dir()}
    folders = [entry for entry in entries if entry.is_dir()]
    if not files <= set(FILES):
        return False
    if COMPARISON in files:
        return all(map(_is_run, folders))
    if PLAN in files:
        return not folders
    return not folders and MARKER in files and _has_schema(folder / MARKER)


def _has_schema(summary: Path) -> bool:
    try:
        content = json.loads(summary.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and str(content.get("schema")).startswith("rollcast-")


def write_folder(folder: Path, fill: Callable[[Path], None], force: bool = False) -> None:
    """Calls ``fill`` with a fresh folder and puts that in the place of ``folder``.

    Raises ScenarioError as `check_target` does, and (``--out``) where the disk refuses; then
    nothing is left behind and what stood there still stands.
    """
    check_target(folder, force)
    folder = folder.resolve()
    empty = folder.exists() and not any(folder.iterdir())
    # An empty folder may be a mount, or the folder that somebody stands in: it stays what it is.
    place = folder if empty else folder.parent
    work = place / f".{folder.name[:200]}.{os.getpid()}.partial"
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()][1:]
    try:
        place.mkdir(parents=True, exist_ok=True)
        work.mkdir()
        fill(work)
        if empty:
            _move_up(work, folder)
        else:
            _swap(work, folder)
        made = []
    except OSError as error:
        raise ScenarioError("--out", f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
        for parent in made:  # innermost first; one that somebody else filled stays
            with suppress(OSError):
                parent.rmdir()


def _move_up(work: Path, folder: Path) -> None:
    """Moves what ``work`` holds into ``folder``, all of it or nothing."""
    moved: list[Path] = []
    try:
        for entry in sorted(work.iterdir()):
            moved.append(folder / entry.name)
            entry.rename(moved[-1])
    except BaseException:
        for target in moved:
            if target.is_dir():
                shutil.rmtree(target, ignore_errors=True)
            else:
                target.unlink(missing_ok=True)
        raise


def _swap(new: Path, folder: Path) -> None:
    """Renames ``new`` to ``folder``; an older run there is moved aside first and removed last."""
    if not folder.exists():
        new.rename(folder)
        return
    aside = new.with_suffix(".replaced")
    folder.rename(aside)
    try:
        new.rename(folder)
    except BaseException:
        with suppress(OSError):
            aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def write_run(
    folder: Path, run: Run, summary: dict[str, Any], scenario: dict[str, Any], plot: bool
) -> None:
    """Writes one run's tables, summary, trace and, with ``plot``, picture into ``folder``."""
    from simulator.results.perfetto import write_trace

    _write_csv(folder / "spans.csv", Run.span_columns, run.spans())
    _write_csv(folder / "steps.csv", *_steps_table(run.steps))
    _write_csv(folder / "rollouts.csv", *_rollouts_table(run))
    with (folder / "decisions.jsonl").open("w", encoding="utf-8") as file:
        for decision in run.decisions:
            file.write(json.dumps(decision, separators=(",", ":")) + "\n")
    write_json(folder / "scenario.json", scenario)
    write_trace(run, folder / "trace.json.gz")
    if plot:
        from simulator.results.timeline import draw_run

        draw_run(run, folder / "timeline.png", title=scenario.get("name"))
    write_json(folder / "summary.json", summary)


def write_json(path: Path, value: Any) -> None:
    """Writes strict JSON: what is not a finite number becomes null."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(plain(value), file, indent=1, allow_nan=False)
        file.write("\n")


def write_json_file(path: Path, value: Any, option: str) -> None:
    """Writes one file of strict JSON, whole or not at all, lists of numbers on one line each.

    Raises ScenarioError naming ``option``, the user's word for the path, where it cannot be.
    """
    text = _FLAT_LIST.sub(
        lambda found: f"[{' '.join(found[1].split())}]",
        json.dumps(plain(value), indent=1, allow_nan=False),
    )
    work = None
    try:
        if path.is_dir():
            raise ScenarioError(option, f"{path} is a folder; give a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, work = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.chmod(work, 0o644)
        os.replace(work, path)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror or error}"
        raise ScenarioError(option, message) from None
    finally:
        if work is not None:
            with suppress(OSError):
                os.unlink(work)


_FLAT_LIST = re.compile(r'\[\n([^\[\]{}"]*)\]')


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
    """rollouts.csv: one row a stay. new_tokens are those sampled in the stay, so that they add up
    to the tokens generated; total_tokens those of the response so far. trained: whether the tokens
    were trained on, in trained_step. Flags are 0 or 1; the reward is empty until there is one."""
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
