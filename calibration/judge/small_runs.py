"""Simulated runs of a fitted scenario, small enough that dozens of them take seconds.

Replicas that share the work evenly are alike: a run with a part of them and of the batch has the
same rollout phase, but for the longest of its fewer responses. Updates are priced as the whole
batch's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rollcast.calibration.fits import placeholders
from rollcast.calibration.fits.batches import Batch
from rollcast.calibration.fits.log_scenario import built, setting
from rollcast.calibration.fits.model import Drift, Fit
from rollcast.calibration.fits.robust import FloatArray
from rollcast.simulator.costs.base import AdjustedCost, CostModel, TrainCost, TrainLoad
from rollcast.simulator.costs.scaled import ScaledCost
from rollcast.simulator.launches.parts import Part, replaced
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import simulate
from rollcast.simulator.values.chance import Drawn
from rollcast.simulator.workload.measured import ResampledWorkload


@dataclass(frozen=True)
class QuickCost(AdjustedCost):
    """``inner`` with an update's phases as seconds a rollout and a token; its draws are the inner
    model's, of whole updates. times: by which a batch is smaller than the run's, whose seconds are
    meant."""

    phases: tuple[tuple[str, float, float], ...]
    times: float = 1.0

    @classmethod
    def of(cls, inner: CostModel, batches: Sequence[Batch], times: float = 1.0) -> QuickCost:
        """With lines through the updates on these batches; all through the origin."""
        priced = [dict(inner.train(batch.load).phases_s) for batch in batches]
        counts = np.array([[batch.rollouts, batch.tokens] for batch in batches], dtype=float)
        names = list(dict.fromkeys(name for seconds_by in priced for name in seconds_by))
        phases = []
        for name in names:
            seconds = np.array([seconds_by.get(name, 0.0) for seconds_by in priced])
            tokens = counts[:, 1]
            slope = 0.0
            if np.ptp(tokens) > 0:
                slope = float(np.polyfit(tokens, seconds, 1)[0])
            middle = float(np.mean(seconds / tokens))
            slope = min(max(slope, 0.0), middle)
            each_s = max(float(np.mean((seconds - slope * tokens) / counts[:, 0])), 0.0)
            phases.append((name, each_s, slope))
        return cls(inner, tuple(phases), times)

    def train(self, load: TrainLoad) -> TrainCost:
        """See `CostModel.train`."""
        return TrainCost(
            tuple(
                (name, self.times * (fixed * load.rollouts + slope * load.tokens))
                for name, fixed, slope in self.phases
            )
        )


MOST_ROLLOUTS = 256
"""Of a step of a small run, where replicas and batch can be divided."""
_BATCH = ("batch_groups", "group_size")
WARM_STEPS, LAST_STEPS = 2, 1
"""Of a run, left out of its mean step: rollouts that run ahead make the first ones longer and leave
the last one nothing to wait for."""
_SEED_STRIDE = 1009


@dataclass(frozen=True)
class SmallRun:
    """A scenario to be run with other draws. parts: of the scenario, with its policy. divided: by
    which replicas and batch are smaller. cost: of the whole batch, quickly priced."""

    known: Fit
    parts: tuple[Part, ...]
    divided: int
    cost: ScaledCost
    drift: Drift

    @classmethod
    def of(
        cls,
        known: Fit,
        changed: Sequence[Part],
        cost: Mapping[str, Any],
        drift: Drift,
        most: int = MOST_ROLLOUTS,
    ) -> SmallRun:
        """Of the fitted scenario with some parts changed. most: rollouts of a step, where it can be
        divided. Raises ScenarioError."""
        parts = replaced(known.parts, changed)
        whole = built(parts, cost)
        rng = np.random.default_rng(1)
        samples = known.batches_ahead([1, 2], drift, rng, sampled=False)
        scaled = whole.cost
        assert isinstance(scaled, ScaledCost)
        divided = _divisor(parts, most)
        quick = QuickCost.of(scaled.inner, samples, divided)
        return cls(known, parts, divided, replace(scaled, inner=quick), drift)

    @property
    def rollouts(self) -> int:
        """Of a step."""
        groups, size = (int(setting(self.parts, f"workload.{key}")) for key in _BATCH)
        return groups * size // self.divided

    def scenario(self, draw: int, steps: int) -> Scenario:
        """The one to run: draw 0 as fitted, others with lengths and costs drawn anew."""
        small = self.parts
        if self.divided > 1:
            small = replaced(
                small,
                [
                    Part(key, max(int(setting(small, key)) // self.divided, 1), "")
                    for key in ("cluster.replicas", "workload.batch_groups", "cluster.trainer_gpus")
                    if setting(small, key)
                ],
            )
        known, rng = self.known, np.random.default_rng(draw)
        # of lengths that may go on changing or stay, every second draw has either
        drift: Drift = "freeze" if draw % 2 and self.drift == "auto" else self.drift
        lengths = None
        if known.rollouts is None and known.few is not None:
            theta = known.few.drawn(rng) if draw else known.few.values
            lengths = {
                "family": "lognormal",
                **replace(known, few=replace(known.few, values=theta)).lengths(drift),
            }
        small = replaced(small, [Part("steps", steps, ""), Part("seed", _SEED_STRIDE * draw, "")])
        if setting(small, "engine.kv_tokens") is None:
            small = replaced(small, [Part("engine.kv_tokens", self._pool(), "")])
        scenario = built(small, placeholders.COST, lengths)
        cost = self.cost.drawn(Drawn(rng)) if draw else self.cost
        assert isinstance(cost, ScaledCost)
        scenario = replace(scenario, cost=cost)
        if known.rollouts is not None:
            ahead = known.groups(drift, steps)
            assert ahead is not None
            some = replace(known.rollouts, groups=ahead).some
            groups = some.drawn(rng) if draw else some
            workload = ResampledWorkload(groups, known.counts.cap, _SEED_STRIDE * draw)
            scenario = replace(scenario, workload=workload)
        return scenario

    def _pool(self) -> int:
        return int(self.cost.kv_pool_tokens or 1 << 40)

    def steps_s(self, draw: int, steps: int) -> FloatArray:
        """Seconds a step after warm-up, shape (steps,). Raises ScenarioError or RunError."""
        records = simulate(self.scenario(draw, steps + WARM_STEPS + LAST_STEPS)).run.steps
        return np.array([record.step_s for record in records[WARM_STEPS:-LAST_STEPS]])

    def mean_step_s(self, draw: int, steps: int) -> float:
        """Their mean."""
        return float(np.mean(self.steps_s(draw, steps)))


def _divisor(parts: Sequence[Part], most: int) -> int:
    """The least common divisor of replicas and batch with small steps; else the greatest."""
    batch, size = (int(setting(parts, f"workload.{key}")) for key in _BATCH)
    replicas = int(setting(parts, "cluster.replicas") or 1)
    common = math.gcd(batch, replicas)
    able = [d for d in range(1, common + 1) if common % d == 0]
    small = [d for d in able if batch * size / d <= most]
    return min(small) if small else max(able)
