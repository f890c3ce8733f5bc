"""A folder of results: whether it holds a run, and writing one whole or not at all.

Everything is written into a hidden folder beside the target, which takes the target's name in one
rename once it is complete. A run that is interrupted leaves nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from simulator.errors import ScenarioError
from simulator.results import schema
from simulator.results.read import read_json

_NAMES = frozenset(
    name
    for file in (*schema.RUN, *schema.COMPARISON, *schema.PLAN)
    for name in (file.name, file.name + schema.PACKED)
)


def check_target(
    folder: Path, force: bool, ours: Callable[[Path], bool] | None = None, what: str = "run"
) -> None:
    """Raises ScenarioError (``--out``) where a run cannot be put into ``folder``: it is a file, it
    holds another run and ``force`` is not set, or it holds something else (never removed).

    ours: whether a folder holds nothing but what is to be replaced, `holds_run` if None; what: how
    that is called.
    """
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
        if not (ours or holds_run)(folder):
            message = f"{folder} is not empty and holds no {what} alone; give another folder"
            raise ScenarioError("--out", message)
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, a loop of links
        said = getattr(error, "strerror", None) or error
        raise ScenarioError("--out", f"cannot use {folder}: {said}") from None
    if not force:
        raise ScenarioError("--out", f"{folder} holds another {what}; add --force to replace it")


def holds_run(folder: Path) -> bool:
    """Whether ``folder`` is a run, a comparison's folder of runs, or a plan, with nothing else in
    it."""
    entries = list(folder.iterdir())
    files = {entry.name for entry in entries if not entry.is_dir()}
    folders = [entry for entry in entries if entry.is_dir()]
    if not files <= _NAMES:
        return False
    if schema.COMPARISON_JSON.name in files:
        return all(map(holds_run, folders))
    if schema.PLAN_JSON.name in files:
        return not folders
    summary = schema.SUMMARY.name
    return not folders and summary in files and _has_schema(folder / summary)


def is_ours(name: str) -> bool:
    """Whether a file of a run, a comparison or a plan has this name."""
    return name in _NAMES


def _has_schema(summary: Path) -> bool:
    try:
        content = read_json(summary, "")
    except ScenarioError:
        return False
    found = content.get("schema") if isinstance(content, dict) else None
    return isinstance(found, str) and found.startswith(schema.OUR_SCHEMAS)


def write_folder(
    folder: Path,
    fill: Callable[[Path], None],
    force: bool = False,
    ours: Callable[[Path], bool] | None = None,
    what: str = "run",
) -> None:
    """Calls ``fill`` with a fresh folder and puts that in the place of ``folder``.

    ours, what: as `check_target` has them. Raises ScenarioError as it does, and (``--out``) where
    the disk refuses; then nothing is left behind and what stood there still stands.
    """
    check_target(folder, force, ours, what)
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
