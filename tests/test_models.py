"""Sizes follow from architectures: published counts, and real config files of each family."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.costs.models import Model, load_model, model_from_config, model_presets
from simulator.errors import ScenarioError

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


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_match_the_published_ones(name: str) -> None:
    model = load_model(name)
    total, without_embeddings = PUBLISHED[name]
    assert model.parameters / 1e9 == pytest.approx(total, rel=0.013)
    if without_embeddings is not None:
        copies = 1 if model.tied_embeddings else 2
        rest = model.parameters - copies * model.head_parameters
        assert rest / 1e9 == pytest.approx(without_embeddings, rel=0.03)


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


def test_a_config_equals_the_preset_of_the_same_architecture() -> None:
    ours, theirs = load_model("qwen3-30b-a3b"), model_from_config(QWEN3_MOE)
    assert ours.parameters == theirs.parameters
    assert ours.kv_bytes_per_token == theirs.kv_bytes_per_token


def test_only_every_nth_layer_sparse() -> None:
    half = model_from_config({**QWEN3_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert half.sparse_layers == 23
    assert half.dense_mlp_parameters == 25 * 3 * 2048 * 6144 + 23 * 2048 * 128


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "mamba"}, "not covered"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding-window"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9}, "sliding"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
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
    assert model_from_config({**LLAMA, **config}).qkv_bias


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


def test_mapping_over_a_preset() -> None:
    model = load_model({"preset": "qwen3-8b", "kv_bytes_per_element": 1})
    assert model.kv_bytes_per_token * 2 == load_model("qwen3-8b").kv_bytes_per_token
    assert isinstance(model, Model)


@pytest.mark.parametrize("tokens", [1, 2, 7, 30, 64])
def test_experts_touched_is_the_mean_of_random_routing(tokens: int) -> None:
    """Against a simulation of uniform routing without replacement, within four standard errors."""
    model = load_model("qwen3-30b-a3b")
    rng = np.random.default_rng(tokens)
    draws = rng.random((200, tokens, 128)).argsort(axis=2)[:, :, :8].reshape(200, -1)
    counts = np.array([len(np.unique(row)) for row in draws])
    error = 4 * counts.std() / np.sqrt(len(counts)) + 1e-9
    assert model.experts_touched(tokens) == pytest.approx(counts.mean(), abs=error + 1e-6)
