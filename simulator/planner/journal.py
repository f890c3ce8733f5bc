"""Results of an interrupted plan, beside its folder.

JSON lines: a digest of the question, then a line per simulation. The same question resumes, another
begins anew. The file is removed once the plan is written.
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
from rollcast.simulator.results.folder import locked

_FORMAT = "rollcast-plan-journal-4"


def journal_path(out: Path) -> Path:
    """The path of the journal for a plan in ``out``."""
    return out.with_name(f".{out.name}.unfinished.jsonl")


def digest(question: Any) -> str:
    """The digest of a question as plain data."""
    text = json.dumps(question, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """Results of a plan by key, on disk if there is a path.

    found: results of an earlier plan. An empty journal and folders made for it are removed. Raises
    ScenarioError (``--out``) while another process has the file open, OSError if it cannot be
    written.
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
        """Reads a file; returns the bytes of its whole lines, None for another question."""
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
        """The result of a key."""
        return self._known.get(key)

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Adds a result; once for each key."""
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
        """Closes the file; removes it if ``done`` or empty."""
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
