"""DeepSpeed's buckets, and training without mixed precision, on one GPU of a trainer."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.costs import RooflineTrainer
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.trainer.buckets import (
    bucket_bytes,
    fetched_parameters,
    reduced_bytes,
    sent_bytes,
    step_bytes,
    waiting_layers,
)
from rollcast.simulator.costs.trainer.memory import Use
from tests.laws import examples

MODEL, GPU = load_model("qwen2.5-7b", "model"), load_gpu("h100-sxm")
USE = Use(4096, 4096)


def trainer(**options: Any) -> RooflineTrainer:
    said = {"backend": "deepspeed", "sharding": "fsdp", "working_copy": True, **options}
    return RooflineTrainer(model=MODEL, gpu=GPU, gpus=8, **said)


def held(one: RooflineTrainer, phase: Any) -> float:
    parts = one.phases(USE)[phase]["trainer"]
    return sum(size for name, size in parts.items() if name != "fragmentation")


def test_zero_3_keeps_a_gigabyte_and_copies_it_to_reduce() -> None:
    large, none = trainer(), trainer(reduce_bucket=1)
    assert bucket_bytes(large, MODEL) == 1e9
    for phase in ("log_prob", "optimizer_step"):
        assert held(large, phase) - held(none, phase) == pytest.approx(1e9, rel=1e-6)
    grown = held(large, "update") - held(none, "update")
    assert 1e9 - 1 <= grown <= 2e9 + 1


def test_paged_moments_take_no_room() -> None:
    one, paged = trainer(), trainer(pages_moments=True)
    for phase in ("update", "optimizer_step"):
        lighter = held(one, phase) - held(paged, phase)
        assert lighter == pytest.approx(8 * MODEL.parameters / 8, rel=1e-3)
    adapted = trainer(pages_moments=True, weights="lora").phases(USE)["update"]["trainer"]
    assert not adapted["optimizer"]


def test_zero_2_makes_buckets_in_the_backward_alone() -> None:
    one, none = trainer(sharding="zero2"), trainer(sharding="zero2", reduce_bucket=1)
    two = trainer(sharding="zero2", overlap_comm=True)
    assert held(one, "optimizer_step") == held(none, "optimizer_step")
    assert held(one, "update") - held(none, "update") == pytest.approx(1e9, rel=1e-6)
    assert held(two, "update") - held(one, "update") == pytest.approx(1e9, rel=1e-6)


def test_auto_is_the_hidden_width_squared_and_others_have_no_bucket() -> None:
    assert bucket_bytes(trainer(reduce_bucket=0), MODEL) == 2 * MODEL.hidden**2
    for other in ({"backend": "fsdp"}, {"sharding": "none"}):
        assert bucket_bytes(trainer(**other), MODEL) == 0


@settings(max_examples=examples(80), deadline=None)
@given(bucket=st.integers(0, 10**10), layer=st.floats(1, 1e9))
def test_no_more_than_the_next_layer_is_fetched_ahead(bucket: int, layer: float) -> None:
    fetched = fetched_parameters(trainer(prefetch_bucket=bucket), MODEL, layer)
    assert 0 < fetched <= layer
    assert fetched_parameters(trainer(backend="fsdp"), MODEL, layer) == layer


@pytest.mark.parametrize(("bits", "wider"), [(4, 2), (8, 2), (16, 1)])
def test_fp32_norms_beside_a_quantised_base_widen_what_checkpoints_keep(
    bits: int, wider: int
) -> None:
    known = {"backend": "ddp", "sharding": "none", "working_copy": False, "recompute": "full"}
    lora = {"weights": "lora", "base_bits": bits}
    narrow, wide = (trainer(**known, **lora, fp32_norms=norms) for norms in (False, True))
    assert wide._activations.kept == wider * narrow._activations.kept


def test_fsdp1_keeps_inputs_and_gradients_of_frozen_layers_checkpointed_reentrantly() -> None:
    known = {"backend": "fsdp", "working_copy": False, "recompute": "full", "weights": "lora"}
    use = Use(32768, 1)
    one, other = (
        sum(trainer(**known, reentrant_checkpoints=said).phases(use)["update"]["trainer"].values())
        for said in (True, False)
    )
    kept = trainer(**known)._activations.kept * use.tokens
    assert one - other == pytest.approx(kept, rel=0.15)  # the other's peak is at the first layer
    for others in ({"backend": "fsdp2"}, {"weights": "full"}, {"recompute": "none"}):
        assert trainer(**(known | others), reentrant_checkpoints=True)._held_inputs == 0


def test_layers_of_a_quantised_base_are_gathered_as_they_are_stored() -> None:
    known = {"backend": "fsdp", "working_copy": False, "recompute": "full", "weights": "lora"}
    wide, narrow = (trainer(**known, base_bits=bits)._gathered(0.0) for bits in (16, 4))
    assert narrow - trainer(**known, base_bits=4)._dequantised_bytes == pytest.approx(wide / 4)


@settings(max_examples=examples(80), deadline=None)
@given(layer=st.integers(10**7, 4 * 10**9))
def test_megatron_s_fsdp_lets_gradients_of_layers_wait(layer: int) -> None:
    """Against its queue, layer by layer: more than its unit is waited for before another one is
    reduced; as many are fetched ahead until they are half of it."""
    one = trainer(backend="megatron")
    unit, queue, most = max(10**9, 2 * layer), 0, 0
    for _ in range(MODEL.layers):
        while queue > unit:
            queue -= layer
        queue += layer
        most = max(most, queue)
    assert waiting_layers(one, MODEL, layer) * layer == most
    ahead = 0
    while ahead < unit / 2 and ahead < (MODEL.layers - 1) * layer:
        ahead += layer
    assert fetched_parameters(one, MODEL, layer) == ahead
    assert waiting_layers(trainer(backend="fsdp2"), MODEL, layer) == 1


def test_gradients_that_wait_are_there_in_an_update() -> None:
    of = {name: trainer(backend=name, sharding="fsdp") for name in ("megatron", "fsdp2")}
    layer = of["megatron"]._layer_parameters
    wait = waiting_layers(of["megatron"], MODEL, layer)
    parts = {name: one.phases(Use(64, 64))["update"]["trainer"] for name, one in of.items()}
    assert wait > 2
    assert parts["megatron"]["communication"] == pytest.approx(4 * wait * layer)
    assert parts["fsdp2"]["communication"] == pytest.approx(4 * MODEL.head_parameters)


@pytest.mark.parametrize(("stage", "host"), [(1, False), (2, False), (2, True), (3, False)])
def test_reducing_a_bucket_copies_it_and_a_norm_is_taken_in_64_bit(stage: int, host: bool) -> None:
    """Of a weight that is larger than a bucket, too; the norm of a rank's own part of it."""
    sharding = {1: "zero1", 2: "zero2", 3: "fsdp"}[stage]
    for bucket, owned, largest in ((10, 100, 7), (10, 100, 40), (10, 15, 40)):
        one = trainer(sharding=sharding, reduce_bucket=bucket, optimizer_on_host=host)
        copied = 2 * (bucket if stage == 3 else max(bucket, largest))
        normed = 8 * min(owned, largest) if host else 0
        assert reduced_bytes(one, MODEL, 800, owned, largest) == max(copied, normed)
        assert reduced_bytes(one, MODEL, 5, 1, 5) == max(10, 8 * host)  # no more than is trained
    alone = trainer(sharding="zero2", optimizer_on_host=host)
    assert reduced_bytes(alone, MODEL, 100, 100, 40) == (320 * host)  # one rank's is no copy
    assert reduced_bytes(trainer(backend="fsdp"), MODEL, 800, 100, 40) == 0


def stepped(
    stage: int, weights: float, summed: int, largest: float, *, copies: int, at_once: float
) -> float:
    """Peak of a step beyond what is there before, by its allocations in order: stage_1_and_2.py and
    stage3.py of DeepSpeed, torch's Adam; ``summed`` bytes of a gradient."""
    here = peak = 0.0

    def takes(size: float) -> None:
        nonlocal here, peak
        here += size
        peak = max(peak, here)

    if stage < 3:
        takes(8 * min(largest, weights))  # .double() of a gradient, for its norm
        here = 0.0
    left = weights
    while left > 0:
        group = left if stage < 3 else min(left, at_once)
        takes(summed * group)  # flatten
        if summed < 4:
            takes(4 * group)  # .to(fp32)
            here -= summed * group  # the flat copy
        if stage < 3:
            here -= summed * group  # averaged_gradients
        takes(4 * group * copies)  # square roots of the second moments, and their quotients
        here -= 4 * group * (1 + copies)  # these, and the gradients
        left -= group
    return peak


@settings(max_examples=examples(80), deadline=None)
@given(
    weights=st.floats(1e6, 2e10),
    largest=st.floats(1e6, 2e10),
    stage=st.sampled_from((1, 2, 3)),
    dtype=st.sampled_from(("bf16", "fp32")),
    copies=st.integers(0, 2),
    at_once=st.integers(10**8, 10**11),
)
def test_a_step_is_as_large_as_what_it_allocates(
    weights: float, largest: float, stage: int, dtype: str, copies: int, at_once: int
) -> None:
    one = trainer(
        sharding={1: "zero1", 2: "zero2", 3: "fsdp"}[stage],
        gradient_dtype=dtype,
        foreach_optimizer=copies > 0,
        step_copies=max(copies, 1),
        step_group=at_once,
    )
    summed = 2 if dtype == "bf16" else 4
    slow = stepped(stage, weights, summed, largest, copies=copies, at_once=at_once)
    assert step_bytes(one, weights, largest) == pytest.approx(slow)


def test_zero_2_has_a_microbatch_s_gradients_beside_the_sum() -> None:
    """Of its part, once two are summed, where the sum is on the GPU; else a buffer to send one."""
    buffer = 2 * MODEL.vocab * MODEL.hidden
    two = trainer(sharding="zero2", gradient_dtype="bf16")
    for one, own in ((two, 2 * MODEL.parameters / 8), (replace(two, optimizer_on_host=True), 0.0)):
        summed, first = (
            one._update(Use(1, 1, accumulates=sums), 0.0)["gradients"] for sums in (True, False)
        )
        assert own - buffer <= summed - first <= own + 1  # the head's own, at another moment
        assert bool(summed - first) == bool(own)
    assert sent_bytes(two, MODEL.head_parameters) == 0
    assert sent_bytes(replace(two, optimizer_on_host=True), MODEL.head_parameters) == buffer
    assert sent_bytes(trainer(optimizer_on_host=True), MODEL.head_parameters) == 0


def test_without_mixed_precision_activations_are_twice_as_large_and_products_slow() -> None:
    mixed = trainer(backend="fsdp2", sharding="none", working_copy=False)
    plain = replace(mixed, precision="fp32")
    kept = [one._activations.kept for one in (mixed, plain, trainer(backend="fsdp2"))]
    assert kept[0] == kept[1] == 2 * kept[2]  # autocast's residual stream is in fp32, too
    products = mixed._activations._layer.mlp
    again = plain._activations.working - mixed._activations.working
    assert 0.5 * products < again < 2 * products  # what else the layer keeps is half as wide there
    gathered = [
        one.phases(USE)["log_prob"]["trainer"]["gathered_weights"] for one in (mixed, plain)
    ]
    assert gathered[0] > 1e10
    assert gathered[1] == 0
    assert plain._precision_gain < 0.1 < mixed._precision_gain
