"""The two interfaces of a real run: the engine that samples and the trainer that updates.

`engine.world.EngineWorld` drives any `Engine` and any `Trainer`, and imports neither vLLM nor
torch. The implementations are `engine.vllm.replica.VllmReplica`,
`engine.hf.replica.HfReplica` and `engine.trainer.trainer.Trainer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from rollcast.engine.errors import EngineError
from rollcast.simulator.costs.base import Iteration
from rollcast.simulator.values import NOT_NEGATIVE, Above, AtLeast, Doc, Options

if TYPE_CHECKING:
    from torch import Tensor

# What goes into and comes out of an engine


@dataclass(frozen=True, slots=True)
class Sampling(Options):
    """How tokens are drawn. Log-probabilities are of the distribution sampled from: after
    temperature, ``top_p`` and ``top_k``."""

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
    """A rollout's response, or as much of it as there was when it was aborted.

    token_ids, log_probs: of the whole response, including the tokens it was resumed from.
    finish_reason: ``stop`` (the last of ``token_ids`` is an end token), ``length``, or None when
    aborted. tokens_by_version: ``(version, tokens)`` sampled since it was submitted, oldest first.
    """

    request_id: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str | None
    tokens_by_version: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class EngineIteration:
    """One iteration of the real engine. work: in the vocabulary of the cost models. waiting:
    rollouts left waiting. kv_blocks: KV blocks held. preempted: request ids whose KV blocks were
    taken, to be recomputed. admitted: request ids that ran for the first time since they were
    submitted. prefilled: tokens by request id. seconds: from before scheduling to after processing
    the outputs; an engine that schedules ahead schedules the next iteration then."""

    work: Iteration
    waiting: int
    kv_blocks: int
    preempted: tuple[str, ...]
    admitted: tuple[str, ...]
    prefilled: tuple[tuple[str, int], ...]
    seconds: float

    @property
    def preemptions(self) -> int:
        """Number of preempted rollouts."""
        return len(self.preempted)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine takes: tokens of a rollout and of its pool, vocabulary, rollouts at once."""

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
    """Weights that the trainer keeps until a connected engine takes them; of each tensor name, type
    (as torch calls it) and shape, in the order of transfer."""

    number: int
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class Engine(Protocol):
    """Samples responses, one iteration of continuous batching at a time. Every method raises
    EngineError when the engine fails; it is then of no further use."""

    @property
    def version(self) -> int:
        """The version of its weights."""
        ...

    @property
    def limits(self) -> Limits:
        """Its limits."""
        ...

    @property
    def last_iteration(self) -> EngineIteration | None:
        """What the last `step` measured; None where there was nothing to do."""
        ...

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Request ids that run or wait, in the order of submission."""
        ...

    @property
    def log_prob_tolerance(self) -> float:
        """Allowed difference to a trainer's log-probabilities with the same weights, nats."""
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
        draw the same response whatever runs beside it (up to rounding). Raises EngineError for a
        rollout beyond `limits` or an id in use; the engine then goes on.
        """
        ...

    def abort(self, request_ids: Iterable[str] | None = None) -> list[Response]:
        """Stops rollouts (None: all) between two iterations, in the given order."""
        ...

    def step(self) -> list[Response]:
        """Runs one iteration, if there is any rollout; returns the responses that it finished."""
        ...

    def settle(self) -> bool:
        """Ends the iteration that has begun already, if the engine schedules ahead, and begins no
        other; returns whether the next `step` tells of that one, instead of running one. `abort`,
        `load_weights`, `log_probs` and `sleep` do so by themselves."""
        ...

    def load_weights(
        self,
        weights: Mapping[str, Tensor] | OnWire,
        version: int | None = None,
        *,
        keep_keys: bool = False,
    ) -> None:
        """Replaces the weights, named as in Hugging Face, and empties the prefix cache. `OnWire`
        ones are received from the connected trainer.

        version: of the new weights; None: one more than before. Rollouts in flight stay. keep_keys:
        with their keys and values; else these are recomputed, so that no token attends to those of
        older weights.
        """
        ...

    def connect(self, where: Mapping[str, Any]) -> None:
        """Connects it to the trainer at ``where``, for weights from its device."""
        ...

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability (temperature 1, nats) of each token but the first, per sequence. Needs an
        idle engine."""
        ...

    def sleep(self) -> None:
        """Frees its device's memory until `wake`; needs an idle engine that was started for it. Its
        weights may be gone."""
        ...

    def wake(self, weights_come: bool = False) -> None:
        """Takes its memory back. weights_come: `load_weights` is next; an engine that has given its
        weights up raises EngineError without."""
        ...

    def shutdown(self) -> None:
        """Ends it and frees its memory. A second call does nothing."""
        ...


# What goes into and comes out of a trainer


@dataclass(frozen=True, slots=True)
class SampledRollout:
    """One response. log_probs: of each token, by the version that sampled it. versions: of each
    token's weights, never falling. reward: after shaping. observed: whether each token came from
    the environment, and does not count in the loss; empty where none did."""

    response: Sequence[int]
    log_probs: Sequence[float]
    versions: Sequence[int]
    reward: float
    observed: Sequence[bool] = ()


@dataclass(frozen=True, slots=True)
class SampledGroup:
    """The rollouts of one prompt that are trained on. baseline_rewards: those behind the
    advantages' mean and standard deviation: of ``rollouts``, or of the whole group where advantages
    come before selection."""

    prompt: Sequence[int]
    rollouts: Sequence[SampledRollout]
    baseline_rewards: Sequence[float]


@dataclass(frozen=True, slots=True)
class TrainMetrics:
    """What one step did. Means are over its updates, or over their trained tokens.

    log_prob_s: passes without gradient. forward_s, backward_s: of all microbatches; phases A and C
    count as one of each. gradient_s: gradient norm and clipping. optimizer_s: the weight update.
    loss: the policy loss, with the reference's term; aux_loss: the weighted load-balancing loss.
    grad_norm: before clipping.
    clip_fraction: of trained tokens, those whose clipped term binds. mean_ratio: new over old
    probability of trained tokens. rollouts: trained on. masked_tokens: response tokens too old for
    the loss, without observations. computed_tokens, padding_tokens: fed to the model with gradient
    in one pass over the batch, in so many microbatches and prefix_passes, each over the shared
    prefixes of one or several groups. updates: optimiser steps; 0 without trained tokens.
    peak_bytes: of the CUDA device during the step; None elsewhere.

    mismatch_mean, mismatch_p99, mismatch_kl: of the sampled against the trainer's log-probabilities
    of trained tokens, in the first update of the step: mean and 99th percentile (to within an
    eighth) of their absolute difference, nats, and the divergence of the engine's distribution from
    the trainer's (mean of r - 1 - log r, r the ratio of probabilities). entropy: minus the mean
    log-probability of those tokens, an estimate of the trainer's, nats. learning_rate: of the last
    update. equal_rewards: every group's rewards were equal, so that nothing was to be learnt.
    reference_kl: of the trained model from the one that the run began with, nats a token (mean of
    the k3 estimator over trained tokens); None without a reference model.
    flop_per_s_per_rank: floating-point operations that forward and backward of the update need
    (`engine.trainer.flops`) over its seconds, passes without gradient left out, and the number of
    ranks; mfu: their share of the GPU's peak in bfloat16, None for a device without a preset.
    gathered_bytes: weights, gradients and states that this rank made whole during the step, but for
    one layer at a time in its passes: those of a norm where nothing is.
    tokens_per_s_per_rank: computed tokens over the seconds of all phases and the number of ranks.
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
    mismatch_mean: float = 0.0
    mismatch_p99: float = 0.0
    mismatch_kl: float = 0.0
    entropy: float = 0.0
    learning_rate: float = 0.0
    equal_rewards: bool = False
    tokens_per_s_per_rank: float = 0.0
    flop_per_s_per_rank: float = 0.0
    mfu: float | None = None
    gathered_bytes: int = 0
    reference_kl: float | None = None
    prefix_passes: int = 0

    @property
    def total_s(self) -> float:
        """Seconds of all phases."""
        passes_s = self.log_prob_s + self.forward_s + self.backward_s
        return passes_s + self.gradient_s + self.optimizer_s


@dataclass(frozen=True, slots=True)
class Beat:
    """The speed probe of the trainer's device, by two fixed computations, seconds. short_s: a
    forward pass bound by launches, like an engine's iteration. long_s: one bound by arithmetic,
    like an update."""

    short_s: float
    long_s: float


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of a save, as it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TrainerSave:
    """What a trainer needs to go on in another process. files: in ``folder``, of all ranks, with
    weights, optimiser and random states. plain: the rest, as JSON has it."""

    folder: Path
    files: Mapping[str, SavedFile]
    plain: Mapping[str, Any]


class Trainer(Protocol):
    """Holds the weights and updates them from sampled groups."""

    @property
    def vocab_size(self) -> int:
        """Tokens of its model's vocabulary."""
        ...

    @property
    def context_tokens(self) -> int | None:
        """The longest prompt with its response; None: unbounded."""
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
        versions do not count in the loss. final: False for a part of the batch, whose gradients are
        kept until the final part. Raises RunError, RuntimeError or ValueError with weights,
        optimiser and random states unchanged; any method of a trainer over several ranks
        RankLostError, after which it is of no further use.
        """
        ...

    def weights(self, each: bool = False) -> Mapping[str, Tensor]:
        """The weights, named as in Hugging Face; valid until the next `step`. Of several ranks rank
        0 has them in host memory; with ``each``, every rank on its device, and all go through them
        in step, a collective call."""
        ...

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability (temperature 1, nats) of each token but the first, per sequence."""
        ...

    def pulse(self) -> Beat:
        """The speed probe; leaves weights and random states alone."""
        ...

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Copies weights, optimiser and random states, between two steps, and begins to write them
        into ``folder`` in the background, each rank its shard. Returns what is no tensor, as JSON
        has it. An earlier save ends first."""
        ...

    def saved(self, wait_s: float) -> Mapping[str, SavedFile] | None:
        """This rank's files of the last `save`; None where they are still being written after
        ``wait_s``. Raises RunError where the disk refused."""
        ...

    def load(self, save: TrainerSave) -> None:
        """Takes up a `save`, of any number of ranks. Raises ValueError for one of another model or
        optimiser, or where its files are not what they were."""
        ...

    def export(self, folder: Path, dtype: str) -> None:
        """Writes the model as a Hugging Face folder, with weights of that type of torch's. Raises
        RunError where the disk refuses."""
        ...
