"""Attention of a forward pass on one GPU of a replica, in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from rollcast.simulator.costs.base import Iteration
from rollcast.simulator.costs.engine.layout import EngineLayout
from rollcast.simulator.costs.engine.pieces import Piece
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model


@dataclass(frozen=True)
class Attention:
    """Attention scores of one stage of a replica.

    Decoding takes the longer of reading the KV cache and multiplying it; the latter only with MLA,
    or with several ``queries`` a rollout (drafted tokens that are verified), which read the cache
    together. Layers with a window see no more than it of each rollout; each counts as having
    ``context / rollouts`` tokens, an upper bound as the time is concave in them.

    With ``data_parallel_attention`` rollouts are dealt evenly to the GPUs, and all wait for the one
    that has most of them.
    """

    model: Model
    gpu: Gpu
    layout: EngineLayout
    queries: int = 1

    @property
    def _gpus(self) -> int:
        return self.layout.tensor_parallel

    @cached_property
    def _rate(self) -> float:
        return self.gpu.bandwidth_bytes_per_s * self.gpu.decode_attention_bandwidth_efficiency

    @cached_property
    def _flop_rate(self) -> float:
        gpu = self.gpu
        return self._gpus * gpu.bf16_flop_per_s * gpu.prefill_attention_flop_efficiency

    @cached_property
    def token_s(self) -> float:
        """One token of context within the window, of all layers."""
        model = self.model
        apart, gpus = self.layout.data_parallel_attention, self._gpus
        read_s = model.kv_bytes_per_token / (
            (gpus if apart else model.kv_shards(gpus)) * self._rate
        )
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
        return 2 * self.model.state_bytes / (self._gpus * self._rate)

    def busiest(self, rollouts: int) -> float:
        """Load of the GPU with most of ``rollouts`` over the mean."""
        if not self.layout.data_parallel_attention or not rollouts:
            return 1.0
        return math.ceil(rollouts / self._gpus) * self._gpus / rollouts

    def decode_s(self, context_tokens: int, rollouts: int) -> float:
        """``rollouts`` that decode, with ``context_tokens`` in all."""
        seconds = self._read_s(context_tokens, rollouts)
        return seconds * self.busiest(rollouts) if self.layout.data_parallel_attention else seconds

    def pieces(self, rollouts: int) -> list[Piece]:
        """:meth:`decode_s` as the pieces of a curve."""
        token_s = self.token_s * self.busiest(rollouts)
        pieces = [(0, 0.0, token_s)]
        if self.model.windowed_layers:
            start = rollouts * self.model.window_tokens
            full_s = self._full_token_s * self.busiest(rollouts)
            pieces.append((start, start * token_s, full_s))
        return pieces

    def prefill_s(self, work: Iteration) -> float:
        """Prompts: the longer of the pairs at peak compute and reading their KV. They are taken to
        be dealt evenly to the GPUs."""
        model = self.model
        pairs, context = work.prefill_pairs, work.prefill_context_tokens
        flop: float = pairs * model.attention_flop_per_pair
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
