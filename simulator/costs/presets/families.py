"""Families of Hugging Face configs: the keys of a model that are their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import AtLeast, Between, short, whole

Config = Mapping[str, Any]
Keys = dict[str, Any]

_LAYERS = Between(1, 100_000)  # as `simulator.costs.presets.models.Model` has them


def get(config: Config, key: str, field: str) -> Any:
    """The value of a key. Raises ScenarioError where there is none."""
    if config.get(key) is None:
        raise ScenarioError(field, f"the config has no {key}")
    return config[key]


def listed(config: Config, key: str, field: str) -> list[Any]:
    """A list; empty where there is none. Raises ScenarioError for another value."""
    values = config.get(key) or []
    if not isinstance(values, list):
        raise ScenarioError(field, f"{key} of the config is {short(values)}, not a list")
    return values


def layers_of(config: Config, field: str) -> int:
    """Its layers, as few as a model may have: they are counted one by one."""
    return whole(get(config, "num_hidden_layers", field), f"{field}.layers", _LAYERS)


def _dense(config: Config, field: str) -> Keys:
    return {}


def _mixtral(config: Config, field: str) -> Keys:
    return {
        "experts": get(config, "num_local_experts", field),
        "experts_per_token": get(config, "num_experts_per_tok", field),
        "moe_intermediate": get(config, "intermediate_size", field),
    }


def _qwen_moe(config: Config, field: str) -> Keys:
    layers = layers_of(config, field)
    step = whole(config.get("decoder_sparse_step") or 1, field, AtLeast(1))
    dense = listed(config, "mlp_only_layers", field)
    shared = config.get("shared_expert_intermediate_size") or 0
    return {
        "experts": get(config, "num_experts", field),
        "experts_per_token": get(config, "num_experts_per_tok", field),
        "moe_intermediate": get(config, "moe_intermediate_size", field),
        "moe_layers": sum(i not in dense and (i + 1) % step == 0 for i in range(layers)),
        "shared_expert_intermediate": shared,
        "shared_expert_gate": bool(shared),
    }


def _qwen_next(config: Config, field: str) -> Keys:
    return {**_linear(config, field), **_qwen_moe(config, field)}


def _linear(config: Config, field: str) -> Keys:
    """Three layers of gated delta nets, then one of gated attention."""
    layers = layers_of(config, field)
    types = listed(config, "layer_types", field)
    every = whole(config.get("full_attention_interval") or 4, field, AtLeast(1))
    linear = types.count("linear_attention") if types else layers - layers // every
    width = get(config, "linear_key_head_dim", field)
    if get(config, "linear_value_head_dim", field) != width:
        raise ScenarioError(field, "linear_key_head_dim and linear_value_head_dim differ")
    return {
        "attention_gate": True,
        "linear_layers": linear,
        "linear_key_heads": get(config, "linear_num_key_heads", field),
        "linear_value_heads": get(config, "linear_num_value_heads", field),
        "linear_head_dim": width,
    }


def _shared_experts(config: Config, field: str) -> Keys:
    """Experts after the first dense layers, some of them shared by all tokens."""
    layers = layers_of(config, field)
    first = whole(config.get("first_k_dense_replace") or 0, field)
    width = whole(get(config, "moe_intermediate_size", field), field)
    return {
        "experts": get(config, "n_routed_experts", field),
        "experts_per_token": get(config, "num_experts_per_tok", field),
        "moe_intermediate": width,
        "moe_layers": max(0, layers - first),
        "shared_expert_intermediate": width * whole(config.get("n_shared_experts") or 0, field),
    }


def _deepseek(config: Config, field: str) -> Keys:
    nope = whole(get(config, "qk_nope_head_dim", field), field)
    rope = whole(get(config, "qk_rope_head_dim", field), field)
    return {
        **_shared_experts(config, field),
        "kv_heads": get(config, "num_attention_heads", field),
        "head_dim": nope + rope,
        "q_lora_rank": config.get("q_lora_rank") or 0,
        "kv_lora_rank": get(config, "kv_lora_rank", field),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": get(config, "v_head_dim", field),
    }


def _glm4_moe(config: Config, field: str) -> Keys:
    return {**_shared_experts(config, field), "qk_norm": bool(config.get("use_qk_norm", False))}


def _llama4(config: Config, field: str) -> Keys:
    """Every nth layer a mixture with a shared expert as wide as the routed ones."""
    layers = layers_of(config, field)
    step = whole(config.get("interleave_moe_layer_step") or 1, field, AtLeast(1))
    width = get(config, "intermediate_size", field)
    return {
        "intermediate": get(config, "intermediate_size_mlp", field),
        "experts": get(config, "num_local_experts", field),
        "experts_per_token": get(config, "num_experts_per_tok", field),
        "moe_intermediate": width,
        "moe_layers": layers // step,
        "shared_expert_intermediate": width,
    }


def _qwen_hybrid(config: Config, field: str) -> Keys:
    """Qwen3.5: dense, or a mixture; its states are fp32 where the config does not say."""
    mixed = _qwen_moe(config, field) if config.get("num_experts") else {}
    state_bytes = _STATE_BYTES.get(str(config.get("mamba_ssm_dtype")), 4)
    return {**mixed, **_linear(config, field), "linear_state_bytes_per_element": state_bytes}


def _qwen_vl(config: Config, field: str) -> Keys:
    return _qwen_moe(config, field) if config.get("num_experts") else {}


def _sparse(config: Config, field: str) -> Keys:
    """Latent attention to the tokens that an indexer chooses; three dense layers by default."""
    kinds = listed(config, "mlp_layer_types", field)
    first = kinds.count("dense") if kinds else config.get("first_k_dense_replace", 3)
    return {
        **_deepseek({**config, "first_k_dense_replace": first}, field),
        "sparse": _indexer(config, field),
    }


def _indexer(config: Config, field: str) -> Keys:
    return {
        "top_tokens": get(config, "index_topk", field),
        "index_heads": get(config, "index_n_heads", field),
        "index_head_dim": get(config, "index_head_dim", field),
    }


_COMPRESSED = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def _deepseek_v4(config: Config, field: str) -> Keys:
    """Every layer a mixture, and a window beside compressed tokens."""
    layers = layers_of(config, field)
    rates = config.get("compress_rates") or _COMPRESSED
    light, heavy = (whole(get(rates, kind, field), field, AtLeast(1)) for kind in _COMPRESSED)
    ratios = listed(config, "compress_ratios", field)[:layers]
    if not ratios:
        kinds = dict(zip(_COMPRESSED, (light, heavy), strict=True))
        types = listed(config, "layer_types", field)
        if not types:
            raise ScenarioError(field, "the config has neither compress_ratios nor layer_types")
        ratios = [kinds.get(kind, 0) for kind in types]
    return {
        **_shared_experts(config, field),
        "q_lora_rank": get(config, "q_lora_rank", field),
        "window_tokens": get(config, "sliding_window", field),
        "sparse": _indexer(config, field),
        "compressed": {
            "light_layers": ratios.count(light),
            "heavy_layers": ratios.count(heavy),
            "light_ratio": light,
            "heavy_ratio": heavy,
            "output_groups": get(config, "o_groups", field),
            "output_rank": get(config, "o_lora_rank", field),
        },
    }


def tower_keys(config: Config, kind: str, hidden: int, field: str) -> Keys:
    """Keys of `simulator.costs.presets.vision.VisionTower` for Qwen's vision models, whose language
    model is ``hidden`` wide."""
    older, gated = kind.startswith("qwen2_vl"), kind.startswith("qwen2_5_vl")
    newer = not older and not gated
    patch = whole(config.get("patch_size") or config.get("spatial_patch_size") or 14, field)
    width = whole(get(config, "embed_dim" if older else "hidden_size", field), field)
    frames = whole(config.get("temporal_patch_size") or 2, field)
    merged = whole(config.get("spatial_merge_size") or 2, field)
    within = listed(config, "deepstack_visual_indexes", field)
    return {
        "layers": get(config, "depth", field),
        "hidden": width,
        "intermediate": 4 * width if older else get(config, "intermediate_size", field),
        "output": hidden,
        "heads": whole(config.get("num_heads") or 16, field),
        "gated_mlp": gated,
        "patch_elements": 3 * frames * patch * patch,
        "positions": get(config, "num_position_embeddings", field) if newer else 0,
        "patches_per_token": merged * merged,
        "projectors": 1 + len(within),
    }


_BLOCKS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
_OLD_BLOCKS = {"mamba": "linear_attention", "attention": "full_attention"}


def _nemotron_h(config: Config, field: str) -> Keys:
    """Blocks that either mix tokens or are an MLP; a layer here is a mixer, of which as many as
    there are MLPs have one."""
    pattern = config.get("hybrid_override_pattern")
    blocks = listed(config, "layers_block_type", field) or listed(config, "layer_types", field)
    if pattern is not None:
        blocks = [_BLOCKS.get(letter, letter) for letter in str(pattern)]
    blocks = [_OLD_BLOCKS.get(block, block) for block in blocks]
    unknown = {str(block) for block in blocks} - set(_BLOCKS.values())
    if unknown or not blocks:
        what = f"blocks {', '.join(sorted(unknown))}" if unknown else "no hybrid_override_pattern"
        raise ScenarioError(field, f"the config has {what}; known: {', '.join(_BLOCKS.values())}")
    if config.get("moe_latent_size"):
        raise ScenarioError(field, "moe_latent_size is not covered")
    spaces, sparse = blocks.count("linear_attention"), blocks.count("moe")
    keys: Keys = {
        "layers": spaces + blocks.count("full_attention"),
        "mlp_layers": sparse + blocks.count("mlp"),
        "gated_mlp": False,
    }
    if spaces:
        groups = config.get("n_groups") or config.get("mamba_n_groups") or 8
        keys["state_space"] = {
            "layers": spaces,
            "heads": get(config, "mamba_num_heads", field),
            "head_dim": get(config, "mamba_head_dim", field),
            "state_dim": get(config, "ssm_state_size", field),
            "groups": groups,
            "conv_kernel": config.get("conv_kernel") or 4,
            "state_bytes_per_element": _STATE_BYTES.get(
                str(config.get("mamba_ssm_cache_dtype")), 4
            ),
        }
    if sparse:
        shared = whole(get(config, "moe_shared_expert_intermediate_size", field), field)
        keys |= _shared_experts(config, field)
        keys |= {
            "moe_layers": sparse,
            "shared_expert_intermediate": shared * whole(config.get("n_shared_experts", 1), field),
        }
    return keys


_STATE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def _minimax_m2(config: Config, field: str) -> Keys:
    return {**_mixtral(config, field), "qk_norm": bool(config.get("use_qk_norm", True))}


def _gemma4(config: Config, field: str) -> Keys:
    """Wider heads in layers without a window; the dense MLP runs beside the experts."""
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if config.get(key):
            raise ScenarioError(field, f"{key} is not covered (Gemma 4 E2B and E4B)")
    same = bool(config.get("attention_k_eq_v", False))
    keys: Keys = {
        "full_head_dim": config.get("global_head_dim") or 512,
        "full_kv_heads": (same and config.get("num_global_key_value_heads")) or 0,
        "shared_keys_values": same,
    }
    if config.get("enable_moe_block"):
        keys |= {
            "experts": get(config, "num_experts", field),
            "experts_per_token": get(config, "top_k_experts", field),
            "moe_intermediate": get(config, "moe_intermediate_size", field),
            "shared_expert_intermediate": get(config, "intermediate_size", field),
        }
    return keys


FAMILIES: dict[str, Callable[[Config, str], Keys]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "deepseek_v32": _sparse,
    "deepseek_v4": _deepseek_v4,
    "gemma3": _dense,
    "gemma3_text": _dense,
    "gemma4": _gemma4,
    "gemma4_text": _gemma4,
    "glm4_moe": _glm4_moe,
    "glm_moe_dsa": _sparse,
    "gpt_oss": _mixtral,
    "kimi_k2": _deepseek,
    "kimi_k25": _deepseek,
    "llama": _dense,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "minimax_m2": _minimax_m2,
    "mistral": _dense,
    "mixtral": _mixtral,
    "nemotron_h": _nemotron_h,
    "olmo3": _dense,
    "phi3": _dense,
    "qwen2": _dense,
    "qwen2_5_vl": _dense,
    "qwen2_5_vl_text": _dense,
    "qwen2_moe": _qwen_moe,
    "qwen2_vl": _dense,
    "qwen3": _dense,
    "qwen3_5": _qwen_hybrid,
    "qwen3_5_moe": _qwen_hybrid,
    "qwen3_5_moe_text": _qwen_hybrid,
    "qwen3_5_text": _qwen_hybrid,
    "qwen3_moe": _qwen_moe,
    "qwen3_next": _qwen_next,
    "qwen3_vl": _qwen_vl,
    "qwen3_vl_moe": _qwen_vl,
    "qwen3_vl_moe_text": _qwen_vl,
    "qwen3_vl_text": _qwen_vl,
}
