"""``quantization_config`` of a Hugging Face config: the format of each part's weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import Above, mapping, number

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
    quantised = mapping(quantised, field)
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
