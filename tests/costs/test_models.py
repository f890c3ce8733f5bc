"""Sizes follow from architectures: published counts, and real config files of each family."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollcast.simulator.costs.presets.models import (
    Model,
    load_model,
    model_from_config,
    model_presets,
)
from rollcast.simulator.costs.presets.precision import Precision
from rollcast.simulator.errors import ScenarioError

# Billions, as the model cards give them: all parameters; without embeddings where a card says so.
PUBLISHED = {
    "qwen3-0.6b": (0.6, 0.44),
    "qwen3-1.7b": (1.7, 1.4),
    "qwen3-4b": (4.0, 3.6),
    "qwen3-8b": (8.2, 6.95),
    "qwen3-14b": (14.8, 13.2),
    "qwen3-32b": (32.8, 31.2),
    "qwen3-30b-a3b": (30.5, 29.9),
    "qwen3-235b-a22b": (235.0, 234.0),
    "qwen2.5-0.5b": (0.49, 0.36),
    "qwen2.5-1.5b": (1.54, 1.31),
    "qwen2.5-3b": (3.09, 2.77),
    "qwen2.5-7b": (7.61, 6.53),
    "qwen2.5-14b": (14.7, 13.1),
    "qwen2.5-32b": (32.5, 31.0),
    "qwen2.5-72b": (72.7, 70.0),
    "llama-3.1-8b": (8.03, None),
    "llama-3.1-70b": (70.6, None),
    "llama-3.2-1b": (1.23, None),
    "llama-3.2-3b": (3.21, None),
    "llama-3.1-405b": (405.0, None),
    "deepseek-v3": (671.0, None),
    "deepseek-r1": (671.0, None),
    "kimi-k2": (1030.0, None),
    "glm-4.5": (355.0, None),
    "glm-4.5-air": (106.0, None),
    "gpt-oss-20b": (20.9, None),
    "gpt-oss-120b": (116.8, None),
    "gemma-3-4b": (3.88, None),
    "gemma-3-12b": (11.8, None),
    "gemma-3-27b": (27.0, None),
    "llama-4-scout": (108.0, None),  # 109 with the vision encoder
    "llama-4-maverick": (400.0, None),
    "qwen3-next-80b-a3b": (80.0, 79.0),
    "mixtral-8x7b": (46.7, None),
}
# Billions that a token uses, as the model cards give them, and how many of the two embeddings
# (tokens and head) they count.
ACTIVE = {
    "qwen3-235b-a22b": (22.0, 2),
    "deepseek-v3": (37.0, 1.5),
    "kimi-k2": (32.0, 1),
    "glm-4.5": (32.0, 0),
    "glm-4.5-air": (12.0, 0),
    "gpt-oss-20b": (3.61, 1),
    "gpt-oss-120b": (5.13, 1),
    "llama-4-scout": (17.2, 2),
    "llama-4-maverick": (17.2, 2),
    "mixtral-8x7b": (12.9, 2),
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN2_MOE = {  # Qwen1.5-MoE-A2.7B
    **QWEN3_MOE,
    "model_type": "qwen2_moe",
    "head_dim": None,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "shared_expert_intermediate_size": 5632,
}

MOE = {"num_local_experts": 8, "num_experts_per_tok": 2}
LLAMA4 = {**MOE, "intermediate_size_mlp": 16384, "attention_chunk_size": 8192}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "v_head_dim": 128,
    "vocab_size": 129280,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
        "quant_method": "mxfp4",
    },
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
GLM = {
    "model_type": "glm4_moe",
    "attention_bias": True,
    "first_k_dense_replace": 3,
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 92,
    "num_key_value_heads": 8,
    "use_qk_norm": True,
    "vocab_size": 151552,
}
SCOUT = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "attention_chunk_size": 8192,
        "head_dim": 128,
        "hidden_size": 5120,
        "interleave_moe_layer_step": 1,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "vocab_size": 202048,
    },
}
QWEN_NEXT = {
    "model_type": "qwen3_next",
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
    "vocab_size": 151936,
}
GEMMA = {
    "model_type": "gemma3_text",
    "head_dim": 128,
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_hidden_layers": 62,
    "num_key_value_heads": 16,
    "sliding_window": 1024,
}
CONFIGS = {
    "qwen3-30b-a3b": QWEN3_MOE,
    "deepseek-r1": DEEPSEEK,
    "gpt-oss-120b": GPT_OSS,
    "glm-4.5": GLM,
    "llama-4-scout": SCOUT,
    "qwen3-next-80b-a3b": QWEN_NEXT,
    "gemma-3-27b": GEMMA,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_match_the_published_ones(name: str) -> None:
    model = load_model(name)
    total, without_embeddings = PUBLISHED[name]
    assert model.parameters / 1e9 == pytest.approx(total, rel=0.013)
    if without_embeddings is not None:
        copies = 1 if model.tied_embeddings else 2
        rest = model.parameters - copies * model.head_parameters
        assert rest / 1e9 == pytest.approx(without_embeddings, rel=0.03)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_counts_match_the_published_ones(name: str) -> None:
    model = load_model(name)
    published, embeddings = ACTIVE[name]
    counted = model.active_parameters - (2 - embeddings) * model.head_parameters
    assert counted / 1e9 == pytest.approx(published, rel=0.02)


def test_presets_are_all_checked_against_published_counts() -> None:
    assert set(model_presets()) == set(PUBLISHED)
    assert all("huggingface.co" in m.source for m in model_presets().values())


def test_exact_counts_and_bytes() -> None:
    llama, mixture = load_model("llama-3.1-8b"), load_model("qwen3-30b-a3b")
    assert llama.parameters == 8_030_261_248
    assert load_model("qwen3-8b").parameters == 8_190_735_360
    assert llama.active_parameters == llama.parameters
    assert mixture.active_parameters / 1e9 == pytest.approx(3.35, abs=0.05)
    assert llama.kv_bytes_per_token == 131_072
    assert llama.weight_bytes == 2 * llama.parameters
    norms = 65 * 4096
    embedding = llama.head_parameters
    assert llama.linear_flop_per_token == 2 * (llama.parameters - 2 * embedding - norms)


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (LLAMA, 8.03, 8.03),
        (MIXTRAL, 46.7, 12.9),
        (QWEN3_MOE, 30.5, 3.35),
        (QWEN2_MOE, 14.3, 2.7),
    ],
)
def test_hugging_face_configs(
    config: dict[str, Any], total: float, active: float, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    for spec in (tmp_path, str(tmp_path / "config.json")):
        model = load_model(spec)
        assert model.parameters / 1e9 == pytest.approx(total, rel=0.01)
        assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.02)


def test_only_every_nth_layer_sparse() -> None:
    half = model_from_config({**QWEN3_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert half.sparse_layers == 23
    assert half.dense_mlp_parameters == 25 * 3 * 2048 * 6144 + 23 * 2048 * 128


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "mamba"}, "not covered"),
        ({"model_type": "mistral", "sliding_window": "wide"}, "number"),
        ({"model_type": "deepseek_v3"}, "qk_nope_head_dim"),
        ({"model_type": "mistral", "sliding_window": 9, "layer_types": 3}, "not a list"),
        ({"model_type": "llama4"}, "intermediate_size_mlp"),
        ({"model_type": "llama4", "text_config": 3}, "mapping"),
        ({"model_type": "qwen3_next"}, "linear_key_head_dim"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({**QWEN3_MOE, "num_hidden_layers": 10**12}, "from 1 to 100000"),
        ({**QWEN3_MOE, "mlp_only_layers": 3}, "not a list"),
        ({"max_position_embeddings": 10**400}, "from 1 to"),
        (
            {"max_position_embeddings": 9, "rope_scaling": {"type": "yarn", "factor": 10**400}},
            "up to",
        ),
        ({"num_key_value_heads": 7}, "divide"),
        ({"hidden_size": "wide"}, "number"),
        ({"model_type": "mixtral"}, "num_local_experts"),
    ],
)
def test_configs_that_cannot_be_described_are_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(ScenarioError, match=word):
        model_from_config({**LLAMA, **change})


def test_an_unused_sliding_window_is_no_obstacle() -> None:
    config = {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 131072}
    model = model_from_config({**LLAMA, **config})
    assert model.qkv_bias
    assert model.windowed_layers == 0


TYPES = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16}


@pytest.mark.parametrize(
    ("change", "windowed"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, (32, 4096)),
        ({"model_type": "mistral", "sliding_window": None}, (0, 0)),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 9,
                "max_window_layers": 28,
            },
            (4, 9),
        ),
        ({"model_type": "gpt_oss", **MOE, **TYPES}, (16, 128)),
        ({"model_type": "gpt_oss", **MOE, "sliding_window": 128}, (16, 128)),
        ({"model_type": "gemma3_text", "sliding_window": 1024}, (27, 1024)),  # 5 of 6
        ({"model_type": "llama4_text", **LLAMA4}, (24, 8192)),  # 3 of 4
        ({"model_type": "llama", "sliding_window": 7}, (0, 0)),  # such a config has no use for it
    ],
)
def test_windows_of_each_family(change: dict[str, Any], windowed: tuple[int, int]) -> None:
    model = model_from_config({**LLAMA, **change})
    assert (model.windowed_layers, model.window_tokens) == windowed


def same(model: Model) -> Model:
    """Without names, without positions, which the configs above leave out, and without the width of
    dense layers where there is none."""
    dense = model.intermediate if model.sparse_layers < model.layers else 0
    named = {"name": "", "source": "", "precision": model.parts, "max_positions": None}
    return replace(model, **named, moe_layers=model.sparse_layers or None, intermediate=dense)


@pytest.mark.parametrize(("name", "config"), CONFIGS.items())
def test_configs_of_the_new_families_equal_their_presets(name: str, config: dict[str, Any]) -> None:
    ours, theirs = load_model(name), model_from_config(config)
    assert same(theirs) == same(ours)


def test_the_language_model_of_a_config_with_images() -> None:
    text = {key: value for key, value in LLAMA.items() if key not in ("vocab_size", "model_type")}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 9}}
    model = model_from_config(config)
    assert model.vocab == 262_208  # which transformers takes where it is left out
    assert model.hidden == 4096


BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GATES = [f"model.layers.{i}.mlp.gate" for i in range(48)] + ["lm_head"]
ATTENTION = [f"model.layers.{i}.self_attn*" for i in range(48)]
GROUP = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
FLOATS = {**GROUP, "input_activations": {"num_bits": 8}}
FOUR = {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}


@pytest.mark.parametrize(
    ("quantised", "formats"),
    [
        (BLOCK, ("fp8_block",) * 3),
        ({"quant_method": "fp8"}, ("fp8",) * 3),
        ({**BLOCK, "modules_to_not_convert": GATES}, ("fp8_block",) * 3),
        ({"quant_method": "awq", "bits": 4}, ("int4",) * 3),
        ({"quant_method": "gptq", "bits": 8}, ("int8",) * 3),
        ({"quant_method": "mxfp4"}, ("bf16", "bf16", "mxfp4")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4",) * 3),
        ({"quant_algo": "FP8", "ignore": ATTENTION}, ("bf16", "fp8", "fp8")),
        ({"quant_algo": "NVFP4", "exclude_modules": ["*.self_attn*"]}, ("bf16", "nvfp4", "nvfp4")),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": FLOATS}}, ("fp8",) * 3),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": GROUP}}, ("int8",) * 3),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": FOUR}}, ("int4",) * 3),
        ({**BLOCK, "modules_to_not_convert": ATTENTION[:3]}, ("fp8_block",) * 3),
        (
            {**BLOCK, "ignore": ["re:.*shared_expert.*", "lm_head"]},
            ("fp8_block", "bf16", "fp8_block"),
        ),
    ],
)
def test_quantised_configs(quantised: dict[str, Any], formats: tuple[str, ...]) -> None:
    model = model_from_config({**QWEN3_MOE, "quantization_config": quantised})
    parts = model.parts
    assert (parts.attention, parts.mlp, parts.experts) == formats
    assert (parts.router, parts.embeddings, parts.head) == ("bf16",) * 3
    assert model.kv_bytes_per_element == 2


@pytest.mark.parametrize("cache", ["FP8", {"num_bits": 8, "type": "float"}])
def test_a_quantised_cache(cache: Any) -> None:
    config = {"quant_algo": "FP8", "kv_cache_scheme": cache}
    assert model_from_config({**LLAMA, "quantization_config": config}).kv_bytes_per_element == 1


@pytest.mark.parametrize(
    ("quantised", "word"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes' is not covered"),
        ({"quant_method": "awq", "bits": 3}, "awq of 3 bits"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED"}, "'MIXED'"),
        ({"quant_method": "compressed-tensors"}, "None bits"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {**FOUR, "input_activations": {"num_bits": 8}}},
            },
            "4 bits",
        ),
        ({**BLOCK, "ignore": "lm_head"}, "ignore is no list"),
        ("fp8", "mapping"),
        ({"bits": 4}, "None is not covered"),
        ({"quant_algo": "FP8", "kv_cache_scheme": {"num_bits": "few"}}, "number"),
    ],
)
def test_quantisation_that_has_no_format_is_named(quantised: Any, word: str) -> None:
    with pytest.raises(ScenarioError, match=word) as caught:
        model_from_config({**LLAMA, "quantization_config": quantised}, "model")
    assert caught.value.field == "model"


def test_what_modelopt_says_beside_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), "utf-8")
    quantised = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantised), "utf-8")
    model = load_model(tmp_path)
    assert model.precision == Precision.of_layers("fp8")
    assert model.kv_bytes_per_element == 1


def test_weights_of_published_checkpoints() -> None:
    """Sizes of the files of gpt-oss (model card: 60.8 and 12.8 GiB) and DeepSeek-V3 (689e9 bytes
    with the 14e9 parameters that predict a second token)."""
    assert load_model("gpt-oss-120b").weight_bytes / 2**30 == pytest.approx(60.8, rel=0.01)
    assert load_model("gpt-oss-20b").weight_bytes / 2**30 == pytest.approx(12.8, rel=0.01)
    assert load_model("deepseek-v3").weight_bytes + 14e9 == pytest.approx(689e9, rel=0.01)


def test_precision_by_part_and_of_the_whole() -> None:
    dense = load_model("llama-3.1-8b")
    whole = load_model({"preset": "llama-3.1-8b", "precision": "fp8"})
    layers = dense.attention_parameters + dense.dense_mlp_parameters
    assert dense.weight_bytes - whole.weight_bytes == layers
    part = load_model({"preset": "llama-3.1-8b", "precision": {"mlp": "fp8", "head": "fp8"}})
    saved = dense.dense_mlp_parameters + dense.head_parameters
    assert dense.weight_bytes - part.weight_bytes == saved
    own = load_model({"preset": "llama-3.1-8b", "weight_bytes_per_parameter": 0.5})
    assert own.weight_bytes == dense.parameters / 2


def test_files_that_are_no_configs(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ScenarioError, match="no file"):
        load_model(path)
    path.write_text("{", "utf-8")
    with pytest.raises(ScenarioError, match="JSON"):
        load_model(path)
    path.write_text("[]", "utf-8")
    with pytest.raises(ScenarioError, match="no object"):
        load_model(path)
    path.write_text("[" * 100_000, "utf-8")
    with pytest.raises(ScenarioError, match="levels deep"):
        load_model(path)
    with pytest.raises(ScenarioError, match="home folder is not known"):
        load_model("~nouser/config.json")


@pytest.mark.parametrize(
    ("spec", "field", "word"),
    [
        ("qwen3-8", "model", "qwen3-8b"),
        ("Qwen/Qwen3-8b-Base", "model", "did you mean"),
        (3, "model", "not a preset"),
        ({"preset": "qwen3-8b", "layer": 3}, "model.layer", "layers"),
        ({"preset": "qwen3-8b", "layers": 0}, "model.layers", "from 1 to"),
        ({"preset": "qwen3-8b", "layers": 2.5}, "model.layers", "whole"),
        ({"preset": "qwen3-8b", "kv_heads": 5}, "model.kv_heads", "divide"),
        ({"preset": "qwen3-8b", "tied_embeddings": "yes"}, "model.tied_embeddings", "true"),
        ({"layers": 2}, "model.hidden", "missing"),
        (
            {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "vocab": 99},
            "model.intermediate",
            "missing",
        ),
        ({"preset": "qwen3-8b", "precision": "fp6"}, "model.precision", "fp8"),
        ({"preset": "qwen3-8b", "precision": {"mlp": "fp6"}}, "model.precision.mlp", "fp8"),
        ({"preset": "qwen3-8b", "precision": {"norms": "fp8"}}, "model.precision.norms", "mlp"),
        (
            {"preset": "qwen3-8b", "precision": "fp8", "weight_bytes_per_parameter": 1},
            "model.weight_bytes_per_parameter",
            "contradicts",
        ),
        ({"preset": "qwen3-8b", "windowed_layers": 4}, "model.window_tokens", "missing"),
        (
            {"preset": "qwen3-8b", "windowed_layers": 37, "window_tokens": 9},
            "model.windowed_layers",
            "more than the 36",
        ),
        ({"preset": "qwen3-8b", "linear_layers": 4}, "model.linear_key_heads", "missing"),
        ({"preset": "qwen3-8b", "kv_lora_rank": 512}, "model.qk_nope_head_dim", "missing"),
        ({"preset": "qwen3-8b", "q_lora_rank": 512}, "model.kv_lora_rank", "missing"),
        ({"preset": "qwen3-30b-a3b", "routing_skew": -1}, "model.routing_skew", "from 0"),
        (
            {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "vocab": 9, "experts": 4},
            "model.experts_per_token",
            "1 to 4",
        ),
    ],
)
def test_bad_models_name_the_key(spec: Any, field: str, word: str) -> None:
    with pytest.raises(ScenarioError, match=word) as caught:
        load_model(spec)
    assert caught.value.field == field


@pytest.mark.parametrize("tokens", [1, 2, 7, 30, 64])
def test_experts_touched_is_the_mean_of_random_routing(tokens: int) -> None:
    """Against a simulation of uniform routing without replacement, within four standard errors."""
    model = load_model({"preset": "qwen3-30b-a3b", "routing_skew": 0})
    rng = np.random.default_rng(tokens)
    draws = rng.random((200, tokens, 128)).argsort(axis=2)[:, :, :8].reshape(200, -1)
    counts = np.array([len(np.unique(row)) for row in draws])
    error = 4 * counts.std() / np.sqrt(len(counts)) + 1e-9
    assert model.experts_touched(tokens) == pytest.approx(counts.mean(), abs=error + 1e-6)


@pytest.mark.parametrize("tokens", [2, 7, 30, 200])
def test_experts_touched_under_skewed_routing(tokens: int) -> None:
    """Against tokens that choose each expert by its own chance, drawn with the skew as its
    deviation over its mean; within four standard errors."""
    model = load_model("qwen3-30b-a3b")
    rng = np.random.default_rng(tokens)
    total = 15 / 1.0 - 1
    chance = rng.beta(total / 16, total * 15 / 16, size=(2000, 128))
    assert chance.std() / chance.mean() == pytest.approx(1.0, rel=0.02)
    touched = (rng.random(chance.shape) > (1 - chance) ** tokens).sum(axis=1)
    error = 4 * touched.std() / np.sqrt(len(touched))
    assert model.experts_touched(tokens) == pytest.approx(touched.mean(), abs=error)


@pytest.mark.parametrize("skew", [0.0, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "mixtral-8x7b", "llama-4-scout"])
def test_experts_touched_rise_to_all_of_them(name: str, skew: float) -> None:
    model = load_model({"preset": name, "routing_skew": skew})
    touched = [model.experts_touched(n) for n in (0, 1, 2, 5, 50, 500, 10**6)]
    assert touched == sorted(touched)
    assert touched[0] == pytest.approx(0)
    assert touched[1] == pytest.approx(model.experts_per_token)
    uniform = replace(model, routing_skew=0.0)
    assert all(
        a <= uniform.experts_touched(n) + 1e-9
        for a, n in zip(touched, (0, 1, 2, 5, 50, 500, 10**6), strict=True)
    )
    assert touched[-1] <= model.experts
