"""The tower of a vision-language model, which turns images into tokens of the language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rollcast.simulator.values import Between, Doc, Options

Some = Annotated[int, Between(1, 10**7)]


@dataclass(frozen=True, slots=True)
class VisionTower(Options):
    """A vision transformer whose patches, a few at a time, are projected to one image token.

    Videos count as images. Patches of an image attend to all of it: where a tower has windows
    (Qwen2.5-VL), that is an upper bound.
    """

    FIELD = "model.vision"

    layers: Annotated[Some, Doc("number of layers", unit="layers")]
    hidden: Annotated[Some, Doc("width of the residual stream", unit="elements")]
    intermediate: Annotated[Some, Doc("MLP width", unit="elements")]
    output: Annotated[Some, Doc("width of an image token: the language model's", unit="elements")]
    heads: Annotated[Some, Doc("attention heads of a layer", unit="heads")] = 16
    gated_mlp: Annotated[bool, Doc("whether MLPs are gated")] = False
    patch_elements: Annotated[
        Some, Doc("numbers of a patch: colours x frames x pixels", unit="elements")
    ] = 1536
    positions: Annotated[
        int, Between(0, 10**7), Doc("learned positions of patches; 0: none", unit="patches")
    ] = 0
    patches_per_token: Annotated[Some, Doc("patches of an image token", unit="patches")] = 4
    projectors: Annotated[
        Some,
        Doc(
            "projections to the language model: one, and one for each layer fed from within",
            unit="projections",
        ),
    ] = 1

    @property
    def _layer_parameters(self) -> int:
        matrices = 3 if self.gated_mlp else 2
        return 4 * self.hidden**2 + matrices * self.hidden * self.intermediate

    @property
    def _projector_parameters(self) -> int:
        merged = self.patches_per_token * self.hidden
        return merged * merged + merged * self.output

    @property
    def parameters(self) -> int:
        """All weights, biases and norms aside."""
        embedded = (self.patch_elements + self.positions) * self.hidden
        projected = self.projectors * self._projector_parameters
        return self.layers * self._layer_parameters + projected + embedded

    @property
    def token_bytes(self) -> int:
        """Bytes of an image token's patches in 32 bit, as processors make them."""
        return 4 * self.patches_per_token * self.patch_elements

    @property
    def layer_elements(self) -> int:
        """Elements that a layer keeps of one patch: norms and residuals, queries, keys, values and
        output of attention, and the widths of its MLP."""
        return 8 * self.hidden + (4 if self.gated_mlp else 2) * self.intermediate

    @property
    def kept_elements(self) -> int:
        """Elements of 16 bit that autograd saves of one patch in a layer, as transformers computes
        it: the projection of queries, keys and values, of which the values are a view, queries and
        keys turned, attention's output, and the widths of its MLP. A gated tower has norms of
        several kernels (RMSNorm in fp32: its input in 32 bit, that normalised in 16, its output),
        others LayerNorm (its input and output)."""
        norms = 2 * (4 if self.gated_mlp else 2) * self.hidden
        return norms + 6 * self.hidden + (4 if self.gated_mlp else 2) * self.intermediate

    def flop_per_image_token(self, image_tokens: int) -> float:
        """Flop of a forward for one token of an image of ``image_tokens``."""
        patches = self.patches_per_token
        attention = 4 * self.hidden * patches * image_tokens
        each = 2 * self._layer_parameters + attention
        embedded = 2 * self.patch_elements * self.hidden
        projected = 2 * self.projectors * self._projector_parameters
        return patches * (self.layers * each + embedded) + projected
