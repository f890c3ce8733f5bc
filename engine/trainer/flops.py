"""Floating-point operations of a model's update, and the share of a GPU's peak that they are (MFU,
PaLM, arXiv 2204.02311, appendix B): what an update needs, not what recomputation adds to it."""

from __future__ import annotations

from typing import Any

import torch

from rollcast.simulator.costs.presets.gpus import gpu_presets, named_gpu


class Flops:
    """Of one model. Attention is counted with its causal mask: half of PaLM's. Of a mixture's
    experts, those count that a token goes through. Norms and activations are left out."""

    def __init__(self, model: Any) -> None:
        text = model.config.get_text_config()
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        apart = {id(head.weight), id(embedding.weight)}
        experts = getattr(text, "num_local_experts", None) or getattr(text, "num_experts", None)
        chosen = (getattr(text, "num_experts_per_tok", None) or 0) / (experts or 1)
        layer = frozen = 0.0
        for parameter in model.base_model.parameters():
            if id(parameter) in apart or parameter.dim() < 2:
                continue
            counts = parameter.numel() * (chosen if parameter.dim() == 3 else 1.0)
            layer += counts
            frozen += 0.0 if parameter.requires_grad else counts
        heads = text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // heads
        self._per_token: float = 2 * layer
        self._per_pair: float = 4 * text.num_hidden_layers * heads * width
        self._per_target: float = 2 * head.weight.numel()
        # A frozen weight has no gradient of its own.
        self._per_token_back: float = 4 * layer - 2 * frozen
        self._per_target_back: float = (4 if head.weight.requires_grad else 2) * head.weight.numel()

    def of(self, tokens: int, pairs: int, targets: int) -> float:
        """Of forward and backward over so many tokens, pairs of a token and one that it attends to,
        and tokens whose probability is computed."""
        return (
            tokens * (self._per_token + self._per_token_back)
            + pairs * 3 * self._per_pair
            + targets * (self._per_target + self._per_target_back)
        )


def peak_flop_per_s(device: torch.device) -> float | None:
    """Of a GPU in bfloat16, dense, by its datasheet (``rollcast presets gpus``); None for a device
    without a preset."""
    preset = gpu_here(device)
    return None if preset is None else float(gpu_presets()[preset].bf16_flop_per_s)


def gpu_here(device: torch.device | None = None) -> str | None:
    """The preset of a device, or of this process's GPU; None where it has none."""
    cuda = torch.cuda.is_available() if device is None else device.type == "cuda"
    return named_gpu(torch.cuda.get_device_name(device)) if cuda else None
