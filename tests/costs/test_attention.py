"""Attention of trainers: windows, linear layers, latent keys, and the speeds of kernels."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.costs import RooflineCost, RooflineTrainer, TrainLoad
from rollcast.simulator.costs.memory.training import (
    layer_bytes,
    shared_kv_bytes,
    shared_kv_bytes_per_token,
)
from rollcast.simulator.costs.presets.gpus import gpu_presets, load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.trainer.attention_kernels import kernel_presets, with_kernel
from rollcast.simulator.costs.trainer.options import TrainerOptions
from rollcast.simulator.costs.trainer.packing import (
    dense_work,
    near_pairs,
    pack,
    pad,
    prefix_work,
    suffix_work,
)
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values.chance import Drawn

QWEN, NEXT = load_model("qwen3-8b"), load_model("qwen3-next-80b-a3b")
H100 = load_gpu("h100-sxm")
ROOMY = replace(H100, memory_bytes=1e13)
WINDOWED = replace(QWEN, windowed_layers=18, window_tokens=1000)
DEEPSEEK = load_model("deepseek-v3")


def trainer(model=QWEN, **options) -> RooflineTrainer:  # type: ignore[no-untyped-def]
    return RooflineTrainer(model, ROOMY, **{"traffic_per_activation_byte": 0.0, **options})


def forward_s(model, tokens: int) -> float:  # type: ignore[no-untyped-def]
    return dict(trainer(model).train(TrainLoad([(0, [tokens])])).phases_s)["forward"]


# --- windows ---


@given(before=st.integers(0, 60), tokens=st.integers(0, 60), window=st.integers(1, 50))
def test_near_pairs_are_a_sum_over_tokens(before: int, tokens: int, window: int) -> None:
    """Of each token half of itself and what came before, no more than the window in all."""
    plain = sum(min(at + 0.5, window) for at in range(before, before + tokens))
    assert near_pairs(before, tokens, window) == pytest.approx(plain, abs=1e-9)


@given(prompt=st.integers(0, 300), response=st.integers(1, 300), window=st.integers(1, 400))
def test_a_prompt_and_its_response_are_the_dense_rollout(
    prompt: int, response: int, window: int
) -> None:
    whole = dense_work(prompt, response, window)
    parts = pack([prefix_work(prompt, window), suffix_work(prompt, response, window)], 10**6)
    assert parts[0].near_pairs == pytest.approx(whole.near_pairs)
    assert parts[0].pairs == pytest.approx(whole.pairs)
    (row,) = pad([whole], 10**6, 1, window=window)
    assert row.near_pairs == whole.near_pairs


def test_windows_by_hand() -> None:
    """Half of the layers see 1,000 of 8,000 tokens."""
    saved_pairs = 8000**2 / 2 - (1000 * 8000 - 1000**2 / 2)
    rate = H100.bf16_flop_per_s * H100.trainer_attention_flop_efficiency
    saved_s = 18 * 4 * 32 * 128 * saved_pairs / rate
    found = forward_s(QWEN, 8000) - forward_s(WINDOWED, 8000)
    assert found == pytest.approx(saved_s)
    wide = replace(WINDOWED, window_tokens=8000)
    assert forward_s(wide, 8000) == pytest.approx(forward_s(QWEN, 8000))


def test_a_shared_prompt_in_layers_with_a_window() -> None:
    each = 2 * 2 * 2 * 8 * 128  # K, V and their gradients in 16 bit
    assert shared_kv_bytes(QWEN, 5000) == 36 * each * 5000
    assert shared_kv_bytes(WINDOWED, 5000) == 18 * each * (5000 + 1000)
    assert shared_kv_bytes(WINDOWED, 700) == shared_kv_bytes(QWEN, 700)
    load = TrainLoad([(5000, [100] * 4)], shared_prefix=True)
    saved = trainer(QWEN).train(load).peak_bytes - trainer(WINDOWED).train(load).peak_bytes
    assert saved == pytest.approx(18 * each * 4000, rel=1e-6)


# --- linear layers and latent keys ---


def test_linear_layers_take_flop_by_the_token_and_have_no_pairs() -> None:
    one = trainer(NEXT)
    assert NEXT.linear_layers == 36
    flop = 36 * 32 * (10 * 64 * 128 + 6 * 128**2)
    assert NEXT.linear_attention_flop_per_token == flop
    rate = H100.bf16_flop_per_s * H100.trainer_attention_flop_efficiency
    assert one._unit_times.attention_token == pytest.approx(flop / rate)
    assert one._unit_times.pair == pytest.approx(12 * NEXT.attention_flop_per_layer / rate)
    assert QWEN.linear_attention_flop_per_token == 0


def test_memory_of_linear_layers() -> None:
    """A prompt leaves keys in twelve layers, and in the others a state that does not grow."""
    grown = shared_kv_bytes(NEXT, 2000) - shared_kv_bytes(NEXT, 1000)
    assert grown == pytest.approx(1000 * shared_kv_bytes_per_token(NEXT))
    assert shared_kv_bytes_per_token(NEXT) == 12 * 2 * 2 * 2 * NEXT.kv_heads * NEXT.head_dim
    assert shared_kv_bytes(NEXT, 1000) - grown == pytest.approx(2 * NEXT.state_bytes)
    assert shared_kv_bytes(NEXT, 0) == 0
    keys, values = 16 * 128, 32 * 128
    full = (3 * NEXT.heads + 4 * NEXT.kv_heads) * NEXT.head_dim + NEXT.heads * NEXT.head_dim
    attention = 2 * (12 * full + 36 * (4 * keys + 4 * values)) / 48
    assert layer_bytes(NEXT).attention == pytest.approx(attention)


def test_memory_of_latent_attention() -> None:
    """MLA shares its latent vectors, and keeps queries and keys of 192, values of 128."""
    assert shared_kv_bytes_per_token(DEEPSEEK) == 61 * 2 * 2 * (512 + 64)
    kept = 1536 + 512 + 64 + 128 * (3 * 192 + 2 * 128)
    assert layer_bytes(DEEPSEEK).attention == pytest.approx(2 * kept)
    split = RooflineTrainer(DEEPSEEK, ROOMY, 8, context_parallel=2).layout.talk_s(1000)
    rate = 450e9 * 0.7
    assert split.attention == pytest.approx(61 * 2 * 128 * (192 + 128) * 500 / rate)


# --- kernels ---


def test_a_kernel_sets_the_efficiency_and_is_drawn_around_it() -> None:
    b200 = load_gpu("b200")
    assert b200.kinds(["trainer_attention_flop_efficiency"]) == {"assumed"}
    old, new = (
        RooflineTrainer(QWEN, b200, attention=kernel).gpu.trainer_attention_flop_efficiency
        for kernel in ("flash_2", "flash_4")
    )
    assert old < b200.trainer_attention_flop_efficiency < new
    model = RooflineCost(QWEN, b200, trainer=RooflineTrainer(QWEN, b200, attention="flash_4"))
    rng = np.random.default_rng(0)
    boards = [model.with_figures_drawn(Drawn(rng)).trainer_of.gpu for _ in range(200)]
    drawn = [board.trainer_attention_flop_efficiency for board in boards]
    assert 0.8 * new <= min(drawn) < 0.9 * new
    assert 1.1 * new < max(drawn) <= 1.25 * new


@pytest.mark.parametrize(("kernel", "where"), list(kernel_presets()))
def test_every_kernel_is_below_its_peak_and_faster_than_eager(kernel: str, where: str) -> None:
    share = kernel_presets()[kernel, where].share  # type: ignore[index]
    eager = kernel_presets()["eager", where].share  # type: ignore[index]
    assert eager <= share < 0.8
    assert kernel_presets()[kernel, where].provenance.source  # type: ignore[index]


def test_kernels_know_the_presets_by_name() -> None:
    names = set(gpu_presets())
    known = [name for name in names if "cannot" not in _said(name)]
    assert {"a100-80gb", "h100-sxm", "h800-sxm", "h200-sxm", "b200", "gb300"} <= set(known)


def _said(name: str) -> str:
    try:
        with_kernel(load_gpu(name), "eager", "x")
    except ScenarioError:
        return "cannot"
    return ""


@pytest.mark.parametrize(
    ("gpu", "kernel", "said"),
    [("a100-80gb", "flash_3", "known there: eager, flash_2"), ("l40s", "flash_2", "or give gpu.")],
)
def test_a_kernel_that_nobody_measured(gpu: str, kernel: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as caught:
        RooflineTrainer(QWEN, load_gpu(gpu), attention=kernel)  # type: ignore[arg-type]
    assert caught.value.field == "cost.roofline.trainer.attention"
    with pytest.raises(ScenarioError, match="must be one of eager"):
        TrainerOptions(attention="flash")  # type: ignore[arg-type]
