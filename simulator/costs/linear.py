"""Costs that are linear in counts: the coefficients of a scenario, or fitted from a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from simulator.checks import join, known_keys, number
from simulator.costs.base import Curve, Extremes, Iteration, TrainCost, TrainLoad
from simulator.errors import ScenarioError


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Seconds as fixed coefficients times counts.

    An iteration takes ``iteration_s + per_rollout_s * rollouts + per_context_token_s *
    context_tokens + per_prefill_token_s * prefill_tokens``, where rollouts and context tokens
    count every rollout scheduled in it, decoding or prefilling. A trainer pass takes
    ``train_fixed_s + train_per_token_s * tokens + train_per_rollout_s * rollouts``, and
    ``log_prob_per_token_s * tokens`` before it, where tokens follow the layout
    (:attr:`TrainLoad.tokens`).

    Raises ScenarioError(``cost.linear.<name>``) for a coefficient that is negative or not finite,
    and where an iteration would take no time.
    """

    iteration_s: float
    per_rollout_s: float
    per_context_token_s: float
    per_prefill_token_s: float
    train_per_token_s: float
    train_fixed_s: float = 0.0
    sync_s: float = 0.0
    switch_to_train_s: float = 0.0
    switch_to_rollout_s: float = 0.0
    train_per_rollout_s: float = 0.0
    log_prob_per_token_s: float = 0.0

    def __post_init__(self) -> None:
        for coefficient in fields(self):
            name = coefficient.name
            value = number(getattr(self, name), join("cost.linear", name))
            object.__setattr__(self, name, value)
        if self.iteration_s + self.per_rollout_s == 0:
            raise ScenarioError(
                "cost.linear.iteration_s",
                "an iteration takes no time; make iteration_s or per_rollout_s more than 0",
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], field: str = "cost.linear") -> LinearCost:
        """Coefficients by name; raises ScenarioError for one that is unknown or missing."""
        names = [f.name for f in fields(cls)]
        known_keys(mapping, names, field)
        for name in names[:5]:
            if name not in mapping:
                raise ScenarioError(join(field, name), "missing; give its value, 0 if it is free")
        return cls(**mapping)

    def decode_curve(self, rollouts: int) -> Curve:
        """Affine in the context."""
        return Curve.affine(
            self.iteration_s + self.per_rollout_s * rollouts, self.per_context_token_s
        )

    def mixed_iteration_s(self, work: Iteration) -> float:
        """Seconds of an iteration that prefills."""
        return (
            self.iteration_s
            + self.per_rollout_s * work.rollouts
            + self.per_context_token_s * work.context_tokens
            + self.per_prefill_token_s * work.prefill_tokens
        )

    def train(self, load: TrainLoad) -> TrainCost:
        """One ``train`` phase, after a ``log_prob`` phase where that has a cost."""
        update_s = (
            self.train_fixed_s
            + self.train_per_token_s * load.tokens
            + self.train_per_rollout_s * load.rollouts
        )
        phases: tuple[tuple[str, float], ...] = (("train", update_s),)
        if self.log_prob_per_token_s > 0:
            phases = (("log_prob", self.log_prob_per_token_s * load.tokens), *phases)
        return TrainCost(phases_s=phases)

    @property
    def kv_pool_tokens(self) -> None:
        """Coefficients know of no memory."""

    def drawn(self, rng: np.random.Generator) -> LinearCost:
        """Itself: coefficients do not say how sure they are."""
        return self

    def warnings(self, extremes: Extremes) -> list[str]:
        """None: bare coefficients state no range."""
        return []
