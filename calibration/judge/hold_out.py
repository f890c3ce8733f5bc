"""How well a fit of a log's first two thirds forecasts the rest of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.fits import log_responses
from rollcast.calibration.fits import model as fits
from rollcast.calibration.fits.batches import Batch
from rollcast.calibration.fits.log_costs import phases
from rollcast.calibration.fits.model import Drift, Fit
from rollcast.calibration.fits.noise import RandomWalk, stretches
from rollcast.calibration.fits.phases import OPENING
from rollcast.calibration.fits.robust import FloatArray
from rollcast.calibration.fits.step_lengths import Spread
from rollcast.calibration.fits.steps import LEAST_STEPS, Steps
from rollcast.calibration.judge.compared import Compared
from rollcast.calibration.judge.pace import with_pace
from rollcast.calibration.judge.small_runs import SmallRun
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.costs.scaled import PHASES
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.launches.parts import Part
from rollcast.simulator.studies.drawn import LEVEL, ends
from rollcast.simulator.values.chance import Drawn

Mode = Literal["predict", "replay"]
_MOST_DRAWN = 150_000  # rollouts
_FEWEST, _MOST = 2, 40  # draws of lengths
_NOISE = 20  # draws of factors and of noise for each
_RUNS, _MOST_SIMULATED = 10, 12  # simulated runs, and steps of each
_HELD = 1 / 3


@dataclass(frozen=True)
class Judged(Compared):
    """A forecast of held-out steps against what they took.

    mode: with lengths drawn from the fit, or those that the steps had. number: of the steps.
    fitted_on: how many earlier steps. given_error: of the run time had the mean and longest
    response of each step been known, relative; NaN where that is not forecast.
    """

    mode: Mode
    number: NDArray[np.int64]
    fitted_on: int
    given_error: float = float("nan")


def split(steps: Steps) -> tuple[Steps, Steps] | None:
    """The first two thirds and the rest; None where either has too few steps, or all took the same
    time, which only the mean of a whole run does."""
    at = round(len(steps) * (1 - _HELD))
    first, rest = steps.rows(0, at), steps.rows(at, len(steps))
    if first.quiet.sum() < LEAST_STEPS or np.isfinite(rest.whole_s).sum() < 1:
        return None
    if len(np.unique(steps.whole_s)) == 1:
        return None
    return first, rest


def hold_out(
    log: RunLog,
    steps: Steps,
    parts: tuple[Part, ...],
    rollouts: log_responses.Rollouts | None,
    drift: Drift,
    simulated: bool,
) -> tuple[Judged, ...]:
    """Forecasts of the last third from the first two: predicted, and replayed where each rollout's
    length is known. None where there are too few steps, or nothing prices them.

    simulated: by runs under the log's policy, whose steps are not one phase after another. Raises
    ScenarioError as `calibration.fits.model.fit` does.
    """
    halves = split(steps)
    if halves is None:
        return ()
    first, rest = halves
    known = fits.fit(log, first, parts, rollouts, graded_too=False)
    if simulated:
        known = with_pace(known, first, drift)
    return held(known, first, rest, rollouts, drift, simulated)


def held(
    known: Fit,
    first: Steps,
    rest: Steps,
    rollouts: log_responses.Rollouts | None,
    drift: Drift,
    simulated: bool,
) -> tuple[Judged, ...]:
    """Forecasts of the steps that follow those that were fitted, as in `hold_out`."""
    keep = np.flatnonzero(np.isfinite(rest.whole_s) & ~(rest.column("first") == 1))
    if not known.forecasts or not len(keep):
        return ()

    def judged(draw: Callable[[Drift], FloatArray], mode: Mode) -> Judged:
        or_else = [draw(other) for other in other_courses(known, drift)]
        compared = Compared.of(rest.whole_s[keep], draw(drift), or_else=or_else)
        return Judged(**vars(compared), mode=mode, number=rest.number[keep], fitted_on=known.steps)

    ahead = (keep + 1).tolist()
    if simulated:
        try:
            return (judged(lambda going: _of_runs(known, first, ahead, going), "predict"),)
        except (ScenarioError, RunError):
            return ()
    predicted = judged(lambda going: forecast(known, ahead, going), "predict")
    spread = Spread.assumed() if known.few is None else known.few.spread
    figured = fits.batches_of(rest, None, known.counts, spread)
    likely = [batch for i in keep if (batch := figured[i]) is not None]
    if len(likely) == len(keep):
        total_s = float(np.median(forecast(known, ahead, "freeze", likely).sum(axis=1)))
        predicted = replace(predicted, given_error=total_s / float(predicted.measured_s.sum()) - 1)
    judgements = [predicted]
    if rollouts is not None:
        batches = log_responses.batches_of(rollouts, rest, known.counts.prompt_tokens)
        own = [batch for i in keep if (batch := batches[i]) is not None]
        if len(own) == len(keep):
            judgements.append(judged(lambda _: forecast(known, ahead, "freeze", own), "replay"))
    return tuple(judgements)


def other_courses(known: Fit, drift: Drift) -> tuple[Drift, ...]:
    """Where lengths still change and nobody says how they go on: that they stay from here on, or
    go on as over the whole log. Intervals hold these too."""
    return ("freeze", "extrapolate") if drift == "auto" and known.followed(drift) else ()


def _of_runs(known: Fit, first: Steps, ahead: list[int], drift: Drift) -> FloatArray:
    """Seconds of the steps ahead in simulated runs, shape (draws, steps)."""
    length = min(len(ahead), _MOST_SIMULATED)
    run = SmallRun.of(known, (), known.cost, drift)
    times = [run.steps_s(draw, length) for draw in range(1, _RUNS + 1)]
    rng = np.random.default_rng(0)
    speed = RandomWalk.of(np.log(first.whole_s[first.quiet]))
    return np.array(
        [
            rng.choice(row, size=len(ahead)) * np.exp(speed.shift + speed.drawn(ahead, rng))
            for row in times
            for _ in range(_NOISE)
        ]
    )


def forecast(
    known: Fit,
    ahead: list[int],
    drift: Drift,
    measured: Sequence[Batch] | None = None,
    seed: int = 0,
) -> FloatArray:
    """Seconds of the steps so many after the last that was fitted, shape (draws, steps): lengths,
    levels of the costs, and the machine's noise drawn. measured: their batches, where known."""
    rng, opened = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    scenario = known.scenario
    rollouts = known.counts.batch_groups * known.counts.group_size
    count = min(max(_MOST_DRAWN // max(rollouts * len(ahead), 1), _FEWEST), _MOST)
    count, noise = (count, _NOISE) if measured is None else (1, _NOISE * 5)
    forecasts = []
    for number in range(count):
        batches = measured or known.batches_ahead(ahead, drift, rng, sampled=number > 0)
        priced = phases(scenario, batches)
        for row in _noise(known.ratios, len(ahead), noise, rng):
            factors = _factors(known, rng, opened)
            level = np.exp(known.speed.shift + known.speed.drawn(ahead, rng))
            forecasts.append(priced.total(factors) * level * row)
    return np.array(forecasts)


def _factors(known: Fit, rng: np.random.Generator, opened: np.random.Generator) -> dict[str, float]:
    """On the phases that the log times, drawn as `ScaledCost` draws them. opened: what the opening
    is drawn from."""
    factors = {
        phase: float(np.exp(known.levels.spreads.get(phase, 0.0) * rng.standard_normal()))
        for phase in PHASES
        if phase in known.levels.seen
    }
    if known.opening is not None:
        opening, times = known.opening.drawn(Drawn(opened))
        level = factors.get("decode", 1.0)
        factors["decode"] = times * level
        factors[OPENING] = level * opening.seconds / known.opening.seconds
    return factors


def run_level(known: Fit, steps: int, drift: Drift) -> tuple[float, float]:
    """Ends of the 90 % interval of a mean step over so many. Raises ScenarioError."""
    ahead = list(range(1, steps + 1))
    means = forecast(known, ahead, drift).mean(axis=1)
    likely = float(np.median(means))
    edges = [1.0, *ends(means / likely, LEVEL).tolist()]
    for other in other_courses(known, drift):
        edges += ends(forecast(known, ahead, other).mean(axis=1) / likely, LEVEL).tolist()
    return min(edges), max(edges)


def _noise(ratios: FloatArray, steps: int, draws: int, rng: np.random.Generator) -> FloatArray:
    """Measured over forecast of stretches of fitted steps, about their median; (draws, steps)."""
    if len(ratios) < 2:
        return np.ones((draws, steps))
    return stretches(ratios / np.median(ratios), steps, draws, rng)
