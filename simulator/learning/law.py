"""The law of progress: how far an update moves the accuracy, from what the loop knows of it.

The log-odds z of a right answer grow by an update as

    dz = speed * lr^p * g * d,   g = S / sqrt(S^2 + noise / rollouts),   d = 1 / sqrt(1 + drift^2)

S: expected standard deviation of a trained group's rewards (`group_signal`). g: what is left of a
step of an optimiser that divides by the gradient's root mean square, where ``noise`` is the noise
of one rollout's gradient in units of S (the noise scale of arXiv 1812.06162). d: what clipping
leaves of an update whose tokens are ``age`` updates old, with drift = staleness * age * (progress
of one update without age): the policy that samples may lag, but not move away.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.learning.group_signal import (
    ACCURACIES,
    group_signal,
)
from rollcast.simulator.learning.signals import Signals

FloatArray = NDArray[np.float64]

PARAMETERS = ("log_speed", "log_noise", "lr_power", "log_staleness")
"""Names, in the order of the covariance. Speed: log-odds an update; noise: rollouts; staleness: per
update and log-odds."""


@dataclass(frozen=True)
class Domain:
    """Where a law was fitted. Ranges are (least, most), of what the runs had: start, accuracy at
    the first update; reached, the highest of any run; age, mean updates; minibatches; selections,
    names of rules; filtered, whether any run replaced groups without signal."""

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
    """Parameters by name (`PARAMETERS`) with their covariance, shape (4, 4).

    run_sd, policy_sd: standard deviations of a run's and of a policy's log speed about the law.
    concentration: of the success probability over prompts (Beta). source: where it comes from, for
    readers. lengths: None where the runs said nothing of them.
    """

    parameters: Mapping[str, float]
    covariance: tuple[tuple[float, ...], ...]
    run_sd: float
    policy_sd: float
    concentration: float
    domain: Domain
    source: str
    lengths: LengthLaw | None = None
    errors: Mapping[str, float] = field(default_factory=dict)

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
        drawn = self.draw(draws, seed)
        own = np.random.default_rng([seed, zlib.crc32(_digest(signals))])
        away = math.hypot(self.run_sd, self.policy_sd)
        speed = np.exp(drawn[:, 0] + away * own.standard_normal(draws))
        return progress(
            signals,
            start,
            speed * learning_rate_factor ** drawn[:, 2],
            np.exp(drawn[:, 1]),
            np.exp(drawn[:, 3]),
            self.concentration,
        )

    def best(
        self, signals: Signals, start: float, *, learning_rate_factor: float = 1.0
    ) -> FloatArray:
        """As `curves` at the fitted parameters, shape (updates + 1,)."""
        log_speed, log_noise, power, log_staleness = (self.parameters[n] for n in PARAMETERS)
        speed = np.array([math.exp(log_speed) * learning_rate_factor**power])
        noise, staleness = np.exp([log_noise]), np.exp([log_staleness])
        [curve] = progress(signals, start, speed, noise, staleness, self.concentration)
        return np.asarray(curve)

    def draw(self, draws: int, seed: int) -> FloatArray:
        """Parameters, shape (draws, 4), in the order of `PARAMETERS`; the same for one seed."""
        mean = np.array([self.parameters[name] for name in PARAMETERS])
        values, vectors = np.linalg.eigh(np.array(self.covariance))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = np.random.default_rng([seed, 0]).standard_normal((draws, len(mean)))
        return np.asarray(mean + normal @ root.T)

    def domain_reason(
        self, signals: Signals, start: float, *, learning_rate_factor: float = 1.0
    ) -> str | None:
        """Why the law says nothing of such a run, in one sentence; None where it was fitted near
        it."""
        if not len(signals):
            return "The run has no update, so there is no learning to forecast."
        domain = self.domain
        unknown = set(signals.selection.split("+")) - {*domain.selections, "none"}
        if unknown or "+" in signals.selection:
            rule = signals.selection if not unknown else sorted(unknown)[0]
            return _outside(f"the selection {rule}", "no run with it")
        if signals.filtered and not domain.filtered:
            return _outside("a filter of groups with equal rewards", "no run with one")
        for what, values, (least, most), room in (
            ("an accuracy of {:.2f} at the start", [start], domain.start, 0.05),
            ("{:.0f} rollouts an update", signals.rollouts, domain.rollouts, 0.0),
            ("groups of {:.0f}", signals.group_size, domain.group_size, 0.0),
            ("{:.2g} of the rollouts trained on", signals.kept, domain.kept, 0.01),
            ("tokens that are {:.1f} updates old", signals.age, domain.age, 0.05),
            ("{:.0f} minibatches", signals.minibatches, domain.minibatches, 0.0),
            ("{:.2g} times the learning rate", [learning_rate_factor], domain.learning_rate, 0.01),
        ):
            typical = float(np.median(values))
            if not least - room <= typical <= most + room:
                return _outside(what.format(typical), f"runs from {least:.3g} to {most:.3g}")
        return None


def progress(
    signals: Signals,
    start: float,
    speed: FloatArray,
    noise: FloatArray,
    staleness: FloatArray,
    concentration: float,
) -> FloatArray:
    """Accuracies before the first and after each update, shape (draws, updates + 1), for each
    parameter's draws, shape (draws,)."""
    level = min(max(start, float(ACCURACIES[0])), float(ACCURACIES[-1]))
    z = np.full(len(speed), math.log(level / (1.0 - level)))
    curve = np.empty((len(speed), len(signals) + 1))
    curve[:, 0] = start
    grid = np.log(ACCURACIES / (1.0 - ACCURACIES))
    for u in range(len(signals)):
        rollouts = float(signals.rollouts[u])
        if rollouts > 0:
            sampled = max(round(float(signals.group_size[u])), 1)
            trained = min(max(round(sampled * float(signals.kept[u])), 1), sampled)
            table, mixed = group_signal(sampled, trained, signals.selection, concentration)
            signal = np.interp(
                z, grid, table / np.maximum(mixed, 1e-9) if signals.filtered else table
            )
            steps = float(signals.minibatches[u])
            whole = steps * signal / np.sqrt(signal**2 + noise * steps / rollouts)
            drift = staleness * float(signals.age[u]) * speed * whole
            z = z + speed * whole / np.sqrt(1.0 + drift**2)
        curve[:, u + 1] = 1.0 / (1.0 + np.exp(-z))
    return curve


def _outside(what: str, fitted: str) -> str:
    return f"The law of learning was fitted to {fitted}, not near {what}, so it says nothing here."


def _digest(signals: Signals) -> bytes:
    columns = (signals.rollouts, signals.group_size, signals.kept, signals.age)
    return b"".join(np.ascontiguousarray(c).tobytes() for c in columns) + signals.selection.encode()
