"""How lengths of right and of wrong answers drift with accuracy: a slope for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.simulator.learning.law import LengthLaw
from rollcast.simulator.learning.signals import FloatArray

_LEAST_MOVE = 0.3  # of the log-odds, in a run that says something of slopes


@dataclass(frozen=True, eq=False)
class LengthPoints:
    """A run's evaluations, each (n,): log-odds of a right answer, and mean tokens of right and of
    wrong ones, nan where there were none."""

    log_odds: FloatArray
    right: FloatArray
    wrong: FloatArray


def fit_lengths(runs: Sequence[LengthPoints]) -> LengthLaw | None:
    """The slopes over runs; None where fewer than two runs say anything. Errors are of the mean
    over runs, which differ more than a run's own evaluations do."""
    rights = _slopes([(run.log_odds, run.right) for run in runs])
    wrongs = _slopes([(run.log_odds, run.wrong) for run in runs])
    ratios = np.array([_first(run.wrong) / _first(run.right) for run in runs])
    ratios = ratios[np.isfinite(ratios)]
    if min(len(rights), len(wrongs), len(ratios)) < 2:
        return None
    return LengthLaw(
        right_slope=float(rights[:, 0].mean()),
        wrong_slope=float(wrongs[:, 0].mean()),
        ratio=float(ratios.mean()),
        right_slope_error=_error(rights[:, 0]),
        wrong_slope_error=_error(wrongs[:, 0]),
        ratio_error=_error(ratios),
        spread=float(np.sqrt((np.concatenate((rights[:, 1], wrongs[:, 1])) ** 2).mean())),
    )


def _slopes(runs: Sequence[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """Slope of the log length over log-odds, and what is left, of each run that moves, (n, 2)."""
    found = []
    for log_odds, tokens in runs:
        known = np.isfinite(tokens) & (tokens > 0)
        if known.sum() < 3:
            continue
        x, y = log_odds[known], np.log(tokens[known])
        x, y = x - x.mean(), y - y.mean()
        if np.ptp(x) < _LEAST_MOVE:
            continue
        slope = float(x @ y / (x @ x))
        found.append((slope, float(np.std(y - slope * x))))
    return np.array(found).reshape(-1, 2)


def _first(tokens: FloatArray) -> float:
    known = tokens[np.isfinite(tokens)]
    return float(known[0]) if len(known) else float("nan")


def _error(values: FloatArray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))
