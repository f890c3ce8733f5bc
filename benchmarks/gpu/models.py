"""Random models of a preset's shapes, made on the device."""

import gc
from typing import Any

import torch

from benchmarks.gpu.cases import Case, shape
from rollcast.simulator.costs.presets.models import Model

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


def config_of(name: str, spec: Model) -> Any:
    """transformers' configuration of a preset's family with these shapes."""
    import transformers

    family = next(f for f in ("Qwen2", "Qwen3", "Llama") if name.startswith(f.lower()))
    keys = shape(spec) | {
        "max_position_embeddings": spec.max_positions,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if family != "Qwen2":
        keys["head_dim"] = spec.head_dim
    if spec.experts:
        family += "Moe"
        keys |= {"num_experts": spec.experts, "num_experts_per_tok": spec.experts_per_token}
        keys |= {"moe_intermediate_size": spec.moe_intermediate, "norm_topk_prob": True}
    config = getattr(transformers, f"{family}Config")(**keys)
    config.architectures = [f"{family}ForCausalLM"]
    return config


def _made(case: Case, device: torch.device) -> Any:
    import transformers

    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config_of(case.model, case.spec),
            dtype=getattr(torch, case.dtype),
            attn_implementation="sdpa",
        )
    return model
