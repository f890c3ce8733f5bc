"""One forward pass of a model by the GPUs of a replica, in seconds: the sum of its parts; and what
the host takes beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rollcast.simulator.costs.base import Iteration, Piece, at_least, plus, scaled
from rollcast.simulator.costs.engine.attention import Attention
from rollcast.simulator.costs.engine.communication import Exchange
from rollcast.simulator.costs.engine.layout import EngineLayout
from rollcast.simulator.costs.engine.products import Products
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model


class Host(NamedTuple):
    """What the engine's host takes: an iteration, and each token that a rollout gains in it.
    overlaps: it prepares an iteration while the GPU runs the one before."""

    iteration_s: float
    rollout_s: float
    overlaps: bool = False

    def seconds(self, gpu_s: float, rollouts: int, launch_s: float = 0.0) -> float:
        """Of an iteration that takes the GPU so long, launches included, of which the host takes
        ``launch_s`` while the GPU works."""
        host_s = self.iteration_s + self.rollout_s * rollouts
        return max(gpu_s, host_s + launch_s) if self.overlaps else gpu_s + host_s

    def pieces(self, gpu: list[Piece], rollouts: int) -> list[Piece]:
        """The same over the context."""
        host_s = self.iteration_s + self.rollout_s * rollouts
        return at_least(gpu, host_s) if self.overlaps else scaled(gpu, 1.0, host_s)


@dataclass(frozen=True)
class ForwardPass:
    """A pass in which each decoding rollout computes ``queries`` tokens, of ``least_s`` at least
    (launching its kernels), and ``prefill_least_s`` where it prefills. added_s: what kernels of
    adapters add.

    Stages of a pipeline work on a microbatch each: of r rollouts, one of ceil(r / stages). The next
    token of all takes the pass of the largest, with one more turn of the LM head for each stage.
    With fewer rollouts than stages some are idle, and a token takes the whole pass of one rollout:
    a pipeline makes no token faster, it saves the weights' room.
    """

    model: Model
    gpu: Gpu
    layout: EngineLayout
    queries: int = 1
    least_s: float = 0.0
    added_s: float = 0.0
    prefill_least_s: float = 0.0

    @cached_property
    def _products(self) -> Products:
        return Products(self.model, self.gpu, self.layout)

    @cached_property
    def _attention(self) -> Attention:
        return Attention(self.model, self.gpu, self.layout, self.queries)

    @cached_property
    def _exchange(self) -> Exchange:
        return Exchange(self.model, self.gpu, self.layout)

    @cached_property
    def _floor_s(self) -> float:
        return self.model.layers * self.gpu.layer_floor_s + self.added_s

    def _largest(self, rollouts: int) -> float:
        """The largest microbatch's share of ``rollouts``."""
        return math.ceil(rollouts / self.layout.pipeline_parallel) / max(1, rollouts)

    @cached_property
    def _even(self) -> bool:
        """Whether there is one stage, whose GPUs have all rollouts together."""
        return self.layout.pipeline_parallel == 1 and not self.layout.data_parallel_attention

    def _fixed_s(self, tokens: int, rollouts: int, sampled: int) -> float:
        """All but attention: ``tokens`` computed, ``sampled`` positions through the head."""
        if self._even:
            return (
                self._products.layers_s(tokens)
                + self._products.head_s(sampled)
                + self._floor_s
                + self._exchange.layers_s(tokens)
                + rollouts * self._attention.state_s
            )
        share, busiest = self._largest(rollouts), self._attention.busiest(rollouts)
        stages = self.layout.pipeline_parallel
        heads = stages if rollouts >= stages else 1
        hops_s = self._exchange.hops_s(tokens * share) if stages > 1 else 0.0
        return (
            self._products.layers_s(tokens * share)
            + heads * self._products.head_s(sampled * share)
            + self._floor_s
            + self._exchange.layers_s(tokens * share, busiest)
            + hops_s
            + rollouts * share * busiest * self._attention.state_s
        )

    def seconds(self, work: Iteration) -> float:
        """Any pass; :meth:`pieces` is this formula in closed form."""
        attention, decoding = self._attention, work.rollouts - work.prefill_rollouts
        sampled = decoding * self.queries + work.prefill_rollouts
        tokens = decoding * self.queries + work.prefill_tokens
        context = work.context_tokens - work.prefill_context_tokens
        share = 1.0 if self._even else self._largest(work.rollouts)
        seconds = self._fixed_s(tokens, work.rollouts, sampled)
        seconds += attention.decode_s(context, decoding) * share
        if work.prefill_tokens:
            seconds += attention.prefill_s(work) * share
            seconds += self._products.tower_s(work.prefill_tokens)
        return max(seconds, self.least_s, self.launch_s(work))

    def launch_s(self, work: Iteration) -> float:
        """Seconds of the host to launch what no CUDA graph holds."""
        return self.prefill_least_s if work.prefill_tokens else 0.0

    def pieces(self, rollouts: int) -> list[Piece]:
        """Seconds of a pass in which ``rollouts`` decode, over their context: attention reads its
        KV, all else is fixed. Where launching takes longer, flat up to the context at which it no
        longer does; where layers have a window, less steep from a window a rollout on."""
        tokens = rollouts * self.queries
        seen = scaled(self._attention.pieces(rollouts), self._largest(rollouts))
        fixed = [(0, self._fixed_s(tokens, rollouts, tokens), 0.0)]
        return at_least(plus(fixed, seen), self.least_s)
