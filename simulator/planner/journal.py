"""What an interrupted plan had found, beside the folder that it was to write.

One line of JSON for each simulation, written as it is done, after a first line with a digest of the
question: a plan that asks the same goes on from there, and any other begins anew. The file goes
once the plan is written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.locks import locked

_FORMAT = "rollcast-plan-journal-1"


def journal_path(out: Path) -> Path:
    """Where the journal of a plan stands that is to be written to ``out``."""
    return out.with_name(f".{out.name}.unfinished.jsonl")


def digest(question: Any) -> str:
    """Of a question as plain data."""
    text = json.dumps(question, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """The results of a plan by key; on disk too where it has a path.

    found: how many an earlier plan had left. One that holds nothing is not left behind, nor are
    folders that were made for it. Raises ScenarioError (``--out``) where another process has the
    file open, OSError where it cannot be written.
    """

    def __init__(self, path: Path | None, question: str) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        self._file: TextIO | None = None
        self._made: list[Path] = []
        self._lock = ExitStack()
        if path is None:
            self.found = 0
            return
        self._made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        busy = "another process is planning into that folder; wait for it, or give another"
        self._lock.enter_context(locked(path, ScenarioError("--out", busy)))
        whole = self._read(path, question)
        self.found = len(self._known)
        if whole is None:
            self._file = path.open("w", encoding="utf-8")
            self._write({"format": _FORMAT, "question": question})
        else:
            self._file = path.open("r+", encoding="utf-8")
            self._file.seek(whole)
            self._file.truncate()

    def _read(self, path: Path, question: str) -> int | None:
        """Takes in what a file holds; the bytes of its whole lines, None if it is of no use."""
        end: int | None = None
        with suppress(OSError, ValueError, KeyError, TypeError), path.open("rb") as file:
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):
                    break
                entry = json.loads(line)
                if number == 0:
                    if entry != {"format": _FORMAT, "question": question}:
                        return None
                else:
                    self._known[entry["key"]] = entry["result"]
                end = file.tell()
        return end

    def get(self, key: str) -> Mapping[str, Any] | None:
        """What is known of a key."""
        return self._known.get(key)

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Notes a result; once for each key."""
        if key in self._known:
            return
        self._known[key] = result
        if self._file is not None:
            self._write({"key": key, "result": result})

    def _write(self, entry: Any) -> None:
        assert self._file is not None
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def close(self, done: bool) -> None:
        """Closes the file; removes it if the plan is ``done``, or was before it knew anything."""
        if self._file is None or self._path is None:
            return
        self._file.close()
        self._file = None
        if done or not self._known:
            with suppress(OSError):
                os.remove(self._path)
        self._lock.close()
        if done or not self._known:
            with suppress(OSError):
                for folder in self._made:  # innermost first; one that somebody else filled stays
                    folder.rmdir()
