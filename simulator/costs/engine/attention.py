"""Attention of a forward pass on one GPU of a replica, in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from rollcast.simulator.costs.base import Iteration, Piece
from rollcast.simulator.costs.engine.layout import EngineLayout
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.model_options import Reach
from rollcast.simulator.costs.presets.models import Model


@dataclass(frozen=True)
class Attention:
    """Attention scores of one stage of a replica.

    Decoding takes the longer of reading the KV cache and multiplying it; the latter only with MLA,
    or with several ``queries`` a rollout (drafted tokens that are verified), which read the cache
    together. Layers with a window, or that choose tokens, see no more of each rollout; each counts
    as having ``context / rollouts`` tokens, an upper bound as the time is concave in them.

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
    def _kinds(self) -> tuple[tuple[Reach, float], ...]:
        """Kinds of layers, and seconds of one token of context that they see."""
        latent = self.model.latent
        return tuple((kind, self._token_s(kind, latent)) for kind in self.model.reaches)

    def _token_s(self, kind: Reach, latent: bool) -> float:
        apart, gpus = self.layout.data_parallel_attention, self._gpus
        held_bytes = kind.layers * kind.kv_bytes
        read_s = held_bytes / ((gpus if apart else kind.shards(gpus)) * self._rate)
        if not latent and self.queries == 1:
            return read_s
        flop = self.queries * kind.layers * kind.decode_flop
        return max(read_s, flop / self._flop_rate)

    @cached_property
    def token_s(self) -> float:
        """One token of context that all layers see."""
        return sum(seconds for _, seconds in self._kinds)

    @cached_property
    def _ends(self) -> tuple[tuple[int, float], ...]:
        """From how many tokens of a rollout on some layers see no more, and what a token more takes
        then."""
        limits = sorted({kind.seen_tokens for kind, _ in self._kinds if kind.seen_tokens})
        return tuple(
            (limit, sum(s for kind, s in self._kinds if not 0 < kind.seen_tokens <= limit))
            for limit in limits
        )

    @cached_property
    def state_s(self) -> float:
        """Reading and writing the states of one rollout's recurrent layers."""
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
        busiest = self.busiest(rollouts)
        pieces = [(0, 0.0, self.token_s * busiest)]
        for limit, token_s in self._ends:
            start, (before, seconds, slope) = rollouts * limit, pieces[-1]
            pieces.append((start, seconds + (start - before) * slope, token_s * busiest))
        return pieces

    def prefill_s(self, work: Iteration) -> float:
        """Prompts: the longer of the pairs at peak compute and reading their KV. They are taken to
        be dealt evenly to the GPUs."""
        pairs, context, flop = work.prefill_pairs, work.prefill_context_tokens, 0.0
        for kind, _ in self._kinds:
            most = work.prefill_tokens * kind.seen_tokens
            flop += (min(pairs, most) if most else pairs) * kind.layers * kind.flop
        return max(flop / self._flop_rate, self._read_s(context, work.prefill_rollouts))

    def _read_s(self, context_tokens: int, rollouts: int) -> float:
        """The KV of ``rollouts`` read once, dealt evenly."""
        seconds, before, slope = 0.0, 0, self.token_s
        for limit, token_s in self._ends:
            start = rollouts * limit
            if context_tokens <= start:
                break
            seconds, before, slope = seconds + (start - before) * slope, start, token_s
        return seconds + (context_tokens - before) * slope
