"""Attention of trainers: windows, linear layers, latent keys, and the speeds of kernels."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.costs import RooflineCost, RooflineTrainer, TrainLoad
from rollcast.simulator.costs.memory.training import shared_kv_bytes, shared_kv_bytes_per_token
from rollcast.simulator.costs.presets.gpus import gpu_presets, load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.presets.provenance import read_presets
from rollcast.simulator.costs.trainer.attention_kernels import kernel_presets
from rollcast.simulator.costs.trainer.memory import Use
from rollcast.simulator.costs.trainer.packing import near_pairs, pack, pad, prefix_work, suffix_work
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values.chance import Drawn
from tests.reference.dealing import dense_work, works_of

QWEN, NEXT = load_model("qwen3-8b"), load_model("qwen3-next-80b-a3b")
H100 = load_gpu("h100-sxm")
ROOMY = replace(H100, memory_bytes=1e13)
WINDOWED = replace(QWEN, windowed_layers=18, window_tokens=1000)


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
    apart = [prefix_work(prompt, window), suffix_work(prompt, response, window)]
    parts = pack(works_of(apart), 10**6)
    assert parts[0].near_pairs == pytest.approx(whole.near_pairs)
    assert parts[0].pairs == pytest.approx(whole.pairs)
    (row,) = pad(works_of([whole]), 10**6, 1, window=window)
    assert row.near_pairs == whole.near_pairs


def test_a_window_computes_and_holds_less() -> None:
    """And one as long as the rollout is none."""
    assert forward_s(WINDOWED, 8000) < forward_s(QWEN, 8000)
    wide = replace(WINDOWED, window_tokens=8000)
    assert forward_s(wide, 8000) == pytest.approx(forward_s(QWEN, 8000))
    assert shared_kv_bytes(WINDOWED, 5000) < shared_kv_bytes(QWEN, 5000)
    assert shared_kv_bytes(WINDOWED, 700) == shared_kv_bytes(QWEN, 700)
    windowed, whole = (
        max(sum(parts["trainer"].values()) for parts in trainer(model).phases(use).values())
        for model in (WINDOWED, QWEN)
        for use in [Use(60_000, 60_000, 50_000)]
    )
    assert windowed < whole


def test_a_prompt_leaves_keys_in_some_layers_and_a_state_in_linear_ones() -> None:
    grown = shared_kv_bytes(NEXT, 2000) - shared_kv_bytes(NEXT, 1000)
    assert grown == pytest.approx(1000 * shared_kv_bytes_per_token(NEXT))
    assert shared_kv_bytes(NEXT, 1000) - grown == pytest.approx(2 * NEXT.state_bytes)
    assert shared_kv_bytes(NEXT, 0) == 0


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


def test_a_kernel_of_torch_itself_is_the_gpu_s_own_figure_where_nobody_measured_it() -> None:
    for name, changes in (("l40s", False), ("h20", False), ("h200-sxm", True)):
        gpu = load_gpu(name)
        of_torch = RooflineTrainer(QWEN, gpu, attention="torch_flash").gpu
        assert (of_torch != gpu) == changes
    with pytest.raises(ScenarioError, match="no speed of flash_2 on l40s is known, known there: e"):
        RooflineTrainer(QWEN, load_gpu("l40s"), attention="flash_2")


def test_every_kernel_is_below_its_peak_and_faster_than_eager() -> None:
    speeds = kernel_presets()
    for (kernel, where), speed in speeds.items():
        assert speed.provenance.source
        if speed.share is None:  # the GPU's own figure
            assert (kernel, where) == ("torch_flash", "others")
            continue
        slowest = speeds["eager", where].share
        assert slowest is not None
        assert slowest <= speed.share < 0.8
    for gpus in read_presets("attention_kernels.yaml")["generations"].values():
        assert set(gpus) - {"rtx-a6000"} <= set(gpu_presets())
