"""Sizes follow from architectures: published counts, and real config files of each family."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rollcast.simulator.costs.presets.model_options import Precision
from rollcast.simulator.costs.presets.models import (
    Model,
    load_model,
    model_from_config,
    model_presets,
)
from rollcast.simulator.errors import ScenarioError
from tests.refusals import refuses

DATA = yaml.safe_load((Path(__file__).parents[1] / "data" / "models.yaml").read_text("utf-8"))
CONFIGS: dict[str, dict[str, Any]] = DATA["configs"]
LLAMA, QWEN3_MOE = CONFIGS["llama-3.1-8b"], CONFIGS["qwen3-30b-a3b"]
MOE = {"num_local_experts": 8, "num_experts_per_tok": 2}
LLAMA4 = {**MOE, "intermediate_size_mlp": 16384, "attention_chunk_size": 8192}


@pytest.mark.parametrize("name", DATA["parameters"])
def test_parameter_counts_match_the_published_ones(name: str) -> None:
    model = load_model(name)
    total, without_embeddings = DATA["parameters"][name]
    assert model.parameters / 1e9 == pytest.approx(total, rel=0.013)
    if without_embeddings is not None:
        copies = 1 if model.tied_embeddings else 2
        rest = model.parameters - copies * model.head_parameters
        assert rest / 1e9 == pytest.approx(without_embeddings, rel=0.03)


@pytest.mark.parametrize("name", DATA["active"])
def test_active_counts_match_the_published_ones(name: str) -> None:
    model = load_model(name)
    published, embeddings = DATA["active"][name]
    counted = model.active_parameters - (2 - embeddings) * model.head_parameters
    assert counted / 1e9 == pytest.approx(published, rel=0.02)


def test_presets_are_all_checked_against_published_counts() -> None:
    assert set(model_presets()) == set(DATA["parameters"])
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
    ("name", "total", "active"), [("mixtral-8x7b", 46.7, 12.9), ("qwen1.5-moe-a2.7b", 14.3, 2.7)]
)
def test_hugging_face_configs(name: str, total: float, active: float, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]), "utf-8")
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


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() & model_presets()))
def test_configs_equal_their_presets(name: str) -> None:
    assert same(model_from_config(CONFIGS[name])) == same(load_model(name))


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
    field = "model" if isinstance(quantised, dict) else "model.quantization_config"
    with refuses(field, word):
        model_from_config({**LLAMA, "quantization_config": quantised}, "model")


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
    ("change", "said"),
    [
        ({"hidden_size": -1}, "hidden_size of {}: must be a whole number"),
        ({"num_key_value_heads": 3}, "num_key_value_heads of {}: 3 does not divide"),
        ({"quantization_config": 5}, "quantization_config of {}: must be a mapping"),
        ({"model_type": "x"}, "{}: model_type 'x' is not covered"),
    ],
)
def test_a_config_that_is_wrong_is_named_with_its_own_key(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, **change}), "utf-8")
    with pytest.raises(ScenarioError) as error:
        load_model(path, "--model")
    assert error.value.field == "--model"
    assert error.value.message.startswith(said.format(path))


def test_what_stands_beside_a_config_is_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), "utf-8")
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": 5}', "utf-8")
    with refuses("model", "hf_quant_config.json is no object"):
        load_model(tmp_path)


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
