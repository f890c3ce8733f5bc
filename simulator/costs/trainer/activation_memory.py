"""Activations on one GPU of a trainer: a layer's, split as its layout says, and those of images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from rollcast.simulator.costs.memory.activations import KeptLayer, kept_layer, tower_layer_bytes
from rollcast.simulator.costs.memory.training import ACTIVATION_BYTES
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.routing import busiest_share
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES, TrainerOptions
from rollcast.simulator.costs.trainer.parallel import Layout


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes of activations on one GPU of ``model`` split as ``layout`` says, per token of a
    microbatch or of its images."""

    model: Model
    layout: Layout
    options: TrainerOptions

    @cached_property
    def _layer(self) -> KeptLayer:
        """Where experts of this GPU get most."""
        return self._of(self._busiest)

    @cached_property
    def _usual(self) -> KeptLayer:
        """A layer in the mean over all: the busiest GPU is another one in each."""
        return self._of(1 + (self._busiest - 1) / math.sqrt(max(self.model.sparse_layers, 1)))

    @cached_property
    def _busiest(self) -> float:
        model = self.model
        return busiest_share(model.experts, self.options.expert_parallel, model.routing_skew)

    def _of(self, busiest: float) -> KeptLayer:
        options = self.options
        megatron = options.backend == "megatron"  # whose norms are fused
        fused = megatron or options.kernels == "fused"
        return kept_layer(
            self.model,
            "fused" if fused else "eager",
            # torchtitan's grouped experts do, as prime-rl runs them; a loop over experts does not
            scaled_in_fp32=not megatron and not options.expert_launch_s,
            scaled_inside=megatron,
            busiest=busiest,
        )

    def _here(self, whole: float, stream: float) -> float:
        """Of bytes of a whole layer, of which ``stream`` are of norms and the residual stream,
        those on one GPU."""
        tensor, share = self.options.tensor_parallel, self.layout.share / self._wide
        if self.options.tensor_sequence_parallel:
            return whole / share
        return (whole + (tensor - 1) * stream) / share

    @property
    def _wide(self) -> float:
        """Bytes of an activation over those in 16 bit."""
        return self.options.compute_bytes / COMPUTE_BYTES

    @cached_property
    def kept(self) -> float:
        """Of one token, what stays until its backward in all layers. A pipeline's first stage holds
        as many microbatches as stages, of its share of the layers, and (p - 1) / (p v) more where
        they are interleaved (arXiv 2104.04473, section 2.2)."""
        options, layer = self.options, self._usual
        layers, repeated = self.model.layers, options.recompute_layers
        repeated = layers if repeated is None else repeated
        kept = repeated * self._here(
            layer.kept(options.recompute), layer.kept_stream(options.recompute)
        )
        kept += (layers - repeated) * self._here(layer.whole, layer.norms)
        whole = layers if options.recompute in ("none", "mlp") else layers - repeated
        kept += whole * self._recurrent_again
        if options.virtual_stages > 1:
            stages = options.pipeline_parallel
            kept *= 1 + (stages - 1) / (stages * options.virtual_stages)
        if options.offload_activations:
            kept *= min(1.0, 2 / layers)
        return kept

    @property
    def _recurrent_again(self) -> float:
        """Of one token in a mean layer, what recurrent layers make that its GPU computes though
        others of its tensor parallel group do, too."""
        made = ACTIVATION_BYTES * self.model.recurrent_elements_per_token / self.model.layers
        return self._wide * self.layout.recurrent_copies * made / self.layout.share

    @cached_property
    def working(self) -> float:
        """Of one token, in the layer whose backward runs."""
        layer, recompute = self._layer, self.options.recompute
        again = layer.whole - layer.kept(recompute)
        stream = max(0.0, layer.norms - layer.kept_stream(recompute)) + 4 * layer.entry
        recurrent = self._recurrent_again * (recompute not in ("none", "mlp"))
        return self._here(again + layer.at_work, stream) + recurrent

    @cached_property
    def forward(self) -> float:
        """Of one token, in the layer that a forward without gradients computes."""
        return self._here(self._layer.at_work, 4 * self._layer.entry)

    @cached_property
    def image_kept(self) -> float:
        """Of one image token, what stays until the backward of the vision tower."""
        tower = self.model.vision
        if tower is None:
            return 0.0
        each = tower_layer_bytes(tower)
        if self.options.recompute == "full":
            each = 2 * tower.hidden
        kept = tower.patches_per_token * tower.layers * each / self.options.tensor_parallel
        return self._wide * kept

    @cached_property
    def image_working(self) -> float:
        """Of one image token, in the tower's layer that is at work."""
        tower = self.model.vision
        if tower is None:
            return 0.0
        made = tower.patches_per_token * tower_layer_bytes(tower) / self.options.tensor_parallel
        return self._wide * made
