"""Lengths of responses from a few figures a step: mean, longest, shortest, share cut.

The model is that of `simulator.workload.lengths`: ``ln X = mu + b z + w e`` with z of the prompt
and e of the rollout, cut at the cap, and a share that runs away to it. Of the B x G responses of a
step a log says the mean, the longest and the shortest (order statistics), and how many were cut.
Their log-likelihoods are added up (a composite likelihood; Varin, Reid and Firth, Statist. Sinica
21, 2011), with priors on what thirty steps do not say; errors are the sandwich, step by step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.fits.robust import FloatArray, spread
from rollcast.calibration.fits.steps import Steps
from rollcast.simulator.workload.halving import halved
from rollcast.simulator.workload.known_lengths import (
    ASSUMED_RUNAWAY,
    LOGIT_BETWEEN,
    LOGIT_BETWEEN_SD,
)

TOTAL_SD, TOTAL_SD_SD = math.log(0.7), 0.5
"""Log of the spread of log lengths and how far it may be off: 0.3 to 1.6, as the length presets."""
RUNAWAY, RUNAWAY_SD = math.log(ASSUMED_RUNAWAY), 2.0
"""Log of the share that runs away: 0 to 10 %."""
MOST_RUNAWAY = 0.99
"""Of a run that collapsed to its cap."""
DRIFT_SD = 0.05
"""Of the change of log lengths a step, were nothing known."""
_SIGNIFICANT = 3.0
_MOST_STEPS = 80
"""Of a longer log, steps evenly over it are fitted."""
_TOGETHER = 0.3
"""Correlation of being cut within a prompt: at 1 to 20 % cut, of the presets' spreads."""
_STRETCHES = 9
"""At most, of a log: the mean of lengths is the one of its middle stretch."""
_HIDDEN = 0.5
"""Where the longest is the cap in more of the steps than this, the shortest tell the spread."""
_BOUNDS = ((-1.0, 17.0), (-4.0, 1.3), (-4.0, 3.0), (-12.0, math.log(MOST_RUNAWAY)), (-0.3, 0.3))


@dataclass(frozen=True, slots=True)
class Spread:
    """Of log lengths: between prompts and within one. total_error: of the log of both together."""

    between: float
    within: float
    total_error: float = 0.0

    @classmethod
    def assumed(cls) -> Spread:
        """Where nothing was fitted."""
        return _spread(TOTAL_SD, LOGIT_BETWEEN, TOTAL_SD_SD)

    @property
    def total(self) -> float:
        """Of all responses."""
        return math.hypot(self.between, self.within)

    def longest(self, mean: float, groups: float, group_size: int) -> float:
        """The median of the longest response of so many, of this mean, were none cut."""
        nodes, weights = _nodes()

        def short(log: float) -> bool:
            below = _ndtr((log - self.between * nodes) / max(self.within, 1e-6))
            chance = max(float(below**group_size @ weights), 1e-300)
            return groups * math.log(chance) < math.log(0.5)

        _, log = halved(short, 0.0, 12.0 * self.total, 40)
        return mean * math.exp(log - self.total**2 / 2)

    def longest_sd(self, mean: float, groups: float, group_size: int, most: float) -> float:
        """Of the log of that, what the spread is off by, where none is longer than ``most``."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(5)
        logs = [
            math.log(min(self._wider(off).longest(mean, groups, group_size), most))
            for off in (0.0, *nodes.tolist())
        ]
        return float(np.sqrt(weights @ (np.array(logs[1:]) - logs[0]) ** 2 / weights.sum()))

    def _wider(self, errors: float) -> Spread:
        times = math.exp(errors * self.total_error)
        return Spread(times * self.between, times * self.within)


def _spread(log_total: float, logit: float, error: float) -> Spread:
    return Spread(*_sds(log_total, logit), error)


def _sds(log_total: float, logit: float) -> tuple[float, float]:
    """Of log lengths between prompts and within one, of all responses' and the share between."""
    total = math.exp(min(log_total, 16.0))  # drawn values may lie anywhere
    share = 1 / (1 + math.exp(-max(logit, -30.0)))
    return total * math.sqrt(share), total * math.sqrt(1 - share)


@dataclass(frozen=True)
class FewFigures:
    """What a log says of each step's lengths; NaN where it does not. Arrays of shape (steps,)."""

    at: FloatArray
    mean: FloatArray
    longest: FloatArray
    shortest: FloatArray
    cut: FloatArray
    rollouts: FloatArray
    group_size: int
    cap: int
    cap_known: bool = True

    @cached_property
    def scatter(self) -> float:
        """Standard deviation of the log of a step's mean about its neighbours'."""
        return spread(np.diff(np.log(self.mean))) / math.sqrt(2) if len(self.mean) > 2 else 0.0

    @property
    def any_cut(self) -> bool:
        """Whether a response was cut, or may have been: where most steps say nothing of it, and
        the cap is known."""
        known = np.isfinite(self.cut)
        return bool(self.cut[known].any() or (self.cap_known and known.mean() < 0.5))

    @classmethod
    def of(
        cls, steps: Steps, group_size: int, cap: int, usual: int, cap_known: bool = True
    ) -> FewFigures:
        """Of the steps that have a mean. A share that is not sure is left out; rows that are means
        over several updates have no longest response. usual: rollouts of a step that does not
        say."""
        longest, shortest = steps.column("max_new_tokens"), steps.column("min_new_tokens")
        cut = steps.column("truncated_share")
        cut = np.where(steps.column("truncated_share_unsure") == 1, np.nan, cut)
        several = steps.column("logged_steps") > 1
        rollouts = steps.column("rollouts") * np.where(several, steps.column("logged_steps"), 1)
        mean = steps.column("mean_new_tokens")
        kept = np.isfinite(mean) & (mean >= 1)
        if kept.sum() > _MOST_STEPS:
            few = np.linspace(0, kept.sum() - 1, _MOST_STEPS).round().astype(int)
            chosen = np.flatnonzero(kept)[few]
            kept = np.zeros(len(mean), dtype=bool)
            kept[chosen] = True
        typical = np.nanmedian(rollouts) if np.isfinite(rollouts).any() else float(usual)
        return cls(
            np.flatnonzero(kept).astype(float),
            mean[kept],
            np.where(several, np.nan, longest)[kept],
            np.where(several, np.nan, shortest)[kept],
            cut[kept],
            np.where(np.isfinite(rollouts), rollouts, typical)[kept].clip(1),
            group_size,
            cap,
            cap_known,
        )


@dataclass(frozen=True)
class LengthsFit:
    """Lengths at the end of the log. values, covariance: of (log median, log total sd, logit of the
    share between prompts, log runaway, drift a step); shape (5,), (5, 5). steps: fitted on. drifts:
    whether a drift is told from none. cut: false where the log says that no response was cut."""

    values: FloatArray
    covariance: FloatArray
    steps: int
    drifts: bool
    cut: bool = True

    def lengths(self, theta: FloatArray | None = None, drift: bool = True) -> dict[str, float]:
        """``workload.lengths`` of a scenario; theta: others in the place of the fitted values."""
        mu, log_sd, logit, log_runaway, slope = self.values if theta is None else theta
        between, within = _sds(log_sd, logit)
        return {
            "median_tokens": math.exp(min(max(mu, _BOUNDS[0][0]), 16.0)),
            "between_sd": min(between, 5.0),
            "within_sd": min(within, 5.0),
            "runaway": min(math.exp(min(log_runaway, 0.0)), MOST_RUNAWAY) if self.cut else 0.0,
            "drift_per_step": float(slope) if drift and self.drifts else 0.0,
        }

    @property
    def spread(self) -> Spread:
        """Of log lengths."""
        error = math.sqrt(max(float(self.covariance[1, 1]), 0.0))
        return _spread(float(self.values[1]), float(self.values[2]), error)

    def drawn(self, rng: np.random.Generator) -> FloatArray:
        """Values drawn anew."""
        return np.asarray(
            rng.multivariate_normal(self.values, self.covariance, check_valid="ignore")
        )

    def errors(self) -> dict[str, float]:
        """Standard errors of the scenario's keys (delta method)."""
        at, errors = self.lengths(), {}
        for key in at:
            gradient = np.zeros(5)
            for i in range(5):
                step = 1e-4
                up, down = self.values.copy(), self.values.copy()
                up[i] += step
                down[i] -= step
                drifting = LengthsFit(self.values, self.covariance, self.steps, True)
                gradient[i] = (drifting.lengths(up)[key] - drifting.lengths(down)[key]) / (2 * step)
            errors[key] = math.sqrt(max(float(gradient @ self.covariance @ gradient), 0.0))
        return errors


def fit_few(figures: FewFigures) -> LengthsFit | None:
    """The lengths that make the figures likely; None for fewer than two steps with a mean.

    Steps are counted from the last, so that the median is that of the log's end.
    """
    from scipy.optimize import minimize

    if len(figures.mean) < 2:
        return None
    x = figures.at - figures.at[-1]
    start = np.array(
        [
            math.log(max(float(np.median(figures.mean[-10:])), 1.0)) - 0.25,
            TOTAL_SD,
            LOGIT_BETWEEN,
            _runaway_start(figures),
            0.0,
        ]
    )

    def objective(scaled: FloatArray) -> float:
        theta = scaled * scale
        return -float(_by_step(figures, x, theta).sum()) - _prior(theta, figures)

    # in about their standard errors, so that the search takes steps alike in all of them
    scale = np.array([0.05, 0.05, 0.5, 1.0, 0.1 / max(float(np.ptp(x)), 1.0)])
    bounds = [(low / by, high / by) for (low, high), by in zip(_BOUNDS, scale, strict=True)]
    best = minimize(objective, start / scale, method="L-BFGS-B", bounds=bounds)
    theta = np.asarray(best.x) * scale
    covariance = _sandwich(figures, x, theta)
    slope, error = float(theta[4]), math.sqrt(max(covariance[4, 4], 1e-18))
    drifts = abs(slope) > _SIGNIFICANT * error
    theta = _at_the_mean(figures, x if drifts else np.zeros_like(x), theta)
    return LengthsFit(theta, covariance, len(figures.mean), drifts, figures.any_cut)


def _at_the_mean(figures: FewFigures, x: FloatArray, theta: FloatArray) -> FloatArray:
    """With the median at which the lengths that are drawn have the mean that was measured.

    The mean is a step's surest figure, and what costs follow. A fit misses it where the longest
    responses contradict it, as with a count of rollouts that was assumed, and where responses that
    run away are fitted but not drawn, since nothing says that any was cut.
    """
    parts = np.array_split(np.arange(len(x)), max(min(len(x) // 4, _STRETCHES), 1))
    if float(np.median(figures.mean)) >= figures.cap:  # all responses are of one length
        return np.concatenate([[math.log(figures.cap), _BOUNDS[1][0]], theta[2:]])

    def reached(at: int, low: float, high: float) -> FloatArray:
        """With the value ``at`` between two bounds by which the mean is reached."""
        drawn = theta.copy()

        def short(value: float) -> bool:
            drawn[at] = value
            expected = _Prompts.of(figures, x, drawn, figures.any_cut).expected
            ratios = [figures.mean[part].mean() / expected[part].mean() for part in parts]
            return bool(np.median(ratios) > 1)  # a stretch before a run collapsed has no say

        drawn[at] = halved(short, low, high, 40)[1]
        return drawn

    longest = math.log(figures.cap)
    theta = reached(0, _BOUNDS[0][0], longest if figures.any_cut else _BOUNDS[0][1])
    if theta[0] >= longest and figures.any_cut:  # no scenario's median is above its cap
        theta = reached(3, theta[3], _BOUNDS[3][1])
    return theta


@dataclass(frozen=True)
class _Prompts:
    """A step's prompts at the nodes of their difficulty. level: of their log lengths; beyond: the
    share that would be longer than the cap; mean, square: of their responses, cut at the cap; shape
    (steps, nodes). expected: a step's mean; (steps,)."""

    level: FloatArray
    beyond: FloatArray
    mean: FloatArray
    square: FloatArray
    expected: FloatArray
    within_sd: float
    runaway: float

    @classmethod
    def of(cls, figures: FewFigures, x: FloatArray, theta: FloatArray, any_cut: bool) -> _Prompts:
        """any_cut: whether some responses run away to the cap."""
        mu, log_sd, logit, log_runaway, slope = theta
        b, w = _sds(log_sd, logit)
        runaway = min(math.exp(log_runaway), MOST_RUNAWAY) if any_cut else 0.0
        nodes, weights = _nodes()
        level = (mu + slope * x)[:, None] + b * nodes
        beyond = _ndtr((level - math.log(figures.cap)) / w)
        mean, square = _cut_moments(level, w, figures.cap, beyond)
        mean = (1 - runaway) * mean + runaway * figures.cap
        square = (1 - runaway) * square + runaway * figures.cap**2
        return cls(level, beyond, mean, square, mean @ weights, w, runaway)


def _runaway_start(figures: FewFigures) -> float:
    share = np.nanmean(figures.cut) if np.isfinite(figures.cut).any() else 0.0
    return math.log(min(max(float(share) / 2, 1e-4), 0.3))


def _prior(theta: FloatArray, figures: FewFigures) -> float:
    offs = (
        (theta[1] - TOTAL_SD) / TOTAL_SD_SD,
        (theta[2] - LOGIT_BETWEEN) / LOGIT_BETWEEN_SD,
        (theta[3] - RUNAWAY) / RUNAWAY_SD,
        theta[4] / DRIFT_SD,
    )
    return -0.5 * float(sum(off * off for off in offs))


def _by_step(figures: FewFigures, x: FloatArray, theta: FloatArray) -> FloatArray:
    """Log-likelihood of each step's figures, shape (steps,)."""
    prompts = _Prompts.of(figures, x, theta, True)
    level, expected = prompts.level, prompts.expected
    w, runaway = prompts.within_sd, prompts.runaway
    g, groups = figures.group_size, np.maximum(figures.rollouts / figures.group_size, 1.0)
    _, weights = _nodes()
    between = np.maximum((prompts.mean**2) @ weights - expected**2, 0.0)
    within = np.maximum((prompts.square - prompts.mean**2) @ weights, 0.0)
    variance = (between + within / g) / groups + (0.003 * expected) ** 2
    # what scatters beyond that, as prompts of an unknown number do, is no spread of responses
    variance = np.maximum(variance, (figures.scatter * expected) ** 2)
    result = -0.5 * ((figures.mean - expected) ** 2 / variance + np.log(variance))
    cut = runaway + (1 - runaway) * prompts.beyond
    cut_share = np.clip(cut @ weights, 1e-9, 1 - 1e-9)
    of_cut = _of_cut(figures, cut_share)
    result = result + np.where(np.isfinite(of_cut), of_cut, 0.0)
    hidden = figures.longest >= figures.cap
    known = np.isfinite(figures.longest) & ~hidden & (figures.longest >= 1)
    if known.any():
        result = result + np.where(known, _of_longest(figures, prompts, groups), 0.0)
    if np.isfinite(figures.longest).any() and np.mean(hidden) > _HIDDEN:
        least = np.isfinite(figures.shortest) & (figures.shortest >= 2)
        result = result + np.where(least, _of_shortest(figures, level, w, groups), 0.0)
    return np.asarray(result)


def _of_cut(figures: FewFigures, share: FloatArray) -> FloatArray:
    """Quasi-likelihood of the cut responses: those of a prompt are cut together, so that they
    scatter more than a binomial's (Wedderburn, Biometrika 61, 1974)."""
    n = figures.rollouts
    cut = np.clip(np.rint(figures.cut * n), 0, n)
    logs = cut * np.log(share) + (n - cut) * np.log1p(-share)
    return np.asarray(logs / (1 + (figures.group_size - 1) * _TOGETHER))


def _of_longest(figures: FewFigures, prompts: _Prompts, groups: FloatArray) -> FloatArray:
    """Log density of the log of the longest response, given that none was cut."""
    level, w, runaway = prompts.level, prompts.within_sd, prompts.runaway
    at = np.log(np.maximum(figures.longest - 0.5, 1.0))[:, None]
    _, weights = _nodes()
    u = (at - level) / w
    below = (1 - runaway) * _ndtr(u)
    density = (1 - runaway) * np.exp(-0.5 * u * u) / (math.sqrt(2 * math.pi) * w)
    g = figures.group_size
    all_below = np.maximum((below**g) @ weights, 1e-300)
    edge = np.maximum((g * below ** (g - 1) * density) @ weights, 1e-300)
    # of the lower tail itself: one less a share near one is nothing, and no longest is that likely
    uncut = (1 - runaway) * _ndtr((math.log(figures.cap) - level) / w)
    none_cut = np.maximum((uncut**g) @ weights, 1e-300)
    below_all = np.log(groups) + (groups - 1) * np.log(all_below) + np.log(edge)
    return np.asarray(below_all - groups * np.log(none_cut))


def _of_shortest(
    figures: FewFigures, level: FloatArray, w: float, groups: FloatArray
) -> FloatArray:
    """The same of the shortest."""
    at = np.log(np.maximum(figures.shortest - 0.5, 0.5))[:, None]
    _, weights = _nodes()
    u = (at - level) / w
    above = _ndtr(-u)
    density = np.exp(-0.5 * u * u) / (math.sqrt(2 * math.pi) * w)
    g = figures.group_size
    all_above = np.maximum((above**g) @ weights, 1e-300)
    edge = np.maximum((g * above ** (g - 1) * density) @ weights, 1e-300)
    return np.asarray(np.log(groups) + (groups - 1) * np.log(all_above) + np.log(edge))


def _cut_moments(
    level: FloatArray, w: float, cap: int, beyond: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and mean square of min(X, cap) + 1/2, X log-normal about ``level``. beyond: the share of
    X above the cap."""
    log_cap = math.log(cap)
    u = (log_cap - level) / w
    safe = np.minimum(level, 40.0)
    first = np.exp(safe + w * w / 2) * _ndtr(u - w) + cap * beyond
    second = np.exp(2 * safe + 2 * w * w) * _ndtr(u - 2 * w) + cap**2 * beyond
    first = np.minimum(first + 0.5, cap)
    return first, np.maximum(second, first**2)


def _ndtr(u: FloatArray) -> FloatArray:
    from scipy.special import ndtr

    return np.asarray(ndtr(u))


@lru_cache(maxsize=1)
def _nodes() -> tuple[FloatArray, FloatArray]:
    """Of an expectation over a standard normal; even ones, since maxima look far into the tail, and
    closer together than the narrowest spread within a prompt that `_BOUNDS` allow."""
    nodes = np.linspace(-5.0, 5.0, 61)
    weights = np.exp(-0.5 * nodes**2)
    return nodes, weights / weights.sum()


def _sandwich(figures: FewFigures, x: FloatArray, theta: FloatArray) -> FloatArray:
    """Covariance of a composite likelihood's maximum, the steps independent; shape (5, 5)."""
    h = np.array([1e-3, 1e-3, 1e-2, 1e-2, 1e-5])
    count = len(theta)

    @cache
    def by_step(*at: float) -> FloatArray:
        """One parameter moved and then another is the same as the other and then the one."""
        return _by_step(figures, x, np.array(at))

    def scores(at: FloatArray) -> FloatArray:
        """Of each step, shape (steps, 5)."""
        columns = []
        for i in range(count):
            up, down = at.copy(), at.copy()
            up[i] += h[i]
            down[i] -= h[i]
            columns.append((by_step(*up) - by_step(*down)) / (2 * h[i]))
        return np.column_stack(columns)

    scored = scores(theta)
    hessian = np.zeros((count, count))
    for i in range(count):
        up, down = theta.copy(), theta.copy()
        up[i] += h[i]
        down[i] -= h[i]
        hessian[i] = -(scores(up).sum(axis=0) - scores(down).sum(axis=0)) / (2 * h[i])
    hessian = (hessian + hessian.T) / 2
    values, vectors = np.linalg.eigh(hessian)
    hessian = (vectors * np.maximum(values, 0.0)) @ vectors.T
    prior = np.diag([1e-6, TOTAL_SD_SD**-2, LOGIT_BETWEEN_SD**-2, RUNAWAY_SD**-2, DRIFT_SD**-2])
    bread = np.linalg.inv(hessian + prior)
    meat = scored.T @ scored + prior
    found_covariance = bread @ meat @ bread
    plain = bread  # what few steps scatter less than they should is not believed
    return np.asarray(
        np.where(np.eye(count) > 0, np.maximum(found_covariance, plain), found_covariance)
    )


def lengths_like(
    count: int,
    mean: float,
    longest: float,
    cut: float,
    cap: int,
    total_sd: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """``count`` lengths with this mean and longest response, shape (count,), in random order.

    Log-normal quantiles of spread ``total_sd`` (the longest apart), scaled to the mean. cut: share
    at the cap.
    """
    from scipy.special import ndtri

    top = min(max(longest, mean), cap)
    at_top = int(min(max(round(cut * count), 1), count)) if math.isfinite(cut) else 1
    rest = count - at_top
    if rest <= 0:
        return np.full(count, max(round(mean), 1), dtype=np.int64)
    at_top = min(at_top, max(int(mean * count / max(top, 1.0)), 1))
    rest = count - at_top
    if rest == 0:
        return np.full(count, max(round(top), 1), dtype=np.int64)
    wanted = max((mean * count - at_top * top) / rest, 1.0)
    shape = np.exp(total_sd * ndtri((np.arange(rest) + 0.5) / rest))
    most = max(2.0 * top, top / float(shape[0]))  # the shortest may be as long
    _, by = halved(lambda by: bool(np.clip(by * shape, 1.0, top).mean() < wanted), 0.0, most)
    lengths = np.concatenate([np.clip(by * shape, 1.0, top), np.full(at_top, top)])
    rng.shuffle(lengths)
    return np.asarray(np.maximum(np.rint(lengths), 1), dtype=np.int64)
