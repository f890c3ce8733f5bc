"""A Hugging Face causal model for the trainer: log-probabilities of response tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rollcast.engine.errors import UnsupportedModelError
from rollcast.engine.options import head_chunk
from rollcast.engine.trainer.batch import Example
from rollcast.engine.trainer.mode import in_mode
from rollcast.engine.trainer.moe import Router, RouterSums
from rollcast.engine.trainer.packed import Segments
from rollcast.engine.trainer.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Forward:
    """A microbatch's results. log_probs: of every response token, the examples' concatenated,
    [tokens], float32 or float64. router: the routers' sums, where their loss counts."""

    log_probs: Tensor
    router: RouterSums | None


@dataclass(frozen=True, slots=True)
class Rows:
    """Token sequences padded on the right. ids: [rows, width]. by_row: flat indices of each
    sequence's tokens."""

    ids: Tensor
    by_row: Sequence[Tensor]

    @property
    def valid(self) -> Tensor:
        """Flat indices of real tokens."""
        return torch.cat([*self.by_row])

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], device: torch.device) -> Rows:
        """Pads ``sequences`` to the longest."""
        width = max(len(tokens) for tokens in sequences)
        ids = torch.zeros((len(sequences), width), dtype=torch.long)
        for row, tokens in enumerate(sequences):
            ids[row, : len(tokens)] = torch.tensor(tokens)
        rows = range(0, width * len(sequences), width)
        real = [torch.arange(at, at + len(t)) for at, t in zip(rows, sequences, strict=True)]
        return cls(ids.to(device), [places.to(device) for places in real])


class LogProbModel:
    """The model's decoder and head, called apart so that only positions that predict response
    tokens go through the head. temperature: logits are divided by it. autocast: compute in
    bfloat16. head_chunk_tokens: compute the head for so many tokens at a time, and again in the
    backward, without keeping logits; None: where logits are large."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float = 1.0,
        autocast: bool = False,
        head_chunk_tokens: int | None = None,
        router: Router | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.ranks = ranks or Ranks()
        self.temperature = temperature
        self.autocast = autocast
        self.head_chunk_tokens = head_chunk_tokens
        self.router = router
        self.decoder: nn.Module = model.base_model
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if head is None or self.decoder is model:
            raise UnsupportedModelError(
                f"{type(model).__name__} has no separate decoder and output embedding; a causal "
                "language model such as Qwen3ForCausalLM is needed"
            )
        self.head: nn.Module = head
        self._check_head()

    @property
    def device(self) -> torch.device:
        """The device of the passes."""
        device: torch.device = self.ranks.device or self.model.device
        return device

    @property
    def low_precision(self) -> bool:
        """Whether activations are in a 16-bit type."""
        short = self.model.dtype in (torch.bfloat16, torch.float16)
        return self.autocast or self.ranks.low_precision or short

    def precision(self) -> AbstractContextManager[Any]:
        """The context of forwards."""
        if not self.autocast:
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(
            self.device.type, dtype=torch.bfloat16
        )
        return context

    @contextmanager
    def checkpointed(self, enabled: bool) -> Iterator[None]:
        """Forwards within keep only each layer's input. Never the reentrant kind, which cuts the
        graph to the prefix's keys and values and so loses phase C."""
        if not enabled:
            yield
            return
        self.model.gradient_checkpointing_enable({"use_reentrant": False})
        try:
            yield
        finally:
            self.model.gradient_checkpointing_disable()  # type: ignore[no-untyped-call]

    def run(self, call: Callable[[], Forward]) -> Forward:
        """Runs a pass in step with the other ranks."""

        def both() -> tuple[Tensor, Forward]:
            forward = call()
            return forward.log_probs, forward

        forward: Forward = self.ranks.run(both)[1]
        return forward

    def decode(self, ids: Tensor, **kwargs: Any) -> Any:
        """Runs the decoder on ``ids`` [rows, width]."""
        if self.router is not None:
            kwargs["output_router_logits"] = True
        kwargs.setdefault("use_cache", False)
        return self.decoder(input_ids=ids, **kwargs)

    def router_sums(self, output: Any, valid: Tensor | None) -> RouterSums | None:
        """The routers' sums over the ``valid`` tokens of a decoder's output."""
        if self.router is None:
            return None
        return self.router.sums(output.router_logits, valid)

    def packed(self, examples: Sequence[Example]) -> Forward:
        """One microbatch of prompts with responses as a single row, within `packed.engaged`."""
        sequences = [[*e.prompt, *e.response[:-1]] for e in examples]
        where = Segments(sequences, self.device)
        with self.precision():
            output = self.decode(where.ids, position_ids=where.positions, rollcast_segments=where)
            positions = [
                start + len(e.prompt) - 1 + offset
                for start, e in zip(where.starts, examples, strict=True)
                for offset in range(len(e.response))
            ]
            log_probs = self.log_probs(output.last_hidden_state, positions, examples)
            return Forward(log_probs, self.router_sums(output, None))

    def dense(self, examples: Sequence[Example]) -> Forward:
        """One microbatch of prompts with responses, a row each."""
        sequences = [[*e.prompt, *e.response[:-1]] for e in examples]
        rows = Rows.of(sequences, self.device)
        with self.precision():
            output = self.decode(rows.ids)
            width = rows.ids.shape[1]
            positions = [
                row * width + len(e.prompt) - 1 + offset
                for row, e in enumerate(examples)
                for offset in range(len(e.response))
            ]
            log_probs = self.log_probs(output.last_hidden_state, positions, examples)
            return Forward(log_probs, self.router_sums(output, rows.valid))

    def log_probs(
        self, hidden: Tensor, positions: Sequence[int], examples: Sequence[Example]
    ) -> Tensor:
        """Log-probabilities of the examples' response tokens, from the decoder's output [rows,
        width, hidden] at the flat ``positions`` that predict them."""
        index = torch.tensor(positions, device=hidden.device)
        targets = torch.tensor([t for e in examples for t in e.response], device=hidden.device)
        rows = hidden.flatten(0, 1).index_select(0, index)
        found: Tensor = self.ranks.run_head(partial(self._chunked, targets), rows)
        return found

    def _chunked(self, targets: Tensor, rows: Tensor) -> Tensor:
        chunk = self._chunk(len(rows))
        if chunk >= len(rows):
            return self._head_log_probs(rows, targets)
        chunks = zip(torch.split(rows, chunk), torch.split(targets, chunk), strict=True)
        again = partial(checkpoint, self._head_log_probs, use_reentrant=False)
        return torch.cat([again(chunk, wanted) for chunk, wanted in chunks])

    def _chunk(self, rows: int) -> int:
        """Rows that go through the head at a time."""
        if self.head_chunk_tokens is not None:
            return self.head_chunk_tokens
        vocabulary: int = self.model.config.get_text_config().vocab_size
        return head_chunk(rows, vocabulary) or max(1, rows)

    def _head_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(hidden)
        if logits.dtype != torch.float64:
            logits = logits.float()
        if self.temperature != 1.0:
            logits = logits / self.temperature
        return -functional.cross_entropy(logits, targets, reduction="none")

    def sequence_log_probs(self, ids: Tensor) -> Tensor:
        """Log-probabilities (temperature 1) of each token but the first, [tokens - 1], of one
        sequence [1, tokens]; without gradient, in the weights' own type."""

        def chosen(targets: Tensor, rows: Tensor) -> Tensor:
            chunk = self._chunk(len(rows))
            pairs = zip(torch.split(rows, chunk), torch.split(targets, chunk), strict=True)
            found = [
                self.head(part).float().log_softmax(-1).gather(1, wanted[:, None])[:, 0]
                for part, wanted in pairs
            ]
            return torch.cat(found)

        def run() -> tuple[Tensor]:
            rows = self.decoder(input_ids=ids, use_cache=False).last_hidden_state[0, :-1]
            return (self.ranks.run_head(partial(chosen, ids[0, 1:]), rows),)

        with torch.no_grad():
            found: Tensor = self.ranks.run(run)[0]
        return found

    def logits(self, ids: Tensor) -> Tensor:
        """The model's own logits of rows of tokens, without gradient."""

        def run(_: Tensor) -> Tensor:
            logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
            return logits

        nothing = torch.zeros((), device=self.device)
        with torch.no_grad():
            found: Tensor = self.ranks.run(lambda: (self.ranks.run_head(run, nothing),))[0]
        return found

    def _check_head(self) -> None:
        """Refuses models whose logits are not the head of the last hidden state (scaled or capped
        logits)."""
        ids = torch.tensor([[1, 0, 1]], device=self.device)

        def apart() -> tuple[Tensor]:
            hidden = self.decoder(input_ids=ids, use_cache=False).last_hidden_state
            return (self.ranks.run_head(self.head, hidden),)

        with in_mode(self.model, training=False), torch.no_grad():
            expected = self.logits(ids).float()
            got = self.ranks.run(apart)[0].float()
        if expected.shape != got.shape or not torch.allclose(got, expected, 1e-3, 1e-3):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} changes its logits after the output embedding "
                "(scaling or capping), which the trainer does not compute"
            )
