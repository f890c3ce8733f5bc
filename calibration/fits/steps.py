"""The steps of a log that fits and forecasts count, and where a run changed on its way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.fits.robust import FloatArray, spread
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.results.phases import OF_COLUMN

if TYPE_CHECKING:
    import pandas as pd

Flags = NDArray[np.bool_]
_SECONDS = ("step_s", "engine_s", *OF_COLUMN, "validation_s", "checkpoint_s")
LEAST_STEPS = 3
"""Fewer steps than this, warm-up not counted, are not fitted."""
LEAST_PART = 6
"""Steps of a part of a run that is told from the rest."""
_OTHER_SIZE, _OTHER_SPEED = 0.15, 0.3  # log ratios
_OTHER_LENGTHS = 1.0  # log ratio of medians, more than half of it in one step
_QUIET = 4.0  # times the noise of the medians on both sides


@dataclass(frozen=True)
class Steps:
    """Steps of one run, each with the updates on its rollouts. Arrays have shape (steps,), NaN
    where the log has nothing.

    number: the run's own. whole_s: of the step with what the stack leaves out of its time, but
    without validation and checkpoint. quiet: steps that fits may use: no warm-up, no validation or
    checkpoint within. table: all columns, one row a step.
    """

    number: NDArray[np.int64]
    whole_s: FloatArray
    quiet: Flags
    table: pd.DataFrame

    def __len__(self) -> int:
        return len(self.number)

    def column(self, name: str) -> FloatArray:
        """A column of ``steps.csv``."""
        return np.asarray(self.table[name].to_numpy(), dtype=float)

    def median(self, name: str) -> float:
        """Of a column over the quiet steps that have it; NaN where none has."""
        column = self.column(name)
        kept = column[self.quiet & np.isfinite(column)]
        return float(np.median(kept)) if len(kept) else float("nan")

    @property
    def median_s(self) -> float:
        """Of the quiet steps; NaN where none is timed."""
        kept = self.whole_s[self.quiet & np.isfinite(self.whole_s)]
        return float(np.median(kept)) if len(kept) else float("nan")

    def has(self, name: str) -> bool:
        """Whether most quiet steps have a column."""
        finite = np.isfinite(self.column(name)[self.quiet])
        return bool(len(finite)) and bool(finite.mean() > 0.5)

    def rows(self, start: int, end: int) -> Steps:
        """Those from place ``start`` to before ``end``."""
        part = slice(start, end)
        return Steps(self.number[part], self.whole_s[part], self.quiet[part], self.table.iloc[part])


@dataclass(frozen=True, slots=True)
class Change:
    """Where a run changed: place of the first step of the new part, and what is different."""

    place: int
    step: int
    what: str


def steps_of(log: RunLog) -> Steps:
    """The steps of a log; an update on rollouts of an earlier one belongs to that one's step."""
    table = _with_updates(log.steps)
    seconds = table["step_s"].to_numpy(dtype=float)
    busy = np.zeros(len(table), dtype=bool)
    for phase in ("validation", "checkpoint"):
        inside = (table[f"{phase}_inside"] == 1).to_numpy()
        taken = np.where(inside, np.nan_to_num(_column(table, f"{phase}_s")), 0.0)
        seconds = seconds - taken
        busy |= taken > 0
    for name in sorted(log.outside & {"sync_s", "switch_s"}):
        seconds = seconds + np.nan_to_num(_column(table, name))
    first = (table["first"] == 1).to_numpy()
    quiet = ~first & ~busy & (~(seconds <= 0))
    if quiet.sum() < LEAST_STEPS:
        quiet = ~first & ~(seconds <= 0)
    return Steps(
        table["step"].to_numpy(dtype=np.int64), np.where(seconds > 0, seconds, np.nan), quiet, table
    )


def _column(table: pd.DataFrame, name: str) -> FloatArray:
    return np.asarray(table[name].to_numpy(), dtype=float)


def _with_updates(table: pd.DataFrame) -> pd.DataFrame:
    """One row a generation: seconds of further updates on its rollouts are added to its own."""
    later = (table["generates"] == 0).to_numpy()
    if not later.any() or later.all():
        return table.reset_index(drop=True)
    owner = np.maximum(np.cumsum(~later) - 1, 0)
    updates = table[~later].reset_index(drop=True)
    for name in _SECONDS:
        sums = table[name].groupby(owner).sum(min_count=1)
        updates[name] = sums.reindex(range(len(updates))).to_numpy()
    return updates


def changes(steps: Steps) -> tuple[Change, ...]:
    """Where batch size, cap or speed at equal tokens changes for good."""
    changed = _of_sizes(steps)
    start = changed[-1].place if changed else 0
    changed.extend(_of_speed(steps, start))
    return tuple(sorted(changed, key=lambda change: change.place))


def _of_sizes(steps: Steps) -> list[Change]:
    changed: list[Change] = []
    rollouts = steps.column("rollouts")
    known = np.flatnonzero(np.isfinite(rollouts) & (rollouts > 0))
    for at, before in zip(known[1:], known[:-1], strict=True):
        if abs(np.log(rollouts[at] / rollouts[before])) < _OTHER_SIZE:
            continue
        ahead = rollouts[known[known >= at]][:LEAST_PART]
        behind = rollouts[known[known < at]][-LEAST_PART:]
        steady = all(np.ptp(np.log(sizes)) < _OTHER_SIZE for sizes in (ahead, behind))
        # batches that a filter leaves scatter, one far off the step before among them
        steady &= abs(np.log(np.median(ahead) / np.median(behind))) >= _OTHER_SIZE
        if steady and len(ahead) >= LEAST_STEPS and len(behind) >= LEAST_STEPS:
            what = f"a step trains on {ahead[0]:.0f} rollouts, {behind[-1]:.0f} before"
            changed.append(Change(int(at), int(steps.number[at]), what))
    longest, share = steps.column("max_new_tokens"), steps.column("truncated_share")
    cut = (share > 0) & np.isfinite(longest)
    at_cap = np.flatnonzero(cut)
    for at, before in zip(at_cap[1:], at_cap[:-1], strict=True):
        other = abs(np.log(longest[at] / longest[before])) > _OTHER_SIZE
        ahead, behind = longest[at_cap[at_cap >= at]], longest[at_cap[at_cap < at]]
        if (
            other
            and min(len(ahead), len(behind)) >= LEAST_STEPS
            and (np.ptp(ahead[:LEAST_STEPS]) == np.ptp(behind[-LEAST_STEPS:]) == 0)
        ):
            what = f"responses are cut at {longest[at]:.0f} tokens, at {longest[before]:.0f} before"
            changed.append(Change(int(at), int(steps.number[at]), what))
    return changed


def other_lengths(steps: Steps) -> Change | None:
    """Where responses become several times as long, or as short, from one step to the next for
    good: where a run collapses, or its task changes. The first such place."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(steps.column("mean_new_tokens"))
    known = np.flatnonzero(np.isfinite(logs))
    for place in range(LEAST_PART, len(known) - LEAST_PART + 1):
        behind, ahead = logs[known[place - LEAST_PART : place]], logs[known[place:][:LEAST_PART]]
        jump, shift = ahead[0] - behind[-1], float(np.median(ahead) - np.median(behind))
        if abs(shift) > _OTHER_LENGTHS and 2 * jump / shift > 1:
            at = int(known[place])
            what = f"responses are {math.exp(shift):.2g} times as long as before"
            return Change(at, int(steps.number[at]), what)
    return None


def _of_speed(steps: Steps, start: int) -> list[Change]:
    """One place at most: the largest shift of a step's seconds a token, in either direction."""
    total = steps.column("mean_new_tokens") * np.nan_to_num(steps.column("rollouts"), nan=1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(steps.whole_s)
        tokens = np.log(total)
    rows = np.flatnonzero(steps.quiet & np.isfinite(logs) & np.isfinite(tokens))
    rows = rows[rows >= start]
    if len(rows) < 2 * LEAST_PART:
        return []
    y, x = logs[rows], tokens[rows] - tokens[rows].mean()
    # the part of a step that grows with its tokens is between none and all of it
    slope = min(max(float(x @ y / max(x @ x, 1e-9)), 0.0), 1.0)
    left = y - slope * x
    best, place = 0.0, -1
    for cut in range(LEAST_PART, len(left) - LEAST_PART + 1):
        a, b = left[:cut], left[cut:]
        shift = abs(float(np.median(a) - np.median(b)))
        noise = max(spread(a), spread(b), 1e-3) * np.sqrt(1 / len(a) + 1 / len(b))
        if shift > _OTHER_SPEED and shift / noise > max(best, _QUIET):
            best, place = shift / noise, cut
    if place < 0:
        return []
    at = int(rows[place])
    ratio = float(np.exp(np.median(left[place:]) - np.median(left[:place])))
    what = f"steps take {ratio:.2f} times as long as before at equal tokens"
    return [Change(at, int(steps.number[at]), what)]
