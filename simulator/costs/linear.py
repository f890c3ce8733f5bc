"""Costs that are linear in counts: the coefficients of a scenario, or fitted from a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rollcast.simulator.costs.actors import ActorCosts
from rollcast.simulator.costs.base import CostModel, Curve, Iteration, TrainCost, TrainLoad
from rollcast.simulator.costs.ranges import Seconds
from rollcast.simulator.values import Doc, Options


@dataclass(frozen=True, slots=True)
class LinearCost(Options, CostModel):
    """Seconds as fixed coefficients times counts.

    An iteration takes ``iteration_s + per_rollout_s * rollouts + per_context_token_s *
    context_tokens + per_prefill_token_s * prefill_tokens``, where rollouts and context tokens
    count every rollout scheduled in it, decoding or prefilling. A trainer pass takes
    ``train_fixed_s + train_per_token_s * tokens + train_per_rollout_s * rollouts``, and
    ``log_prob_per_token_s * tokens`` before it, where tokens follow the layout
    (:attr:`TrainLoad.tokens`), or with ``padded`` count each rollout as the longest of the batch
    (:attr:`TrainLoad.padded_tokens`).

    Raises ScenarioError(``cost.linear.<name>``) for a coefficient out of range, and where an
    iteration would take no time.
    """

    FIELD = "cost.linear"

    iteration_s: Annotated[Seconds, Doc("fixed time per iteration")]
    per_rollout_s: Annotated[Seconds, Doc("time per iteration and running rollout")]
    per_context_token_s: Annotated[
        Seconds, Doc("time per iteration and token of context that it attends to")
    ]
    per_prefill_token_s: Annotated[Seconds, Doc("time per prefilled token")]
    train_per_token_s: Annotated[
        Seconds, Doc("time per trained token, forward and backward, with all GPUs of the trainer")
    ]
    train_fixed_s: Annotated[Seconds, Doc("fixed time per update")] = 0.0
    sync_s: Annotated[Seconds, Doc("time of a weight sync")] = 0.0
    switch_to_train_s: Annotated[
        Seconds, Doc("time to switch shared GPUs from rollouts to training")
    ] = 0.0
    switch_to_rollout_s: Annotated[
        Seconds, Doc("time to switch shared GPUs from training to rollouts")
    ] = 0.0
    train_per_rollout_s: Annotated[Seconds, Doc("time per trained rollout")] = 0.0
    log_prob_per_token_s: Annotated[
        Seconds, Doc("time per token of the pass for log-probabilities before the update")
    ] = 0.0
    padded: Annotated[
        bool, Doc("whether the trainer pads each rollout to the longest of the batch, as TRL does")
    ] = False
    actors: Annotated[
        ActorCosts | None, Doc("overheads where replicas and trainer are processes of their own")
    ] = None

    def agree(self) -> None:
        """Time goes on."""
        if self.iteration_s + self.per_rollout_s == 0:
            raise self.refuse(
                "iteration_s",
                "an iteration takes no time; make iteration_s or per_rollout_s more than 0",
            )

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
        tokens = load.padded_tokens if self.padded else load.tokens
        update_s = (
            self.train_fixed_s
            + self.train_per_token_s * tokens
            + self.train_per_rollout_s * load.rollouts
        )
        phases: tuple[tuple[str, float], ...] = (("train", update_s),)
        if self.log_prob_per_token_s > 0:
            phases = (("log_prob", self.log_prob_per_token_s * tokens), *phases)
        return TrainCost(phases_s=phases)
