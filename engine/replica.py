"""What goes into and comes out of a real replica, whatever engine runs it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.environment import EngineError
from simulator.costs.base import Iteration

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn: ``temperature`` 0 is greedy, ``top_p`` 1 and ``top_k`` 0 are off.

    Log-probabilities are those of the distribution that was sampled from: after the temperature
    and after ``top_p`` and ``top_k``.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and 0 < self.top_p <= 1 and self.top_k >= 0):
            raise EngineError(
                f"{self} cannot be sampled with: temperature and top_k are at least 0, and top_p "
                "is above 0 and at most 1."
            )


@dataclass(frozen=True, slots=True)
class Response:
    """A rollout's response, whole or, when aborted, as far as it got.

    token_ids, log_probs: the whole response, the tokens it was resumed from included.
    finish_reason: ``stop`` (an end token, which is the last of ``token_ids``), ``length``, or None
        for an aborted one.
    segments: ``(version, tokens)`` of the tokens made since it was submitted, oldest first.
    """

    request_id: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str | None
    segments: tuple[tuple[int, int], ...]


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


@dataclass(slots=True)
class InFlight:
    """A submitted rollout: what it was resumed from, and where each version's tokens begin."""

    request_id: str
    partial_token_ids: tuple[int, ...]
    partial_log_probs: tuple[float, ...]
    starts: list[tuple[int, int]]  # (version, tokens made before it)
    internal_id: str = ""
    admitted: bool = False

    def new_version(self, version: int, tokens: int) -> None:
        """Tokens after the first ``tokens`` belong to ``version``."""
        self.starts.append((version, tokens))

    def response(
        self, token_ids: Sequence[int], log_probs: Sequence[float], finish_reason: str | None
    ) -> Response:
        """The response with these new tokens. Raises EngineError when the two differ in length."""
        if len(token_ids) != len(log_probs):
            raise EngineError(
                f"The engine returned {len(token_ids)} tokens, but {len(log_probs)} "
                f"log-probabilities, for rollout {self.request_id}."
            )
        ends = [start for _, start in self.starts[1:]] + [len(token_ids)]
        return Response(
            self.request_id,
            self.partial_token_ids + tuple(token_ids),
            self.partial_log_probs + tuple(log_probs),
            finish_reason,
            tuple(
                (version, end - start)
                for (version, start), end in zip(self.starts, ends, strict=True)
                if end > start
            ),
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What a replica can take: longest rollout and KV pool in tokens, and its vocabulary."""

    max_model_len: int
    kv_tokens: int
    vocab_size: int

    def check(self, rollout: InFlight, prompt: Sequence[int], max_new_tokens: int) -> None:
        """Raises EngineError, naming the rollout, for one that cannot be run."""
        name, partial = f"Rollout {rollout.request_id}", rollout.partial_token_ids
        if not prompt:
            raise EngineError(f"{name} has an empty prompt.")
        if len(partial) != len(rollout.partial_log_probs):
            raise EngineError(
                f"{name} comes with {len(partial)} tokens, but "
                f"{len(rollout.partial_log_probs)} log-probabilities."
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


def check_shape(max_seqs: int, max_batched_tokens: int, block_tokens: int, on_cpu: bool) -> None:
    """Raises EngineError for sizes with which no engine starts."""
    if block_tokens <= 0 or (on_cpu and block_tokens % 32):
        raise EngineError(
            f"block_tokens is {block_tokens}; it is positive, and a multiple of 32 on a CPU."
        )
    if not 0 < max_seqs <= max_batched_tokens:
        raise EngineError(
            f"max_batched_tokens ({max_batched_tokens}) is at least max_seqs ({max_seqs}), "
            "which is at least 1."
        )


def pool_too_small(pool_tokens: int, rollout_tokens: int) -> EngineError:
    """The error for a KV pool that cannot hold one rollout."""
    return EngineError(
        f"The KV pool of {pool_tokens} tokens is too small for one rollout of {rollout_tokens} "
        "tokens: raise kv_tokens or lower max_model_len."
    )


def end_tokens(generation: Mapping[str, Any], config: object) -> list[int]:
    """A model's own end tokens, from its generation settings or else its configuration."""
    end = generation.get("eos_token_id")
    if end is None:
        end = getattr(config, "eos_token_id", None)
    if end is None:
        return []
    return [int(token) for token in ([end] if isinstance(end, int) else end)]


def stream_seed(seed: int, tokens: int) -> int:
    """A seed for what follows the first ``tokens`` tokens: ``seed`` itself for none.

    A resumed rollout that took up its old random stream would draw its new tokens with the noise
    that made its first ones.
    """
    if tokens == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{tokens}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def model_log_probs(model: torch.nn.Module, sample: Sequence[Sequence[int]]) -> list[list[float]]:
    """``model``'s log-probability (temperature 1) of each token but the first, per sequence."""
    import torch

    training = model.training
    device = next(model.parameters()).device
    model.eval()
    rows = []
    try:
        with torch.no_grad():
            for tokens in sample:
                ids = torch.tensor([[*tokens]], device=device)
                logits = model(input_ids=ids).logits[0, :-1].float()
                chosen = logits.log_softmax(-1).gather(1, ids[0, 1:, None])
                rows.append([float(value) for value in chosen[:, 0].tolist()])
    finally:
        model.train(training)
    return rows


def largest_difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    """The largest absolute difference of two tables of one shape; not a number if any is."""
    gaps = (abs(x - y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))
    worst = 0.0
    for gap in gaps:
        worst = gap if gap > worst or math.isnan(gap) else worst
        if math.isnan(worst):
            break
    return worst


def check_close(
    engine: Sequence[Sequence[float]], trainer: Sequence[Sequence[float]], tolerance: float
) -> float:
    """Their largest difference. Raises EngineError when it is above ``tolerance``."""
    worst = largest_difference(engine, trainer)
    if not worst <= tolerance:  # not a number is a failure too
        raise EngineError(
            f"The engine's log-probabilities differ from the trainer's by {worst:.2g} after a "
            f"weight sync; at most {tolerance:.2g} is allowed."
        )
    return worst


class WorkMeter:
    """Counts the work of iterations, and remembers which requests are still prefilling."""

    def __init__(self) -> None:
        self._prefilling: set[str] = set()

    def starts_prefill(self, ids: Iterable[str]) -> None:
        """These are computed from their first token on, for the first time or again."""
        self._prefilling.update(ids)

    def leaves(self, ids: Iterable[str]) -> None:
        """These have ended, or have lost their KV blocks."""
        self._prefilling.difference_update(ids)

    def count(
        self, scheduled: Iterable[tuple[str, int, int, int]]
    ) -> tuple[Iteration, dict[str, int]]:
        """The work of one iteration, and the tokens prefilled of each request that prefills.

        scheduled: per request its id, the tokens it computes, the tokens in the KV cache once it
            has, and the tokens it has in all (which is where its prefill ends).
        """
        rollouts = context = pairs = prefill_context = 0
        prefilled: dict[str, int] = {}
        for request_id, tokens, computed, known in scheduled:
            rollouts += 1
            context += computed
            if request_id in self._prefilling:
                prefilled[request_id] = tokens
                pairs += (computed - tokens) * tokens + tokens * (tokens + 1) // 2
                prefill_context += computed
                if computed >= known:
                    self._prefilling.discard(request_id)
        tokens = sum(prefilled.values())
        work = Iteration(rollouts, context, tokens, pairs, len(prefilled), prefill_context)
        return work, prefilled
