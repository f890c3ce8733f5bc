"""What a run's log so far says of where it is: progress, its end, and what has changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.calibration.fits.noise import RandomWalk
from rollcast.calibration.fits.robust import FloatArray, spread
from rollcast.calibration.fits.steps import Steps, steps_of
from rollcast.calibration.logs import columns
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.results.phases import OF_COLUMN, STEP_PHASES
from rollcast.simulator.stacks.settings import whole
from rollcast.simulator.studies.drawn import LEVEL, block_rows, ends

LEAST = 3
"""Steps without which nothing is forecast."""
_DRAWS = 400
_MOST_DRAWN = 2_000
"""Steps ahead that are drawn one by one; of more, the sum is scaled."""
_UNSURE, _WANDERS = 0.3, 0.05
"""Of the level of a run: by how much it may be off after one step (this falls with the root of
their number), and by how much it moves later, however many have been seen. About what the errors at
4 to 90 steps of ten genuine runs of TRL and verl were."""


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds from the last logged step to the run's end: median and 90 % interval."""

    seconds: float
    low: float
    high: float


def left(
    seconds: FloatArray, ahead: float, moved: Sequence[int] = (), seed: int = 0
) -> Left | None:
    """The time of ``ahead`` more steps.

    seconds: of the steps so far, whatever they held, shape (steps,). moved: places at which their
    level moved: what was before each is brought to the level at the end, which is as sure as the
    steps since then are many. None for too few steps.
    """
    if len(seconds) < LEAST:
        return None
    if ahead <= 0:
        return Left(0.0, 0.0, 0.0)
    rng = np.random.default_rng(seed)
    level, last = _levelled(seconds, moved)
    logs = np.log(level)
    walk = RandomWalk.of(logs[-last:] if last < len(logs) else logs)
    rows = max(round(min(ahead, _MOST_DRAWN)), 1)
    # how far the mean of the steps so far is from their true one, and what the next ones do
    levels = level[block_rows(len(level), len(level), _DRAWS, rng)].mean(axis=1)
    coming = level[block_rows(len(level), rows, _DRAWS, rng)].mean(axis=1) - level.mean()
    sure = math.hypot(
        _UNSURE / math.sqrt(last),
        _WANDERS,
        1.25 * spread(logs) / math.sqrt(last) if last < len(logs) else 0.0,
    )
    moves = walk.shift + walk.means(ahead, _DRAWS, rng) + sure * rng.standard_normal(_DRAWS)
    totals = ahead * np.maximum(levels + coming, 0.0) * np.exp(moves)
    low, high = ends(totals, LEVEL).tolist()
    return Left(float(np.median(totals)), low, high)


def _levelled(seconds: FloatArray, moved: Sequence[int]) -> tuple[FloatArray, int]:
    """All steps at the level of the last part, and the number of steps of that."""
    cuts = sorted({place for place in moved if 0 < place <= len(seconds) - LEAST})
    parts = np.split(seconds, cuts)
    level = float(np.median(parts[-1]))
    levelled = np.concatenate([part * (level / float(np.median(part))) for part in parts])
    return levelled, len(parts[-1])


ALPHA = 0.05
"""Chance of a false alarm in a run, over all of its series and steps."""
BEFORE, AFTER = 8, 3
"""Steps of the old level and of the new one, at least."""
WINDOW = 40
_MOST = 150
_LEAST_NOISE = 0.01
_MOST_ALIKE = 0.9


@dataclass(frozen=True, slots=True)
class Shift:
    """place, noticed: values at which it began and was seen. ratio: new level over old."""

    place: int
    noticed: int
    ratio: float


def shifts(
    logs: FloatArray,
    covariates: FloatArray,
    least_ratio: float,
    series: int = 1,
    noise: float = _LEAST_NOISE,
) -> list[Shift]:
    """The shifts of a series, in order; after each, the test begins anew with the new level.

    logs: shape (steps,), finite. covariates: shape (steps, k), finite. least_ratio: smaller shifts
    are of no interest. series: tested beside each other, which share `ALPHA`. noise: least standard
    deviation, such as that of a clock that ticks.
    """
    shifted: list[Shift] = []
    start = 0
    for end in range(BEFORE + AFTER, len(logs) + 1):
        rows = slice(max(start, end - _MOST), end)
        if rows.stop - rows.start < BEFORE + AFTER:
            continue
        spent = end - BEFORE - AFTER + 1
        alpha = ALPHA / series / (spent * (spent + 1))
        shift = _last(logs[rows], covariates[rows], math.log(least_ratio), alpha, noise)
        if shift is not None:
            place, level = shift
            start = rows.start + place
            shifted.append(Shift(start, end - 1, math.exp(level)))
    return shifted


def _last(
    y: FloatArray, covariates: FloatArray, least: float, alpha: float, noise: float
) -> tuple[int, float] | None:
    """Place and size of a shift among the last rows; None where there is none."""
    from scipy.special import stdtr

    count = len(y)
    moving = covariates[:, np.ptp(covariates, axis=0) > 1e-9]
    terms, _ = np.linalg.qr(np.column_stack([np.ones(count), moving - moving.mean(axis=0)]))
    places = np.arange(max(BEFORE, count - WINDOW), count)
    free = count - terms.shape[1] - 1
    if free < 3 or not len(places):
        return None
    steps = (np.arange(count)[:, None] >= places).astype(float)
    left_y = y - terms @ (terms.T @ y)
    left_steps = steps - terms @ (terms.T @ steps)
    squares = (left_steps**2).sum(axis=0)
    squares = np.where(squares > 0.05, squares, np.nan)  # else the covariates tell as much
    sizes = left_steps.T @ left_y / squares
    rest = np.maximum(left_y @ left_y - sizes**2 * squares, 0.0)
    deviation = np.maximum(np.sqrt(rest / free), noise)
    values = np.abs(sizes) * np.sqrt(squares) / deviation
    if np.isnan(values).all():
        return None
    best = int(np.nanargmax(values))
    place, size = int(places[best]), float(sizes[best])
    if abs(size) < least or place > count - AFTER:  # too small, or too new to be told
        return None
    errors = left_y - size * left_steps[:, best]
    alike = _alike(errors)
    value = float(values[best]) * math.sqrt((1 - alike) / (1 + alike))
    if 2 * stdtr(free, -value) * len(places) > alpha:
        return None
    return place, size


def _alike(errors: FloatArray) -> float:
    """First-order autocorrelation, with what is lost to few values added (Kendall 1954), and a
    standard error more (Bartlett 1946): noise that is more alike than it looks raises alarms."""
    total = float(errors @ errors)
    if total <= 0:
        return 0.0
    correlation = float(errors[1:] @ errors[:-1]) / total
    correlation += (1 + 3 * correlation) / len(errors)
    correlation += math.sqrt(max(1 - correlation * correlation, 0.0) / len(errors))
    return min(max(correlation, 0.0), _MOST_ALIKE)


MOST_STEPS = 2_000
"""Of a longer run, the last ones are looked at."""
SLOWER, LONGER = 1.1, 1.15
"""Of a phase and of responses, the least change that is told."""
_LEAST_SHARE = 0.02
"""Of a step, that a phase takes at least to be looked at."""
_TOLD = 0.8
"""Share of the steps that have to have a column."""
_LATE = 3.0
"""Times the longest step so far, without a new one, that are told."""
_ALONE = ("sync_s", "switch_s")
"""Phases that do not depend on lengths."""
_WORDS = {
    **{column: STEP_PHASES[phase].words for column, phase in OF_COLUMN.items()},
    "critic_update_s": "the critic's update",
    "advantage_s": "advantages",
    "data_s": "preparing batches",
    "step_s": "a step",
}


@dataclass(frozen=True, slots=True)
class Warned:
    """A column that left its forecast. key: the stack's own name of it. ratio: of its level since
    ``since`` to the one before, at equal tokens where it is a time. noticed: at which step."""

    column: str
    key: str
    meaning: str
    ratio: float
    since: int
    noticed: int

    @property
    def text(self) -> str:
        """In a sentence."""
        named = self.meaning if self.key == self.column else f"{self.meaning} ({self.key})"
        if self.column == "mean_new_tokens":
            return (
                f"responses ({self.key}) are {self.ratio:.2f} times as long since step "
                f"{self.since}, noticed at step {self.noticed}"
            )
        equal = "" if self.column in _ALONE else " at equal tokens"
        return (
            f"{named} takes {self.ratio:.2f} times as long{equal} since step {self.since}, "
            f"noticed at step {self.noticed}"
        )


@dataclass(frozen=True, slots=True)
class State:
    """done: updates so far, of ``planned`` (None where nobody says). step: the last one's own
    number. step_s: of the median step at the present level; longest_s: of the longest. seen_s: when
    the last step was logged, since the epoch (None where the log does not say). left: from there to
    the end. paced: whether steps are timed by when they were logged, with all that lies between."""

    stack: str
    done: int
    planned: int | None
    step: int
    step_s: float
    longest_s: float
    seen_s: float | None
    left: Left | None
    paced: bool
    warnings: tuple[Warned, ...]
    unread: int

    @property
    def finished(self) -> bool:
        """Whether the last planned step is logged."""
        return self.planned is not None and self.done >= self.planned


def state(log: RunLog, planned: int | None = None) -> State:
    """Of a log so far. planned: updates of the whole run, where the settings do not say."""
    steps = steps_of(log)
    steps = steps.rows(max(len(steps) - MOST_STEPS, 0), len(steps))
    numbers = log.steps["step"].to_numpy(dtype=np.int64)
    last = int(numbers[-1])
    done = last + (1 if int(numbers[0]) == 0 else 0)
    planned = planned or whole(log.settings, "run.steps")
    warned = _warnings(log, steps)
    seconds, paced, kept = _seconds(steps)
    moved = _moved(warned, steps.number[kept])
    span = float(np.median(np.diff(steps.number))) if len(steps) > 1 else 1.0
    still = None
    if planned is not None:
        still = left(seconds, (planned - done) / max(span, 1.0), moved)
    logged = steps.column("logged_s")
    recent = seconds[moved[-1] :] if moved else seconds
    return State(
        log.stack,
        done,
        planned,
        last,
        float(np.median(recent)) if len(recent) else math.nan,
        float(np.max(seconds)) if len(seconds) else math.nan,
        float(logged[-1]) if len(logged) and math.isfinite(logged[-1]) else None,
        still,
        paced,
        warned,
        log.unread,
    )


def late(seen: State, waited_s: float) -> str | None:
    """What to say when no step came for so many seconds; None while that is nothing unusual."""
    if not waited_s > _LATE * seen.longest_s:
        return None
    return f"no step for {waited_s:.0f} s; the longest so far took {seen.longest_s:.0f} s"


def _seconds(steps: Steps) -> tuple[FloatArray, bool, np.ndarray]:
    """Seconds of each row without warm-up, whether by the clock, and the rows' numbers."""
    warm = steps.column("first") == 1
    logged = steps.column("logged_s")
    between = np.diff(logged, prepend=np.nan)
    known = np.isfinite(between) & (between > 0) & ~warm
    if known.sum() >= max(_TOLD * (~warm).sum(), LEAST):
        return between[known], True, np.flatnonzero(known)
    rows = np.nan_to_num(steps.column("logged_steps"), nan=1.0).clip(1)
    seconds = steps.whole_s * rows
    for name in ("validation_s", "checkpoint_s"):
        seconds = seconds + np.nan_to_num(steps.column(name))
    known = np.isfinite(seconds) & (seconds > 0) & ~warm
    return seconds[known], False, np.flatnonzero(known)


def _moved(warned: tuple[Warned, ...], numbers: np.ndarray) -> list[int]:
    """Places in the seconds at which a change was."""
    return sorted({int(np.searchsorted(numbers, warning.since)) for warning in warned})


def _warnings(log: RunLog, steps: Steps) -> tuple[Warned, ...]:
    table = _series(log, steps)
    warnings = []
    for name, (rows, logs, covariates, noise) in table.items():
        least = LONGER if name == "mean_new_tokens" else SLOWER
        for shift in shifts(logs, covariates, least, len(table), noise):
            number = steps.number[rows]
            warnings.append(
                Warned(
                    name,
                    log.words.get(name, name),
                    _WORDS.get(name, name),
                    shift.ratio,
                    int(number[shift.place]),
                    int(number[shift.noticed]),
                )
            )
    return tuple(sorted(warnings, key=lambda warning: (warning.noticed, warning.since)))


_Series = tuple[np.ndarray, FloatArray, FloatArray, float]


def _series(log: RunLog, steps: Steps) -> Mapping[str, _Series]:
    """Rows, logs, covariates and least noise of each column that is looked at."""
    quiet = steps.quiet & ~(steps.column("first") == 1)
    whole_s = float(np.nanmedian(steps.whole_s[quiet])) if quiet.any() else math.nan
    timed = [name for name in columns.PHASES if name not in ("wait_s", "generation_s")]
    generation = (
        "generation_s" if not log.overlapped and _told(steps, quiet, "generation_s") else "step_s"
    )
    series: dict[str, _Series] = {}
    for name in ("mean_new_tokens", generation, *timed):
        values = steps.whole_s if name == "step_s" else steps.column(name)
        known = quiet & np.isfinite(values) & (values > 0)
        if known.sum() < max(_TOLD * quiet.sum(), BEFORE):
            continue
        middle = float(np.median(values[known]))
        if name != "mean_new_tokens" and middle < _LEAST_SHARE * whole_s:
            continue
        covariates = _tokens(steps) if name not in ("mean_new_tokens", *_ALONE) else []
        usable = [covariate for covariate in covariates if np.isfinite(covariate[known]).all()]
        beside = np.column_stack(usable)[known] if usable else np.zeros((int(known.sum()), 0))
        noise = 0.01
        if name == "generation_s":
            poll_s = steps.median("poll_s")
            noise = max(noise, poll_s / math.sqrt(12) / middle) if poll_s > 0 else noise
        series[name] = (np.flatnonzero(known), np.log(values[known]), beside, noise)
    return series


def _told(steps: Steps, quiet: np.ndarray, name: str) -> bool:
    values = steps.column(name)[quiet]
    return bool(len(values)) and bool(np.mean(values > 0) >= _TOLD)


def _tokens(steps: Steps) -> list[FloatArray]:
    """What a phase's time follows: all tokens of a step, and its longest response; logs."""
    with np.errstate(invalid="ignore", divide="ignore"):
        counts = np.nan_to_num(steps.column("rollouts"), nan=1.0)
        total = np.log(steps.column("mean_new_tokens") * counts)
        longest = np.log(steps.column("max_new_tokens"))
    return [total, longest]
