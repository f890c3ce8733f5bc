"""Hugging Face configs by family: the keys of a `simulator.costs.presets.models.Model`, and the
format of each part's weights, from ``quantization_config``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcast.simulator.costs.presets.families import (
    FAMILIES,
    Config,
    Keys,
    get,
    layers_of,
    listed,
    tower_keys,
)
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
    if not isinstance(quantization, dict):
        raise ScenarioError(field, f"quantization of {beside} is no object")
    return {**config, "quantization_config": {"quant_method": "modelopt", **quantization}}


def their_key(ours: str) -> str:
    """What a config calls a key of a model; the key itself where it is none of the common ones."""
    return {**_WIDTHS, "kv_heads": "num_key_value_heads", "intermediate": "intermediate_size"}.get(
        ours, ours
    )


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
        text = {**mapping(config["text_config"], f"{field}.text_config")}
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
        given["vision"] = tower_keys(
            mapping(seen, f"{field}.vision_config"), kind, given["hidden"], field
        )
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


METHODS = ("fp8", "compressed-tensors", "awq", "gptq", "mxfp4", "modelopt")
_PARTS = {
    "experts": re.compile(r"(?<!shared_)experts"),
    "attention": re.compile(r"self_attn|attention(?!_layernorm)"),
    "mlp": re.compile(r"mlp(?!\.(gate\b|router|experts))|shared_expert"),
}
_ONLY = re.compile(r"norm|rotary|layers\.\d+\.(self_attn|mlp)\.\w*(gate|bias)$")


def quantised_keys(config: Mapping[str, Any], layers: int, field: str) -> dict[str, Any]:
    """``precision``, and ``kv_bytes_per_element`` where the cache is quantised too; nothing for a
    config of 16 bit weights.

    A part that the config leaves in 16 bit on at least half of the layers that it names, or by a
    pattern for all of them, stays so; router, embeddings and head always do. Raises ScenarioError
    for a method or a number of bits that has no format here, and names it.
    """
    quantised = config.get("quantization_config")
    if not quantised:
        return {}
    quantised = mapping(quantised, f"{field}.quantization_config")
    method = quantised.get("quant_method") or ("modelopt" if "quant_algo" in quantised else None)
    if method not in METHODS:
        raise ScenarioError(
            field, f"quant_method {method!r} is not covered; covered: {', '.join(METHODS)}"
        )
    format_ = _format(str(method), quantised, field)
    kept: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"):
        listed = quantised.get(key) or []
        if isinstance(listed, str) or not isinstance(listed, Sequence):
            raise ScenarioError(field, f"quantization_config.{key} is no list of modules")
        kept += [str(name) for name in listed]
    precision = {part: format_ for part in _PARTS if not _covers(kept, part, layers)}
    if method == "mxfp4":  # of gpt-oss: experts, whatever the list says
        precision = {"experts": format_}
    keys: dict[str, Any] = {"precision": precision}
    cache = quantised.get("kv_cache_scheme") or quantised.get("kv_cache_quant_algo")
    if cache:
        bits = cache.get("num_bits", 8) if isinstance(cache, Mapping) else 8
        keys["kv_bytes_per_element"] = number(bits, field, Above(0, 64)) / 8
    return keys


def _format(method: str, quantised: Mapping[Any, Any], field: str) -> str:
    if method == "fp8":
        return "fp8_block" if quantised.get("weight_block_size") else "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method == "modelopt":
        return _modelopt(quantised, field)
    if method == "compressed-tensors":
        return _compressed(quantised, field)
    return _integers(quantised.get("bits", 4), method, field)


def _covers(kept: Sequence[str], part: str, layers: int) -> bool:
    """Whether the modules left in 16 bit are those of that part on half of the layers or more."""
    numbered = set()
    for name in kept:
        if not _PARTS[part].search(name) or _ONLY.search(name):
            continue
        layer = re.search(r"layers\.(\d+)\.", name)
        if layer is None:
            return True
        numbered.add(layer[1])
    return 2 * len(numbered) >= layers


def _integers(bits: object, method: str, field: str) -> str:
    if bits not in (4, 8):
        raise ScenarioError(field, f"{method} of {bits!r} bits is not covered; covered: 4 and 8")
    return f"int{bits}"


def _modelopt(quantised: Mapping[Any, Any], field: str) -> str:
    algorithm = str(quantised.get("quant_algo", "")).upper()
    known = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4", "INT4_AWQ": "int4"}
    if algorithm not in known:
        raise ScenarioError(
            field,
            f"modelopt's quant_algo {algorithm!r} is not covered; covered: {', '.join(known)}",
        )
    return known[algorithm]


def _compressed(quantised: Mapping[Any, Any], field: str) -> str:
    """Of the first group of compressed-tensors, which holds the linear layers."""
    groups = mapping(quantised.get("config_groups") or {}, field)
    group = mapping(next(iter(groups.values()), {}), field)
    weights = mapping(group.get("weights") or {}, field)
    bits, kind, strategy = (weights.get(key) for key in ("num_bits", "type", "strategy"))
    if kind == "float" and bits == 8:
        if not group.get("input_activations"):
            return "int8"  # as many bytes, and products in 16 bit
        return "fp8_block" if strategy == "block" else "fp8"
    if kind == "float" and bits == 4:
        return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
    if kind == "int" and not group.get("input_activations"):
        return _integers(bits, "compressed-tensors", field)
    raise ScenarioError(
        field,
        f"compressed-tensors of {bits!r} bits ({kind!r}) is not covered; covered: floats of 8 and "
        "4 bits, and integers whose activations are 16 bit",
    )
