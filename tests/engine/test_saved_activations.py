"""What a layer keeps for its backward, as PyTorch saves it, against the ledger's count."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rollcast.simulator.costs.presets.models import Model, load_model
from rollcast.simulator.costs.trainer.activation_memory import SCORES_KEPT, kept_layer

TOKENS = 48
SHAPES: dict[str, Any] = {
    "hidden": 96,
    "intermediate": 160,
    "heads": 6,
    "kv_heads": 2,
    "head_dim": 16,
    "vocab": 64,
}
OF = {"qwen2": "qwen2.5-1.5b", "llama": "llama-3.2-1b", "qwen3": "qwen3-4b"}
STREAMS = {"16 bit": ("bfloat16", False), "autocast": ("float32", True), "fp32": ("float32", False)}


def saved_bytes(family: str, dtype: str, autocast: bool, layers: int) -> int:
    """Of all tensors that a forward saves, but for the weights."""
    config = AutoConfig.for_model(
        family,
        num_hidden_layers=layers,
        hidden_size=SHAPES["hidden"],
        intermediate_size=SHAPES["intermediate"],
        num_attention_heads=SHAPES["heads"],
        num_key_value_heads=SHAPES["kv_heads"],
        head_dim=SHAPES["head_dim"],
        vocab_size=SHAPES["vocab"],
    )
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).model
    counted: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own and TOKENS in tensor.shape:
            counted[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        model(input_ids=torch.ones((1, TOKENS), dtype=torch.long), use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in counted.values())


def sized(family: str) -> Model:
    return replace(load_model(OF[family]), layers=1, **SHAPES)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("family", OF)
def test_a_layer_keeps_what_autograd_saves(family: str, stream: Any) -> None:
    dtype, autocast = STREAMS[stream]
    two, one = (saved_bytes(family, dtype, autocast, layers) for layers in (2, 1))
    model = sized(family)
    width = 2 if stream == "fp32" else 1
    counted = width * kept_layer(model, stream=stream).whole
    normalised = 2 + (model.heads + model.kv_heads) * model.qk_norm
    factors = 4 * (normalised + model.heads)  # of norms and of attention's softmax, by row
    assert two - one == TOKENS * (counted + factors)


def test_eager_attention_keeps_six_bytes_of_each_score() -> None:
    config = AutoConfig.for_model(
        "qwen2",
        num_hidden_layers=1,
        hidden_size=SHAPES["hidden"],
        intermediate_size=SHAPES["intermediate"],
        num_attention_heads=SHAPES["heads"],
        num_key_value_heads=SHAPES["kv_heads"],
        vocab_size=SHAPES["vocab"],
    )
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="eager"
    ).model
    counted: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[-2:] == (TOKENS, TOKENS):
            storage = tensor.untyped_storage()
            counted[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=torch.ones((1, TOKENS), dtype=torch.long), use_cache=False)
    assert sum(counted.values()) == SCORES_KEPT * SHAPES["heads"] * TOKENS**2
