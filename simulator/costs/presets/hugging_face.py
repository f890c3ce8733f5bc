"""Hugging Face configs by family: the keys of a `simulator.costs.presets.models.Model`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollcast.simulator.costs.presets.config_keys import Config, Keys, get, layers_of, listed
from rollcast.simulator.costs.presets.families import FAMILIES, tower_keys
from rollcast.simulator.costs.presets.quantised import quantised_keys
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.read import read_json
from rollcast.simulator.values import Above, AtLeast, Between, mapping, number, whole

_WIDTHS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
}
_GEMMA3 = {  # what transformers takes where a text_config leaves it out
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_POSITIONS = Between(1, 10**9)  # as `simulator.costs.presets.models.Model` has it
_STRETCH = Above(0, 10**9)
WINDOWED = ("sliding_attention", "chunked_attention")
_BIASED = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_5_vl_text")
_NORMALISED = ("qwen3", "gemma3", "gemma4", "olmo3")
_SEEING = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")  # of others the language model alone
_ALL_SPARSE = ("qwen3_5_moe", "deepseek_v4")  # whose configs have no width of a dense MLP


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
    if kind not in FAMILIES:
        raise ScenarioError(
            field, f"model_type {kind!r} is not covered; covered: {', '.join(sorted(FAMILIES))}"
        )
    text = config
    if config.get("text_config"):  # of a model that sees: the language model alone
        text = {**mapping(config["text_config"], field)}
        for key in ("quantization_config", "tie_word_embeddings"):
            if key in config:
                text.setdefault(key, config[key])
    if kind.startswith("gemma3"):
        text = {**_GEMMA3, **{key: value for key, value in text.items() if value is not None}}
    given: Keys = {ours: get(text, theirs, field) for ours, theirs in _WIDTHS.items()}
    dense = kind.startswith(_ALL_SPARSE) and text.get("intermediate_size") is None
    given["intermediate"] = 0 if dense else get(text, "intermediate_size", field)
    given["kv_heads"] = text.get("num_key_value_heads") or given["heads"]
    if text.get("head_dim") is not None:
        given["head_dim"] = text["head_dim"]
    given["tied_embeddings"] = bool(text.get("tie_word_embeddings", False))
    given["qkv_bias"] = bool(text.get("attention_bias", False)) or kind in _BIASED
    given["qk_norm"] = kind.startswith(_NORMALISED)
    given["name"] = name or kind
    given["source"] = f"Hugging Face config, model_type {kind}"
    layers = layers_of(text, field)
    given["max_positions"] = _positions(text, kind, field)
    given.update(_windows(text, kind, layers, field))
    given.update(FAMILIES[kind](text, field))
    given.update(quantised_keys(text, layers, field))
    seen = config.get("vision_config")
    if seen and kind.startswith(_SEEING):
        given["vision"] = tower_keys(mapping(seen, field), kind, given["hidden"], field)
    return given


def _positions(config: Config, kind: str, field: str) -> int | None:
    """The longest context, as vLLM 0.11 derives it: stretched positions count with their factor,
    from what the model had before for YaRN, and but where the config has it in already."""
    most = config.get("max_position_embeddings")
    if most is None:
        return None
    positions = whole(most, field, _POSITIONS)
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(scaling, Mapping) and isinstance(scaling.get("full_attention"), Mapping):
        scaling = scaling["full_attention"]
    if not isinstance(scaling, Mapping) or kind.startswith("gemma"):
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
    types = listed(config, "layer_types", field)
    chunk = config.get("attention_chunk_size") if kind.startswith("llama4") else None
    window = chunk or config.get("sliding_window")
    if not window or (kind.startswith("qwen") and not config.get("use_sliding_window")):
        return {}
    if types:
        count = sum(kind in WINDOWED for kind in types)
    elif kind.startswith("llama4"):
        every = whole(config.get("no_rope_layer_interval") or 4, field, AtLeast(1))
        count = layers - layers // every
    elif kind.startswith("gemma"):
        every = whole(config.get("sliding_window_pattern") or 6, field, AtLeast(1))
        count = layers - layers // every
    elif kind == "olmo3":
        count = layers - layers // 4
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
