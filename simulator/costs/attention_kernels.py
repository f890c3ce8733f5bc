"""How fast the attention kernels of trainers are, forward and backward together, by generation.

A share is of the dense bf16 peak, as `simulator.costs.trainer` counts: a backward as two forwards,
though it multiplies two and a half times as much. Kernels that run at f and b flop/s then reach
3 / (1 / f + 2.5 / b). Heads of 128, causal, 8,192 tokens and more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from simulator.costs.hardware import Gpu, Provenance
from simulator.errors import ScenarioError

AttentionKernel = Literal["eager", "flash_2", "flash_3", "flash_4", "cudnn"]
Generation = Literal["ampere", "hopper", "blackwell"]

_GENERATIONS: Mapping[str, Generation] = {
    "a100-80gb": "ampere", "a100-40gb": "ampere",
    "rtx-a6000": "ampere",
    "h100-sxm": "hopper", "h100-pcie": "hopper", "h100-nvl": "hopper", "h800-sxm": "hopper",
    "h200-sxm": "hopper",
    "b200": "blackwell", "gb200": "blackwell", "b300": "blackwell", "gb300": "blackwell",
}  # fmt: skip
FIGURE = "trainer_attention_flop_efficiency"


class Speed(NamedTuple):
    """A share of the bf16 peak, and where it is from."""

    share: float
    provenance: Provenance


_A5000 = "RTX A5000, all pairs (gpu-mode/ring-attention issue 10)"
_PAGE = "arXiv 2407.08608"
_ISSUE = "flash-attention issue 1589"
_MASKED = ", half of it masked"


def _measured(share: float, source: str) -> Speed:
    return Speed(share, Provenance("measured", source))


KERNELS: Mapping[tuple[AttentionKernel, Generation], Speed] = {
    ("eager", "ampere"): _measured(0.075, f"19 of 111 TFLOP/s{_MASKED}: {_A5000}"),
    ("flash_2", "ampere"): _measured(0.61, f"79 of 111 TFLOP/s: {_A5000}"),
    ("eager", "hopper"): _measured(0.05, f"139 TFLOP/s forward{_MASKED}: {_PAGE}"),
    ("flash_2", "hopper"): Speed(
        0.35,
        Provenance("fitted", f"{_PAGE}, section 1, and prime-rl's INTELLECT-3 row on H200"),
    ),
    ("flash_3", "hopper"): Speed(
        0.744,
        Provenance("fitted", "the 17 H100 RL rows of prime-rl benchmarks/baselines, and with it "
                   "what the passes overlap; kernels alone reach 0.5 to 0.6"),
    ),
    ("cudnn", "hopper"): _measured(
        0.48, f"595 to 617 TFLOP/s forward ({_PAGE}), its backward taken to be 10 % slower"
    ),
    ("eager", "blackwell"): _measured(0.022, f"116 TFLOP/s{_MASKED}: {_ISSUE}"),
    ("flash_2", "blackwell"): _measured(
        0.132, f"350 to 360 TFLOP/s forward (tritonbench pull request 171), 334 backward ({_ISSUE})"
    ),
    ("flash_4", "blackwell"): _measured(
        0.48, "1,418 TFLOP/s forward, 1,209 backward (flash-attention pull request 2280)"
    ),
    ("cudnn", "blackwell"): _measured(
        0.45, "forward as FlashAttention 4 (flash-attention pull request 2605), backward 1.1 times "
        "slower (pull request 1945)"
    ),
}  # fmt: skip


def with_kernel(gpu: Gpu, kernel: AttentionKernel, field: str) -> Gpu:
    """The GPU as that kernel finds it. Raises ScenarioError naming ``field`` where no speed of the
    kernel on it is known."""
    generation = _GENERATIONS.get(gpu.name)
    speed = KERNELS.get((kernel, generation)) if generation else None
    if speed is None:
        known = [name for name, where in KERNELS if where == generation]
        instead = f"known there: {', '.join(known)}" if known else "nor of any other"
        raise ScenarioError(
            field, f"no speed of {kernel} on {gpu.name} is known, {instead}; or give gpu.{FIGURE}"
        )
    provenance = {**gpu.provenance, FIGURE: speed.provenance}
    return replace(gpu, trainer_attention_flop_efficiency=speed.share, provenance=provenance)


def listed() -> str:
    """Every kernel and generation with its share, in words."""
    return "; ".join(
        f"{kernel} on {where} {speed.share:g}" for (kernel, where), speed in KERNELS.items()
    )
