"""Formats of weights: the bytes that a parameter takes, and the peak at which products run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from simulator.options import Doc, Options

FormatName = Literal["bf16", "fp8", "fp8_block", "int8", "int4", "mxfp4", "nvfp4"]


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


FORMATS: Mapping[str, Format] = {
    "bf16": Format(2.0, "bf16", "bfloat16 or float16"),
    "fp8": Format(1.0, "fp8", "one scale a tensor or a channel, activations fp8 too"),
    "fp8_block": Format(
        1 + 4 / 128**2, "fp8", "a float32 scale for 128 x 128 weights, DeepSeek-V3 (2412.19437)"
    ),
    "int8": Format(1.0, "weight_only", "8 bit weights, activations 16 bit; one scale a channel"),
    "int4": Format(
        (4 + 20 / 128) / 8, "weight_only", "AWQ and GPTQ: a 16 bit scale and a 4 bit zero for 128"
    ),
    "mxfp4": Format(4.25 / 8, "weight_only", "an 8 bit scale for 32, OCP MX specification 1.0"),
    "nvfp4": Format(4.5 / 8, "fp4", "an fp8 scale for 16, NVIDIA's NVFP4"),
}
"""MXFP4 counts as weight-only: checkpoints in it (gpt-oss) are run with 16 bit activations."""


@dataclass(frozen=True, slots=True)
class Precision(Options):
    """The format of each part's weights. Published checkpoints keep the last three in 16 bit."""

    FIELD = "model.precision"

    attention: Annotated[FormatName, Doc("projections of attention")] = "bf16"
    mlp: Annotated[FormatName, Doc("MLPs of dense layers, and shared experts")] = "bf16"
    experts: Annotated[FormatName, Doc("routed experts")] = "bf16"
    router: Annotated[FormatName, Doc("routers of mixtures")] = "bf16"
    embeddings: Annotated[FormatName, Doc("token embeddings")] = "bf16"
    head: Annotated[FormatName, Doc("LM head; of tied embeddings too")] = "bf16"

    @classmethod
    def of_layers(cls, name: FormatName) -> Precision:
        """``name`` for attention, MLPs and experts; router, embeddings and head in 16 bit."""
        return cls(attention=name, mlp=name, experts=name)
