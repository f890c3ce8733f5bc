"""How well a fit of a log's first two thirds forecasts the rest of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibration.imported import model as fits
from calibration.imported import responses as own_rollouts
from calibration.imported.batches import Batch
from calibration.imported.model import Drift, Fit
from calibration.imported.steps import LEAST_STEPS, Steps
from calibration.logs.draft import Part
from calibration.logs.run_log import RunLog
from calibration.robust import FloatArray
from simulator.costs.scaled import PHASES
from simulator.studies.bootstrap import block_rows
from simulator.studies.interval import LEVEL, ends

Mode = Literal["predict", "replay"]
_MOST_DRAWN = 150_000  # rollouts
_FEWEST, _MOST = 2, 40  # draws of lengths
_NOISE = 20  # draws of factors and moods for each
_HELD = 1 / 3


@dataclass(frozen=True)
class Judged:
    """A forecast of held-out steps. Arrays have shape (steps,).

    mode: with lengths drawn from the fit, or those that the steps had. number: of the steps.
    forecast_s: the median of each step's draws; total_s: that of the draws of the run time, which
    is more than their sum where a few long steps are to be expected.
    """

    mode: Mode
    number: NDArray[np.int64]
    measured_s: FloatArray
    forecast_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    total_s: float
    total_low_s: float
    total_high_s: float
    fitted_on: int

    @property
    def median_error(self) -> float:
        """Median over the steps of the error of the forecast, relative, without sign."""
        return float(np.median(np.abs(self.forecast_s / self.measured_s - 1)))

    @property
    def total_error(self) -> float:
        """Of the run time, relative, with its sign: above 0 the forecast is too long."""
        return float(self.total_s / self.measured_s.sum() - 1)

    @property
    def covered(self) -> float:
        """Share of the steps inside their 90 % interval."""
        return float(np.mean((self.measured_s >= self.low_s) & (self.measured_s <= self.high_s)))

    @property
    def total_covered(self) -> bool:
        """Whether the run time lies inside its 90 % interval."""
        return self.total_low_s <= float(self.measured_s.sum()) <= self.total_high_s


def split(steps: Steps) -> tuple[Steps, Steps] | None:
    """The first two thirds and the rest; None where either has too few steps."""
    at = round(len(steps) * (1 - _HELD))
    first, rest = steps.rows(0, at), steps.rows(at, len(steps))
    if first.quiet.sum() < LEAST_STEPS or np.isfinite(rest.whole_s).sum() < 1:
        return None
    return first, rest


def hold_out(
    log: RunLog,
    steps: Steps,
    parts: tuple[Part, ...],
    rollouts: own_rollouts.Rollouts | None,
    drift: Drift,
) -> tuple[Judged, ...]:
    """Forecasts of the last third from the first two: predicted, and replayed where each rollout's
    length is known. None where there are too few steps, or nothing prices them. Raises
    ScenarioError as `calibration.imported.model.fit` does."""
    halves = split(steps)
    if halves is None:
        return ()
    first, rest = halves
    known = fits.fit(log, first, parts, rollouts, graded_too=False)
    if known.shape == "none" or (known.few is None and known.rollouts is None):
        return ()
    judged = rest.rows(0, len(rest))
    keep = np.flatnonzero(np.isfinite(judged.whole_s) & ~(judged.column("first") == 1))
    if not len(keep):
        return ()
    found = [_judge(known, judged, keep, drift, None)]
    if rollouts is not None:
        own = own_rollouts.batches_of(rollouts, judged, known.counts.prompt_tokens)
        if all(own[i] is not None for i in keep):
            found.append(_judge(known, judged, keep, drift, own))
    return tuple(found)


def _judge(
    known: Fit,
    steps: Steps,
    keep: NDArray[np.int64],
    drift: Drift,
    own: list[Batch | None] | None,
) -> Judged:
    draws = forecast(
        known,
        [int(i) + 1 for i in keep],
        drift,
        None if own is None else [b for i in keep if (b := own[i]) is not None],
    )
    return judged_by(draws, "predict" if own is None else "replay", steps, keep, known.steps)


def judged_by(
    draws: FloatArray, mode: Mode, steps: Steps, keep: NDArray[np.int64], fitted_on: int
) -> Judged:
    """Draws of the steps at places ``keep``, shape (draws, steps), against what they took."""
    low, high = ends(draws, LEVEL)
    total_low, total_high = ends(draws.sum(axis=1), LEVEL).tolist()
    return Judged(
        mode,
        steps.number[keep],
        steps.whole_s[keep],
        np.median(draws, axis=0),
        low,
        high,
        float(np.median(draws.sum(axis=1))),
        total_low,
        total_high,
        fitted_on,
    )


def forecast(
    known: Fit, ahead: list[int], drift: Drift, own: list[Batch] | None = None, seed: int = 0
) -> FloatArray:
    """Seconds of the steps so many after the last that was fitted, shape (draws, steps): lengths,
    levels of the costs, and moods of the machine drawn. own: their batches, where known."""
    rng = np.random.default_rng(seed)
    scenario = known.scenario
    each = known.counts.batch_groups * known.counts.group_size
    count = min(max(_MOST_DRAWN // max(each * len(ahead), 1), _FEWEST), _MOST)
    count = 1 if own is not None else count
    found = []
    for number in range(count):
        batches = own or known.batches_ahead(ahead, drift, rng, sampled=number > 0)
        phases = fits.phases(scenario, batches)
        noise = _NOISE if own is None else _NOISE * 5
        moods = _moods(known.ratios, len(ahead), noise, rng)
        for row in moods:
            factors = {
                phase: float(np.exp(known.levels.spreads.get(phase, 0.0) * rng.standard_normal()))
                for phase in PHASES if phase in known.levels.seen
            }  # fmt: skip
            level = np.exp(known.speed.shift + known.speed.drawn(ahead, rng))
            found.append(phases.total(factors) * level * row)
    return np.array(found)


def _moods(ratios: FloatArray, steps: int, draws: int, rng: np.random.Generator) -> FloatArray:
    """Measured over forecast of stretches of fitted steps, about their median; (draws, steps)."""
    if len(ratios) < 2:
        return np.ones((draws, steps))
    centred = ratios / np.median(ratios)
    return np.asarray(centred[block_rows(len(centred), steps, draws, rng)])
