"""Attention of a forward pass on one GPU of a replica, in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from rollcast.simulator.costs.base import Iteration
from rollcast.simulator.costs.engine.pieces import Piece
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model


@dataclass(frozen=True)
class Attention:
    """Attention scores of a replica of ``gpus`` GPUs.

    Decoding takes the longer of reading the KV cache and multiplying it; the latter only where MLA
    shares one latent vector among many heads, or where a rollout has several ``queries`` at once
    (drafted tokens that are verified), which read the cache together. Layers with a window see no
    more than it of each rollout. Which rollout has how much of the context is not known here, so
    each counts as having ``context / rollouts`` tokens: exact for equal ones, and an upper bound
    for others, since the time is concave in the tokens of a rollout.

    With ``data_parallel`` each GPU has rollouts of its own, dealt evenly, and the others wait for
    the one that has most of them: with one rollout left, all wait for its GPU.
    """

    model: Model
    gpu: Gpu
    gpus: int
    data_parallel: bool = False
    queries: int = 1

    @cached_property
    def _shards(self) -> int:
        return self.gpus if self.data_parallel else self.model.kv_shards(self.gpus)

    @cached_property
    def _rate(self) -> float:
        return self.gpu.bandwidth_bytes_per_s * self.gpu.decode_attention_bandwidth_efficiency

    @cached_property
    def _flop_rate(self) -> float:
        gpu = self.gpu
        return self.gpus * gpu.bf16_flop_per_s * gpu.prefill_attention_flop_efficiency

    @cached_property
    def token_s(self) -> float:
        """One token of context within the window, of all layers."""
        model = self.model
        read_s = model.kv_bytes_per_token / (self._shards * self._rate)
        if not model.kv_lora_rank and self.queries == 1:
            return read_s
        flop = self.queries * model.attention_layers * model.absorbed_flop_per_layer
        return max(read_s, flop / self._flop_rate)

    @cached_property
    def _full_token_s(self) -> float:
        """The same beyond the window, of the layers that have none."""
        model = self.model
        return self.token_s * (model.full_layers / max(1, model.attention_layers))

    @cached_property
    def state_s(self) -> float:
        """Reading and writing the states of one rollout's linear layers."""
        return 2 * self.model.state_bytes / (self.gpus * self._rate)

    def busiest(self, rollouts: int) -> float:
        """Load of the GPU with most of ``rollouts`` over the mean."""
        if not self.data_parallel or not rollouts:
            return 1.0
        return math.ceil(rollouts / self.gpus) * self.gpus / rollouts

    def decode_s(self, context_tokens: int, rollouts: int) -> float:
        """``rollouts`` that decode, with ``context_tokens`` in all."""
        seconds = self._read_s(context_tokens, rollouts)
        return seconds * self.busiest(rollouts) if self.data_parallel else seconds

    def pieces(self, rollouts: int) -> list[Piece]:
        """:meth:`decode_s` as the pieces of a curve."""
        token_s = self.token_s * self.busiest(rollouts)
        pieces = [(0, 0.0, token_s)]
        if self.model.windowed_layers:
            start = rollouts * self.model.window_tokens
            full_s = self._full_token_s * self.busiest(rollouts)
            pieces.append((start, start * token_s, full_s))
        return pieces

    @cached_property
    def _pair_flop(self) -> int:
        return self.model.attention_flop_per_pair

    def prefill_s(self, work: Iteration) -> float:
        """Prompts: the longer of the pairs at peak compute and reading their KV. They are taken to
        be dealt evenly to the GPUs."""
        model = self.model
        pairs, context = work.prefill_pairs, work.prefill_context_tokens
        flop: float = pairs * self._pair_flop
        if model.windowed_layers:
            seen = min(pairs, work.prefill_tokens * model.window_tokens)
            layers = model.full_layers * pairs + model.windowed_layers * seen
            flop = layers * model.attention_flop_per_layer
        return max(flop / self._flop_rate, self._read_s(context, work.prefill_rollouts))

    def _read_s(self, context_tokens: int, rollouts: int) -> float:
        """The KV of ``rollouts`` read once, dealt evenly."""
        if not self.model.windowed_layers:
            return context_tokens * self.token_s
        seen = min(context_tokens, rollouts * self.model.window_tokens)
        return seen * self.token_s + (context_tokens - seen) * self._full_token_s
