"""Where a real run keeps what it needs to go on after a stop or a kill."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from simulator.errors import RunError, ScenarioError

SCHEMA = "rollcast-checkpoint/2"
_FILE = "checkpoint.pkl"
_DRAFT = "checkpoint.pkl.new"


def place(out: Path) -> Path:
    """The folder beside ``out`` that holds an unfinished run."""
    out = out.resolve()
    return out.with_name(out.name + ".running")


def save(out: Path, state: dict[str, Any]) -> None:
    """Writes the state of a run between two steps: the new one whole, or the old one still.

    Raises RunError where the disk refuses; the last checkpoint is then untouched.
    """
    folder = place(out)
    draft = folder / _DRAFT
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            pickle.dump({"schema": SCHEMA, **state}, file, protocol=pickle.HIGHEST_PROTOCOL)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / _FILE)
        _sync_folder(folder)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise RunError(
            f"cannot save the run to {folder}: {error.strerror or error}; make room there"
        ) from None


def _sync_folder(folder: Path) -> None:
    """Makes the renaming itself last, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def load(out: Path, scenario: dict[str, Any]) -> dict[str, Any]:
    """The last state saved for ``out``.

    Raises ScenarioError (``--resume``) where there is none, it is not one of ours, or it belongs
    to another scenario (more steps are no other scenario).
    """
    path = place(out) / _FILE
    try:
        with path.open("rb") as file:
            state = pickle.load(file)  # our own file, beside the user's own results
    except FileNotFoundError:
        raise ScenarioError("--resume", f"there is no unfinished run beside {out}") from None
    except Exception as error:  # unpickling may raise anything
        said = (str(error).splitlines() or [""])[0] or type(error).__name__
        message = f"cannot read {path}: {said}; start anew with --force"
        raise ScenarioError("--resume", message) from None
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise ScenarioError(
            "--resume", f"{path} is not a checkpoint of this version; start anew with --force"
        )
    key = _difference(state["scenario"], scenario)
    if key is not None:
        raise ScenarioError(
            "--resume", f"the unfinished run beside {out} had another {key}; give it the same"
        )
    return state


def _difference(saved: Any, asked: Any, field: str = "") -> str | None:
    """The dotted key of the first difference between two scenarios, their steps apart."""
    if isinstance(saved, dict) and isinstance(asked, dict):
        for key in (*saved, *(key for key in asked if key not in saved)):
            if not field and key == "steps":
                continue
            dotted = f"{field}.{key}" if field else str(key)
            if (found := _difference(saved.get(key), asked.get(key), dotted)) is not None:
                return found
        return None
    return None if json.dumps(saved) == json.dumps(asked) else field


def exists(out: Path) -> bool:
    """Whether an unfinished run lies beside ``out``."""
    return (place(out) / _FILE).is_file()


def discard(out: Path) -> None:
    """Removes the checkpoint of a finished run."""
    shutil.rmtree(place(out), ignore_errors=True)
