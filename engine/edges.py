"""The two edges of a real run: the engine that samples and the trainer that updates.

`engine.world.EngineWorld` drives any `Engine` and any `Trainer`, and knows neither vLLM nor torch:
another of either is a new file that keeps these promises. `engine.vllm.replica.VllmReplica` is the
engine that there is, `engine.trainer.trainer.Trainer` the trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from rollcast.engine.errors import EngineError
from rollcast.simulator.costs.base import Iteration
from rollcast.simulator.values import NOT_NEGATIVE, Above, AtLeast, Doc, Options

if TYPE_CHECKING:
    from torch import Tensor

# What goes into and comes out of an engine


@dataclass(frozen=True, slots=True)
class Sampling(Options):
    """How tokens are drawn.

    Log-probabilities are those of the distribution that was sampled from: after the temperature
    and after ``top_p`` and ``top_k``.
    """

    FIELD = "engine.sampling"

    temperature: Annotated[
        float, NOT_NEGATIVE, Doc("sampling temperature; 0: greedy", unit="factor")
    ] = 1.0
    top_p: Annotated[
        float,
        Above(0, 1),
        Doc(
            "cumulative probability of the tokens that are sampled from (nucleus sampling); 1: off",
            unit="share",
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        AtLeast(0),
        Doc("number of most likely tokens that are sampled from; 0: off", unit="tokens"),
    ] = 0


@dataclass(frozen=True, slots=True)
class Response:
    """A rollout's response, whole or, when aborted, as far as it got.

    token_ids, log_probs: the whole response, the tokens it was resumed from included.
    finish_reason: ``stop`` (an end token, which is the last of ``token_ids``), ``length``, or None
        for an aborted one.
    tokens_by_version: ``(version, tokens)`` of the tokens made since it was submitted, oldest
    first.
    """

    request_id: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str | None
    tokens_by_version: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class EngineIteration:
    """What one iteration of the real engine did, and how long it took.

    work: its work in the vocabulary of the cost models.
    waiting: rollouts that it left waiting.
    kv_blocks: KV blocks held while it ran.
    preempted: the request ids that it threw out of the KV pool, to be recomputed.
    admitted: the request ids that it ran for the first time since they were submitted.
    prefilled: request ids and how many tokens it prefilled of each.
    seconds: from before the scheduler ran until its outputs were processed.
    """

    work: Iteration
    waiting: int
    kv_blocks: int
    preempted: tuple[str, ...]
    admitted: tuple[str, ...]
    prefilled: tuple[tuple[str, int], ...]
    seconds: float

    @property
    def preemptions(self) -> int:
        """How many it threw out."""
        return len(self.preempted)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can take: longest rollout and KV pool in tokens, its vocabulary, and rollouts
    at once."""

    max_model_len: int
    kv_tokens: int
    vocab_size: int
    max_seqs: int

    def check(
        self,
        request_id: str,
        prompt: Sequence[int],
        partial: Sequence[int],
        partial_log_probs: Sequence[float],
        max_new_tokens: int,
    ) -> None:
        """Raises EngineError, naming the rollout, for one that cannot be run."""
        name = f"Rollout {request_id}"
        if not prompt:
            raise EngineError(f"{name} has an empty prompt.")
        if len(partial) != len(partial_log_probs):
            raise EngineError(
                f"{name} comes with {len(partial)} tokens, but "
                f"{len(partial_log_probs)} log-probabilities."
            )
        if max_new_tokens <= len(partial):
            raise EngineError(
                f"{name} already has {len(partial)} of at most {max_new_tokens} response tokens."
            )
        if len(prompt) + max_new_tokens > self.max_model_len:
            raise EngineError(
                f"{name} needs {len(prompt)} prompt and up to {max_new_tokens} response tokens, "
                f"but the model's context and the KV pool of {self.kv_tokens} tokens allow "
                f"{self.max_model_len} in all."
            )
        if min(*prompt, *partial, 0) < 0 or max(*prompt, *partial, 0) >= self.vocab_size:
            raise EngineError(
                f"{name} has token ids outside the model's vocabulary of {self.vocab_size}."
            )


@dataclass(frozen=True, slots=True)
class OnWire:
    """Weights that the trainer keeps until an engine that is connected to it takes them: which, and
    of each tensor name, type (as torch calls it) and shape, in the order in which they come."""

    number: int
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class Engine(Protocol):
    """Samples responses, one iteration of continuous batching at a time.

    Every method raises EngineError when the engine fails; it is then of no further use.
    """

    @property
    def version(self) -> int:
        """The version of the weights that it samples with."""
        ...

    @property
    def limits(self) -> Limits:
        """What it can take."""
        ...

    @property
    def last_iteration(self) -> EngineIteration | None:
        """What the last `step` did and measured; None where there was nothing to do."""
        ...

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Request ids that are running or waiting, in the order of submission."""
        ...

    @property
    def log_prob_tolerance(self) -> float:
        """How far its log-probabilities may be from a trainer's of the same weights, in nats."""
        ...

    def submit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        partial_token_ids: Sequence[int] = (),
        partial_log_probs: Sequence[float] = (),
        *,
        max_new_tokens: int,
        seed: int,
        ignore_eos: bool = False,
    ) -> None:
        """Queues a rollout, from nothing or from the tokens that it already has.

        max_new_tokens: of the whole response, those included. The same seed, tokens and weights
        draw the same response whatever runs beside it (up to rounding in the forward pass). Raises
        EngineError for a rollout that `limits` forbid or an id in use; the engine then goes on.
        """
        ...

    def abort(self, request_ids: Iterable[str] | None = None) -> list[Response]:
        """Stops rollouts (None: all) where they are, between two iterations, in the given order."""
        ...

    def step(self) -> list[Response]:
        """Runs one iteration; returns the responses that it finished. Without any rollout it does
        nothing."""
        ...

    def load_weights(
        self,
        weights: Mapping[str, Tensor] | OnWire,
        version: int | None = None,
        *,
        keep_keys: bool = False,
    ) -> None:
        """Replaces the weights, named as Hugging Face does, and forgets what it cached under the
        old ones. Those that are on a wire it takes from there, once it is connected.

        version: of the new weights; None is one more than before. Rollouts in flight stay.
        keep_keys: they go on with the keys and values that they have; else these are computed
        again, so that no token attends to ones of an older version.
        """
        ...

    def connect(self, where: Mapping[str, Any]) -> None:
        """Connects it to the trainer that is found there, for weights to come from its device."""
        ...

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Its log-probability (temperature 1, in nats) of each token but the first, per sequence.
        Needs an idle engine."""
        ...

    def sleep(self) -> None:
        """Gives the memory of its device to others until `wake`; needs an idle engine, which keeps
        its weights. Only of one that was started for it."""
        ...

    def wake(self) -> None:
        """Takes its memory back."""
        ...

    def shutdown(self) -> None:
        """Ends it and frees its memory. A second call does nothing."""
        ...


# What goes into and comes out of a trainer


@dataclass(frozen=True, slots=True)
class SampledRollout:
    """One sampled response, possibly made by several weight versions.

    response: its token ids.
    log_probs: the log-probability with which each token was sampled, by the version that did it.
    versions: the weight version that made each token, never falling.
    reward: its (shaped) reward.
    observed: whether each token was put there by the rollout's environment, and not sampled; such
        tokens do not count in the loss. Empty where none was.
    """

    response: Sequence[int]
    log_probs: Sequence[float]
    versions: Sequence[int]
    reward: float
    observed: Sequence[bool] = ()


@dataclass(frozen=True, slots=True)
class SampledGroup:
    """The rollouts of one prompt that are trained on.

    baseline_rewards: the rewards that the advantages' mean and standard deviation come from: those
        of ``rollouts`` where advantages come after selection, of the whole group where before.
    """

    prompt: Sequence[int]
    rollouts: Sequence[SampledRollout]
    baseline_rewards: Sequence[float]


@dataclass(frozen=True, slots=True)
class TrainMetrics:
    """What one step did. Means are over its updates, or over their trained tokens.

    log_prob_s: passes without gradient (the trainer's old log-probabilities, expert counts).
    forward_s, backward_s: of all microbatches; phases A and C count as one of each.
    gradient_s: gradient norm and clipping. optimizer_s: the weight update.
    loss: the policy loss; aux_loss: the weighted load-balancing loss.
    grad_norm: before clipping.
    clip_fraction: trained tokens whose clipped term is the binding one.
    mean_ratio: importance ratio (new over old probability) of trained tokens.
    rollouts: those trained on, without the groups that the loss leaves out.
    masked_tokens: response tokens that were too old to count in the loss; what environments said is
        not among them.
    computed_tokens, padding_tokens: fed to the model with gradient in one pass over the batch.
    updates: optimiser steps; 0 where no token was left to train on.
    peak_bytes: of the CUDA device during the step; None elsewhere.
    """

    log_prob_s: float
    forward_s: float
    backward_s: float
    gradient_s: float
    optimizer_s: float
    loss: float
    aux_loss: float
    grad_norm: float
    clip_fraction: float
    mean_ratio: float
    rollouts: int
    trained_tokens: int
    masked_tokens: int
    computed_tokens: int
    padding_tokens: int
    microbatches: int
    updates: int
    peak_bytes: int | None

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        passes_s = self.log_prob_s + self.forward_s + self.backward_s
        return passes_s + self.gradient_s + self.optimizer_s


@dataclass(frozen=True, slots=True)
class Beat:
    """How fast the trainer's device is just now, by two computations that never change. Seconds.

    short_s: a forward pass so small that launching it takes longest, as an engine's iteration.
    long_s: one bound by arithmetic, as an update.
    """

    short_s: float
    long_s: float


@dataclass(frozen=True, slots=True)
class TrainerState:
    """All that a trainer needs to go on in another process.

    tensors: weights, optimiser and whatever else is large, by name, on any device.
    plain: the rest, as JSON holds it: None, truth values, numbers, texts, lists, and mappings with
        texts as keys.
    """

    tensors: Mapping[str, Tensor]
    plain: Mapping[str, Any]


class Trainer(Protocol):
    """Holds the weights and updates them from sampled groups."""

    @property
    def vocab_size(self) -> int:
        """Tokens that its model knows."""
        ...

    @property
    def context_tokens(self) -> int | None:
        """The longest prompt with its response; None where the model sets no bound."""
        ...

    def step(
        self,
        groups: Sequence[SampledGroup],
        *,
        shared_prefix: bool,
        version: int,
        mask_before_version: int | None = None,
        final: bool = True,
    ) -> TrainMetrics:
        """Trains on ``groups`` with the weights of ``version``.

        shared_prefix: the layout; the update is the same. mask_before_version: tokens of earlier
        versions are left out of the loss. final: False for a part of the batch, whose gradients are
        kept until the part that is. Raises RunError, RuntimeError or ValueError with the
        weights, the optimiser and every random state as they were; any method of a trainer over
        several ranks RankLostError, after which it is of no further use.
        """
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """The weights, named as Hugging Face does; valid until the next `step`."""
        ...

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """The weights' log-probability (temperature 1, in nats) of each token but the first, per
        sequence."""
        ...

    def pulse(self) -> Beat:
        """How fast its device is just now. Leaves weights and random states alone."""
        ...

    def state(self) -> TrainerState:
        """Weights, optimiser and random states, between two steps; valid until the next one."""
        ...

    def load_state(self, state: TrainerState) -> None:
        """Goes on from a `state`, which it leaves as it is. Raises ValueError for one of another
        model or optimiser."""
        ...
