"""Values of uncertain inputs: drawn from a generator, or set to chosen levels.

Each input is asked for by its name, ``source/figure`` (``host time/host_s``), so that the same code
draws all of them, draws one source's, or puts one at its 5 % and 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Chance(Protocol):
    """Gives each uncertain input a value."""

    def normal(self, name: str) -> float:
        """A standard normal; 0 is the nominal value."""

    def factor(self, name: str, low: float, high: float) -> float:
        """From ``low`` to ``high``, its logarithm uniform; 1 is the nominal value."""

    def normals(self, name: str, covariance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Jointly normal with mean 0, shape (n,); covariance: shape (n, n)."""


class Drawn:
    """Every input from ``rng``, in the order in which they are asked for."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def normal(self, name: str) -> float:
        """See `Chance.normal`."""
        return float(self._rng.standard_normal())

    def factor(self, name: str, low: float, high: float) -> float:
        """See `Chance.factor`."""
        return float(np.exp(self._rng.uniform(np.log(low), np.log(high))))

    def normals(self, name: str, covariance: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Chance.normals`."""
        zeros = np.zeros(len(covariance))
        return self._rng.multivariate_normal(zeros, covariance, check_valid="ignore")


class Narrowed:
    """As ``inner``, but for the ranges of factors, which are so many times as wide in their logs;
    those of the ``kept`` sources are not."""

    def __init__(self, inner: Chance, times: float, kept: Container[str] = ()) -> None:
        self._inner, self._times, self._kept = inner, times, kept

    def normal(self, name: str) -> float:
        """See `Chance.normal`."""
        return self._inner.normal(name)

    def factor(self, name: str, low: float, high: float) -> float:
        """See `Chance.factor`."""
        times = 1.0 if name.partition("/")[0] in self._kept else self._times
        return self._inner.factor(name, low**times, high**times)

    def normals(self, name: str, covariance: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Chance.normals`."""
        return self._inner.normals(name, covariance)


class Levels:
    """The named inputs at so many standard deviations of a normal, or at that quantile of another
    distribution; all others at their nominal values. names: inputs with a spread, in the order
    asked for, and the value of each in words."""

    def __init__(self, levels: Mapping[str, float] | None = None) -> None:
        self._levels = levels or {}
        self.names: dict[str, str] = {}

    def normal(self, name: str) -> float:
        """See `Chance.normal`."""
        z = self._levels.get(name, 0.0)
        self.names[name] = f"{z:+.2g} sd"
        return z

    def factor(self, name: str, low: float, high: float) -> float:
        """See `Chance.factor`."""
        if low == high:
            return low
        factor = 1.0
        if name in self._levels:
            quantile = 0.5 * math.erfc(-self._levels[name] / math.sqrt(2.0))
            factor = float(low * (high / low) ** quantile)
        self.names[name] = f"{factor:.2f}x"
        return factor

    def normals(self, name: str, covariance: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Chance.normals`: one input for each principal direction, ``name 1`` the widest."""
        variances, directions = np.linalg.eigh(covariance)
        normals = np.zeros(len(covariance))
        widest = np.argsort(variances)[::-1]
        for number, k in enumerate(widest, start=1):
            if variances[k] > 1e-12 * variances[widest[0]] > 0:
                z = self.normal(f"{name} {number}")
                normals += z * math.sqrt(variances[k]) * directions[:, k]
        return normals
