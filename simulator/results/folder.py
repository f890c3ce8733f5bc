"""Folders of results, written whole or not at all.

A hidden folder beside the target is renamed when complete. Leftovers of killed processes are
cleared by the next; a lock keeps out a second writer.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from rollcast.simulator.errors import RollcastError, ScenarioError
from rollcast.simulator.results import schema
from rollcast.simulator.results.read import read_json

_NAMES = frozenset(
    name
    for file in (*schema.RUN, *schema.COMPARISON, *schema.PLAN, *schema.CHECK)
    for present in (file.name, schema.OLD_FILES.get(file.name, file.name))
    for name in (present, present + schema.PACKED)
)

_LONGEST = 200


def check_target(
    folder: Path, force: bool, ours: Callable[[Path], bool] | None = None, what: str = "run"
) -> None:
    """Raises ScenarioError (``--out``) if ``folder`` is a file, holds another run without
    ``force``, holds other files, or is being written. Clears leftovers of killed processes.

    ours: whether a folder holds only what may be replaced; default `holds_run`. what: its name in
    errors.
    """
    try:
        folder = folder.resolve()
        for place in (folder, folder.parent):
            _clear_leftovers(place, folder)
        if not folder.exists():
            parent = next(p for p in folder.parents if p.exists())
            if not parent.is_dir():
                raise ScenarioError("--out", f"{parent} is a file; give a folder")
            if not os.access(parent, os.W_OK | os.X_OK):
                raise ScenarioError("--out", f"cannot write below {parent}")
            return
        _check_free(folder, force, ours, what)
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, a loop of links
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError("--out", f"cannot use {folder}: {reason}") from None


def _check_free(folder: Path, force: bool, ours: Callable[[Path], bool] | None, what: str) -> None:
    """Raises ScenarioError if ``folder`` is a file or must not be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ScenarioError("--out", f"{folder} is a file; give a folder")
    if not any(folder.iterdir()):
        return
    if not (ours or holds_run)(folder):
        message = f"{folder} is not empty and holds files that no {what} wrote; give another folder"
        raise ScenarioError("--out", message)
    if not force:
        raise ScenarioError("--out", f"{folder} holds another {what}; add --force to replace it")


def holds_run(folder: Path) -> bool:
    """Whether ``folder`` is a run, a comparison, a plan or a check, and nothing else."""
    entries = list(folder.iterdir())
    files = {entry.name for entry in entries if not entry.is_dir()}
    folders = [entry for entry in entries if entry.is_dir()]
    if not files <= _NAMES:
        return False
    if schema.COMPARISON_JSON.name in files:
        return all(map(holds_run, folders))
    if files & {schema.PLAN_JSON.name, schema.CHECK_JSON.name}:
        return not folders
    summary = schema.SUMMARY.name
    known = {entry.name for entry in folders} <= schema.RUN_FOLDERS
    return known and summary in files and _has_schema(folder / summary)


def is_ours(name: str) -> bool:
    """Whether a file of ours has this name."""
    return name in _NAMES


def _has_schema(summary: Path) -> bool:
    try:
        content = read_json(summary, "")
    except ScenarioError:
        return False
    named = content.get("schema") if isinstance(content, dict) else None
    return isinstance(named, str) and named.startswith(schema.OUR_SCHEMAS)


def write_folder(
    folder: Path,
    fill: Callable[[Path], None],
    force: bool = False,
    ours: Callable[[Path], bool] | None = None,
    what: str = "run",
) -> None:
    """Calls ``fill`` with a fresh folder that then replaces ``folder``.

    ours, what: see `check_target`. Raises ScenarioError (``--out``) as there, and if the disk
    refuses; then the old folder stays.
    """
    check_target(folder, force, ours, what)
    folder = folder.resolve()
    empty = folder.exists() and not any(folder.iterdir())
    # An empty folder may be a mount, or the folder that somebody stands in: it stays what it is.
    place = folder if empty else folder.parent
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()][1:]
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _locked(place, folder):
            if not empty:  # another process may have written it since it was checked
                _check_free(folder, force, ours, what)
            _fill(place, folder, fill)
        made = []
    except OSError as error:
        raise ScenarioError("--out", f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        for parent in made:  # innermost first; one that somebody else filled stays
            with suppress(OSError):
                parent.rmdir()


def _locked(place: Path, folder: Path) -> AbstractContextManager[None]:
    """The lock to write ``folder`` from ``place``."""
    message = f"another process is writing {folder}; wait for it, or give another folder"
    return locked(place / folder.name, ScenarioError("--out", message))


def _beside(place: Path, folder: Path, kind: str) -> Path:
    return place / f".{folder.name[:_LONGEST]}.{kind}"


def _fill(place: Path, folder: Path, fill: Callable[[Path], None]) -> None:
    """Fills a new folder in ``place`` and moves it to ``folder``."""
    work = _beside(place, folder, "partial")
    try:  # a signal may come as soon as the folder is there
        work.mkdir()
        fill(work)
        if place == folder:
            complete = work.rename(_beside(place, folder, "complete"))
            try:
                _move_up(complete, folder)
            finally:
                shutil.rmtree(complete, ignore_errors=True)
        else:
            _swap(work, folder, _beside(place, folder, "replaced"))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _clear_leftovers(place: Path, folder: Path) -> None:
    """Clears leftovers of killed processes: complete folders are put in place, replaced ones come
    back, the rest is removed. Raises ScenarioError if a process is writing."""
    with suppress(OSError):  # nothing to be seen, or to be changed, there
        if not _leftovers(place, folder):
            return
        with _locked(place, folder):
            for entry in _leftovers(place, folder):
                if entry.suffix == ".complete" and place == folder:
                    _move_up(entry, folder)
                elif entry.suffix == ".replaced" and not folder.exists():
                    entry.rename(folder)
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)


def _leftovers(place: Path, folder: Path) -> list[Path]:
    """Leftovers; earlier versions had a process number in the name."""
    name = re.escape(folder.name[:_LONGEST])
    ours = re.compile(rf"\.{name}(\.\d+)?\.(partial|complete|replaced|lock)")
    return sorted(place / entry for entry in os.listdir(place) if ours.fullmatch(entry))


def _move_up(work: Path, folder: Path) -> None:
    """Moves the content of ``work`` into ``folder``, all or nothing."""
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


def _swap(new: Path, folder: Path, aside: Path) -> None:
    """Renames ``new`` to ``folder``; removes an older run last."""
    if not folder.exists():
        new.rename(folder)
        return
    folder.rename(aside)
    try:
        new.rename(folder)
    except BaseException:
        with suppress(OSError):
            aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


try:
    import fcntl
except ImportError:  # a system without such locks: nothing is locked there
    fcntl = None  # type: ignore[assignment]


def lock_path(path: Path) -> Path:
    """The lock file of ``path``, beside it."""
    return path.with_name(f".{path.name.lstrip('.')[:_LONGEST]}.lock")


@contextmanager
def locked(path: Path, busy: RollcastError) -> Iterator[None]:
    """Holds the lock of ``path`` during the enclosed code.

    Raises ``busy`` if another process holds it, OSError if it cannot be written. Does nothing on
    file systems without locks.
    """
    file = lock_path(path)
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            if not _lock(handle):
                raise busy
            if _is(file, handle):
                yield
                return
        finally:  # also where a signal comes while it is locked
            if _is(file, handle) and _lock(handle):
                with suppress(OSError):
                    file.unlink()  # before it is let go: who waits for this file sees it gone
            os.close(handle)


def _lock(handle: int) -> bool:
    """Whether this process has the lock."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # of a file system without locks
        return True
    return True


def _is(file: Path, handle: int) -> bool:
    """Whether the opened file is still there."""
    try:
        return os.path.samestat(os.stat(file), os.fstat(handle))
    except FileNotFoundError:
        return False
