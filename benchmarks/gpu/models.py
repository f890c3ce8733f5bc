"""Random models of a preset's shapes, made on the device."""

from __future__ import annotations

import gc
from typing import Any

import torch

from benchmarks.gpu.cases import Case, shape

_kept: dict[tuple[str, str, bool], Any] = {}


def build(case: Case, device: torch.device) -> Any:
    """The case's model; the last one made is kept for a case that asks for the same."""
    key = (case.model, case.dtype, case.tiny)
    if key not in _kept:
        forget(device)
        _kept[key] = _made(case, device)
    model = _kept[key]
    model.zero_grad(set_to_none=True)
    return model


def forget(device: torch.device) -> None:
    """Frees the model that is kept."""
    _kept.clear()
    tidy(device)


def tidy(device: torch.device) -> None:
    """Frees what nobody refers to, and what the allocator caches."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _made(case: Case, device: torch.device) -> Any:
    import transformers

    spec = case.spec
    shapes = shape(spec) | {
        "max_position_embeddings": spec.max_positions,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    family = next(f for f in ("Qwen2", "Qwen3", "Llama") if case.model.startswith(f.lower()))
    if family != "Qwen2":
        shapes["head_dim"] = spec.head_dim
    config = getattr(transformers, f"{family}Config")(**shapes)
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, case.dtype), attn_implementation="sdpa"
        )
    return model
