"""Robust regression of times on counts: no coefficient below 0, and outliers that do not matter.

An MM-estimate (Yohai, Ann. Statist. 15, 1987): errors are relative to the fitted time, a Huber
start gives their scale, and Tukey's biweight leaves out what is far off. Standard errors are the
sandwich of an M-estimator with clusters (the steps), as neighbouring iterations err together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.studies.drawn import BLOCK_STEPS

FloatArray = NDArray[np.float64]

_HUBER, _TUKEY = 1.345, 4.685  # 95 % efficient under normal errors
_SMALLEST_SCALE = 1e-6  # relative: noiseless times must not divide by nothing
_ROUNDS = 40

_KEEP_SHARE = 0.005  # a term stays if it lowers the loss by this share, and by two units at least
_KEEP_LOSS = 2.0
SELECTION_ROWS = 5_000
_SELECTION_ROUNDS = 15


@dataclass(frozen=True)
class Fit:
    """A fitted linear model of times.

    names: of the terms. values, and covariance of shape (terms, terms): 0 for a term that the data
    hold at 0. ratios: measured over fitted time of each sample. scale: robust relative spread.
    """

    names: tuple[str, ...]
    values: FloatArray
    covariance: FloatArray
    ratios: FloatArray
    scale: float

    def __getitem__(self, name: str) -> float:
        """A coefficient; 0 for a term that was left out."""
        return float(self.values[self.names.index(name)]) if name in self.names else 0.0

    def error(self, name: str) -> float:
        """Its standard error."""
        if name not in self.names:
            return 0.0
        i = self.names.index(name)
        return float(np.sqrt(max(self.covariance[i, i], 0.0)))


def fit(terms: dict[str, FloatArray], times_s: FloatArray, clusters: NDArray[np.int64]) -> Fit:
    """Fits ``times_s`` (> 0) by a sum of terms with coefficients of at least 0.

    terms: counts by name, each of shape (n,). clusters: which samples err together, shape (n,).
    """
    names = tuple(terms)
    X = np.column_stack([terms[name] for name in names]).astype(float)
    values, fitted, scale = _solve(X, times_s)
    return Fit(
        names,
        values,
        _covariance(X, times_s, fitted, values, scale, clusters),
        times_s / fitted,
        scale,
    )


def loss_of(
    terms: dict[str, FloatArray], times_s: FloatArray, scale: float | None
) -> tuple[float, float]:
    """The robust loss of a model, in units where a normal residual of one ``scale`` costs 1/2, and
    the scale: the model's own, where none is given."""
    X = np.column_stack(list(terms.values())).astype(float)
    _, fitted, losses = _solve(X, times_s, rounds=_SELECTION_ROUNDS)
    scale = losses if scale is None else scale
    return _loss(times_s, fitted, scale), scale


def worth(loss: float, without: float) -> bool:
    """Whether a term that brings the loss from ``without`` down to ``loss`` is asked for."""
    return without - loss > max(_KEEP_LOSS, _KEEP_SHARE * without)


def needed(
    terms: dict[str, FloatArray], times_s: FloatArray, optional: Sequence[str]
) -> tuple[str, ...]:
    """The terms that the data ask for: of the ``optional`` ones, those whose leaving out would
    raise the robust loss, taken away one by one, the least useful first; of two that are equally
    useful, the one named later."""
    every = max(1, len(times_s) // SELECTION_ROWS)
    y = times_s[::every]
    columns = {name: np.asarray(term, float)[::every] for name, term in terms.items()}
    kept = [name for name, column in columns.items() if column.any() or name not in optional]
    loss, scale = loss_of({name: columns[name] for name in kept}, y, None)
    while True:
        trials = []
        for name in [name for name in kept if name in optional]:
            rest = {other: columns[other] for other in kept if other != name}
            without = loss_of(rest, y, scale)[0]
            trials.append((float(f"{without:.4g}"), -optional.index(name), without))
        if not trials or worth(loss, min(trials)[2]):
            return tuple(kept)
        _, place, loss = min(trials)
        kept.remove(optional[-place])


def _solve(
    X: FloatArray, y: FloatArray, rounds: int = _ROUNDS
) -> tuple[FloatArray, FloatArray, float]:
    """Coefficients, fitted times and relative scale."""
    middle = np.median(y)
    least = 1e-3 * float(middle)
    values = nonnegative(X, y, 1.0 / np.maximum(y, middle))
    fitted = np.maximum(X @ values, least)
    scale = 1.0
    for i in range(rounds):
        huber = i < rounds // 3
        residuals = (y - fitted) / fitted
        if huber:
            scale = max(spread(residuals), _SMALLEST_SCALE)
        u = residuals / scale
        weights = (
            np.minimum(1.0, _HUBER / np.maximum(np.abs(u), 1e-12))
            if huber
            else np.maximum(1.0 - (u / _TUKEY) ** 2, 0.0) ** 2
        )
        before = values
        values = nonnegative(X, y, np.sqrt(weights) / fitted)
        fitted = np.maximum(X @ values, least)
        if not huber and (np.abs(values - before) <= 1e-18 + 1e-6 * np.abs(before)).all():
            break
    return values, fitted, scale


def spread(values: FloatArray) -> float:
    """A robust standard deviation: scaled median distance from the median."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


@lru_cache(maxsize=64)
def _ridge(terms: int) -> FloatArray:
    """Keeps normal equations of columns that are alike solvable."""
    ridge: FloatArray = 1e-12 * np.eye(terms)
    ridge.flags.writeable = False  # one array for all
    return ridge


def nonnegative(X: FloatArray, y: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted least squares with no coefficient below 0, by its normal equations."""
    from scipy.optimize import nnls

    A, b = X * weights[:, None], y * weights
    size = np.maximum(np.sqrt((A**2).sum(axis=0)), 1e-300)
    A = A / size
    gram, products = A.T @ A + _ridge(A.shape[1]), A.T @ b
    solution = np.linalg.solve(gram, products)
    if not (solution >= 0).all():
        factor = np.linalg.cholesky(gram)
        solution, _ = nnls(factor.T, np.linalg.solve(factor, products))
    return np.asarray(solution / size)


def each_nonnegative(X: FloatArray, ys: FloatArray, weights: FloatArray) -> FloatArray:
    """`nonnegative` of each row of ``ys`` and ``weights``, shape (rows, observations); (rows,
    terms). Where plain least squares has a coefficient below 0, it is of the columns that leave
    least of those that have none."""
    A = X * weights[:, :, None]
    size = np.maximum(np.sqrt((A**2).sum(axis=1)), 1e-300)
    A = A / size[:, None, :]
    across = A.transpose(0, 2, 1)
    gram = across @ A + _ridge(X.shape[1])
    products = (across @ (ys * weights)[:, :, None])[:, :, 0]
    values = np.linalg.solve(gram, products[:, :, None])[:, :, 0]
    rows = np.flatnonzero((values < 0).any(axis=1))
    gram, products = gram[rows], products[rows]
    most, best = np.zeros(len(rows)), np.zeros(products.shape)
    for count in range(1, X.shape[1]) if len(rows) else ():
        for kept in map(list, combinations(range(X.shape[1]), count)):
            found = np.linalg.solve(gram[:, kept][:, :, kept], products[:, kept, None])[:, :, 0]
            explained = (found * products[:, kept]).sum(axis=1)
            better = (found >= 0).all(axis=1) & (explained > most)
            most[better], best[better] = explained[better], 0.0
            best[np.ix_(better, kept)] = found[better]
    values[rows] = best
    return np.asarray(values / size)


def _loss(y: FloatArray, fitted: FloatArray, scale: float) -> float:
    """Tukey's bounded loss, in units where a normal residual of one scale costs 1/2."""
    u = np.minimum(np.abs(y - fitted) / (fitted * scale * _TUKEY), 1.0)
    return float((_TUKEY**2 / 6 * (1 - (1 - u**2) ** 3)).sum())


def _covariance(
    X: FloatArray,
    y: FloatArray,
    fitted: FloatArray,
    values: FloatArray,
    scale: float,
    clusters: NDArray[np.int64],
) -> FloatArray:
    """Of the coefficients above 0, with Tukey's psi; shape (terms, terms)."""
    free = np.flatnonzero(values > 0)
    size = np.maximum(np.abs(X[:, free]).max(axis=0), 1e-300)
    Z = X[:, free] / size / (fitted * scale)[:, None]
    u = (y - fitted) / (fitted * scale)
    inside = np.maximum(1.0 - (u / _TUKEY) ** 2, 0.0)
    psi = u * inside**2
    slope = np.where(inside > 0, inside * (1.0 - 5.0 * (u / _TUKEY) ** 2), 0.0)
    bread = np.linalg.pinv(Z.T @ (Z * slope[:, None]))
    _, owner = np.unique(clusters, return_inverse=True)
    scores = np.zeros((int(owner.max()) + 1, len(free)))
    np.add.at(scores, owner, Z * psi[:, None])
    count = len(scores)
    meat = scores.T @ scores * (count / max(count - 1, 1))
    covariance = np.zeros((len(values), len(values)))
    covariance[np.ix_(free, free)] = bread @ meat @ bread.T / np.outer(size, size)
    return covariance


def quantiles(values: FloatArray) -> dict[str, float]:
    """The quantiles by which a fitted file describes residuals."""
    at = (0.05, 0.25, 0.5, 0.75, 0.95)
    values_at = np.quantile(values, at).tolist()
    return {f"p{round(100 * q):02d}": float(v) for q, v in zip(at, values_at, strict=True)}


def median_error(values: FloatArray) -> float:
    """Standard error of the median of a series whose neighbours err together, as those of
    `BLOCK_STEPS` consecutive steps are taken to: a machine is slower for some steps on end."""
    together = min(BLOCK_STEPS, len(values)) / len(values)
    return 1.2533 * spread(values) * float(np.sqrt(together))
