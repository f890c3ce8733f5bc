"""A fitted law of progress: its parameters, how sure they are, and where it was fitted."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.learning.group_signal import ACCURACIES
from rollcast.simulator.learning.progress import columns_of, progress
from rollcast.simulator.learning.signals import IntArray, Signals

FloatArray = NDArray[np.float64]

PARAMETERS = ("log_speed", "slowing", "log_noise", "lr_power", "log_staleness")
"""Names, in the order of the covariance (`simulator.learning.progress`). Speed: log-odds an update;
slowing: per log-odds; noise: rollouts; staleness: per update and log-odds."""

NEAR = 2.0
"""Within this factor of what was fitted, numbers of rollouts and of minibatches count as near."""


@dataclass(frozen=True)
class Domain:
    """Where a law was fitted. Ranges are (least, most), of what the runs had: start, accuracy at
    the first update; reached, the highest of any run; age, mean updates; minibatches; selections,
    names of rules; filtered, whether any run replaced groups without signal; lag, the most log-odds
    that a run's first updates would have added while its tokens waited (age times an update's
    progress without age), None where not known."""

    start: tuple[float, float]
    reached: float
    updates: int
    rollouts: tuple[float, float]
    group_size: tuple[float, float]
    kept: tuple[float, float]
    age: tuple[float, float]
    minibatches: tuple[float, float]
    learning_rate: tuple[float, float]
    selections: tuple[str, ...]
    filtered: bool
    lag: float | None = None


@dataclass(frozen=True)
class LengthLaw:
    """Mean lengths of right and of wrong answers by accuracy: a length is multiplied by exp(slope *
    (z - z at the start)), z being the log-odds. ratio: wrong over right at the start. Errors are
    standard errors; spread: standard deviation of the logarithm of what is left."""

    right_slope: float
    wrong_slope: float
    ratio: float
    right_slope_error: float
    wrong_slope_error: float
    ratio_error: float
    spread: float


@dataclass(frozen=True)
class Law:
    """Parameters by name (`PARAMETERS`) with their covariance, shape (5, 5).

    run_sd, policy_sd: standard deviations of a run's and of a policy's log speed about the law.
    level_sd: of the logarithm of the log-odds that a run has gained, at the same speed as a whole:
    log speed is less by ``level_speed`` times that logarithm. concentration: of the success
    probability over prompts (Beta). source: where it comes from, for readers. lengths: None where
    the runs said nothing of them. learning_rate: that counts as 1; None where the runs of several
    tasks have one each.
    """

    parameters: Mapping[str, float]
    covariance: tuple[tuple[float, ...], ...]
    run_sd: float
    policy_sd: float
    level_sd: float
    concentration: float
    domain: Domain
    source: str
    lengths: LengthLaw | None = None
    learning_rate: float | None = None
    level_speed: float = 0.0

    def curves(
        self,
        signals: Signals,
        start: float,
        *,
        learning_rate_factor: float = 1.0,
        draws: int,
        seed: int,
    ) -> FloatArray:
        """Accuracies before the first and after each update, shape (draws, updates + 1).

        start: accuracy before the first update. learning_rate_factor: over that of the fitted runs.
        Draws of the parameters depend on ``seed`` alone, so that they are the same for every
        policy; a run's and a policy's own deviations depend on the signals, too.
        """
        drawn, levels = self._drawn(signals, draws, seed)
        return self._curves(signals, start, learning_rate_factor, drawn, levels)

    def best(
        self, signals: Signals, start: float, *, learning_rate_factor: float = 1.0
    ) -> FloatArray:
        """As `curves` at the fitted parameters, shape (updates + 1,)."""
        ones = np.ones((1, 1))
        [curve] = self._curves(signals, start, learning_rate_factor, self._fitted(), ones)
        return np.asarray(curve)

    def over(
        self,
        signals: Signals,
        together: IntArray,
        start: float,
        *,
        learning_rate_factor: float = 1.0,
        draws: int,
        seed: int,
    ) -> tuple[FloatArray, FloatArray]:
        """`best` and `curves` of signals each of which stands for so many updates alike, shape
        (signals,): before the first and after each of them, shapes (signals + 1,) and (draws,
        signals + 1)."""
        drawn, levels = self._drawn(signals, draws, seed)
        drawn = np.concatenate((self._fitted(), drawn))
        levels = np.concatenate((np.ones((1, 1)), levels))
        found = self._curves(signals, start, learning_rate_factor, drawn, levels, together)
        return found[0], found[1:]

    def _fitted(self) -> FloatArray:
        return np.array([[self.parameters[name] for name in PARAMETERS]])

    def _drawn(self, signals: Signals, draws: int, seed: int) -> tuple[FloatArray, FloatArray]:
        """Parameters with a run's and a policy's own deviations, and levels, shape (draws, 1)."""
        drawn = self.draw(draws, seed)
        own = np.random.default_rng([seed, zlib.crc32(_digest(signals))])
        speed, level = own.standard_normal((2, draws))
        level *= self.level_sd
        drawn[:, 0] += math.hypot(self.run_sd, self.policy_sd) * speed - self.level_speed * level
        return drawn, np.exp(level[:, None])

    def _curves(
        self,
        signals: Signals,
        start: float,
        factor: float,
        drawn: FloatArray,
        levels: FloatArray,
        together: IntArray | None = None,
    ) -> FloatArray:
        level = min(max(start, float(ACCURACIES[0])), float(ACCURACIES[-1]))
        log_speed, slowing, log_noise, power, log_staleness = drawn.T
        z = progress(
            columns_of([signals], self.concentration),
            np.array([math.log(level / (1.0 - level))]),
            np.exp(log_speed + power * math.log(factor)),
            slowing,
            np.exp(log_noise),
            power,
            np.exp(log_staleness),
            together,
        )
        z = z[:, :1] + (z - z[:, :1]) * levels
        return np.asarray(1.0 / (1.0 + np.exp(-z)))

    def draw(self, draws: int, seed: int) -> FloatArray:
        """Parameters, shape (draws, 5), in the order of `PARAMETERS`; the same for one seed."""
        mean = np.array([self.parameters[name] for name in PARAMETERS])
        values, vectors = np.linalg.eigh(np.array(self.covariance))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = np.random.default_rng([seed, 0]).standard_normal((draws, len(mean)))
        return np.asarray(mean + normal @ root.T)

    def domain_reason(
        self, signals: Signals, start: float, *, learning_rate_factor: float = 1.0
    ) -> str | None:
        """Why the law says nothing of a run, in a sentence; None where it was fitted near it."""
        if not len(signals):
            return "The run has no update, so there is no learning to forecast."
        if signals.first_come:
            return (
                "The policy throws away what finishes late, so that length chooses what is trained "
                "on: the law of learning does not know that; it slowed our runs up to 1.9 times, "
                "and stopped some where right answers are long."
            )
        domain = self.domain
        unknown = set(signals.selection.split("+")) - {*domain.selections, "none"}
        if unknown or "+" in signals.selection:
            rule = signals.selection if not unknown else sorted(unknown)[0]
            return _outside(f"the selection {rule}", "no run with it")
        if signals.filtered and not domain.filtered:
            return _outside("a filter of groups with equal rewards", "no run with one")
        for what, values, (least, most), near in (
            ("an accuracy of {:.2g} at the start", [start], domain.start, 1.5),
            ("{:.0f} rollouts an update", signals.rollouts, domain.rollouts, NEAR),
            ("groups of {:.0f}", signals.group_size, domain.group_size, NEAR),
            ("{:.2g} of the rollouts trained on", signals.kept, domain.kept, 1.1),
            ("tokens that are {:.1f} updates old", signals.age, domain.age, 1.1),
            ("{:.0f} minibatches", signals.minibatches, domain.minibatches, NEAR),
            ("{:.2g} times the learning rate", [learning_rate_factor], domain.learning_rate, 1.1),
        ):
            typical = float(np.median(values))
            if not least / near - 0.01 <= typical <= most * near + 0.01:
                return _outside(what.format(typical), f"runs from {least:.3g} to {most:.3g}")
        speed, power = math.exp(self.parameters["log_speed"]), self.parameters["lr_power"]
        lag = lag_of(signals, speed, power, learning_rate_factor)
        if domain.lag is not None and lag > NEAR * domain.lag:
            return (
                f"While a token waits, the policy would move by {lag:.1f} in log-odds, and by at "
                f"most {domain.lag:.1f} in the runs that the law of learning was fitted to: "
                "further out accuracy can fall again, as it did in runs of ours, so it says "
                "nothing here."
            )
        return None


def lag_of(signals: Signals, speed: float, power: float, factor: float) -> float:
    """Log-odds that updates at a law's speed would add while the typical token waits. factor: of
    the learning rate."""
    return float(np.median(signals.age * speed * (signals.minibatches * factor) ** power))


def _outside(what: str, fitted: str) -> str:
    return f"The law of learning was fitted to {fitted}, not near {what}, so it says nothing here."


def _digest(signals: Signals) -> bytes:
    """Of the typical update, so that a longer run of the same policy deviates alike."""
    columns = (signals.rollouts, signals.group_size, signals.kept, signals.age)
    typical = np.array([np.median(column) if len(column) else 0.0 for column in columns])
    return typical.tobytes() + signals.selection.encode()
