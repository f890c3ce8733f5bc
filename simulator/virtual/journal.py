"""Who did what when: the record that laws read, and golden timelines: a small text of it that is
reviewed like code."""

from __future__ import annotations

import difflib
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcast.simulator.costs.clock import to_seconds
from rollcast.simulator.results.write import write_text
from rollcast.simulator.virtual.report import caller


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened. tick: when; what: a word; about: who or which, a word or a number;
    more: figures of it."""

    tick: int
    what: str
    about: Any = None
    more: tuple[tuple[str, Any], ...] = ()

    @property
    def at_s(self) -> float:
        """When, in virtual seconds."""
        return to_seconds(self.tick)

    def get(self, name: str, default: Any = None) -> Any:
        """One of its figures."""
        return dict(self.more).get(name, default)

    def __str__(self) -> str:
        figures = "".join(f" {name}={_shown(value)}" for name, value in self.more)
        about = "" if self.about is None else f" {self.about}"
        return f"{self.at_s:10.3f} {self.what}{about}{figures}"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class Journal:
    """The entries of a run, in the order in which they happened.

    Engines and trainer write what they do; the code under test, or its adapter, what becomes of its
    units of work: ``dispatched``, ``trained``, ``evicted``, ``failed``, each about one unit.

    let_go: of units whose answer nobody has any more: how many entries there were then, when, and
    the line that let go of it.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.entries: list[Entry] = []
        self.let_go: dict[Any, tuple[int, float, str]] = {}
        self._watched: dict[Any, weakref.ref[Any]] = {}

    def add(self, what: str, about: Any = None, **more: Any) -> None:
        """Writes an entry at the present instant."""
        self.entries.append(Entry(self._now(), what, about, tuple(more.items())))

    def dispatched(self, unit: Any, version: int | None = None) -> None:
        """A unit of work was begun, under weights of this version."""
        self.add("dispatched", unit, **({} if version is None else {"version": version}))

    def trained(self, unit: Any, step: int, version: int | None = None) -> None:
        """A unit was trained on in this step; version: of its oldest token, or its dispatch's."""
        self._watched.pop(unit, None)
        self.add("trained", unit, step=step, **({} if version is None else {"version": version}))

    def evicted(self, unit: Any, why: str = "", **more: Any) -> None:
        """A unit was given up on purpose; more: figures of it."""
        self._watched.pop(unit, None)
        self.add("evicted", unit, **({"why": why} if why else {}), **more)

    def failed(self, unit: Any, why: str = "") -> None:
        """A unit failed, and its owner knows."""
        self.add("failed", unit, **({"why": why} if why else {}))

    def watch(self, answer: Any, unit: Any) -> None:
        """Notes when nobody has ``answer``, that of a unit, any more."""

        def gone(_: Any) -> None:
            if self._watched.pop(unit, None) is not None:
                self.let_go[unit] = len(self.entries), to_seconds(self._now()), caller()

        self._watched[unit] = weakref.ref(answer, gone)

    def close(self) -> None:
        """Nothing that is let go of from now on is noted."""
        self._watched.clear()

    def of(self, *what: str) -> Iterator[Entry]:
        """The entries of these words."""
        return (entry for entry in self.entries if entry.what in what)

    def text(self, *what: str) -> str:
        """The entries, or those of these words, a line each: to be kept and reviewed."""
        chosen = self.of(*what) if what else iter(self.entries)
        return "".join(f"{entry}\n" for entry in chosen)


WRITE = "ROLLCAST_WRITE_GOLDEN"


def golden(journal: Journal, path: str | Path, *what: str) -> None:
    """The journal's entries, or those of these words, are those in the file. With the environment
    variable ROLLCAST_WRITE_GOLDEN set, or without the file, writes it."""
    path, text = Path(path), journal.text(*what)
    if os.environ.get(WRITE) or not path.exists():
        write_text(path, text)
        return
    kept = path.read_text("utf-8")
    if kept != text:
        lines = difflib.unified_diff(
            kept.splitlines(), text.splitlines(), str(path), "this run", lineterm="", n=2
        )
        changed = "\n".join(list(lines)[:40])
        raise AssertionError(f"the timeline is another one; set {WRITE}=1 to keep it:\n{changed}")
