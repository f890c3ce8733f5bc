"""Costs that change some answers of other costs, and pass on the rest."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.chance import Chance
from simulator.costs.actors import ActorCosts
from simulator.costs.base import Curve, Extremes, Iteration, ScenarioCost, TrainCost, TrainLoad


@dataclass(frozen=True)
class Around:
    """All of ``inner``, for those to derive from who answer some of it otherwise."""

    inner: ScenarioCost

    def decode_curve(self, rollouts: int) -> Curve:
        """See `CostModel.decode_curve`."""
        return self.inner.decode_curve(rollouts)

    def mixed_iteration_s(self, work: Iteration) -> float:
        """See `CostModel.mixed_iteration_s`."""
        return self.inner.mixed_iteration_s(work)

    def train(self, load: TrainLoad) -> TrainCost:
        """See `CostModel.train`."""
        return self.inner.train(load)

    @property
    def sync_s(self) -> float:
        """Seconds to bring new weights to every replica."""
        return self.inner.sync_s

    @property
    def switch_to_train_s(self) -> float:
        """Seconds from the last rollout to the first trainer pass on shared GPUs."""
        return self.inner.switch_to_train_s

    @property
    def switch_to_rollout_s(self) -> float:
        """Seconds from synced weights to the first rollout on shared GPUs."""
        return self.inner.switch_to_rollout_s

    @property
    def actors(self) -> ActorCosts | None:
        """See `CostModel.actors`."""
        return self.inner.actors

    @property
    def kv_pool_tokens(self) -> int | None:
        """Tokens of KV that one replica has room for."""
        return self.inner.kv_pool_tokens

    def warnings(self, extremes: Extremes) -> list[str]:
        """See `CostModel.warnings`."""
        return self.inner.warnings(extremes)

    def drawn(self, chance: Chance) -> ScenarioCost:
        """See `ScenarioCost.drawn`."""
        return self.inner.drawn(chance)
