"""The ledger of memory: laws, a slow count tensor by tensor, and peaks that torch tracked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollcast.simulator.costs import RooflineTrainer
from rollcast.simulator.costs.memory.kv_pool import workspace_bytes
from rollcast.simulator.costs.memory.ledger import (
    MEMORY_PHASES,
    UNCERTAIN,
    Holding,
    Ledger,
    Pool,
    chance_of,
    chance_of_room,
)
from rollcast.simulator.costs.memory.processes import communicator_bytes, usable_bytes
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import Model, load_model
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.roofline.memory_phases import kv_bytes
from rollcast.simulator.costs.trainer.activation_memory import kept_layer
from rollcast.simulator.costs.trainer.memory import Use
from rollcast.simulator.costs.trainer.states import adapter_parameters, base_bytes_each
from rollcast.simulator.costs.trainer.step_options import Optimizer
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.ledger import ledger_of, roofline_of
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import from_raw
from tests.costs.caching_allocator import OutOfMemoryError, left_by_sharding, sharded_updates
from tests.laws import examples
from tests.scenarios import LINEAR

ALLOCATOR = (
    Path(__file__).parents[2] / "benchmarks" / "data" / "gpu" / "h100-second" / "updates.json"
)
"""Updates in less and less memory (benchmarks.gpu.allocator)."""

GIB = 2**30
H100 = load_gpu("h100-sxm")
ROOMY = replace(H100, name="roomy", memory_bytes=1e13)
TRAINS = ("log_prob", "update", "optimizer_step")


def scenario(
    trainer: Mapping[str, Any] | None = None,
    cluster: Mapping[str, Any] | None = None,
    model: str = "qwen2.5-7b",
    **roofline: Any,
) -> Scenario:
    data = {
        "model": model,
        "gpu": "h100-sxm",
        "cluster": {
            "placement": "colocated",
            "replicas": 8,
            "tensor_parallel": 1,
            **(cluster or {}),
        },
        "workload": {
            "batch_groups": 64,
            "group_size": 8,
            "prompt_tokens": 512,
            "max_new_tokens": 4096,
            "lengths": {"mean_tokens": 1500},
        },
        "cost": {"roofline": {"trainer": dict(trainer or {}), **roofline}},
    }
    return from_raw(RawScenario(data))


def ledger(*args: Any, **keys: Any) -> Ledger:
    found = ledger_of(scenario(*args, **keys))
    assert found is not None
    return found


def most(found: Ledger, *phases: str, pool: str = "colocated") -> float:
    """Of these phases on a pool."""
    return max(
        found.total(phase, name)
        for phase, name in found.places
        if name == pool and (not phases or phase in phases)
    )


@pytest.mark.parametrize(("optimizer", "each"), [("adamw_bf16", 4), ("adamw_kahan", 6)])
def test_kahans_compensation_is_a_third_moment(optimizer: str, each: int) -> None:
    """AnyPrecisionAdamW keeps three buffers of 16 bit for a weight."""
    held = ledger({"optimizer": optimizer, "master_dtype": "bf16"}).of("update", "colocated")
    moments, weights = (
        sum(holding.bytes.get(part, 0.0) for holding in held) for part in ("optimizer", "weights")
    )
    assert moments == pytest.approx(each / 2 * weights)


# --- laws ---

OPTIONS = st.fixed_dictionaries(
    {
        "sharding": st.sampled_from(["fsdp", "hybrid", "zero2", "zero1", "none"]),
        "optimizer": st.sampled_from(get_args(Optimizer)),
        "master_dtype": st.sampled_from(["fp32", "bf16"]),
        "recompute": st.sampled_from(["full", "selective", "attention", "mlp", "none"]),
        "weights": st.sampled_from(["full", "lora"]),
        "working_copy": st.booleans(),
        "reduce_every_microbatch": st.booleans(),
        "logits_chunk_tokens": st.sampled_from([None, 1024]),
        "microbatch_tokens": st.sampled_from([None, 8192, 20_000]),
        "log_prob_passes": st.integers(0, 2),
        "critic": st.booleans(),
    }
)


@settings(max_examples=examples(40), deadline=None)
@given(options=OPTIONS, colocated=st.booleans())
def test_parts_add_up_and_none_is_negative(options: dict[str, Any], colocated: bool) -> None:
    placement = "colocated" if colocated else "disaggregated"
    found = ledger(options, {"placement": placement, "trainer_gpus": 8})
    for phase, pool in found.places:
        held = found.of(phase, pool)
        assert all(size > 0 for holding in held for size in holding.bytes.values())
        total = found.total(phase, pool)
        assert total == pytest.approx(sum(sum(h.bytes.values()) for h in held))
        assert all(total >= holding.total for holding in held)
    assert found.fits == (found.fits_probability >= 0.5)
    peak = found.peak
    assert peak.bytes == found.total(peak.phase, peak.pool)
    assert all(
        found.total(*at) / found.pools[at[1]].capacity_bytes
        <= peak.bytes / peak.capacity_bytes * (1 + 1e-12)
        for at in found.places
    )
    plain = json.loads(json.dumps(found.plain()))
    assert plain["fits"] == found.fits
    assert plain["peak"]["bytes"] == round(peak.bytes)
    assert {entry["phase"] for entry in plain["phases"]} <= set(MEMORY_PHASES)


@settings(max_examples=examples(30), deadline=None)
@given(options=OPTIONS)
def test_gpus_of_a_colocated_trainer_without_an_engine_hold_its_states_alone(
    options: dict[str, Any],
) -> None:
    both = ledger(options, {"replicas": 2, "trainer_gpus": 4})
    shared = ledger(options, {"replicas": 4, "trainer_gpus": 4})
    assert [both.pools[name].gpus for name in ("colocated", "trainer")] == [2, 2]
    assert "trainer" not in shared.pools
    for phase in TRAINS:
        parts = {h.role: h.bytes for h in shared.of(phase, "colocated") if h.role != "engine"}
        for pool in ("colocated", "trainer"):
            held = {h.role: h.bytes for h in both.of(phase, pool) if h.role != "engine"}
            assert held.keys() == parts.keys()
            assert all(held[role].get("weights") == parts[role].get("weights") for role in held)
        assert both.total(phase, "trainer") <= both.total(phase, "colocated")
    assert both.peak.pool != "trainer"


@settings(max_examples=examples(30), deadline=None)
@given(options=OPTIONS, gpus=st.sampled_from([4, 8, 16]))
def test_more_gpus_never_need_more_of_each(options: dict[str, Any], gpus: int) -> None:
    few, more = (
        ledger(options, {"placement": "disaggregated", "trainer_gpus": n}) for n in (gpus, 2 * gpus)
    )
    for phase in TRAINS:
        if phase != "log_prob" or options["log_prob_passes"]:
            assert more.total(phase, "trainer") <= few.total(phase, "trainer") * (1 + 1e-9)


@settings(max_examples=examples(30), deadline=None)
@given(options=OPTIONS, tokens=st.integers(1, 30_000), further=st.integers(1, 30_000))
def test_more_tokens_never_need_less(options: dict[str, Any], tokens: int, further: int) -> None:
    trainer = RooflineTrainer(load_model("qwen2.5-7b"), ROOMY, 8, **options)
    assert trainer.peak_bytes(tokens) <= trainer.peak_bytes(tokens + further)


@settings(max_examples=examples(30), deadline=None)
@given(options=OPTIONS)
def test_what_is_offloaded_is_not_on_the_gpu(options: dict[str, Any]) -> None:
    here = ledger(options, offload_optimizer=False)
    away = ledger(options, offload_optimizer=True)
    assert most(away, "generation") < most(here, "generation")
    assert most(away, "update") <= most(here, "update") * (1 + 1e-9)
    if not options["critic"]:  # which waits in host memory, too
        assert most(away, "update") == pytest.approx(most(here, "update"))
    assert sum(away.host_bytes.values()) >= sum(here.host_bytes.values())
    on_host = ledger({**options, "optimizer_on_host": True})
    assert most(on_host, "update", "optimizer_step") <= most(
        ledger(options), "update", "optimizer_step"
    ) * (1 + 1e-9)


@settings(max_examples=examples(20), deadline=None)
@given(options=OPTIONS)
@example(options={"sharding": "zero2", "master_dtype": "bf16", "recompute": "selective"})
def test_adapters_need_no_more_than_all_weights(options: dict[str, Any]) -> None:
    full, lora = (ledger({**options, "weights": weights}) for weights in ("full", "lora"))
    assert most(lora, *TRAINS) <= most(full, *TRAINS) * (1 + 1e-9)


@pytest.mark.parametrize(("dtype", "bytes_each"), [("fp32", 4), ("bf16", 2)])
@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_zero_1_and_2_keep_whole_weights_beside_a_part_of_the_optimiser_s(
    stage: str, dtype: str, bytes_each: int
) -> None:
    """deepspeed/runtime/zero/stage_1_and_2.py: bit16_groups_flat on each GPU, and of its partition
    a clone in master_weights_and_grads_dtype."""
    found = ledger({"backend": "deepspeed", "sharding": stage, "master_dtype": dtype})
    [held] = [h.bytes for h in found.of("optimizer_step", "colocated") if h.role == "trainer"]
    parameters = load_model("qwen2.5-7b").parameters
    assert held["weights"] == pytest.approx(2 * parameters)
    assert held["master_weights"] == pytest.approx(bytes_each * parameters / 8)


def test_the_pool_of_kv_is_that_of_the_engine() -> None:
    built = scenario(kv_memory_utilization=0.5)
    found, cost = ledger_of(built), roofline_of(built.cost)
    assert found is not None
    assert cost is not None
    (engine,) = (h for h in found.of("generation", "colocated") if h.role == "engine")
    assert engine.bytes["kv_pool"] == pytest.approx(kv_bytes(cost, built.engine.kv_tokens))
    within = engine.total - engine.bytes.get("graphs", 0.0)
    assert within == pytest.approx(0.5 * H100.memory_bytes, rel=1e-3)


def test_an_engine_that_never_sleeps_stays_beside_the_update() -> None:
    awake, slept = (
        ledger(engine_sleep=sleep, kv_memory_utilization=0.4) for sleep in ("none", "discard")
    )
    beside = most(awake, "update") - most(slept, "update")
    assert beside == pytest.approx(0.4 * H100.memory_bytes, rel=0.05)


def test_costs_without_a_model_have_no_ledger() -> None:
    data = {
        "cluster": {"replicas": 2},
        "engine": {"kv_tokens": 100_000},
        "workload": {
            "batch_groups": 4,
            "group_size": 4,
            "prompt_tokens": 64,
            "max_new_tokens": 128,
            "lengths": {"mean_tokens": 50},
        },
        "cost": {"linear": LINEAR},
    }
    assert ledger_of(from_raw(RawScenario(data))) is None


def test_a_ledger_is_made_where_nothing_fits() -> None:
    built = scenario(model="llama-3.1-70b")
    found = ledger_of(built)
    assert found is not None
    assert not found.fits
    assert found.fits_probability < 0.01
    with pytest.raises(ScenarioError, match="no room for KV"):
        built.check_memory()


def test_a_chance_is_even_where_the_forecast_is_the_room() -> None:
    assert chance_of_room(5.0, 5.0, 0.3) == 0.5
    assert chance_of_room(5.0, -1.0, 0.3) == 0.0
    assert chance_of_room(0.0, 0.0, 0.3) == 1.0
    assert chance_of_room(4.0, 5.0, 0.3) > chance_of_room(4.5, 5.0, 0.3) > 0.5


def test_who_needs_most_in_a_phase_is_named() -> None:
    parts = {"weights": 10.0}
    held = (
        Holding("generation", "trainer", "colocated", parts),
        Holding("update", "trainer", "colocated", {**parts, "activations": 60.0}),
        Holding("update", "engine", "colocated", {"kv_pool": 25.0}),
        Holding("generation", "engine", "colocated", {"kv_pool": 25.0}),
    )
    pools = {"colocated": Pool("colocated", "gpu", 1, 90.0)}
    found = Ledger(held, pools, {}, None, 0.3)
    assert found.peak[:4] == ("update", "trainer", "activations", "colocated")
    assert not found.fits
    small_host = replace(found, pools={"colocated": Pool("colocated", "gpu", 1, 900.0)})
    assert small_host.fits
    assert not replace(small_host, host_bytes={"optimizer": 9.0}, host_capacity_bytes=5.0).fits
    assert UNCERTAIN.isdisjoint({"weights", "kv_pool", "optimizer", "gradients"})


# --- against a count tensor by tensor ---


def linear_shapes(model: Model) -> list[tuple[int, int]]:
    """(outputs, inputs) of every projection of one layer of a dense model."""
    wide, narrow = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return [
        (wide, model.hidden),
        (narrow, model.hidden),
        (narrow, model.hidden),
        (model.hidden, wide),
        *[(model.intermediate, model.hidden)] * 2,
        (model.hidden, model.intermediate),
    ]


def tensors(model: Model) -> list[int]:
    """Elements of every parameter of a dense model."""
    layer = [rows * columns for rows, columns in linear_shapes(model)]
    layer += [model.hidden] * 2
    if model.qkv_bias:
        layer += [rows for rows, _ in linear_shapes(model)[:3]]
    if model.qk_norm:
        layer += [model.head_dim] * 2
    ends = [model.vocab * model.hidden] * (1 if model.tied_embeddings else 2) + [model.hidden]
    return layer * model.layers + ends


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "qwen2.5-7b", "qwen3-8b", "llama-3.1-8b"])
@pytest.mark.parametrize("gpus", [1, 8])
def test_states_of_fsdp_are_those_of_its_tensors(name: str, gpus: int) -> None:
    """Every GPU keeps an nth of each tensor, padded: an fp32 weight, gradient and two moments, and
    a temporary weight in the step."""
    model = load_model(name)
    shards = sum(math.ceil(size / gpus) for size in tensors(model))
    trainer = RooflineTrainer(model, ROOMY, gpus)
    step = trainer.phases(Use(64, 64))["optimizer_step"]["trainer"]
    assert step["master_weights"] == pytest.approx(4 * shards, rel=1e-3)
    assert step["gradients"] == pytest.approx(4 * shards, rel=1e-3)
    assert step["optimizer"] == pytest.approx((8 + 4) * shards, rel=1e-3)


def saved_elements(model: Model) -> dict[str, float]:
    """Bytes that one layer's backward needs of one token, tensor by tensor, with fused norms."""
    wide, narrow = model.heads * model.head_dim, model.kv_heads * model.head_dim
    sixteen_bit = {
        "input of the first norm": model.hidden,
        "its output, input of three projections": model.hidden,
        "queries": wide,
        "keys": narrow,
        "values": narrow,
        "attention's output, input of a projection": wide,
        "input of the second norm": model.hidden,
        "its output, input of two projections": model.hidden,
        "gate": model.intermediate,
        "activated gate": model.intermediate,
        "values of the MLP": model.intermediate,
        "product, input of the last projection": model.intermediate,
    }
    return {name: 2.0 * elements for name, elements in sixteen_bit.items()}


@pytest.mark.parametrize("name", ["qwen2.5-7b", "llama-3.1-8b"])
def test_a_layer_keeps_what_autograd_saves(name: str) -> None:
    model, saved = load_model(name), saved_elements(load_model(name))
    fused, width = kept_layer(model, "fused"), 2 * model.intermediate
    assert fused.kept("none") == pytest.approx(sum(saved.values()) - width)  # the activated gate
    assert fused.kept("full") == saved["input of the first norm"]
    eager = kept_layer(model, "eager").kept("none") - fused.kept("none")
    assert eager == 2 * 4 * model.hidden + width  # of two norms: 4 + 2 bytes in the place of 2
    for part in ("selective", "attention", "mlp"):
        assert fused.kept("full") < fused.kept(part) < fused.kept("none")


def test_adapters_have_two_matrices_a_projection() -> None:
    model = load_model("qwen2.5-7b")
    counted = model.layers * sum(32 * (rows + columns) for rows, columns in linear_shapes(model))
    assert adapter_parameters(model, 32) == counted
    assert counted == pytest.approx(80.7e6, rel=1e-3)
    assert adapter_parameters(model, 8, "q+v") == 2_523_136  # as peft prints of it
    assert adapter_parameters(model, 32, "q+k+v+o+gate+up+down") == counted


QUANTISED_GB = {
    "qwen2.5-0.5b": 0.457,
    "llama-3.1-8b": 5.70,
    "qwen2.5-7b": 5.57,
    "qwen2.5-72b": 41.6,
}
"""Files on huggingface.co: of unsloth (bnb-4bit) the first two, of Qwen (AWQ) the others."""


@pytest.mark.parametrize("name", QUANTISED_GB)
def test_a_quantised_base_is_as_large_as_its_file(name: str) -> None:
    model = load_model(name)
    held = base_bytes_each(model, 4) * model.parameters / 1e9
    assert held == pytest.approx(QUANTISED_GB[name], rel=0.02)
    assert base_bytes_each(model, 16) == 2


@pytest.mark.parametrize(
    ("layer", "saved_gb"), [((32, 4096, 11008), 0.30), ((40, 5120, 13824), 0.59)]
)
def test_scales_that_are_quantised_too_save_what_was_measured(
    layer: tuple[int, int, int], saved_gb: float
) -> None:
    """LitGPT's resource tables: peaks of Llama 2 7B and 13B with bnb.nf4, less with bnb.nf4-dq."""
    layers, hidden, intermediate = layer
    shape = {"layers": layers, "hidden": hidden, "intermediate": intermediate}
    model = replace(load_model("llama-2-7b"), **shape, heads=hidden // 128, kv_heads=hidden // 128)
    wide, nested = (base_bytes_each(model, 4, one) for one in (False, True))
    assert (wide - nested) * model.parameters / 1e9 == pytest.approx(saved_gb, rel=0.03)
    assert base_bytes_each(model, 8, False) == base_bytes_each(model, 8)


def test_fused_kernels_write_gradients_where_they_can() -> None:
    """Two of an MLP's widths rather than three, but those of Transformer Engine."""
    model = load_model("llama-3.1-8b")

    def at_work(**options: Any) -> float:
        trainer = RooflineTrainer(model, ROOMY, 8, recompute="none", **options)
        return trainer._activations.working

    eager, fused = (at_work(backend="fsdp2", kernels=one) for one in ("eager", "fused"))
    assert eager - fused == pytest.approx(2 * model.intermediate)
    engine = [
        at_work(backend="megatron", sharding="zero1", kernels=one) for one in ("eager", "fused")
    ]
    assert engine == [eager, eager]


# --- against torch's memory tracker ---

TRACKED: list[tuple[str, dict[str, Any], float, float | None]] = [
    # Peaks in GiB a GPU of forward and backward, and of the optimiser step, that FSDPMemTracker of
    # torch 2.13 counted on fake tensors: one sequence of 16,384 tokens, flash attention, fp32
    # shards, AdamW (foreach), 16 bit compute, fp32 reduction, head in chunks of 1,024.
    ("qwen2.5-7b", {}, 23.1, 17.7),
    ("qwen2.5-7b", {"recompute": "none"}, 112.9, 17.7),
    ("qwen2.5-7b", {"reshard_after_forward": False}, 35.4, 17.7),
    ("qwen2.5-7b", {"gpus": 16}, 17.6, 8.9),
    ("qwen2.5-7b", {"states_on_host": True}, 12.2, None),
    ("qwen2.5-7b", {"reduce_every_microbatch": False}, 49.4, 17.7),
    ("qwen2.5-7b", {"logits_chunk_tokens": None}, 43.7, 17.7),
    ("qwen2.5-32b", {}, 74.0, 76.3),
    ("qwen2.5-32b", {"foreach_optimizer": False}, 74.0, 61.0),
    ("qwen2.5-32b", {"gpus": 16}, 47.0, 38.1),
    ("qwen2.5-32b", {"states_on_host": True}, 23.9, None),
    ("qwen2.5-7b", {"weights": "lora"}, 11.8, None),
    ("qwen2.5-32b", {"weights": "lora"}, 28.5, 8.9),
    ("qwen3-30b-a3b", {}, 65.5, 71.1),
    ("qwen2.5-7b", {"tensor_parallel": 2, "tensor_sequence_parallel": False}, 20.1, 19.0),
]
TRACKED_PARTS = {
    # The same peaks by part, GiB: what the configuration fixes, and all that comes and goes.
    "qwen2.5-7b": (
        {"master_weights": 3.55, "optimizer": 7.09},
        {"gradients": 0.25, "gathered_weights": 0.86, "communication": 2.03, "activations": 9.30},
    ),
    "qwen2.5-32b": (
        {"master_weights": 15.26, "optimizer": 30.51},
        {"gradients": 14.67, "gathered_weights": 2.36, "communication": 1.82, "activations": 9.39},
    ),
}


@pytest.mark.parametrize(("name", "options", "update", "step"), TRACKED)
def test_peaks_are_those_of_the_tracker(
    name: str, options: dict[str, Any], update: float, step: float | None
) -> None:
    keys = {"logit_bytes": 12, **options}  # its loss drops the 16 bit logits
    gpus = keys.pop("gpus", 8)
    trainer = RooflineTrainer(load_model(name), ROOMY, gpus, **keys)
    accumulates = not trainer.reduce_every_microbatch  # two microbatches there
    phases = trainer.phases(Use(16_384, 16_384, 0, accumulates))
    found = {
        phase: sum(
            size
            for part, size in roles["trainer"].items()
            if part not in ("context", "fragmentation")
        )
        for phase, roles in phases.items()
    }
    assert found["update"] / GIB == pytest.approx(update, rel=0.1)
    if step is not None:
        assert found["optimizer_step"] / GIB == pytest.approx(step, rel=0.1)


@pytest.mark.parametrize("name", TRACKED_PARTS)
def test_parts_are_those_of_the_tracker(name: str) -> None:
    """States as counted; what comes and goes, activations and temporaries together, within 10 %."""
    configured, passing = TRACKED_PARTS[name]
    trainer = RooflineTrainer(load_model(name), ROOMY, 8, logit_bytes=12)
    found = trainer.phases(Use(16_384, 16_384, 0, False))["update"]["trainer"]
    for part, size in configured.items():
        assert found[part] / GIB == pytest.approx(size, rel=0.01)
    together = sum(found.get(part, 0.0) for part in (*passing, "logits"))
    assert together / GIB == pytest.approx(sum(passing.values()), rel=0.1)


# --- what is on which GPU ---


TORCHS = ("dtensor", "fsdp2")  # the former splits products, too


def peak_parts(phase: str = "update", **options: Any) -> Mapping[str, float]:
    use = options.pop("use", Use(16_384, 16_384))
    model = load_model(options.pop("model", "qwen2.5-7b"))
    trainer = RooflineTrainer(model, ROOMY, 8, **options)
    return trainer.phases(use)[phase]["trainer"]  # type: ignore[index]


def test_tensor_parallel_gpus_keep_the_stream_whole_without_sequence_parallelism() -> None:
    """Of norms and the residual stream each keeps all; queries and MLPs are split either way."""
    model = load_model("qwen2.5-7b")
    options = {"tensor_parallel": 4, "recompute": "none", "use": Use(16_384, 0)}
    split = peak_parts(**options)["activations"]
    whole = peak_parts(**options, tensor_sequence_parallel=False)["activations"]
    layer = kept_layer(model)
    stream = model.layers * layer.norms + 4 * layer.entry
    assert whole - split == pytest.approx(16_384 * 0.75 * stream)
    assert peak_parts(recompute="none")["activations"] == pytest.approx(
        peak_parts(recompute="none", tensor_sequence_parallel=False)["activations"]
    )


def test_torch_keeps_inputs_that_each_product_gathers() -> None:
    """Of three products whose input is split along the sequence, where attention is not computed
    anew; Megatron gathers it once more in the backward."""
    options = {"tensor_parallel": 4, "recompute": "mlp", "use": Use(16_384, 0)}
    kept, split = (peak_parts(backend=name, **options)["activations"] for name in TORCHS)
    model = load_model("qwen2.5-7b")
    assert kept - split == pytest.approx(16_384 * 0.75 * model.layers * 3 * 2 * model.hidden)
    options["recompute"] = "full"
    kept, split = (peak_parts(backend=name, **options)["activations"] for name in TORCHS)
    assert kept == split


def test_the_root_of_fsdp1_stays_gathered() -> None:
    """Embedding and head in 16 bit, all through the update; FSDP2 gathers the head for itself."""
    small = Use(64, 64)
    first, second = (peak_parts(backend=name, use=small) for name in ("fsdp", "fsdp2"))
    model = load_model("qwen2.5-7b")
    assert sum(first.values()) > sum(second.values())
    trainer = RooflineTrainer(model, ROOMY, 8, backend="fsdp")
    assert trainer._root_parameters == 2 * model.head_parameters
    tied = replace(model, tied_embeddings=True)
    assert RooflineTrainer(tied, ROOMY, 8, backend="fsdp")._root_parameters == tied.head_parameters
    split = RooflineTrainer(model, ROOMY, 8, backend="fsdp", sharding="zero1")
    assert split._root_parameters == 0


@pytest.mark.parametrize("name", ["qwen3.5-9b", "nemotron-3-nano-30b-a3b"])
def test_recurrent_layers_that_are_not_split_are_whole_on_each_gpu(name: str) -> None:
    """As slime computes them: each GPU of a tensor parallel group has all of their weights."""
    model, gpus, tensor = load_model(name), 8, 4

    def trainer(**options: Any) -> RooflineTrainer:
        options = {"backend": "megatron", "sharding": "zero1", **options}
        return RooflineTrainer(model, ROOMY, gpus, tensor_parallel=tensor, **options)

    split, whole = (trainer(split_recurrent=one) for one in (True, False))
    more = model.recurrent_parameters * (1 - 1 / tensor)
    assert whole.layout.parts[0][0] - split.layout.parts[0][0] == pytest.approx(more)
    assert whole._states["weights"] - split._states["weights"] == pytest.approx(2 * more)
    adapted = (trainer(split_recurrent=one, weights="lora") for one in (True, False))
    assert len({one.layout.parts for one in adapted}) == 1
    for recompute in ("none", "full"):
        one, other = (
            trainer(split_recurrent=each, recompute=recompute)._activations
            for each in (True, False)
        )
        made = 2 * model.recurrent_elements_kept * (1 - 1 / tensor)
        made -= 2 * model.recurrent_elements_unfused / tensor  # theirs are transformers'
        layers = 1.0 if recompute == "none" else 1 / model.layers
        assert other.kept + other.working - one.kept - one.working == pytest.approx(layers * made)
    default = ledger({"tensor_parallel": 2}, model=name, stack="slime")
    divided = ledger({"tensor_parallel": 2, "split_recurrent": True}, model=name, stack="slime")
    assert default.total("update", "colocated") > divided.total("update", "colocated")


def test_a_tied_head_that_is_not_split_is_whole_on_each_gpu() -> None:
    """Its weights, and the logits of all words; a head of its own is split all the same."""
    use, tied = Use(4096, 4096), load_model("gemma-3-4b")
    for model, more in ((tied, 4), (load_model("qwen2.5-7b"), 1)):
        split, whole = (
            RooflineTrainer(
                model,
                ROOMY,
                8,
                backend="dtensor",
                tensor_parallel=4,
                logits_chunk_tokens=None,
                split_tied_head=one,
            )
            for one in (True, False)
        )
        head = (1 - 1 / 4) * model.head_parameters * (more > 1)
        assert whole.layout.parts[0][0] - split.layout.parts[0][0] == pytest.approx(head)
        logits = [one.phases(use)["log_prob"]["trainer"]["logits"] for one in (split, whole)]
        assert logits[1] == pytest.approx(more * logits[0])


def test_passes_for_log_probabilities_may_gather_all_weights() -> None:
    """Once, in 16 bit, beside the shards; GPUs that share nothing have them already."""

    def gathered(phase: Any, gpus: int = 8, **options: Any) -> float:
        one = RooflineTrainer(load_model("qwen2.5-7b"), ROOMY, gpus, backend="dtensor", **options)
        return one.phases(Use(4096, 4096))[phase]["trainer"].get("gathered_weights", 0.0)

    weights = 2.0 * load_model("qwen2.5-7b").parameters
    assert gathered("log_prob", gathers_to_score=True) == pytest.approx(weights)
    assert gathered("log_prob", gathers_to_score=True, tensor_parallel=2) == pytest.approx(
        weights / 2
    )
    for phase in ("log_prob", "update"):
        alone = {"gpus": 1, "sharding": "none"}
        assert gathered(phase, gathers_to_score=True, **alone) == gathered(phase, **alone)
    assert gathered("update", gathers_to_score=True) == gathered("update") < weights / 4


def test_parts_that_are_checkpointed_one_by_one_keep_an_input_each() -> None:
    model = load_model("llama-3.1-8b")
    one, four = (
        RooflineTrainer(model, ROOMY, 8, recompute="full", checkpointed_inputs=inputs)._activations
        for inputs in (1, 4)
    )
    assert one.kept == 2 * model.hidden * model.layers
    assert four.kept == 4 * one.kept
    split = RooflineTrainer(
        *(model, ROOMY, 8),
        recompute="full",
        checkpointed_inputs=4,
        tensor_parallel=2,
        tensor_sequence_parallel=False,
    )
    assert split._activations.kept == four.kept
    for recompute in ("none", "selective"):
        kept = {
            RooflineTrainer(
                model, ROOMY, 8, recompute=recompute, checkpointed_inputs=inputs, tensor_parallel=2
            )._activations.kept
            for inputs in (1, 4)
        }
        assert len(kept) == 1


def test_the_busiest_experts_decide() -> None:
    even = replace(load_model("qwen3-30b-a3b"), routing_skew=0.0)
    options = {"backend": "megatron", "sharding": "zero1", "recompute": "none"}
    use = Use(16_384, 0)

    def kept(model: Model, experts: int) -> float:
        trainer = RooflineTrainer(model, ROOMY, 8, expert_parallel=experts, **options)  # type: ignore[arg-type]
        return trainer.phases(use)["update"]["trainer"]["activations"]

    skewed = replace(even, routing_skew=1.0)
    assert kept(even, 8) == pytest.approx(kept(even, 1))
    assert kept(skewed, 1) == pytest.approx(kept(even, 1))
    assert kept(even, 8) < kept(skewed, 8) < 1.2 * kept(even, 8)  # another GPU in each layer
    assert kept(skewed, 2) < kept(skewed, 8)
    options["recompute"] = "full"  # of one layer at a time
    assert 1.1 * kept(even, 8) < kept(skewed, 8) < 1.7 * kept(even, 8)


def test_an_output_that_is_scaled_inside_is_not_kept() -> None:
    model = load_model("qwen3-30b-a3b")
    inside, outside = (
        kept_layer(model, "fused", scaled_in_fp32=False, scaled_inside=one) for one in (True, False)
    )
    copies = model.experts_per_token * 2 * model.hidden
    assert outside.kept("none") - inside.kept("none") == pytest.approx(copies)
    assert inside.at_work == outside.at_work


@pytest.mark.parametrize("recompute", ["full", "none"])
def test_images_are_kept_by_the_tower_too(recompute: str) -> None:
    options = {"model": "qwen2.5-vl-7b", "recompute": recompute, "logits_chunk_tokens": 64}
    few, many = (
        peak_parts(**options, use=Use(16_384, 64, image_share=share))["activations"]
        for share in (0.0, 0.5)
    )
    tower = load_model("qwen2.5-vl-7b").vision
    assert tower is not None
    patches = 0.5 * 16_384 * tower.patches_per_token
    least = 2 * tower.hidden * tower.layers * patches  # an input of every layer
    assert many - few >= 0.99 * least
    if recompute == "full":
        assert many - few == pytest.approx(least)
    else:
        assert many - few > 10 * least


def test_passes_for_log_probabilities_may_be_larger() -> None:
    usual, wide = (
        peak_parts("log_prob", logits_chunk_tokens=None, use=Use(4096, 4096, scoring=times))
        for times in (1.0, 4.0)
    )
    assert wide["logits"] == pytest.approx(4 * usual["logits"])
    assert wide["activations"] == pytest.approx(4 * usual["activations"])
    entropy = peak_parts(
        "log_prob", logits_chunk_tokens=None, use=Use(4096, 4096), entropy_traffic_per_logit=50.0
    )
    assert entropy["logits"] > usual["logits"]
    by_rows = ledger({"batching": "padded", "microbatch_rollouts": 1})
    many = ledger(
        {"batching": "padded", "microbatch_rollouts": 1, "log_prob_microbatch_rollouts": 32}
    )
    assert most(many, "log_prob") > most(by_rows, "log_prob")
    assert most(many, "update") == pytest.approx(most(by_rows, "update"))
    budget = ledger({"microbatch_tokens": 8192, "log_prob_microbatch_tokens": 65_536})
    assert most(budget, "log_prob") > most(ledger({"microbatch_tokens": 8192}), "log_prob")


def test_a_pass_without_gradients_may_need_fewer_bytes_of_a_logit() -> None:
    usual, few = (
        peak_parts("log_prob", logits_chunk_tokens=None, use=Use(4096, 4096), **options)
        for options in ({}, {"ungraded_logit_bytes": 6.0})
    )
    assert few["logits"] == pytest.approx(0.6 * usual["logits"])
    graded = peak_parts(logits_chunk_tokens=None, ungraded_logit_bytes=6.0)
    assert graded["logits"] == peak_parts(logits_chunk_tokens=None)["logits"]


@pytest.mark.parametrize("stack", ["unknown", "skyrl", "areal", "openrlhf"])
def test_logits_are_whole_where_no_stack_says_otherwise(stack: str) -> None:
    whole = ledger({"microbatch_tokens": 8192}, stack=stack)
    chunked = ledger({"microbatch_tokens": 8192, "logits_chunk_tokens": 1024}, stack=stack)
    assert most(whole, "update") > most(chunked, "update") + 3e9
    assert ledger({"microbatch_tokens": 8192}, stack="prime-rl").peak.part != "logits"


def test_a_chance_is_less_sure_the_more_is_configured() -> None:
    parts = ({"weights": 70.0, "activations": 4.0},)
    sure, unsure = chance_of(parts, 80.0, 0.3), chance_of(parts, 80.0, 0.3, 0.05)
    assert 0.5 < unsure < sure
    assert chance_of(parts, 74.0, 0.3, 0.05) == pytest.approx(0.5)
    assert chance_of(parts, 72.0, 0.3) < chance_of(parts, 72.0, 0.3, 0.05) < 0.5


def test_every_group_of_gpus_has_buffers_of_its_own() -> None:
    """Of published figures: 7 GB of a dense model and 9.5 of a mixture with tensor, pipeline and
    data parallel 2 on 8 H100 (verl, pull request 6408), 2.0 of FSDP on 16 (s1, issue 61)."""

    def groups(name: str, gpus: int, **options: Any) -> float:
        trainer = RooflineTrainer(load_model(name), H100, gpus, **options)
        return trainer.layout.communicators * communicator_bytes(H100)

    split: dict[str, Any] = {"tensor_parallel": 2, "pipeline_parallel": 2, "sharding": "zero1"}
    dense = groups("qwen2.5-7b", 8, backend="megatron", **split)
    mixture = groups("qwen3-30b-a3b", 8, backend="megatron", expert_parallel=2, **split)
    assert 0.8 * 7e9 < dense < 7e9
    assert 0.8 * 9.5e9 < mixture < 9.5e9
    assert groups("qwen2.5-7b", 1) == 0
    assert groups("qwen2.5-32b", 16, backend="fsdp") + 0.6e9 == pytest.approx(2.0e9, rel=0.15)
    assert groups("qwen2.5-7b", 8, backend="fsdp", sequence_parallel=2) == 3 * groups(
        "qwen2.5-7b", 8, backend="fsdp"
    )
    a100 = load_gpu("a100-80gb")
    assert communicator_bytes(a100) < communicator_bytes(H100)


@pytest.mark.parametrize(
    ("gpu", "gib"),
    [("h100-sxm", 79.2), ("a100-80gb", 79.25), ("h20", 95.1), ("h200-sxm", 139.8)],
)
def test_a_driver_keeps_some_of_a_gpu(gpu: str, gib: float) -> None:
    """What CUDA calls a GPU's total (messages of torch's allocator)."""
    assert usable_bytes(load_gpu(gpu)) / GIB == pytest.approx(gib, rel=0.005)


def test_an_engine_that_sleeps_keeps_its_communicators() -> None:
    cluster = {"tensor_parallel": 2, "replicas": 4}
    alone, two = (
        next(h for h in ledger({}, one).of("update", "colocated") if h.role == "engine")
        for one in ({}, cluster)
    )
    assert two.bytes["context"] == alone.bytes["context"] + communicator_bytes(H100)
    assert 2.4e9 < two.total < 3.6e9  # SGLang asleep: 3.2 GiB (slime, issues 1767 and 1951)


@pytest.mark.parametrize(("stack", "apart"), [("openrlhf", True), ("roll", True), ("slime", False)])
def test_models_with_processes_of_their_own_have_contexts_of_their_own(
    stack: str, apart: bool
) -> None:
    """One a role where a stack has an actor for each, wherever its weights wait."""

    def context(**trainer: Any) -> float:
        found = ledger({"log_prob_passes": 1, **trainer}, stack=stack)
        return sum(h.bytes.get("context", 0.0) for h in found.of("update", "colocated")) - sum(
            h.bytes["context"] for h in found.of("update", "colocated") if h.role == "engine"
        )

    alone = context()
    assert context(log_prob_passes=2) == (1 + apart) * alone
    assert context(log_prob_passes=2, critic=True) == (1 + 2 * apart) * alone
    assert context(critic=True, critic_gpus=8) == alone


def test_an_engine_of_the_stack_reads_the_weights_of_the_trainer() -> None:
    model = load_model("qwen2.5-7b")

    def generating(**trainer: Any) -> Mapping[str, float]:
        found = ledger(trainer, stack="trl-transformers")
        assert all(pool != "engine_share" for _, pool in found.places)
        return next(h for h in found.of("generation", "colocated") if h.role == "engine").bytes

    gathered = generating(backend="deepspeed", sharding="fsdp")["gathered_weights"]
    assert gathered == pytest.approx(model.weight_bytes, rel=0.01)
    assert "gathered_weights" not in generating(backend="deepspeed", sharding="zero2")
    assert 0 < generating(backend="fsdp2", sharding="fsdp")["gathered_weights"] < 0.3 * gathered
    stays = ledger({"backend": "deepspeed"}, stack="trl-transformers")
    assert all(h.role != "engine" for h in stays.of("sync", "colocated"))


@pytest.mark.parametrize(
    ("options", "each"),
    [
        ({"backend": "fsdp"}, 2),
        ({"backend": "fsdp", "states_on_host": True}, 2),
        ({"backend": "fsdp2"}, 4),
    ],
)
def test_whole_gradients_of_fsdp1_wait_as_they_were_computed(
    options: dict[str, Any], each: int
) -> None:
    """Seen in PyTorch 2.13: under ``no_sync`` whole and in 16 bit, then shards in fp32."""
    model = load_model("qwen2.5-7b")
    trainer = RooflineTrainer(model, ROOMY, 8, reduce_every_microbatch=False, **options)
    phases = trainer.phases(Use(4096, 4096, 0, accumulates=True))
    waiting = phases["update"]["trainer"]["gradients"]
    assert waiting == pytest.approx(each * model.parameters, rel=0.15)  # and the root in flight
    shard = 0 if trainer.states_on_host else 4 * model.parameters / 8
    assert phases["optimizer_step"]["trainer"].get("gradients", 0.0) == pytest.approx(shard)


def test_a_share_has_no_room_for_cudas_context() -> None:
    """vLLM looks what is free when the context is there (``MemorySnapshot`` in ``init_device``)."""
    model = load_model("qwen2.5-7b")
    stream = 2 * (3 * model.intermediate / 4 + 4 * model.hidden)
    assert workspace_bytes(model, 4, 1000, 0) == pytest.approx(1000 * stream)
    assert workspace_bytes(model, 4, 0, 0) == 0


def test_the_heads_gradient_comes_when_the_loss_is_over() -> None:
    """At the loss no weight has a gradient; in the head's backward logits are in fewer copies."""
    whole = Use(8192, 8192, accumulates=False)
    at_loss = peak_parts(logits_chunk_tokens=None, use=whole)
    logits = 14 * load_model("qwen2.5-7b").vocab * 8192
    assert at_loss["logits"] == pytest.approx(logits)
    assert at_loss["gradients"] == 0
    few = peak_parts(logits_chunk_tokens=None, logit_bytes=4.0, use=whole)
    assert few["gradients"] > 0


def test_log_probabilities_need_no_more_than_the_weights() -> None:
    """verl, NeMo-RL and ROLL bring no optimiser and no gradients for them; slime wakes all."""

    def held(stack: str, role: str = "trainer", **trainer: Any) -> Mapping[str, float]:
        options = {"tensor_parallel": 2, "backend": "megatron", **trainer}
        found = ledger(options, stack=stack, offload_optimizer=True)
        return next(h for h in found.of("log_prob", "colocated") if h.role == role).bytes

    for stack in ("verl", "nemo-rl", "roll"):
        assert "weights" in held(stack)
        assert not {"optimizer", "gradients", "master_weights"} & held(stack).keys()
    assert {"optimizer", "gradients"} <= held("slime").keys()
    sharded = held("verl", backend="fsdp", tensor_parallel=1)
    assert {"master_weights"} <= sharded.keys() - {"optimizer", "gradients"} == sharded.keys()
    stays = ledger({"backend": "fsdp"}, stack="verl", offload_optimizer=False)
    assert "optimizer" in stays.of("log_prob", "colocated")[1].bytes


def test_gpus_that_the_engine_does_not_use_hold_the_trainer_alike() -> None:
    """ROLL with an engine on 12 of 16 GPUs: gradients are there in the update, and not before."""
    trainer = {"backend": "megatron", "sharding": "zero1"}
    found = ledger(
        trainer, {"replicas": 12, "trainer_gpus": 16}, stack="roll", offload_optimizer=True
    )
    for pool in ("colocated", "trainer"):
        scored, updated = (
            next(h for h in found.of(phase, pool) if h.role == "trainer").bytes
            for phase in ("log_prob", "update")
        )
        assert "gradients" not in scored
        assert updated["gradients"] > 25e9


def test_models_that_are_trained_are_away_while_another_works() -> None:
    trainer = {"backend": "fsdp", "critic": True}
    away, here = (
        ledger(trainer, stack="verl", offload_optimizer=offload) for offload in (True, False)
    )
    for phase in ("log_prob", "update"):
        assert [h.role for h in away.of(phase, "colocated")] == ["engine", "trainer"]
        assert "critic" in [h.role for h in here.of(phase, "colocated")]


def test_reward_models_with_the_critic_are_not_on_the_policys_gpus() -> None:
    keys = {"critic": True, "critic_gpus": 8}
    judged = {**keys, "reward_passes": 1}
    bare, shared, beside = (
        ledger(one)
        for one in (keys, {**judged, "reward_with_critic": True}, {**judged, "reward_gpus": 8})
    )
    assert most(shared, pool="colocated") == most(bare, pool="colocated")
    assert "reward" not in shared.pools
    for phase in ("log_prob", "update", "optimizer_step"):
        added = shared.total(phase, "critic") - bare.total(phase, "critic")
        assert added > 0, phase
    assert shared.total("log_prob", "critic") == pytest.approx(
        beside.total("log_prob", "critic") + beside.total("log_prob", "reward")
    )


def test_no_forecast_is_surer_than_what_it_cannot_see() -> None:
    found = ledger({"microbatch_tokens": 4096}, kv_memory_utilization=0.5)
    assert min(found.chance(*at) for at in found.places) > 0.95
    assert found.fits_probability == 1 - found.unforeseen == pytest.approx(0.94)
    assert found.sure


@pytest.mark.parametrize(
    ("model", "backend", "sure"),
    [
        ("qwen2.5-7b", "fsdp2", 0.94),
        ("qwen2.5-7b", "deepspeed", 0.8),
        ("qwen2.5-vl-7b", "fsdp2", 0.81),
        ("qwen2.5-vl-7b", "deepspeed", 0.5),
    ],
)
def test_images_and_deepspeed_leave_more_unforeseen(model: str, backend: str, sure: float) -> None:
    found = ledger(
        {"microbatch_tokens": 1024, "backend": backend}, model=model, kv_memory_utilization=0.5
    )
    assert found.fits_probability == pytest.approx(sure)
    assert found.sure


# --- what stays, and what wakes, between the phases of training ---

OFFLOADED: dict[str, Any] = {"stack": "verl-0.5", "offload_optimizer": True}


def between(trainer: dict[str, Any], phase: str, role: str, **keys: Any) -> dict[str, float]:
    """Of a role in a phase of colocated GPUs, without its process."""
    found = ledger({"log_prob_passes": 2, **trainer}, **{**OFFLOADED, **keys})
    parts = [h.bytes for h in found.of(phase, "colocated") if h.role == role]  # type: ignore[arg-type]
    return {name: size for part in parts for name, size in part.items() if name != "context"}


def test_weights_that_no_offload_takes_stay_on_the_gpus() -> None:
    """OpenRLHF leaves DeepSpeed's 16 bit weights, and the reference's, where they are."""
    model = load_model("qwen2.5-7b")
    shard = 2 * model.parameters / 8
    assert between({}, "generation", "trainer") == {}
    own = between({"sharding": "fsdp"}, "generation", "trainer", stack="openrlhf-0.8")
    assert own == {"weights": pytest.approx(shard)}
    reference = between({"sharding": "fsdp"}, "generation", "reference", stack="openrlhf-0.8")
    assert reference == {"weights": pytest.approx(shard)}
    kept = between({"keeps_weights": True}, "generation", "trainer")
    assert kept == {"master_weights": pytest.approx(2 * shard)}
    away, stays = (
        ledger({"keeps_weights": keeps}, **OFFLOADED).host_bytes["offloaded_states"]
        for keeps in (False, True)
    )
    assert stays == pytest.approx(2 / 3 * away)  # the moments alone


@pytest.mark.parametrize("critic", [{}, {"critic_model": "qwen2.5-3b"}])
def test_a_critic_leaves_the_gpus_by_its_own_setting(critic: dict[str, Any]) -> None:
    keys = {"critic": True, **critic}
    assert between(keys, "generation", "critic") == {}
    parameters = load_model(critic.get("critic_model", "qwen2.5-7b")).parameters
    resting = between({**keys, "critic_stays": True}, "generation", "critic")
    assert sum(resting.values()) == pytest.approx(12 * parameters / 8, rel=0.1)
    beside = between({**keys, "critic_stays": True}, "log_prob", "critic")
    assert beside == resting


@pytest.mark.parametrize(
    ("trainer", "bytes_each"),
    [
        ({"backend": "deepspeed", "sharding": "fsdp"}, 2),
        ({"backend": "fsdp"}, 4),
        ({"backend": "fsdp", "master_dtype": "bf16"}, 2),
        ({"backend": "deepspeed", "sharding": "fsdp", "weights": "lora"}, 2),
        ({"backend": "deepspeed", "sharding": "zero2"}, 0),
        ({"backend": "deepspeed", "sharding": "fsdp", "whole_at_start": False}, 0),
    ],
)
@pytest.mark.parametrize("placement", ["colocated", "disaggregated"])
def test_weights_that_are_shared_late_are_whole_at_first(
    trainer: dict[str, Any], bytes_each: int, placement: str
) -> None:
    """deepspeed/runtime/engine.py, _configure_distributed_model: a model that zero.Init did not
    make is cast and moved as a whole; EasyR1's fsdp_workers.py: device_map is cuda in each process
    without enable_rank0_init. The engine starts later."""
    gpus = {"placement": placement, "trainer_gpus": 8, "replicas": 1, "tensor_parallel": 8}
    keys: dict[str, Any] = {"stack": "unknown", "kv_memory_utilization": 0.1}
    found = ledger({"whole_at_start": True, **trainer}, gpus, **keys, model="qwen2.5-32b")
    pool = "colocated" if placement == "colocated" else "trainer"
    held = {h.role: h.bytes for h in found.of("start", pool)}
    if not bytes_each:
        assert set(held) == ({"engine", "trainer"} if placement == "colocated" else set())
        return
    whole = bytes_each * load_model("qwen2.5-32b").parameters
    assert set(held) == {"trainer"}
    assert held["trainer"]["weights"] == pytest.approx(whole)
    four = {**gpus, "tensor_parallel": 4, "replicas": 2}
    small = ledger({"whole_at_start": True, **trainer}, four, stack="unknown")
    roles = {h.role for h in small.of("start", "colocated")}
    assert roles == ({"engine", "trainer"} if placement == "colocated" else set())  # which has more


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("phase", ["generation", "update", "optimizer_step"])
def test_ddp_keeps_its_buckets_beside_the_gradients(gpus: int, phase: str) -> None:
    """torch/nn/parallel/distributed.py: without gradient_as_bucket_view, as accelerate has it,
    buckets are as large as all gradients; no process group, no buckets."""
    cluster = {"placement": "colocated", "replicas": gpus, "trainer_gpus": gpus}
    keys: dict[str, Any] = {"stack": "trl-transformers", "model": "qwen3-0.6b"}
    trainer = {"backend": "ddp", "master_dtype": "bf16"}
    parameters = load_model("qwen3-0.6b").parameters

    def sent(more: dict[str, Any]) -> float:
        found = ledger({**trainer, **more}, cluster, **keys)
        [held] = [h.bytes for h in found.of(phase, "colocated") if h.role == "trainer"]  # type: ignore[arg-type]
        return held.get("communication", 0.0)

    assert sent({}) == pytest.approx(2 * parameters * (gpus > 1))
    assert sent({"master_dtype": "fp32"}) == pytest.approx(4 * parameters * (gpus > 1))
    lora = sent({"weights": "lora", "lora_rank": 8, "master_dtype": "fp32"})
    adapters = adapter_parameters(load_model("qwen3-0.6b"), 8)
    assert lora == pytest.approx(4 * adapters * (gpus > 1))


def test_weights_that_a_sync_gathers_at_once_are_whole_on_each_gpu() -> None:
    """ms-swift 3.12, rollout_mixin.py: _move_full_model_to_vllm gathers before it goes over the
    parts (its issue 7986)."""
    keys = {"backend": "deepspeed", "sharding": "fsdp"}
    whole = between({**keys, "gathers_to_send": True}, "sync", "trainer", stack="trl")
    parts = between(keys, "sync", "trainer", stack="trl")
    parameters = load_model("qwen2.5-7b").parameters
    assert whole["gathered_weights"] == pytest.approx(2 * parameters, rel=0.01)
    assert parts["gathered_weights"] < whole["gathered_weights"] / 4


def test_a_critics_microbatch_is_its_own() -> None:
    """verl, critic/dp_critic.yaml: ppo_max_token_len_per_gpu, enable_gradient_checkpointing."""
    keys = {"critic": True, "microbatch_tokens": 4096}
    own = {**keys, "critic_recompute": "none", "critic_microbatch_tokens": 8192}
    keys, own = ({**one, "critic_batching": "packed"} for one in (keys, own))
    kept = between(own, "update", "critic")["activations"]
    alone = between({"recompute": "none", "microbatch_tokens": 8192}, "update", "trainer")
    assert kept == pytest.approx(alone["activations"], rel=0.03)  # and no logits
    assert "activations" not in between(own, "update", "trainer")  # the policy's come before
    both = between(keys, "update", "trainer")
    assert both["activations"] < kept / 4


@pytest.mark.parametrize("keeps", [None, True, False])
def test_weights_of_a_critic_leave_by_its_own_setting(keeps: bool | None) -> None:
    critic = {"critic": True, "keeps_weights": True, "critic_keeps_weights": keeps}
    found = between(critic, "generation", "critic")
    assert set(found) == (set() if keeps is False else {"master_weights"})


@pytest.mark.parametrize(
    ("stack", "whole"),
    [("verl-0.3", True), ("verl-0.4", False), ("openrlhf-0.8", True), ("openrlhf", False)],
)
def test_an_engine_that_wakes_at_once_has_its_pool_during_a_sync(stack: str, whole: bool) -> None:
    awake = between({}, "generation", "engine", stack=stack)
    synced = between({}, "sync", "engine", stack=stack)
    assert synced["weights"] == awake["weights"]
    assert ("kv_pool" in synced) == whole


@pytest.mark.parametrize(("stack", "late"), [("slime", False), ("slime-0.1", True)])
def test_a_trainer_that_does_not_wait_is_back_beside_the_pool(stack: str, late: bool) -> None:
    keys = {"backend": "megatron", "sharding": "zero1"}
    assert ("kv_pool" in between(keys, "switch", "engine", stack=stack)) == late
    assert ("gradients" in between(keys, "switch", "trainer", stack=stack)) == late


@pytest.mark.parametrize("share", [0.15, 0.7])
def test_a_trainer_that_may_come_back_too_early_is_not_refused(share: float) -> None:
    """It does not fit beside a large pool, and beside a small one it does."""
    cluster = {"placement": "colocated", "replicas": 1, "tensor_parallel": 1}
    keys = {"stack": "slime-0.1", "kv_memory_utilization": share}
    made = scenario({"backend": "megatron"}, cluster, "qwen2.5-3b", **keys)
    found = made.ledger
    assert found is not None
    switch = found.chance("switch", "colocated")
    others = [found.chance(*at) for at in found.places if at[0] != "switch"]
    assert found.fits == (share < 0.5)
    if found.fits:
        assert found.fits_probability >= 0.5
    else:
        assert switch < 0.01
        assert found.fits_probability == pytest.approx(
            min(0.49, min([0.94, *others]) / 2), abs=5e-3
        )
        made.check_memory()


def test_an_engine_beside_a_loaded_trainer_takes_a_share_of_what_that_leaves() -> None:
    """By hand, of a GPU: verl 0.2's fp32 weights stay while it generates, even of one that
    offloads; of what is left beside them, context, the engine's weights and its workspace KV
    takes its share."""
    stack = {"stack": "verl-0.2", "kv_memory_utilization": 0.5, "offload_optimizer": True}
    found = ledger({"log_prob_passes": 2}, **{**OFFLOADED, **stack})
    held = {h.role: h.bytes for h in found.of("generation", "colocated")}
    weights = 4 * load_model("qwen2.5-7b", "model").parameters / 8
    assert held["trainer"] == {
        "master_weights": pytest.approx(weights),
        "context": held["trainer"]["context"],
    }
    kv = held["engine"]["kv_pool"]
    free = found.pools["colocated"].capacity_bytes - (found.total("generation", "colocated") - kv)
    assert kv == pytest.approx(0.5 * free, rel=1e-3)
    later = {**stack, "stack": "verl-0.3"}
    assert "master_weights" not in between({}, "generation", "trainer", **later)


@pytest.mark.parametrize(
    ("stack", "offloads", "copies"),
    [("verl-0.5", False, True), ("verl-0.5", True, False), ("verl-0.3", True, True)],
)
def test_a_sync_of_fsdp1_sends_a_copy_of_the_shards(
    stack: str, offloads: bool, copies: bool
) -> None:
    """In fp32; who offloads its weights has done so by then, but before an engine that wakes at
    once. FSDP2's state dict holds the shards themselves."""

    def gathered(**trainer: Any) -> float:
        keys = {"stack": stack, "offload_optimizer": offloads}
        return between(trainer, "sync", "trainer", **keys)["gathered_weights"]

    copied = gathered(backend="fsdp") - gathered(backend="fsdp", copies_to_send=False)
    assert copied == pytest.approx(4 * load_model("qwen2.5-7b").parameters / 8 * copies)
    assert gathered(backend="fsdp2") == gathered(backend="fsdp", copies_to_send=False)
    alone = {"backend": "fsdp", "sharding": "none", "weights": "lora"}
    assert "gathered_weights" not in between(alone, "sync", "trainer", stack=stack)


def test_states_under_deepspeed_are_less_sure() -> None:
    """In the ledger, and where a run is refused before it."""
    spreads = {}
    for backend in ("fsdp", "deepspeed"):
        found = ledger({"microbatch_tokens": 1024, "backend": backend})
        one = RooflineTrainer(load_model("qwen2.5-7b"), H100, 2, backend=backend)
        assert found.configured_spread == one.configured_spread
        spreads[backend] = found.configured_spread
        held = one.phases(Use(1, 1, accumulates=False))["optimizer_step"].values()
        budget, spread = one._budget_bytes, found.spread
        said = one._chance(1)
        assert said <= chance_of(held, budget, spread, found.configured_spread)
        if backend == "deepspeed":
            assert said != min(
                chance_of(parts.values(), budget, spread, spreads["fsdp"])
                for parts in one.phases(Use(1, 1, accumulates=False)).values()
            )
    assert spreads["deepspeed"] > 2 * spreads["fsdp"]


@pytest.mark.parametrize(
    ("weights", "copies", "wastes"),
    [("full", True, True), ("full", False, False), ("lora", True, False)],
)
def test_deepspeed_leaves_a_share_of_its_states_unused(
    weights: str, copies: bool, wastes: bool
) -> None:
    """In every phase of training, whatever comes and goes beside them, where torch's Adam copies
    what it steps, of all weights."""

    def phases(backend: str) -> Mapping[str, Any]:
        one = RooflineTrainer(
            *(load_model("qwen2.5-7b"), ROOMY, 8),
            backend=backend,
            sharding="fsdp",
            weights=weights,
            critic=weights == "full",
            foreach_optimizer=copies,
        )
        return one.phases(Use(4096, 4096))

    for roles in phases("deepspeed").values():
        states = ("weights", "master_weights", "gradients", "optimizer")
        held = sum(parts.get(name, 0.0) for parts in roles.values() for name in states)
        coming = ("activations", "logits", "gathered_weights", "communication")
        dynamic = sum(parts.get(name, 0.0) for parts in roles.values() for name in coming)
        waste = roles["trainer"]["fragmentation"]
        comes = max(0.06 * dynamic, figures("memory").stuck_bytes)
        share = figures("memory").stuck_share_of_states * wastes
        assert share * held <= waste <= share * held + comes + 1
    left = phases("fsdp")["optimizer_step"]["trainer"]["fragmentation"]
    assert left == figures("memory").stuck_bytes


def test_gradients_keep_the_segments_of_activations_while_an_optimiser_steps() -> None:
    """As in a model of the allocator, in which updates need more than the peak of their steps.
    Megatron's gradients have a buffer of their own."""
    of_layer = {"layers": 28, "weights": 233_000_000, "gpus": 2}
    widths = (7168, 14336, 7168, 9216, *3 * [37888])
    update, step = sharded_updates(math.inf, **of_layer, widths=widths)
    assert step > update + 5e9

    def runs(limit: float) -> bool:
        try:
            sharded_updates(limit, **of_layer, widths=widths)
        except OutOfMemoryError:
            return False
        return True

    low, high = 0.0, 4e9
    while high - low > 1e8:
        middle = (low + high) / 2
        low, high = (low, middle) if runs(step + middle) else (middle, high)
    known = figures("memory").stuck_bytes
    assert known / 2 < high < 2 * known
    for backend, left in (("fsdp", known), ("megatron", 0.0)):
        buffer = backend == "megatron"
        model = load_model("qwen2.5-7b")
        trainer = RooflineTrainer(model, ROOMY, 2, backend=backend, working_copy=buffer)
        phases = trainer.phases(Use(2000, 2000))
        assert phases["optimizer_step"]["trainer"]["fragmentation"] == left


def test_what_the_allocator_cannot_give_back_is_the_middle_of_what_was_measured() -> None:
    """Between the largest limit in which updates ran out of memory and the least enough."""
    found = json.loads(ALLOCATOR.read_text("utf-8"))["cases"]
    known = figures("memory")
    for expandable, figure in ((False, known.stuck_bytes), (True, known.expandable_stuck_bytes)):
        stuck = [
            ((told["runs_in"] + told["fails_in"]) / 2 - 1) * told["free allocated_bytes"]
            for name, told in ((name, case["values"]) for name, case in found.items())
            if name.startswith("allocator") and name.endswith("expandable") is expandable
        ]
        assert len(stuck) == 9
        assert median(stuck) == pytest.approx(figure, rel=0.05)


def test_a_full_gpu_has_parts_of_segments_that_nothing_fits_into() -> None:
    """However little is left, but no more than comes and goes."""
    known = figures("memory")

    def stuck(tokens: int, name: str = "qwen2.5-7b", **options: Any) -> float:
        trainer = RooflineTrainer(load_model(name), ROOMY, 1, weights="lora", **options)
        parts = trainer.phases(Use(tokens, tokens), beside_bytes=1e15)["update"]["trainer"]
        return parts["fragmentation"]

    assert stuck(4096) == known.stuck_bytes
    assert stuck(4096, expandable_segments=True) == known.expandable_stuck_bytes
    assert 0 < stuck(16, "qwen2.5-0.5b") < known.expandable_stuck_bytes


def test_sglang_computes_beside_its_share() -> None:
    """Its share is of what is free when it starts, and holds weights and KV alone."""
    keys = {"engine_sleep": "discard", "kv_memory_utilization": 0.7}
    inside = between({}, "start", "engine", stack="verl-0.8", **keys)
    beside = between({}, "start", "engine", stack="slime", **keys)
    free = usable_bytes(H100) - figures("memory").context_bytes
    assert beside["weights"] + beside["kv_pool"] == pytest.approx(0.7 * free)
    assert beside["reserve"] == inside["reserve"]
    assert sum(inside.values()) == pytest.approx(0.7 * H100.memory_bytes, rel=1e-3)


@pytest.mark.parametrize("stack", ["verl-0.5", "verl-0.8"])
@pytest.mark.parametrize("offload", [False, True])
def test_a_share_of_what_is_free_is_less_beside_weights_that_are_there_first(
    offload: bool, stack: str
) -> None:
    """verl builds the actor before the engine, slime the engine before the actor; an optimiser has
    no states before its first step. What FSDP1 left with the allocator verl gives back since 0.8,
    and before with the weights that it offloads."""
    keys = {"engine": "sglang", "kv_memory_utilization": 0.7, "offload_optimizer": offload}
    alone, beside = (
        between({}, "generation", "engine", stack=one, **keys) for one in ("slime", stack)
    )
    started = ledger({"log_prob_passes": 2}, **{**OFFLOADED, "stack": stack, **keys})
    there = [h for h in started.of("start", "colocated") if h.role != "engine"]
    assert any("master_weights" in h.bytes for h in there) is not offload
    assert not any("optimizer" in h.bytes for h in there)
    less = alone["weights"] + alone["kv_pool"] - beside["weights"] - beside["kv_pool"]
    layer = [3584 * 3584, 3584 * 512, 3584 * 512, 3584 * 3584, *3 * [3584 * 18944]]
    cached = left_by_sharding([*28 * [layer], 2 * [152064 * 3584]], 8)
    left = cached * (stack == "verl-0.5" and not offload)
    assert less == pytest.approx(0.7 * (sum(h.total for h in there) + left), rel=0.01)


@pytest.mark.parametrize("copies", [1, 2])
def test_adapters_are_read_out_of_all_weights_at_once(copies: int) -> None:
    """FSDP's summon_full_params; twice where these go to the host and come back."""
    keys = {"weights": "lora", "base_bits": 32, "backend": "fsdp"}
    gathered = {"gathers_to_merge": True, "gathered_copies": copies}
    none = between({**keys, "gathered_copies": copies}, "sync", "trainer")
    assert "gathered_weights" not in none
    found = between({**keys, **gathered}, "sync", "trainer")["gathered_weights"]
    assert found == pytest.approx(4 * copies * load_model("qwen2.5-7b").parameters)


@pytest.mark.parametrize(
    ("recompute", "layers_kept"), [("full", 0), ("attention", 0), ("none", 28), ("mlp", 28)]
)
@pytest.mark.parametrize("split", [1, 2])
def test_eager_attention_keeps_the_scores_of_all_pairs(
    recompute: str, layers_kept: int, split: int
) -> None:
    """By transformers' eager_attention_forward: a probability in 32 and in 16 bit of each pair, in
    a layer at work two gradients of it and one of the score."""
    keys = {"recompute": recompute, "tensor_parallel": split, "batching": "padded"}
    row = RooflineTrainer(model=load_model("qwen2.5-7b"), gpu=ROOMY, gpus=8, **keys)  # type: ignore[arg-type]
    whole = replace(row, whole_scores=True)
    use = Use(8192, 0, row_tokens=2048)
    flash, eager = (one.phases(use) for one in (row, whole))
    pairs = 28 / split * 2048 * 8192
    added = {
        phase: eager[phase]["trainer"]["activations"] - flash[phase]["trainer"]["activations"]
        for phase in ("log_prob", "update")
    }
    assert added["log_prob"] == pytest.approx(8 * pairs)
    assert added["update"] == pytest.approx((14 if not layers_kept else 8 + 6 * 28) * pairs)


def test_eager_attention_is_known_by_its_kernel() -> None:
    keys = {"batching": "padded", "microbatch_rollouts": 1, "recompute": "full"}
    eager, flash = (
        most(ledger({**keys, "attention": kernel}), "update") for kernel in ("eager", "flash_2")
    )
    assert eager > flash + 8.3e9  # 28 heads x 4,608 tokens squared x 14 bytes, and some waste


def test_a_critic_keeps_its_optimizer_on_the_host_too() -> None:
    keys: dict[str, Any] = {"backend": "deepspeed", "optimizer_on_host": True}
    alone, two = (ledger({**keys, "critic": critic}).host_bytes for critic in (False, True))
    assert two["optimizer"] == pytest.approx(2 * alone["optimizer"])
    pinned, pageable = (
        ledger({"state_copies": kind}, offload_optimizer=True).host_bytes["offloaded_states"]
        for kind in ("pinned", "pageable")
    )
    assert pinned == pytest.approx(1.44 * pageable)


def test_rows_padded_to_a_cap_have_its_prompts() -> None:
    """However short prompts are; rows padded to the longest prompt do not grow."""
    keys = {"batching": "padded_to_cap", "microbatch_rollouts": 4}
    own, capped = ledger(keys), ledger({**keys, "padded_prompt_tokens": 8192})
    assert most(capped, "update") > most(own, "update") + 4e9
    assert most(ledger({**keys, "padded_prompt_tokens": 1}), "update") == most(own, "update")
