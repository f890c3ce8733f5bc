"""Formats of weights: the bytes that a parameter takes, and the peak at which products run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

from rollcast.simulator.costs.presets.provenance import read_presets
from rollcast.simulator.values import Doc, Options


@dataclass(frozen=True, slots=True)
class Format:
    """How a weight is kept.

    bytes_per_parameter: its scales included. product: the tensor cores that multiply it; with
    "weight_only", and on a GPU that has no such cores, it is brought to 16 bit first, and the
    product runs at the 16 bit peak.
    """

    bytes_per_parameter: float
    product: Literal["bf16", "fp8", "fp4", "weight_only"]
    source: str


@cache
def formats() -> Mapping[str, Format]:
    """Every format by name."""
    return {name: Format(**entry) for name, entry in read_presets("formats.yaml").items()}


if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[tuple(formats())]


@dataclass(frozen=True, slots=True)
class Precision(Options):
    """The format of each part's weights. Published checkpoints keep the last three in 16 bit."""

    FIELD = "model.precision"

    attention: Annotated[FormatName, Doc("format of the attention projections")] = "bf16"
    mlp: Annotated[FormatName, Doc("format of dense MLPs and shared experts")] = "bf16"
    experts: Annotated[FormatName, Doc("format of the routed experts")] = "bf16"
    router: Annotated[FormatName, Doc("format of the routers")] = "bf16"
    embeddings: Annotated[FormatName, Doc("format of the token embedding")] = "bf16"
    head: Annotated[
        FormatName, Doc("format of the LM head, also if it shares the embedding's weights")
    ] = "bf16"

    @classmethod
    def of_layers(cls, name: FormatName) -> Precision:
        """``name`` for attention, MLPs and experts; router, embeddings and head in 16 bit."""
        return cls(attention=name, mlp=name, experts=name)
