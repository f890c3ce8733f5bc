"""What a layer keeps for its backward, as PyTorch saves it, against the ledger's count."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import sdpa_attention
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionBlock
from transformers.models.qwen3_next import modeling_qwen3_next
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionBlock

from rollcast.simulator.costs.presets.models import Model, load_model
from rollcast.simulator.costs.presets.vision import VisionTower
from rollcast.simulator.costs.trainer.activation_memory import (
    SCORES_KEPT,
    kept_layer,
    tower_layer_bytes,
)

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


def saved_bytes(
    family: str, dtype: str, autocast: bool, layers: int, adapters: str | None = None
) -> int:
    """Of all tensors that a forward saves, but for the weights. adapters: their type, of rank 1 on
    each matrix."""
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
    whole = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model = whole.model
    if adapters is not None:
        peft = pytest.importorskip("peft", reason="peft is not installed (rollcast[lora])")
        adapted = peft.get_peft_model(whole, peft.LoraConfig(r=1, target_modules="all-linear"))
        adapted.enable_input_require_grads()
        for weight in adapted.parameters():
            kind = adapters if weight.requires_grad else dtype
            weight.data = weight.data.to(getattr(torch, kind))
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


@pytest.mark.parametrize("kind", ["16 bit", "cast"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_adapters_keep_what_autograd_saves(family: str, kind: Any) -> None:
    cast = kind == "cast"
    of = ("bfloat16", cast)
    two, one = (
        saved_bytes(family, *of, layers, "float32" if cast else "bfloat16") for layers in (2, 1)
    )
    model = sized(family)
    counted = kept_layer(model, adapters=kind).whole
    normalised = 2 + (model.heads + model.kv_heads) * model.qk_norm
    factors = 4 * (normalised + model.heads)  # of norms and of attention's softmax, by row
    assert two - one == TOKENS * (counted + factors + 2 * 7)  # and of rank 1 in seven matrices


@pytest.mark.parametrize("squared", [True, False])
def test_an_mlp_without_a_gate_keeps_two_widths(squared: bool) -> None:
    """Nemotron's squared ReLU, and GELU."""
    model = replace(load_model("qwen3-4b"), **SHAPES, layers=1, gated_mlp=False)
    up = torch.nn.Linear(model.hidden, model.intermediate, bias=False)
    down = torch.nn.Linear(model.intermediate, model.hidden, bias=False)
    taken = torch.ones((TOKENS, model.hidden), requires_grad=True)
    own = {one.data_ptr() for one in (up.weight, down.weight, taken)}
    counted: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            counted[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        made = up(taken)
        down(made.relu().pow(2) if squared else torch.nn.functional.gelu(made))
    saved = sum(tensor.numel() for tensor in counted.values())
    assert 2 * saved == TOKENS * kept_layer(model).mlp


class Fused(torch.autograd.Function):
    """A kernel that keeps ``kept`` and whose output is like ``like``."""

    @staticmethod
    def forward(ctx: Any, like: torch.Tensor, *kept: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*kept)
        return torch.empty_like(like)


def delta_rule(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """As ChunkGatedDeltaRuleFunction: queries and keys are normalised, values made contiguous."""
    products = torch.empty(*queries.shape[:3], 64, dtype=queries.dtype)
    rows = [torch.empty(queries.shape[:3]) for _ in range(3)]
    normalised = [torch.empty_like(one) for one in (queries, keys)]
    values = values.contiguous().clone()
    return Fused.apply(values, *normalised, values, products, *rows, beta), None  # type: ignore[no-untyped-call]


def test_a_gated_delta_net_keeps_what_its_kernels_save(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = {"linear_key_heads": 2, "linear_value_heads": 4}
    config = AutoConfig.for_model(
        "qwen3_next", hidden_size=96, **{f"linear_num_{k[7:]}": v for k, v in heads.items()}
    )
    config.linear_key_head_dim = config.linear_value_head_dim = 16
    monkeypatch.setattr(modeling_qwen3_next, "torch_chunk_gated_delta_rule", delta_rule)
    monkeypatch.setattr(
        modeling_qwen3_next, "causal_conv1d_fn", lambda taken, *_, **__: Fused.apply(taken, taken)
    )
    net = modeling_qwen3_next.Qwen3NextGatedDeltaNet(config, 0).to(torch.bfloat16)
    monkeypatch.setattr(net.norm, "forward", lambda made, gate: Fused.apply(made, made, gate))
    taken = torch.ones((1, TOKENS, 96), dtype=torch.bfloat16, requires_grad=True)
    own = {one.untyped_storage().data_ptr() for one in (*net.parameters(), taken)}
    counted: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own and tensor.numel() > 4:
            counted[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        net(taken)
    saved = sum(tensor.untyped_storage().nbytes() for tensor in counted.values())
    model = replace(load_model("qwen3.5-4b"), linear_layers=1, linear_head_dim=16, **heads)
    assert saved == 2 * TOKENS * model.recurrent_elements_kept


def test_megatrons_gated_delta_net_keeps_more() -> None:
    """Its forward (core/ssm/gated_delta_net), of which torch.compile fuses what stands in one call
    here: a convolution, a norm of queries and keys, the kernel, a norm, and the gate."""
    heads, width = {"linear_key_heads": 2, "linear_value_heads": 4}, 16
    keys, values = (width * n for n in heads.values())
    shape = (1, TOKENS, -1, width)
    made = torch.ones((1, TOKENS, 2 * keys + values), dtype=torch.bfloat16, requires_grad=True)
    gate = torch.ones((1, TOKENS, values), dtype=torch.bfloat16)
    alpha, beta = torch.ones((2, 1, TOKENS, 4), dtype=torch.bfloat16, requires_grad=True).unbind()
    bias = torch.ones(4, requires_grad=True)
    out = torch.ones((8, values), dtype=torch.bfloat16, requires_grad=True)
    counted: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() > 4 and tensor.data_ptr() != out.data_ptr():
            counted[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def fused(*kept: torch.Tensor) -> Any:
        return Fused.apply(kept[0].clone(), *kept)  # type: ignore[no-untyped-call]

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        pair, value = fused(made).split([2 * keys, values], dim=-1)
        normed = pair.reshape(*shape[:2], -1, width).contiguous()
        normed = Fused.apply(normed)  # type: ignore[no-untyped-call]
        counted[-1] = normed.detach()  # which its norm saves
        query, key = (one.repeat_interleave(2, dim=2) for one in normed.chunk(2, dim=2))
        g = -bias.exp() * torch.nn.functional.softplus(alpha.float() + bias)
        mixed, _ = delta_rule(query, key, value.reshape(shape), g, beta.sigmoid().contiguous())
        ended = fused(fused(mixed.reshape(gate.shape)), gate)
        torch.nn.functional.linear(ended, out)
    model = replace(load_model("qwen3.5-4b"), linear_layers=1, linear_head_dim=width, **heads)
    saved = sum(tensor.untyped_storage().nbytes() for tensor in counted.values())
    assert saved == 2 * TOKENS * (model.recurrent_elements_kept + model.recurrent_elements_unfused)


@pytest.mark.parametrize("gated", [True, False])
def test_a_layer_of_a_vision_tower_keeps_what_autograd_saves(gated: bool) -> None:
    config = AutoConfig.for_model("qwen2_5_vl" if gated else "qwen3_vl").vision_config
    config.hidden_size, config.intermediate_size = SHAPES["hidden"], SHAPES["intermediate"]
    config.num_heads, config._attn_implementation = SHAPES["heads"], "sdpa"
    block = Qwen2_5_VLVisionBlock if gated else Qwen3VLVisionBlock
    layers = torch.nn.ModuleList([block(config) for _ in range(3)]).to(torch.bfloat16)
    turned = torch.rand(TOKENS, SHAPES["hidden"] // SHAPES["heads"])
    own = {weight.untyped_storage().data_ptr() for weight in [turned, *layers.parameters()]}

    def saved(count: int) -> int:
        counted: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own and TOKENS in tensor.shape:
                counted[storage.data_ptr()] = storage.nbytes()
                held.append(tensor)
            return tensor

        held: list[torch.Tensor] = []
        hidden = torch.rand(TOKENS, SHAPES["hidden"], dtype=torch.bfloat16, requires_grad=True)
        ends = torch.tensor([0, TOKENS], dtype=torch.int32)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            for layer in layers[:count]:
                hidden = layer(hidden, cu_seqlens=ends, position_embeddings=(turned, turned))
        return sum(counted.values())

    tower = VisionTower(
        layers=1,
        hidden=SHAPES["hidden"],
        intermediate=SHAPES["intermediate"],
        output=SHAPES["hidden"],
        gated_mlp=gated,
    )
    copied = 2 * SHAPES["hidden"]  # of attention's output, by SDPA, whose heads come first
    factors = 4 * (2 + SHAPES["heads"])  # LayerNorm has a mean and a deviation in 16 bit
    assert saved(3) - saved(2) == TOKENS * (tower_layer_bytes(tower) + copied + factors)


def test_repeated_keys_are_kept_for_each_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False)
    two, one = (saved_bytes("qwen2", "bfloat16", False, layers) for layers in (2, 1))
    model = sized("qwen2")
    factors = 4 * (2 + model.heads)
    assert two - one == TOKENS * (kept_layer(model, repeats_kv=True).whole + factors)


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
