"""Split and sharded trainers, padding, and what waits on the host: laws, and sums by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.costs import RooflineCost, RooflineTrainer, TrainLoad
from rollcast.simulator.costs.memory.training import layer_bytes
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.presets.routing import busiest_share
from rollcast.simulator.costs.trainer.options import LOADED_SHARE
from rollcast.simulator.costs.trainer.packing import Work, pad
from rollcast.simulator.errors import ScenarioError
from tests.laws import examples
from tests.reference.dealing import dense_work, works_of
from tests.refusals import refuses

QWEN, MIXTURE = load_model("qwen3-8b"), load_model("qwen3-30b-a3b")
H100 = load_gpu("h100-sxm")
ROOMY = replace(H100, name="roomy", memory_bytes=1e12)
# Links that take no time, so that what is left is computation.
FREE = replace(ROOMY, interconnect_bytes_per_s=1e29, all_reduce_floor_s=0.0)
LOAD = TrainLoad([(500, [3500] * 16)])
PINNED = figures("roofline").offload_bytes_per_s


def trainer(gpus: int = 8, model: Any = QWEN, gpu: Any = ROOMY, **options: Any) -> RooflineTrainer:
    return RooflineTrainer(model, gpu, gpus, **{"microbatch_tokens": 4000, **options})


def state_bytes(one: RooflineTrainer) -> float:
    """Of weights, gradients and optimiser states on one GPU in an update, and of models beside."""
    guests = [size for _, parts in one._guests for size in parts.values()]
    return math.fsum([*one._states.values(), *guests])


def phases(one: RooflineTrainer, load: TrainLoad = LOAD) -> dict[str, float]:
    return dict(one.train(load).phases_s)


def test_rows_alone_limit_microbatches_where_nobody_counts_tokens() -> None:
    for options in ({"batching": "packed"}, {"batching": "padded"}):
        one = trainer(microbatch_tokens=None, microbatch_rollouts=16, **options)
        load = TrainLoad([(500, [3500] * 32)] * 8)
        assert {work.tokens for work in one._microbatches(load)[0]} == {16 * 4000}, options


# --- padding ---

ROWS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 90)).map(lambda row: dense_work(*row)),
    min_size=1,
    max_size=30,
)


@given(rows=ROWS, budget=st.integers(1, 600), most=st.integers(1, 8))
def test_padding_keeps_every_row_within_its_bounds(
    rows: list[Work], budget: int, most: int
) -> None:
    padded = pad(works_of(rows), budget, most)
    head = sum(work.head_tokens for work in rows)
    assert sum(work.tokens for work in padded) >= sum(work.tokens for work in rows)
    assert sum(work.head_tokens for work in padded) >= head
    assert sum(work.pairs for work in padded) >= sum(work.pairs for work in rows) * (1 - 1e-12)
    widest = max(w.tokens - w.head_tokens for w in rows) + max(w.head_tokens for w in rows)
    assert all(work.tokens <= max(budget, widest) for work in padded)
    assert len(padded) >= -(-len(rows) // most)


def test_padding_by_hand() -> None:
    rows = works_of([dense_work(2, 3), dense_work(4, 1), dense_work(1, 9)])
    first = Work(2 * 7, 2 * 3, 2 * 49 / 2)  # rows of 4 + 3
    assert pad(rows, 100, 2) == [first, Work(10, 9, 50.0)]
    assert pad(rows, 14, 9) == [first, Work(10, 9, 50.0)]
    assert pad(rows, 100, 9) == [Work(3 * 13, 3 * 9, 3 * 169 / 2)]
    assert pad(rows, 100, 2, (4, 9)) == [Work(26, 18, 169.0), Work(13, 9, 169 / 2)]


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.lists(st.integers(200, 3000), min_size=1)),
        min_size=1,
        max_size=5,
    )
)
def test_packed_is_no_slower_than_padded(groups: list[tuple[int, list[int]]]) -> None:
    """Of one GPU, in products, attention and kernels: padding is computed, and only ever added."""
    load = TrainLoad(groups)
    times = [
        sum(phases(trainer(1, batching=b, microbatch_tokens=10**6), load).values())
        for b in ("packed", "padded", "padded_to_batch")
    ]
    assert times[0] <= times[1] * (1 + 1e-9)
    assert times[1] <= times[2] * (1 + 1e-9)


def test_padding_of_shared_prefixes_is_refused() -> None:
    shared = TrainLoad([(10, [20, 30])], shared_prefix=True)
    with refuses("cost.roofline.trainer.batching", "give packed or one_sequence"):
        trainer(batching="padded").train(shared)
    assert trainer(batching="one_sequence").train(shared).microbatches == 3


# --- parallelism ---


@pytest.mark.parametrize(
    "split", ["tensor_parallel", "context_parallel", "sequence_parallel", "pipeline_parallel"]
)
def test_split_models_compute_no_less(split: str) -> None:
    """Without communication, the same GPUs take as long however they share the model, but for the
    pipeline's bubble and the LM head on its last stage."""
    whole = phases(trainer(8, gpu=FREE, sharding="none"))
    found = phases(trainer(8, gpu=FREE, sharding="none", **{split: 4}))
    if split == "pipeline_parallel":
        assert found["forward"] > whole["forward"] * 11 / 8
    else:
        assert found["forward"] == pytest.approx(whole["forward"], rel=1e-9)
        assert found["backward"] == pytest.approx(whole["backward"], rel=1e-9)


@given(
    stages=st.sampled_from([2, 3, 4, 6]),
    microbatches=st.integers(1, 12),
    parts=st.sampled_from([1, 2, 3]),
)
@settings(max_examples=examples(25), deadline=None)
def test_the_bubble_is_that_of_its_paper(stages: int, microbatches: int, parts: int) -> None:
    """(p - 1) / (v m) of the time without it (arXiv 2104.04473, section 2.2)."""
    load = TrainLoad([(0, [4000] * microbatches)])
    one = trainer(stages, gpu=FREE, sharding="none", pipeline_parallel=stages, virtual_stages=parts)
    cost = one.train(load)
    assert cost.microbatches == microbatches
    busy_s = microbatches * one._stage_s(dense_work(0, 4000))
    share = (stages - 1) / (parts * microbatches)
    assert dict(cost.phases_s)["forward"] == pytest.approx(busy_s * (1 + share), rel=1e-6)
    assert dict(cost.phases_s)["backward"] == pytest.approx(3 * busy_s * (1 + share), rel=1e-6)


@pytest.mark.parametrize(
    ("split", "gpus", "model"),
    [
        ({"tensor_parallel": 4}, 8, QWEN),
        ({"context_parallel": 4}, 8, QWEN),
        ({"sequence_parallel": 4}, 8, QWEN),
        ({"pipeline_parallel": 2}, 8, QWEN),
        ({"expert_parallel": 8}, 8, MIXTURE),
    ],
)
def test_what_is_split_talks(split: dict[str, int], gpus: int, model: Any) -> None:
    """As long again with links half as fast; computing again what a forward did talks again, but
    for the stages of a pipeline."""
    slow = replace(ROOMY, interconnect_bytes_per_s=ROOMY.interconnect_bytes_per_s / 2)
    floors = {"all_reduce_floor_s": 0.0}
    talk = {}
    for recompute in ("none", "full"):
        free, near, far = (
            phases(trainer(gpus, model, gpu, recompute=recompute, sharding="none", **split))
            for gpu in (FREE, replace(ROOMY, **floors), replace(slow, **floors))
        )
        talk[recompute] = near["backward"] - free["backward"]
        assert near["forward"] > free["forward"]
        assert far["forward"] - near["forward"] == pytest.approx(near["forward"] - free["forward"])
    again = 1.0 if "pipeline_parallel" in split else 2.0
    assert talk["full"] == pytest.approx(again * talk["none"])


def test_a_stream_that_is_not_shared_is_moved_and_sent_whole() -> None:
    """Without sequence parallelism each GPU of a tensor parallel group computes norms and the
    residual stream of all tokens, and sends them to the next stage."""
    split = {"tensor_parallel": 4, "pipeline_parallel": 2, "sharding": "none"}
    shared, whole = (trainer(8, tensor_sequence_parallel=one, **split) for one in (True, False))
    kept, times = layer_bytes(QWEN), (shared._unit_times, whole._unit_times)
    stream = kept.stream / kept.whole
    assert times[1].moved_token == pytest.approx(times[0].moved_token * (1 + 3 * stream))
    assert times[1].token == times[0].token
    sent = [one.layout.talk_s(4000) for one in (shared, whole)]
    assert sent[1].between == pytest.approx(4 * sent[0].between)
    assert sent[1].attention == sent[0].attention
    one_gpu = [trainer(1, tensor_sequence_parallel=one)._unit_times for one in (True, False)]
    assert one_gpu[0] == one_gpu[1]


def test_an_expert_parallel_group_waits_for_its_busiest_gpu() -> None:
    """Its routed products, what they move, and its messages are as many times as long; a GPU that
    has all experts gets all tokens anyway."""
    even = replace(MIXTURE, routing_skew=0.0)
    options = {"recompute": "none", "sharding": "none"}
    for gpu in (FREE, replace(ROOMY, all_reduce_floor_s=0.0)):
        alone, fair = (phases(trainer(8, model, gpu, **options)) for model in (MIXTURE, even))
        assert alone["forward"] == pytest.approx(fair["forward"])
    split = {**options, "expert_parallel": 8}
    busy = busiest_share(MIXTURE.experts, 8, MIXTURE.routing_skew)
    assert busy > 1.2
    uneven, flat = (trainer(8, model, **split) for model in (MIXTURE, even))
    assert uneven.layout.talk_s(4000).mlp == pytest.approx(busy * flat.layout.talk_s(4000).mlp)
    products = ROOMY.bf16_flop_per_s * ROOMY.gemm_flop_efficiency
    routed = 2 * MIXTURE.sparse_layers * MIXTURE.expert_parameters * MIXTURE.experts_per_token
    more_s = (busy - 1) * routed / uneven.expert_share / products
    assert uneven._unit_times.token - flat._unit_times.token == pytest.approx(more_s)
    moved = MIXTURE.layers * layer_bytes(MIXTURE).routed * uneven.traffic_per_activation_byte
    more_s = (busy - 1) * moved * uneven._moved_s_per_byte
    assert uneven._unit_times.moved_token - flat._unit_times.moved_token == pytest.approx(more_s)


@pytest.mark.parametrize(
    "split",
    [
        {},
        {"tensor_parallel": 4},
        {"pipeline_parallel": 2},
        {"context_parallel": 2},
        {"sequence_parallel": 4},
        {"expert_parallel": 8},
    ],
)
def test_every_parameter_is_kept_once(split: dict[str, int]) -> None:
    one = trainer(16, MIXTURE, **split)
    assert 16 * state_bytes(one) == pytest.approx(16 * MIXTURE.parameters)
    assert 16 * one.layout.owned_parameters == pytest.approx(MIXTURE.parameters)


def test_sequence_parallel_messages_are_those_of_their_paper() -> None:
    """DeepSpeed-Ulysses (arXiv 2309.14509, section 3.2): 4 N h / P elements a layer with as many
    heads of keys as of queries, of which 1 / P stay: less with more GPUs, where a ring's keys and
    values do not shrink."""
    heads = replace(QWEN, name="multi-head", kv_heads=QWEN.heads)
    tokens, sent = 32_768, 2 * 4 * 32_768 * QWEN.heads * QWEN.head_dim * QWEN.layers
    rings = []
    for parts in (2, 4, 8):
        layout = trainer(8, heads, sequence_parallel=parts, sharding="none").layout
        bytes_each = sent / parts * (parts - 1) / parts
        assert layout.talk_s(tokens).attention * layout.rate_bytes_per_s(parts) == pytest.approx(
            bytes_each
        )
        ring = trainer(8, heads, context_parallel=parts, sharding="none").layout
        rings.append(ring.talk_s(tokens).attention)
    assert rings == sorted(rings)


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_adapters_of_megatron_gather_what_row_parallel_ones_make(parts: int) -> None:
    """Half an all-reduce more for attention, and for a dense layer's MLP."""
    gpu = replace(ROOMY, all_reduce_floor_s=0.0)
    whole, adapters, others = (
        trainer(
            8, gpu=gpu, tensor_parallel=parts, sharding="none", backend=backend, weights=weights
        ).layout.talk_s(10_000)
        for backend, weights in (("megatron", "full"), ("megatron", "lora"), ("ddp", "lora"))
    )
    assert others == whole
    assert adapters == pytest.approx((1.5 * whole.attention, 1.5 * whole.mlp, 0.0))
    mixture = trainer(
        8, MIXTURE, gpu, tensor_parallel=parts, sharding="none", backend="megatron", weights="lora"
    ).layout.talk_s(10_000)
    assert mixture.mlp == pytest.approx(mixture.attention / 1.5)


def test_states_on_the_host_leave_the_gpu_and_come_over_its_link() -> None:
    here, away = trainer(8), trainer(8, states_on_host=True)
    assert state_bytes(away) == 0 < state_bytes(here)
    assert away.copies_s() == (0.0, 0.0)
    away_too = {"backend": "fsdp", "states_on_host": True, "host_memory_bytes_per_s": 1e29}
    fast = replace(ROOMY, host_link_bytes_per_s=1e29)
    slow = replace(ROOMY, host_link_bytes_per_s=ROOMY.host_link_bytes_per_s / 2)
    free, half = (phases(trainer(8, gpu=gpu, **away_too)) for gpu in (fast, slow))
    near = phases(trainer(8, **away_too))
    plain = phases(here)
    for phase in ("log_prob", "forward", "backward", "gradient_exchange"):
        assert free[phase] == pytest.approx(plain[phase])
        assert half[phase] - free[phase] == pytest.approx(2 * (near[phase] - free[phase]))
    link = ROOMY.host_link_bytes_per_s
    passes = trainer(8).train(LOAD).microbatches
    loaded = 4 * QWEN.parameters / 8 / (LOADED_SHARE * link) * passes
    assert near["log_prob"] - free["log_prob"] == pytest.approx(loaded)


def test_a_backward_waits_for_gradients_that_are_added_on_the_host() -> None:
    """All but a step's first microbatch, whatever else of the exchange is hidden; by hand. FSDP2's
    come to new memory where a parameter's shard is of more than 32 MiB: here the embeddings and the
    LM head, of 311 MB, and of MLPs, of 24 MiB, no matrix."""
    host = {"states_on_host": True, "host_memory_bytes_per_s": 1e12}
    hidden = trainer(8, backend="fsdp", overlap=1.0, **host)
    second = replace(hidden, backend="fsdp2")
    first, several = TrainLoad([(500, [3500] * 8)]), TrainLoad([(500, [3500] * 40)])
    shard, added_s = 4 * QWEN.parameters / 8, 12 * QWEN.parameters / 1e12
    each_s = shard / ROOMY.host_link_bytes_per_s + added_s
    new = 4 * 2 * QWEN.vocab * QWEN.hidden / 8
    slow_s = new / 2.1e9 + (shard - new) / 13.8e9 + added_s
    once = replace(hidden, reduce_every_microbatch=False)
    for one, load, seconds in (
        (hidden, first, 0.0),
        (hidden, several, 4 * each_s),
        (second, first, 0.0),
        (second, several, 4 * slow_s),
        (once, several, 0.0),
    ):
        found = dict(one.train(load).phases_s)
        assert found.get("gradient_exchange", 0.0) == pytest.approx(seconds)


def test_what_is_shared_takes_less_memory_and_is_exchanged_more_often() -> None:
    kept = ("fsdp", "hybrid", "zero1", "none")
    one = [trainer(16, sharding=sharding) for sharding in kept]
    states = [state_bytes(each) for each in one]
    assert states == sorted(states)
    assert states[-1] == pytest.approx(16 * states[0])
    assert state_bytes(trainer(16, shard=False)) == states[-1]
    pairs = trainer(16, sharding="hybrid", shard_gpus=2)
    assert state_bytes(pairs) == pytest.approx(states[-1] / 2)
    whole = trainer(16, reduce_every_microbatch=False)
    assert whole.layout.exchange_s(3) == pytest.approx(one[0].layout.exchange_s(3) / 3)
    assert states[0] < state_bytes(whole) < states[-1]


def test_weights_left_gathered_cost_memory_and_save_a_gather() -> None:
    again, left = trainer(16), trainer(16, reshard_after_forward=False)
    assert phases(left)["backward"] < phases(again)["backward"]
    assert left.peak_bytes(4000) > again.peak_bytes(4000)


def test_one_sequence_a_microbatch_pays_each_floor() -> None:
    alone = trainer(2, batching="one_sequence", launch_s_per_layer=1.0)
    packed = trainer(2, launch_s_per_layer=1.0, microbatch_tokens=32_000)
    assert [one.train(LOAD).microbatches for one in (alone, packed)] == [8, 1]
    assert phases(alone)["forward"] == pytest.approx(8 * phases(packed)["forward"])


@given(one=st.floats(0, 1), other=st.floats(0, 1))
def test_overlap_hides_what_computation_covers(one: float, other: float) -> None:
    low, high = sorted((one, other))
    less, more = (phases(trainer(16, overlap=share)) for share in (low, high))
    assert sum(more.values()) <= sum(less.values()) * (1 + 1e-12)
    bare = phases(trainer(16, gpu=FREE, sharding="none"))
    assert more["forward"] >= bare["forward"] * (1 - 1e-12)


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("full", 3)])
def test_a_backward_hides_gathers_and_gradients_behind_its_passes_once(
    recompute: str, passes: int
) -> None:
    """They share links: what hides one does not hide the other."""
    free = phases(trainer(8, gpu=FREE, recompute=recompute))
    for bytes_per_s in (9e11, 5e10, 2.5e10, 1e10):
        slow = replace(ROOMY, interconnect_bytes_per_s=bytes_per_s, all_reduce_floor_s=0.0)
        one = trainer(8, gpu=slow, recompute=recompute, overlap=1.0)
        count = one.train(LOAD).microbatches
        sent_s = one.layout.gather_s * count + one.layout.exchange_s(count)
        found = phases(one)
        more_s = found["backward"] + found.get("gradient_exchange", 0.0) - free["backward"]
        assert more_s == pytest.approx(max(0.0, sent_s - passes * free["forward"]), abs=1e-9)


def test_a_published_recipe_without_recomputation_fits() -> None:
    """NeMo-RL's grpo-llama3.3-70b-instruct-4n8g: 32 H100, tensor parallel 4, eight stages, packed
    to 4,096 tokens; and its 16k variant, which computes activations again."""
    keys = {"tensor_parallel": 4, "pipeline_parallel": 8, "sharding": "zero1"}
    llama = load_model("llama-3.1-70b")
    for tokens, recompute in ((4096, "none"), (16_384, "full")):
        said = {**keys, "microbatch_tokens": tokens, "recompute": recompute}
        load = TrainLoad([(96, [tokens - 96] * 32)])
        assert trainer(32, llama, H100, **said).train(load).peak_bytes < H100.memory_bytes
    with pytest.raises(ScenarioError, match="out of memory"):
        trainer(32, llama, H100, **{**said, "recompute": "none"}).train(load)


# --- what a backward computes again ---


def test_parts_computed_again_add_up_to_a_forward() -> None:
    """Attention and MLP together are all but the LM head; half of the layers, half of all."""
    keys = {"sharding": "none", "traffic_per_logit": 0.0}
    found = {r: phases(trainer(recompute=r, **keys)) for r in ("none", "attention", "mlp", "full")}
    extra = {r: found[r]["backward"] - found["none"]["backward"] for r in found}
    assert extra["full"] == pytest.approx(found["none"]["forward"])
    assert 0.9 < (extra["attention"] + extra["mlp"]) / extra["full"] < 1
    assert extra["attention"] > 0.1 * extra["full"]
    assert all(found[r]["forward"] == found["none"]["forward"] for r in found)
    half = trainer(recompute="full", recompute_layers=18, **keys)
    assert phases(half)["backward"] == pytest.approx(found["full"]["backward"] - extra["full"] / 2)
    peaks = [trainer(recompute=r, **keys).peak_bytes(4000) for r in ("none", "full")]
    assert peaks[1] < half.peak_bytes(4000) < peaks[0]


# --- precision and the host ---


def test_fp8_speeds_up_products_alone() -> None:
    bf16, fp8 = (phases(trainer(gpu=FREE, precision=p))["forward"] for p in ("bf16", "fp8"))
    assert 1 < bf16 / fp8 < 2
    with refuses("cost.roofline.trainer.precision", "has no fp8; give bf16"):
        trainer(gpu=load_gpu("a100-80gb"), precision="fp8")


def test_what_waits_on_the_host_leaves_room_and_takes_time() -> None:
    here, there = (trainer(recompute="none", offload_activations=o) for o in (False, True))
    assert there.largest_microbatch_tokens() > 5 * here.largest_microbatch_tokens()
    slow = replace(ROOMY, host_link_bytes_per_s=1e9)
    waiting = trainer(gpu=slow, recompute="none", offload_activations=True)
    assert phases(waiting)["forward"] > 2 * phases(there)["forward"] >= 2 * phases(here)["forward"]
    adam = trainer(optimizer_on_host=True)
    assert state_bytes(adam) < state_bytes(trainer())
    assert phases(adam)["optimizer"] > phases(trainer())["optimizer"]
    floors = [
        phases(trainer(minibatches=n, step_fixed_s=s))["optimizer"] for n, s in ((4, 0), (4, 2))
    ]
    assert floors[1] - floors[0] == pytest.approx(2.0 * len(LOAD.groups))


def test_states_that_are_copied() -> None:
    """Pinned ones at the link's rate, others slower; neither gradients nor faster than the link."""
    pinned, slow = trainer(), trainer(state_copies="pageable")
    assert math.fsum(pinned._trained_bytes) == pytest.approx(12 * QWEN.parameters / 8)
    assert max(pinned.copies_s()) < max(pinned.copies_s(9e9)) < min(slow.copies_s())
    assert slow.copies_s(1e9) == slow.copies_s()
    assert replace(slow, copies_scale=1.5).copies_s() < slow.copies_s()
    poor = replace(ROOMY, host_link_bytes_per_s=1e9)
    assert len(set(trainer(gpu=poor, state_copies="pageable").copies_s())) == 1
    whole = trainer(reduce_every_microbatch=False)
    assert math.fsum(whole._trained_bytes) == pytest.approx(math.fsum(pinned._trained_bytes))
    cost = RooflineCost(QWEN, ROOMY, trainer=slow, switch_fixed_s=1.0)
    assert cost.switch_to_rollout_s == pytest.approx(1 + slow.copies_s()[0])
    assert cost.switch_to_train_s == pytest.approx(1 + slow.copies_s()[1])


@pytest.mark.parametrize("kind", ["pinned", "pageable", "pageable_weights"])
def test_states_are_copied_in_switches_or_in_the_phases_that_need_them(kind: Any) -> None:
    """All once to host memory and back, in one or the other; in phases, weights once more."""
    copied = trainer(state_copies=kind, log_prob_passes=2)
    switches, in_phases = (
        RooflineCost(
            QWEN,
            ROOMY,
            trainer=replace(copied, states_copied=when),
            switch_fixed_s=1.0,
            offload_bytes_per_s=PINNED,
        )
        for when in ("switches", "phases")
    )
    assert in_phases.switch_to_train_s == in_phases.switch_to_rollout_s == 1.0
    pinned_s, slow_s = (
        [size / rate for rate, size in zip(rates, (4 * QWEN.parameters / 8,) * 2, strict=True)]
        for rates in ((PINNED, PINNED), (2.1e9, 5e9))
    )
    weights_s = sum(pinned_s if kind == "pinned" else slow_s)
    moments_s = 2 * sum(slow_s if kind == "pageable" else pinned_s)
    before, after = (dict(cost.train(LOAD).phases_s) for cost in (switches, in_phases))
    more = {name: after[name] - before[name] for name in before}
    assert more.pop("log_prob") == pytest.approx(weights_s)
    assert more.pop("forward") == pytest.approx(weights_s + moments_s)
    assert not any(more.values())
    moved_s = switches.switch_to_train_s + switches.switch_to_rollout_s - 2.0
    assert moved_s == pytest.approx(weights_s + moments_s)
    last = replace(copied, states_copied="phases_but_last")
    but_last = replace(in_phases, trainer=last)
    assert but_last.switch_to_train_s == 1.0
    assert but_last.switch_to_rollout_s == switches.switch_to_rollout_s
    moved_s = in_phases.train(LOAD).total_s - but_last.train(LOAD).total_s
    assert moved_s == pytest.approx(but_last.switch_to_rollout_s - 1.0)
    slower = replace(in_phases, offload_bytes_per_s=PINNED / 2)
    own_s = dict(slower.train(LOAD).phases_s)["log_prob"] - before["log_prob"]
    assert own_s == pytest.approx((2 if kind == "pinned" else 1) * weights_s)
    kept = replace(in_phases, offload_optimizer=False)
    apart = replace(in_phases, placement="disaggregated")
    for cost in (kept, apart):
        assert dict(cost.train(LOAD).phases_s) == pytest.approx(before)


def test_a_critic_is_copied_with_the_policy() -> None:
    one, two = (
        RooflineCost(QWEN, ROOMY, trainer=trainer(states_copied="phases", critic=critic))
        for critic in (False, True)
    )
    bare = replace(two, offload_optimizer=False)
    copied, here = (dict(cost.train(LOAD).phases_s) for cost in (two, bare))
    alone_s = math.fsum(one.trainer_of.copies_s(PINNED))
    assert copied["forward"] - here["forward"] == pytest.approx(2 * alone_s)
    assert copied["values"] - here["values"] == pytest.approx(alone_s / 3)


def test_frozen_weights_are_copied_for_every_pass_of_theirs() -> None:
    """Of 32 bit, there and back, as for verl's reference of adapters; in switches they stay."""
    cost = RooflineCost(
        QWEN,
        ROOMY,
        trainer=trainer(weights="lora", base_bits=32, log_prob_passes=2, states_copied="phases"),
    )
    kept = replace(cost, offload_optimizer=False)
    copied, here = (dict(one.train(LOAD).phases_s) for one in (cost, kept))
    for name in copied:
        moved_s = 2 * 4 * QWEN.parameters / 8 / PINNED
        wanted = moved_s if name in ("log_prob", "reference", "forward") else 0.0
        assert copied[name] - here[name] == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    stays = replace(cost, trainer=replace(cost.trainer_of, states_copied="switches"))
    assert dict(stays.train(LOAD).phases_s) == pytest.approx(here)


@pytest.mark.parametrize(
    ("tensor", "sharding", "links"), [(1, "fsdp", 8), (2, "zero1", 4), (8, "zero1", 1)]
)
def test_rings_leave_a_node_over_the_links_of_all_of_its_gpus(
    tensor: int, sharding: str, links: int
) -> None:
    """Where a link is slow: what two nodes share crosses once, over as many links as there are
    GPUs with a part of it."""
    slow, eight_bytes = 1e9, 8e9
    one = trainer(
        16,
        tensor_parallel=tensor,
        sharding=sharding,
        network_bytes_per_s=slow,
        exchange_bytes_per_parameter=6.0,
    ).layout
    sharers = 16 // tensor
    ring_s = (
        eight_bytes * (sharers - 1) / sharers / (links * slow * one.options.collective_efficiency)
    )
    assert one._ring_s(eight_bytes, sharers, sharers) == pytest.approx(ring_s)
    near = replace(one.options, network_bytes_per_s=1e15)
    assert replace(one, options=near)._ring_s(eight_bytes, sharers, sharers) == pytest.approx(
        eight_bytes * (sharers - 1) / sharers / one.rate_bytes_per_s(8)
    )


HYBRID = load_model("qwen3.5-9b")


def test_recurrent_layers_that_are_not_split_are_computed_by_each_gpu() -> None:
    """On links that take no time: with four GPUs to a copy, projections and states of the
    recurrent layers take four times as long as where they are split."""

    def forward_s(model: Any, tensor: int, split: bool) -> float:
        one = trainer(8, model, FREE, tensor_parallel=tensor, split_recurrent=split)
        return phases(one)["forward"]

    assert forward_s(QWEN, 4, False) == forward_s(QWEN, 4, True)
    assert forward_s(HYBRID, 1, False) == forward_s(HYBRID, 1, True)
    adapters = [
        trainer(8, HYBRID, FREE, tensor_parallel=4, split_recurrent=split, weights="lora")
        for split in (True, False)
    ]
    assert adapters[0]._unit_times == adapters[1]._unit_times
    split, whole = forward_s(HYBRID, 4, True), forward_s(HYBRID, 4, False)
    share = HYBRID.recurrent_parameters / (HYBRID.parameters - HYBRID.vocab * HYBRID.hidden * 2)
    assert 1 + 2.0 * share < whole / split < 1 + 4.0 * share + 0.5
    times = [
        trainer(8, HYBRID, FREE, tensor_parallel=4, split_recurrent=s)._unit_times
        for s in (True, False)
    ]
    assert times[1].attention_token == pytest.approx(4 * times[0].attention_token)
    again = 3 * 2 * HYBRID.recurrent_parameters
    products = 4 * FREE.bf16_flop_per_s * FREE.gemm_flop_efficiency
    assert times[1].token - times[0].token == pytest.approx(again / products)


def test_delta_nets_in_pytorch_launch_forward_and_move_behind() -> None:
    options = {"linear_attention": "torch", "recompute": "none"}
    looped, fused = (trainer(1, HYBRID, FREE, **o) for o in (options, {"recompute": "none"}))
    layers, heads = HYBRID.linear_layers, HYBRID.linear_value_heads

    def more(tokens: int, rows: int = 1) -> tuple[float, float]:
        work = Work(rows * tokens, 0, rows * tokens**2 / 2)
        slow, fast = looped._pass_s([work]), fused._pass_s([work])
        return slow["forward"] - fast["forward"], slow["backward"] - fast["backward"]

    launched = {tokens: layers * (429 + 18 * tokens / 64) * 2e-5 for tokens in (1024, 32_000)}
    assert {tokens: more(tokens)[0] for tokens in launched} == pytest.approx(launched)
    assert more(1024, rows=2)[0] == pytest.approx(launched[1024])  # beside each other
    moved = (306e3 + 162 * 32_000) * 32_000 * layers * heads
    assert more(32_000)[1] == pytest.approx(moved * looped._moved_s_per_byte)
    assert more(32_000, rows=2)[1] == pytest.approx(2 * more(32_000)[1])
    plain = (trainer(1, QWEN, FREE, **o)._pass_s([Work(9, 0, 41)]) for o in (options, {}))
    assert next(plain)["forward"] == next(plain)["forward"]


def test_recurrent_layers_may_take_all_tokens_on_each_gpu_of_a_context_group() -> None:
    """slime gathers the sequence over its context parallel group, too; miles passes states on."""
    both = {"tensor_parallel": 2, "context_parallel": 4, "split_recurrent": False}
    shared, gathered = (
        trainer(8, HYBRID, FREE, **both, split_recurrent_context=split) for split in (True, False)
    )
    assert gathered._unit_times.attention_token == pytest.approx(
        4 * shared._unit_times.attention_token
    )
    more = (8 - 2) * 2 * HYBRID.recurrent_parameters
    products = 8 * FREE.bf16_flop_per_s * FREE.gemm_flop_efficiency
    seconds = gathered._unit_times.token - shared._unit_times.token
    assert seconds == pytest.approx(more / products)
    assert shared.layout.parts == gathered.layout.parts
