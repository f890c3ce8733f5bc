"""Hugging Face configs by family: the keys of a `simulator.costs.presets.models.Model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollcast.simulator.costs.presets.quantised import quantised_keys
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.read import read_json
from rollcast.simulator.values import Above, AtLeast, Between, mapping, number, short, whole

Config = Mapping[str, Any]
Keys = dict[str, Any]

_WIDTHS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "intermediate": "intermediate_size",
}
_GEMMA3 = {  # what transformers takes where a text_config leaves it out
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_LAYERS = Between(1, 100_000)  # these two as `simulator.costs.presets.models.Model` has them
_POSITIONS = Between(1, 10**9)
_STRETCH = Above(0, 10**9)
WINDOWED = ("sliding_attention", "chunked_attention")


def read_config(path: Path, field: str) -> Config:
    """A ``config.json``, with what modelopt used to say of quantised weights in a file beside it.
    Raises ScenarioError naming ``field``."""
    config = _read_mapping(path, field)
    beside = path.with_name("hf_quant_config.json")
    if config.get("quantization_config") or not beside.is_file():
        return config
    quantization = _read_mapping(beside, field).get("quantization") or {}
    return {**config, "quantization_config": {"quant_method": "modelopt", **quantization}}


def _read_mapping(path: Path, field: str) -> Config:
    content = read_json(path, field)
    if not isinstance(content, dict):
        raise ScenarioError(field, f"{path} is not a Hugging Face config: its top is no object")
    return content


def keys_of(config: Config, field: str, name: str) -> Keys:
    """Keys of the model that a config describes. Raises ScenarioError naming ``field``."""
    kind = str(config.get("model_type", ""))
    if kind not in _FAMILIES:
        raise ScenarioError(
            field, f"model_type {kind!r} is not covered; covered: {', '.join(sorted(_FAMILIES))}"
        )
    text = config
    if config.get("text_config"):  # of a model that sees: the language model alone
        text = {**mapping(config["text_config"], field)}
        for key in ("quantization_config", "tie_word_embeddings"):
            if key in config:
                text.setdefault(key, config[key])
    if kind.startswith("gemma3"):
        text = {**_GEMMA3, **{key: value for key, value in text.items() if value is not None}}
    given: Keys = {ours: _get(text, theirs, field) for ours, theirs in _WIDTHS.items()}
    given["kv_heads"] = text.get("num_key_value_heads") or given["heads"]
    if text.get("head_dim") is not None:
        given["head_dim"] = text["head_dim"]
    given["tied_embeddings"] = bool(text.get("tie_word_embeddings", False))
    given["qkv_bias"] = bool(text.get("attention_bias", False)) or kind in ("qwen2", "qwen2_moe")
    given["qk_norm"] = kind in ("qwen3", "qwen3_moe", "qwen3_next", "gemma3", "gemma3_text")
    given["name"] = name or kind
    given["source"] = f"Hugging Face config, model_type {kind}"
    layers = _layers(text, field)
    given["max_positions"] = _positions(text, kind, field)
    given.update(_windows(text, kind, layers, field))
    given.update(_FAMILIES[kind](text, field))
    given.update(quantised_keys(text, layers, field))
    return given


def _positions(config: Config, kind: str, field: str) -> int | None:
    """The longest context, as vLLM 0.11 derives it: stretched positions count with their factor,
    from what the model had before for YaRN, and but where the config has it in already."""
    most = config.get("max_position_embeddings")
    if most is None:
        return None
    positions = whole(most, field, _POSITIONS)
    scaling = config.get("rope_scaling")
    if not isinstance(scaling, Mapping) or kind.startswith("gemma3"):
        return positions
    how = scaling.get("rope_type") or scaling.get("type")
    if how in (None, "default", "mrope", "su", "longrope", "llama3"):
        return positions
    if how == "yarn" and scaling.get("original_max_position_embeddings"):
        positions = whole(scaling["original_max_position_embeddings"], field, _POSITIONS)
    return int(positions * number(scaling.get("factor") or 1.0, field, _STRETCH))


def _windows(config: Config, kind: str, layers: int, field: str) -> Keys:
    """Layers that see a window only: those that ``layer_types`` names, or as the family has it.

    A chunk (Llama 4) counts as a window as long: the most that its layers see.
    """
    types = _listed(config, "layer_types", field)
    chunk = config.get("attention_chunk_size") if kind.startswith("llama4") else None
    window = chunk or config.get("sliding_window")
    if not window or (kind.startswith("qwen") and not config.get("use_sliding_window")):
        return {}
    if types:
        count = sum(kind in WINDOWED for kind in types)
    elif kind.startswith("llama4"):
        every = whole(config.get("no_rope_layer_interval") or 4, field, AtLeast(1))
        count = layers - layers // every
    elif kind.startswith("gemma3"):
        every = whole(config.get("sliding_window_pattern") or 6, field, AtLeast(1))
        count = layers - layers // every
    elif kind == "gpt_oss":
        count = (layers + 1) // 2
    elif kind.startswith("qwen"):
        first = config.get("max_window_layers")
        count = max(0, layers - whole(0 if first is None else first, field))
    elif kind in ("mistral", "mixtral", "phi3"):
        count = layers
    else:
        return {}
    return {"window_tokens": window, "windowed_layers": count} if count else {}


def _listed(config: Config, key: str, field: str) -> list[Any]:
    values = config.get(key) or []
    if not isinstance(values, list):
        raise ScenarioError(field, f"{key} of the config is {short(values)}, not a list")
    return values


def _layers(config: Config, field: str) -> int:
    """Its layers, as few as a model may have: they are counted one by one."""
    return whole(_get(config, "num_hidden_layers", field), f"{field}.layers", _LAYERS)


def _dense(config: Config, field: str) -> Keys:
    return {}


def _mixtral(config: Config, field: str) -> Keys:
    return {
        "experts": _get(config, "num_local_experts", field),
        "experts_per_token": _get(config, "num_experts_per_tok", field),
        "moe_intermediate": _get(config, "intermediate_size", field),
    }


def _qwen_moe(config: Config, field: str) -> Keys:
    layers = _layers(config, field)
    step = whole(config.get("decoder_sparse_step") or 1, field, AtLeast(1))
    dense = _listed(config, "mlp_only_layers", field)
    shared = config.get("shared_expert_intermediate_size") or 0
    return {
        "experts": _get(config, "num_experts", field),
        "experts_per_token": _get(config, "num_experts_per_tok", field),
        "moe_intermediate": _get(config, "moe_intermediate_size", field),
        "moe_layers": sum(i not in dense and (i + 1) % step == 0 for i in range(layers)),
        "shared_expert_intermediate": shared,
        "shared_expert_gate": bool(shared),
    }


def _qwen_next(config: Config, field: str) -> Keys:
    """Three layers of gated delta nets, then one of gated attention."""
    layers = _layers(config, field)
    types = _listed(config, "layer_types", field)
    every = whole(config.get("full_attention_interval") or 4, field, AtLeast(1))
    linear = types.count("linear_attention") if types else layers - layers // every
    width = _get(config, "linear_key_head_dim", field)
    if _get(config, "linear_value_head_dim", field) != width:
        raise ScenarioError(field, "linear_key_head_dim and linear_value_head_dim differ")
    return {
        **_qwen_moe(config, field),
        "attention_gate": True,
        "linear_layers": linear,
        "linear_key_heads": _get(config, "linear_num_key_heads", field),
        "linear_value_heads": _get(config, "linear_num_value_heads", field),
        "linear_head_dim": width,
    }


def _shared_experts(config: Config, field: str) -> Keys:
    """Experts after the first dense layers, some of them shared by all tokens."""
    layers = _layers(config, field)
    first = whole(config.get("first_k_dense_replace") or 0, field)
    width = whole(_get(config, "moe_intermediate_size", field), field)
    return {
        "experts": _get(config, "n_routed_experts", field),
        "experts_per_token": _get(config, "num_experts_per_tok", field),
        "moe_intermediate": width,
        "moe_layers": max(0, layers - first),
        "shared_expert_intermediate": width * whole(config.get("n_shared_experts") or 0, field),
    }


def _deepseek(config: Config, field: str) -> Keys:
    nope = whole(_get(config, "qk_nope_head_dim", field), field)
    rope = whole(_get(config, "qk_rope_head_dim", field), field)
    return {
        **_shared_experts(config, field),
        "kv_heads": _get(config, "num_attention_heads", field),
        "head_dim": nope + rope,
        "q_lora_rank": config.get("q_lora_rank") or 0,
        "kv_lora_rank": _get(config, "kv_lora_rank", field),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": _get(config, "v_head_dim", field),
    }


def _glm4_moe(config: Config, field: str) -> Keys:
    return {**_shared_experts(config, field), "qk_norm": bool(config.get("use_qk_norm", False))}


def _llama4(config: Config, field: str) -> Keys:
    """Every nth layer a mixture with a shared expert as wide as the routed ones."""
    layers = _layers(config, field)
    step = whole(config.get("interleave_moe_layer_step") or 1, field, AtLeast(1))
    width = _get(config, "intermediate_size", field)
    return {
        "intermediate": _get(config, "intermediate_size_mlp", field),
        "experts": _get(config, "num_local_experts", field),
        "experts_per_token": _get(config, "num_experts_per_tok", field),
        "moe_intermediate": width,
        "moe_layers": layers // step,
        "shared_expert_intermediate": width,
    }


def _get(config: Config, key: str, field: str) -> Any:
    if config.get(key) is None:
        raise ScenarioError(field, f"the config has no {key}")
    return config[key]


_FAMILIES: dict[str, Callable[[Config, str], Keys]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma3": _dense,
    "gemma3_text": _dense,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _mixtral,
    "kimi_k2": _deepseek,
    "llama": _dense,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "mistral": _dense,
    "mixtral": _mixtral,
    "phi3": _dense,
    "qwen2": _dense,
    "qwen2_moe": _qwen_moe,
    "qwen3": _dense,
    "qwen3_moe": _qwen_moe,
    "qwen3_next": _qwen_next,
}
