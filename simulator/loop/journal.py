"""What a run has gained since the last look, so that saving it does not mean to write all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simulator.loop.plain import from_plain, to_plain
from simulator.spans import PhaseSpan, Run, StepRecord

_LISTS: Mapping[str, Any] = {
    "phases": list[PhaseSpan],
    "steps": list[StepRecord],
    "decisions": list[dict[str, Any]],
    "warnings": list[str],
}


class Growth:
    """Watches lists of an object, ``hints`` by name, that only grow."""

    def __init__(self, owner: Any, hints: Mapping[str, Any]) -> None:
        self._owner, self._hints = owner, hints
        self._seen = {name: len(getattr(owner, name)) for name in hints}

    def added(self) -> dict[str, Any]:
        """What they gained since the last look, as plain data."""
        found = {}
        for name, seen in self._seen.items():
            entries = getattr(self._owner, name)
            found[name] = to_plain(entries[seen:])
            self._seen[name] = len(entries)
        return found


def extend(owner: Any, hints: Mapping[str, Any], added: Mapping[str, Any]) -> None:
    """Adds what `Growth.added` returned to the lists of ``owner``. Raises ValueError for anything
    else."""
    for name, hint in hints.items():
        getattr(owner, name).extend(from_plain(added.get(name), hint, name))


class Journal:
    """Watches a run between two steps. Its tables only grow, but for what became of the tokens of
    earlier stays; ``run`` is as it was when it was last saved."""

    def __init__(self, run: Run) -> None:
        self._run, self._lists = run, Growth(run, _LISTS)
        self._fates, self._trained = run.stays["fate"], run.stays["trained_step"]
        self._calls = len(run.calls)

    def added(self) -> dict[str, Any]:
        """What came since the last look, as plain data; `replay` adds it to another run."""
        stays = self._run.stays
        known = len(self._fates)
        fates, trained = stays["fate"], stays["trained_step"]
        settled = (fates[:known] != self._fates) | (trained[:known] != self._trained)
        rows = np.flatnonzero(settled)
        self._fates, self._trained = fates, trained
        calls, self._calls = self._run.calls.rows(self._calls), len(self._run.calls)
        return {
            **self._lists.added(),
            "stays": [list(row) for row in stays.rows(known)],
            "calls": [list(row) for row in calls],
            "settled": np.stack([rows, fates[rows], trained[rows]], axis=1).tolist(),
        }


def replay(run: Run, added: Mapping[str, Any]) -> None:
    """Adds what `Journal.added` returned. Raises ValueError for anything else."""
    extend(run, _LISTS, added)
    run.stays.extend(from_plain(added.get("stays"), list[list[Any]], "stays"))
    run.calls.extend(from_plain(added.get("calls"), list[list[Any]], "calls"))
    for row, fate, step in from_plain(added.get("settled"), list[tuple[int, int, int]], "settled"):
        run.stays.set_fate(row, fate, step)
