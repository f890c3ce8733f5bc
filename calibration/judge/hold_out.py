"""How well a fit of a log's first two thirds forecasts the rest of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.fits import log_responses as own_rollouts
from rollcast.calibration.fits import model as fits
from rollcast.calibration.fits.batches import Batch
from rollcast.calibration.fits.model import Drift, Fit
from rollcast.calibration.fits.noise import stretches
from rollcast.calibration.fits.robust import FloatArray
from rollcast.calibration.fits.steps import LEAST_STEPS, Steps
from rollcast.calibration.judge.compared import Compared
from rollcast.calibration.logs.draft import Part
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.costs.scaled import PHASES

Mode = Literal["predict", "replay"]
_MOST_DRAWN = 150_000  # rollouts
_FEWEST, _MOST = 2, 40  # draws of lengths
_NOISE = 20  # draws of factors and of noise for each
_HELD = 1 / 3


@dataclass(frozen=True)
class Judged(Compared):
    """A forecast of held-out steps against what they took.

    mode: with lengths drawn from the fit, or those that the steps had. number: of the steps.
    fitted_on: how many earlier steps.
    """

    mode: Mode
    number: NDArray[np.int64]
    fitted_on: int


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
    ScenarioError as `calibration.fits.model.fit` does."""
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
    judgements = [_judge(known, judged, keep, drift, None)]
    if rollouts is not None:
        measured = own_rollouts.batches_of(rollouts, judged, known.counts.prompt_tokens)
        if all(measured[i] is not None for i in keep):
            judgements.append(_judge(known, judged, keep, drift, measured))
    return tuple(judgements)


def _judge(
    known: Fit,
    steps: Steps,
    keep: NDArray[np.int64],
    drift: Drift,
    measured: list[Batch | None] | None,
) -> Judged:
    draws = forecast(
        known,
        [int(i) + 1 for i in keep],
        drift,
        None if measured is None else [b for i in keep if (b := measured[i]) is not None],
    )
    return judged_by(draws, "predict" if measured is None else "replay", steps, keep, known.steps)


def judged_by(
    draws: FloatArray, mode: Mode, steps: Steps, keep: NDArray[np.int64], fitted_on: int
) -> Judged:
    """Draws of the steps at places ``keep``, shape (draws, steps), against what they took."""
    compared = Compared.of(steps.whole_s[keep], draws)
    return Judged(**vars(compared), mode=mode, number=steps.number[keep], fitted_on=fitted_on)


def forecast(
    known: Fit, ahead: list[int], drift: Drift, measured: list[Batch] | None = None, seed: int = 0
) -> FloatArray:
    """Seconds of the steps so many after the last that was fitted, shape (draws, steps): lengths,
    levels of the costs, and the machine's noise drawn. own: their batches, where known."""
    rng = np.random.default_rng(seed)
    scenario = known.scenario
    rollouts = known.counts.batch_groups * known.counts.group_size
    count = min(max(_MOST_DRAWN // max(rollouts * len(ahead), 1), _FEWEST), _MOST)
    count = 1 if measured is not None else count
    forecasts = []
    for number in range(count):
        batches = measured or known.batches_ahead(ahead, drift, rng, sampled=number > 0)
        phases = fits.phases(scenario, batches)
        noise = _NOISE if measured is None else _NOISE * 5
        for row in _noise(known.ratios, len(ahead), noise, rng):
            factors = {
                phase: float(np.exp(known.levels.spreads.get(phase, 0.0) * rng.standard_normal()))
                for phase in PHASES
                if phase in known.levels.seen
            }
            level = np.exp(known.speed.shift + known.speed.drawn(ahead, rng))
            forecasts.append(phases.total(factors) * level * row)
    return np.array(forecasts)


def _noise(ratios: FloatArray, steps: int, draws: int, rng: np.random.Generator) -> FloatArray:
    """Measured over forecast of stretches of fitted steps, about their median; (draws, steps)."""
    if len(ratios) < 2:
        return np.ones((draws, steps))
    return stretches(ratios / np.median(ratios), steps, draws, rng)
