"""Hugging Face families whose layers are not plain attention, against their published figures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcast.simulator.costs import RooflineCost, RooflineTrainer, TrainLoad
from rollcast.simulator.costs.base import Iteration
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import (
    Model,
    load_model,
    model_from_config,
    model_presets,
)
from rollcast.simulator.costs.presets.one_layer import trained_parameters
from rollcast.simulator.costs.roofline.warnings import of_delta_nets, of_images
from rollcast.simulator.errors import ScenarioError
from tests.costs.test_parallel import state_bytes

DATA = yaml.safe_load((Path(__file__).parents[1] / "data" / "families.yaml").read_text("utf-8"))
CONFIGS: dict[str, dict[str, Any]] = DATA["configs"]
H200 = load_gpu("h200-sxm")
ROOMY = replace(H200, memory_bytes=1e13)


def model(name: str) -> Model:
    return model_from_config(CONFIGS[name])


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    """The config without a key, wherever it is."""
    return {
        name: without(value, key) if isinstance(value, dict) else value
        for name, value in config.items()
        if name != key
    }


# --- sizes ---


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_the_published_ones(name: str) -> None:
    total, active, embeddings = DATA["billions"][name]
    read = model(name)
    assert read.parameters / 1e9 == pytest.approx(total, rel=0.005)
    if active:
        counted = read.active_parameters - (2 - embeddings) * read.head_parameters
        assert counted / 1e9 == pytest.approx(active, rel=0.035)


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() & model_presets()))
def test_configs_and_presets_agree(name: str) -> None:
    def sizes(one: Model) -> tuple[float, ...]:
        flop = one.linear_flop_per_token + one.linear_attention_flop_per_token
        return (one.parameters, one.active_parameters, flop, *map(hash, one.reaches))

    assert sizes(model(name)) == sizes(load_model(name))
    assert model(name).state_bytes == load_model(name).state_bytes


def test_a_checkpoint_holds_language_model_tower_and_further_tokens() -> None:
    """Files of Qwen3.6-27B: 55.56e9 bytes in 16 bit. DeepSeek-V3's module: 11.5e9 parameters
    beside the embeddings that it shares (its README)."""
    whole = replace(model("qwen3.6-27b"), mtp_layers=1)
    assert 2 * sum(trained_parameters(whole)) == pytest.approx(55.56e9, rel=0.001)
    deepseek = load_model("deepseek-v3")
    more = sum(trained_parameters(replace(deepseek, mtp_layers=1))) - deepseek.parameters
    assert more == pytest.approx(11.5e9, rel=0.015)


@pytest.mark.parametrize(
    ("name", "bytes_each"),
    [
        ("kimi-k2.5", 61 * 576 * 2),
        ("qwen3.6-27b", 16 * 2 * 4 * 256 * 2),
        ("nemotron-3-nano-30b-a3b", 6 * 2 * 2 * 128 * 2),
        ("glm-5", 78 * (576 * 2 + 132)),  # and the indexer's key: 128 in fp8, and a scale
        ("olmo-3-32b", 64 * 2 * 8 * 128 * 2),
    ],
)
def test_a_token_leaves_as_many_bytes_as_by_hand(name: str, bytes_each: int) -> None:
    assert model(name).kv_bytes_per_token == bytes_each


def test_deepseek_v4_keeps_the_share_of_the_cache_that_its_authors_give() -> None:
    """At a million tokens 7 % of DeepSeek-V3.2's."""
    sparse = {"top_tokens": 2048, "index_heads": 64, "index_head_dim": 128}
    before = load_model({"preset": "deepseek-v3", "sparse": sparse}).kv_bytes_per_token_of(10**6)
    assert 0.06 < model("deepseek-v4-flash").kv_bytes_per_token_of(10**6) / before < 0.09


def test_states_are_those_of_the_caches() -> None:
    """vLLM holds 2,096 KiB a rollout and layer of Qwen3.5-35B-A3B. By hand, whatever the length:
    64 heads x 64 x 128 in fp32 over 23 layers, and three tokens of 6,144 elements."""
    assert model("qwen3.5-35b-a3b").state_bytes == 30 * 2096 * 1024
    nano = model("nemotron-3-nano-30b-a3b")
    assert nano.state_bytes == 23 * (64 * 64 * 128 * 4 + 3 * 6144 * 2)
    assert nano.kv_bytes_per_token_of(10**9) == pytest.approx(nano.kv_bytes_per_token, rel=1e-4)


# --- time ---


def decode_s(model: Model, context: int, rollouts: int = 8, **options: Any) -> float:
    cost = RooflineCost(model, ROOMY, 8, host_s=0.0, host_per_rollout_s=0.0, **options)
    curve_s = cost.decode_curve(rollouts).seconds(rollouts * context)
    assert curve_s == pytest.approx(cost.iteration_s(Iteration(rollouts, rollouts * context)))
    return curve_s


def test_chosen_tokens_bound_what_decoding_reads() -> None:
    """Up to the bound as much and the indexer's; beyond it the indexer's alone, 132 bytes a token
    and layer of 1,152."""
    sparse = {"top_tokens": 2048, "index_heads": 64, "index_head_dim": 128}
    whole = load_model("deepseek-v3")
    chosen = load_model({"preset": "deepseek-v3", "sparse": sparse})
    wide = load_model({"preset": "deepseek-v3", "sparse": {**sparse, "top_tokens": 10**6}})

    def grown(model: Model, start: int) -> float:
        return decode_s(model, start + 1000) - decode_s(model, start)

    assert grown(chosen, 500) == pytest.approx(grown(wide, 500))
    assert grown(chosen, 30_000) == pytest.approx(grown(wide, 30_000) - grown(whole, 30_000))
    assert grown(chosen, 30_000) < 0.2 * grown(whole, 30_000)
    assert decode_s(chosen, 100_000) < decode_s(whole, 100_000)


def test_a_compressed_cache_reads_in_steps() -> None:
    """A window, chosen entries, and entries of all tokens: ever less for a token more."""
    flash = model("deepseek-v4-flash")
    grown = [decode_s(flash, c + 100) - decode_s(flash, c) for c in (20, 500, 5000)]
    assert grown[0] > grown[1] > grown[2] > 0


def test_recurrent_layers_are_launched_more_slowly_without_graphs() -> None:
    hybrid, plain = load_model("qwen3.5-9b"), load_model("qwen3-8b")
    eager = {"cuda_graphs": False, "launch_s_per_layer": 1e-3}
    least = {**eager, "recurrent_launch_s_per_layer": 2e-3}
    assert decode_s(hybrid, 10, **least) == pytest.approx(8 * 1e-3 + 24 * 2e-3)
    assert decode_s(plain, 10, **least) == pytest.approx(36 * 1e-3)


def test_scores_of_a_tower_without_flash_attention_are_those_of_a_measured_image() -> None:
    """36,930 less 16,295 MB, of an image of 12,960 patches (transformers pull request 37363)."""
    seen = load_model({"preset": "qwen2.5-vl-7b", "image_share": 0.5, "image_tokens": 810})

    def scores(tokens: float, **options: Any) -> Any:
        return RooflineTrainer(seen, ROOMY, 8, **options)._activations.tower_scores(tokens)

    whole = scores(3240, tower_scores="microbatch", recompute="none")
    assert whole.forward == pytest.approx((36_929.76 - 16_295.05) * 2**20, rel=0.01)
    assert whole.kept == 32 * whole.forward / 2  # 4 of these 8 bytes in each layer
    assert scores(3240, tower_scores="image").forward == whole.forward / 4
    for frozen in ({"freeze_tower": True}, {"weights": "lora", "lora_rank": 8}):
        assert scores(3240, tower_scores="microbatch", **frozen).kept == 0
    assert sum(scores(3240)) == 0


def phases(model: Model, prompt: int, response: int, **options: Any) -> dict[str, float]:
    trainer = RooflineTrainer(model, ROOMY, 8, **options)
    return dict(trainer.train(TrainLoad([(prompt, [response] * 8)])).phases_s)


def test_images_cost_in_prefill_and_update_and_not_in_decoding() -> None:
    said = {"preset": "qwen3-vl-4b", "image_tokens": 1024}
    seeing, images = (load_model({**said, "image_share": share}) for share in (0.0, 0.8))
    assert seeing.vision is not None
    flop_per_token = seeing.vision.flop_per_image_token(1024)
    tower_flop = 800 * flop_per_token
    # By hand, 4 patches a token: 302e6 weights of 24 layers, 4,096 patches that see each other, and
    # four projections of 27e6 weights.
    by_hand = 4 * (2 * 302e6 + 24 * 4 * 1024 * 4096) + 4 * 2 * 27e6
    assert flop_per_token == pytest.approx(by_hand, rel=0.01)
    assert decode_s(images, 1000) == decode_s(seeing, 1000)
    prompt = Iteration(1, 1000, 1000, 500_500, 1, 1000)

    def prefill_s(model: Model) -> float:
        return RooflineCost(model, ROOMY, prefill_launch_s_per_layer=0.0).iteration_s(prompt)

    assert prefill_s(images) - prefill_s(seeing) == pytest.approx(
        tower_flop / (ROOMY.bf16_flop_per_s * ROOMY.gemm_flop_efficiency)
    )
    before, after = phases(seeing, 1000, 500), phases(images, 1000, 500)
    for name in ("forward", "backward"):
        assert after[name] > 1.05 * before[name]
    assert phases(images, 0, 500)["forward"] == phases(seeing, 0, 500)["forward"]


def test_the_tower_moves_its_activations_and_launches_its_layers() -> None:
    """Beside its flop: what its layers keep of each patch is moved as the language model's is, and
    a microbatch of few tokens launches its layers too."""
    images = load_model({"preset": "qwen3-vl-4b", "image_share": 0.8})
    still, moving = (
        phases(images, 1000, 500, traffic_per_activation_byte=traffic) for traffic in (0.0, 2.0)
    )
    text = replace(images, image_share=0.0)
    of_text = phases(text, 1000, 500, traffic_per_activation_byte=2.0)["forward"]
    of_text -= phases(text, 1000, 500, traffic_per_activation_byte=0.0)["forward"]
    tower = images.vision
    assert tower is not None
    kept = 24 * 2 * (8 * 1024 + 2 * 4096)  # by hand, of a patch
    byte_s = 1 / ROOMY.bandwidth_bytes_per_s + 1 / 4e12
    patches = 4 * 0.8 * 1000  # of the one rollout on each GPU
    by_hand = patches * 2.0 * kept * byte_s
    assert moving["forward"] - still["forward"] - of_text == pytest.approx(by_hand, rel=1e-6)
    launched = {"launch_s_per_layer": 1.0, "log_prob_passes": 0}
    assert phases(text, 8, 8, **launched)["forward"] == pytest.approx(36, rel=0.01)
    assert phases(images, 8, 8, **launched)["forward"] == pytest.approx(36 + 24, rel=0.01)


def test_patches_without_a_kernel_are_embedded_one_by_one() -> None:
    """PyTorch 2.9: as long in every pass, on GPUs that split the model too, and behind it where the
    tower is trained."""
    images = load_model({"preset": "qwen3-vl-4b", "image_share": 0.5})
    frozen: tuple[dict[str, Any], ...] = ({"freeze_tower": True}, {"weights": "lora"})
    for options in ({}, {"tensor_parallel": 2}, *frozen):
        fast, slow = (phases(images, 1000, 500, patch_launch_s=s, **options) for s in (0, 2e-3))
        rollouts = options.get("tensor_parallel", 1)  # of a group of GPUs
        embedded = rollouts * 1000 * 0.5 * 4 * 2e-3
        assert slow["log_prob"] - fast["log_prob"] == pytest.approx(embedded)
        assert slow["forward"] - fast["forward"] == pytest.approx(embedded)
        behind = 0 if options in frozen else embedded
        assert slow["backward"] - fast["backward"] == pytest.approx(behind, abs=1e-9)
    text = replace(images, image_share=0.0)
    assert phases(text, 1000, 500, patch_launch_s=1.0) == phases(text, 1000, 500)


def test_a_driver_sends_the_pixels_of_every_rollout_with_each_pass() -> None:
    images = load_model({"preset": "qwen3-vl-4b", "image_share": 0.5})
    load = TrainLoad([(1000, [500] * 8)])

    def driver_s(model: Model, rate: float | None) -> float:
        return RooflineTrainer(model, ROOMY, 8, pixel_bytes_per_s=rate).driver_s(load)

    assert driver_s(images, 2e9) == pytest.approx(8 * 500 * 4 * 4 * 1536 / 2e9)
    assert driver_s(images, None) == driver_s(replace(images, image_share=0.0), 2e9) == 0.0


def test_results_say_what_of_images_is_not_counted() -> None:
    def told(name: Any, **trainer: Any) -> list[str]:
        sentences = of_images(RooflineTrainer(load_model(name), ROOMY, 8, **trainer))
        return [text.partition(":")[0] for text in sentences]

    seen = {"preset": "qwen3-vl-4b", "image_share": 0.5}
    assert told(seen) == ["images", "images"]
    assert told(seen, patch_launch_s=2e-3) == ["images"]
    (asks,) = of_images(RooflineTrainer(load_model("qwen3-vl-4b"), ROOMY, 8))
    assert "give model.image_share" in asks
    assert told("qwen3-4b") == []
    mixture = {"preset": "qwen3-vl-30b-a3b", "image_share": 0.5}
    both = ["images", "qwen3-vl-30b-a3b"]
    assert told(mixture, patch_launch_s=2e-3, backend="fsdp") == both
    assert told(mixture, patch_launch_s=2e-3, backend="megatron") == both[:1]


def test_results_say_what_delta_nets_take_without_their_kernels() -> None:
    def told(name: str, **trainer: Any) -> list[str]:
        return of_delta_nets(RooflineTrainer(load_model(name), ROOMY, 8, **trainer))

    (sentence,) = told("qwen3.5-9b", backend="fsdp2")
    assert "a row of 8,192 tokens takes 1.3 s more" in sentence
    assert "Give trainer.linear_attention: torch" in sentence
    assert not told("qwen3.5-9b", backend="fsdp2", linear_attention="torch")
    assert not told("qwen3.5-9b", backend="megatron")
    assert not told("qwen3-8b", backend="fsdp2")


def test_a_frozen_tower_has_no_backward() -> None:
    images = load_model({"preset": "qwen3-vl-4b", "image_share": 0.8})
    text = replace(images, image_share=0.0)
    for recompute in ("full", "none"):
        ahead, behind = (
            phases(images, 4000, 100, recompute=recompute, freeze_tower=True)[name]
            - phases(text, 4000, 100, recompute=recompute)[name]
            for name in ("forward", "backward")
        )
        assert ahead > 0
        assert behind == pytest.approx(0, abs=0.02 * ahead)


def test_layers_for_further_tokens_are_trained_and_not_graded() -> None:
    """One more layer of 32, with the LM head again, in forward and backward; not before them."""
    plain = load_model("qwen3.5-9b")
    more = replace(plain, mtp_layers=1)
    for options in ({}, {"tensor_parallel": 4}, {"pipeline_parallel": 2, "recompute": "none"}):
        before, after = (phases(m, 100, 1000, log_prob_passes=1, **options) for m in (plain, more))
        for name in ("forward", "backward"):
            assert 1.02 < after[name] / before[name] < 1.4, (options, name)
        assert after["optimizer"] > before["optimizer"]
        assert after["log_prob"] == pytest.approx(before["log_prob"], rel=0.03)
    states = [state_bytes(RooflineTrainer(m, ROOMY, 8)) for m in (plain, more)]
    assert states[0] < states[1] < 1.05 * states[0]


# --- bad input ---


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("qwen3.6-27b", "linear_num_value_heads"),
        ("qwen3.6-27b", "depth"),
        ("nemotron-3-nano-30b-a3b", "mamba_num_heads"),
        ("nemotron-3-nano-30b-a3b", "hybrid_override_pattern"),
        ("nemotron-3-nano-30b-a3b", "moe_shared_expert_intermediate_size"),
        ("glm-5", "index_topk"),
        ("deepseek-v4-flash", "o_lora_rank"),
        ("deepseek-v4-flash", "compress_ratios"),
        ("minimax-m2", "num_local_experts"),
        ("gemma-4-26b-a4b", "top_k_experts"),
        ("olmo-3-32b", "intermediate_size"),
    ],
)
def test_a_key_that_a_config_lacks_is_named(name: str, key: str) -> None:
    with pytest.raises(ScenarioError, match=key):
        model_from_config(without(CONFIGS[name], key))


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("nemotron-3-nano-30b-a3b", {"hybrid_override_pattern": "MX*"}, "blocks X"),
        ("nemotron-3-nano-30b-a3b", {"moe_latent_size": 8}, "moe_latent_size"),
        ("gemma-4-31b", {"text_config": {"hidden_size_per_layer_input": 256}}, "per_layer_input"),
    ],
)
def test_what_is_not_covered_is_said(name: str, change: dict[str, Any], word: str) -> None:
    merged = {**CONFIGS[name], **change}
    if "text_config" in change:
        merged["text_config"] = {**CONFIGS[name]["text_config"], **change["text_config"]}
    with pytest.raises(ScenarioError, match=word):
        model_from_config(merged)
