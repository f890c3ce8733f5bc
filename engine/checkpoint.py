"""Where a real run keeps what it needs to go on after a stop or a kill."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

from simulator.errors import RunError, ScenarioError

_FILE = "checkpoint.pkl"
SCHEMA = "rollcast-checkpoint/1"


def place(out: Path) -> Path:
    """The folder beside ``out`` that holds an unfinished run."""
    return out.with_name(out.name + ".running")


def save(out: Path, state: dict[str, Any]) -> None:
    """Writes the state of a run between two steps: the new one whole, or the old one still.

    Raises RunError where the disk refuses; the last checkpoint is then untouched.
    """
    folder = place(out)
    draft = folder / (_FILE + ".new")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            pickle.dump({"schema": SCHEMA, **state}, file, protocol=pickle.HIGHEST_PROTOCOL)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / _FILE)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise RunError(
            f"cannot save the run to {folder}: {error.strerror}; make room and go on with --resume"
        ) from None


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
    except Exception as error:
        raise ScenarioError("--resume", f"cannot read {path}: {error}") from None
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise ScenarioError("--resume", f"{path} is not a checkpoint of this version")
    saved, asked = dict(state["scenario"]), dict(scenario)
    saved.pop("steps", None)
    asked.pop("steps", None)
    differing = sorted(k for k in {*saved, *asked} if saved.get(k) != asked.get(k))
    if differing:
        raise ScenarioError("--resume", f"the unfinished run had another {differing[0]}")
    return state


def exists(out: Path) -> bool:
    """Whether an unfinished run lies beside ``out``."""
    return (place(out) / _FILE).is_file()


def discard(out: Path) -> None:
    """Removes the checkpoint of a finished run."""
    shutil.rmtree(place(out), ignore_errors=True)
