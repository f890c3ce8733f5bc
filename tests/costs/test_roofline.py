"""The roofline: against hand arithmetic, its laws, and measured kernels, engines and updates."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.costs import (
    Extremes,
    Iteration,
    RooflineCost,
    RooflineTrainer,
    TrainLoad,
    kv_pool_tokens,
)
from rollcast.simulator.costs.engine.speculative_options import Speculative
from rollcast.simulator.costs.presets.gpus import Gpu, load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.options import RooflineSection
from rollcast.simulator.costs.sync.weight_sync import WeightSync
from rollcast.simulator.errors import ScenarioError
from tests.laws import examples
from tests.refusals import refuses

MODELS = ("qwen3-0.6b", "qwen3-8b", "qwen3-30b-a3b", "llama-3.1-70b")

IDEAL = Gpu(
    name="ideal",
    memory_bytes=100e9,
    bandwidth_bytes_per_s=1e12,
    bf16_flop_per_s=1e15,
    interconnect_bytes_per_s=1e11,
    gemm_bandwidth_efficiency=1.0,
    gemm_flop_efficiency=1.0,
    decode_attention_bandwidth_efficiency=0.5,
    prefill_attention_flop_efficiency=0.25,
    layer_floor_s=1e-6,
    all_reduce_floor_s=1e-5,
    interconnect_efficiency=0.5,
)


def prefill(batch: int, tokens: int, computed: int = 0) -> Iteration:
    """``batch`` prompts, each ``tokens`` on top of ``computed``."""
    pairs = batch * (tokens * computed + tokens * (tokens + 1) // 2)
    context = batch * (computed + tokens)
    return Iteration(batch, context, batch * tokens, pairs, batch, context)


def gpu_s(cost: RooflineCost, rollouts: int, context: int = 0) -> float:
    """A decode iteration without the host."""
    return replace(cost, host_s=0, host_per_rollout_s=0).decode_curve(rollouts).seconds(context)


def test_a_mixture_reads_the_experts_that_its_tokens_reach() -> None:
    """Those of few tokens are few, of tokens that like the same ones fewer; at last all are read,
    as if the layers were dense."""
    model = load_model("qwen3-30b-a3b")
    cost = RooflineCost(model, IDEAL)
    uniform = RooflineCost(replace(model, routing_skew=0.0), IDEAL)
    one, some, all_ = (gpu_s(cost, n) for n in (1, 16, 2048))
    assert one < some < all_
    assert some < 0.85 * gpu_s(uniform, 16)
    assert all_ - one > 2 * 0.9 * (model.parameters - model.active_parameters) / 1e12


FP8 = replace(IDEAL, fp8_flop_per_s=2e15)


@pytest.mark.parametrize("work", [Iteration(1, 0), prefill(1, 8192)])
def test_fewer_bits_take_less_to_read_and_no_less_to_multiply_without_their_cores(
    work: Iteration,
) -> None:
    def seconds(precision: str, gpu: Gpu) -> float:
        model = load_model({"preset": "llama-3.1-8b", "precision": precision})
        return RooflineCost(model, gpu, host_s=0, host_per_rollout_s=0).iteration_s(work)

    plain = seconds("bf16", IDEAL)
    assert seconds("bf16", FP8) == plain
    if not work.prefill_tokens:
        assert plain > seconds("fp8", IDEAL) > seconds("int4", IDEAL) > plain / 4
    else:
        assert seconds("int4", IDEAL) == seconds("fp8", IDEAL) > plain > seconds("fp8", FP8)


WINDOWED = ("gpt-oss-20b", "gemma-3-27b", "llama-4-scout", "qwen3-next-80b-a3b", "deepseek-v3")


@settings(max_examples=examples(80), deadline=None)
@given(
    name=st.sampled_from((*WINDOWED, *MODELS)),
    parallel=st.sampled_from([1, 2, 8]),
    rollouts=st.integers(1, 600),
    context=st.integers(0, 10**7),
    eager=st.booleans(),
    every=st.booleans(),
)
def test_the_curve_is_the_formula(
    name: str, parallel: int, rollouts: int, context: int, eager: bool, every: bool
) -> None:
    model = load_model(name)
    if every and model.windowed_layers:
        model = replace(model, windowed_layers=model.layers)
    cost = RooflineCost(model, load_gpu("h100-sxm"), parallel, cuda_graphs=not eager)
    curve = cost.decode_curve(rollouts)
    edge = rollouts * model.window_tokens
    before = 0.0
    for tokens in sorted({0, context, max(0, edge - 1), edge, edge + 1, 10 * context}):
        wanted = cost.iteration_s(Iteration(rollouts, tokens))
        assert curve.seconds(tokens) == pytest.approx(wanted, rel=1e-12)
        assert curve.seconds(tokens) >= before
        before = curve.seconds(tokens)
    total = sum(curve.ticks(context + i * rollouts) for i in range(50))
    assert curve.total_ticks(context, rollouts, 50) == total


def test_a_window_never_costs_more_than_none() -> None:
    model = load_model("gemma-3-27b")
    full = replace(model, windowed_layers=0, window_tokens=0)
    gpu = load_gpu("h100-sxm")
    windowed, whole = RooflineCost(model, gpu, 2), RooflineCost(full, gpu, 2)
    for work in (
        Iteration(8, 1000),
        Iteration(8, 100_000),
        prefill(1, 500),
        prefill(2, 9000, 4000),
    ):
        assert windowed.iteration_s(work) <= whole.iteration_s(work)
    assert windowed.iteration_s(prefill(1, 500)) == whole.iteration_s(prefill(1, 500))
    assert windowed.iteration_s(prefill(1, 9000)) < whole.iteration_s(prefill(1, 9000))


def test_experts_whole_on_each_gpu_wait_for_the_busiest() -> None:
    model, gpu = load_model("deepseek-v3"), load_gpu("h200-sxm")
    sliced = RooflineCost(model, gpu, 8)
    whole = replace(sliced, expert_parallel=True)
    even = replace(whole, model=replace(model, routing_skew=0.0))
    fair = replace(sliced, model=even.model)
    assert whole.decode_curve(64).seconds(0) > 1.1 * sliced.decode_curve(64).seconds(0)
    assert even.decode_curve(64).seconds(0) == fair.decode_curve(64).seconds(0)
    alone = RooflineCost(load_model("qwen3-30b-a3b"), gpu)
    assert gpu_s(replace(alone, expert_parallel=True), 64) == gpu_s(alone, 64)


@settings(max_examples=examples(60), deadline=None)
@given(
    name=st.sampled_from((*MODELS, "deepseek-v3")),
    rollouts=st.integers(1, 512),
    context=st.integers(0, 10**6),
    launch_s=st.floats(0, 2e-3),
)
def test_without_cuda_graphs_the_kernels_must_be_launched(
    name: str, rollouts: int, context: int, launch_s: float
) -> None:
    """The longer of the GPU's time and the launches, then the host's; decoding and prefilling."""
    model, gpu = load_model(name), load_gpu("h200-sxm")
    options = {"host_s": 1e-3, "host_per_rollout_s": 2e-5, "launch_s_per_layer": launch_s}
    options["recurrent_launch_s_per_layer"] = 3 * launch_s
    options["mixture_launch_s_per_layer"] = 2 * launch_s
    options["latent_launch_s_per_layer"] = 2.5 * launch_s
    options["prefill_launch_s_per_layer"] = 0.0
    others = model.sparse_layers * (1 - model.linear_layers / model.layers)  # 3 is more than 2
    more = 1.5 if model.kv_lora_rank else 1.0
    launches_s = (model.layers + 2 * model.linear_layers + more * others) * launch_s
    graphs = RooflineCost(model, gpu, 2, **options)
    eager = replace(graphs, cuda_graphs=False)
    host_s = 1e-3 + 2e-5 * rollouts
    for work in (Iteration(rollouts, context), prefill(rollouts, 1 + context % 1000)):
        expected = max(graphs.iteration_s(work) - host_s, launches_s) + host_s
        assert eager.iteration_s(work) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("overlaps", [False, True])
def test_no_cuda_graph_holds_an_iteration_that_prefills(overlaps: bool) -> None:
    """Its host launches each layer, while the GPU works; one that schedules ahead does both before
    the GPU has done the last."""
    model, gpu = load_model("qwen3-8b"), load_gpu("h100-sxm")
    options = {"host_s": 1e-3, "host_per_rollout_s": 0.0, "host_overlaps": overlaps}
    none, cost = (
        RooflineCost(model, gpu, prefill_launch_s_per_layer=each_s, **options)
        for each_s in (0.0, 1e-3)
    )
    decoding, short, long = Iteration(8, 1000), prefill(8, 64), prefill(8, 4096)
    launched_s = model.layers * 1e-3 + 1e-3
    assert cost.iteration_s(decoding) == none.iteration_s(decoding)
    assert cost.iteration_s(short) == pytest.approx(launched_s)
    assert cost.iteration_s(long) == none.iteration_s(long) > launched_s
    drafting = replace(cost, speculative=Speculative(method="ngram", tokens=3, acceptance=0.5))
    assert drafting.iteration_s(short) == pytest.approx(launched_s)


def test_older_hosts_launch_more_slowly_unless_it_is_said() -> None:
    model = load_model("qwen3-8b")
    newer, older = (
        RooflineCost(model, load_gpu(name), cuda_graphs=False) for name in ("h20", "a100-80gb")
    )
    assert older.launch_s_per_layer > 2 * newer.launch_s_per_layer > 0
    assert older.decode_curve(1).seconds(100) == pytest.approx(
        model.layers * older.launch_s_per_layer + older.host_s + older.host_per_rollout_s
    )
    said = RooflineCost(model, load_gpu("a100-80gb"), cuda_graphs=False, launch_s_per_layer=2e-3)
    assert said.launch_s_per_layer == replace(said, tensor_parallel=2).launch_s_per_layer == 2e-3


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3.5-9b"])
def test_adapters_that_the_engine_serves_add_kernels_to_every_layer(name: str) -> None:
    """With graphs their time, without them also their launches; merged ones add nothing."""
    model, gpu = load_model(name), load_gpu("h100-sxm")
    trainer = RooflineTrainer(model, gpu, weights="lora")
    added = {"adapter_s_per_layer": 1e-4, "adapter_launch_s_per_layer": 2e-3}
    merged = RooflineCost(model, gpu, trainer=trainer, sync=WeightSync("cuda_ipc"), **added)
    served = replace(merged, sync=WeightSync("adapter"))
    slower = replace(served, cuda_graphs=False)
    base_s = replace(merged, cuda_graphs=False).decode_curve(1).seconds(0)
    for work in (Iteration(64, 10**5), prefill(3, 500)):
        expected = merged.iteration_s(work) + model.layers * 1e-4
        assert served.iteration_s(work) == pytest.approx(expected, rel=1e-9)
    expected = base_s + model.layers * 2e-3
    assert slower.decode_curve(1).seconds(0) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(
    gpu=st.sampled_from(["h100-sxm", "l40s", "mi300x"]),
    name=st.sampled_from(MODELS),
    rollouts=st.integers(1, 1000),
    context=st.integers(1, 10**6),
    tokens=st.integers(1, 16_384),
)
def test_more_work_never_takes_less_time(
    gpu: str, name: str, rollouts: int, context: int, tokens: int
) -> None:
    cost = RooflineCost(
        load_model(name), load_gpu(gpu), tensor_parallel=2, prefill_launch_s_per_layer=0.0
    )
    decode_s = cost.iteration_s(Iteration(rollouts, context))
    assert cost.iteration_s(Iteration(rollouts + 1, context)) >= decode_s
    assert cost.iteration_s(Iteration(rollouts, context + 1)) > decode_s
    chunk = prefill(1, tokens)
    assert cost.iteration_s(prefill(1, tokens + 1)) >= cost.iteration_s(chunk)
    assert cost.iteration_s(prefill(1, tokens, computed=100)) > cost.iteration_s(chunk)
    both = Iteration(
        rollouts + 1,
        context + chunk.context_tokens,
        chunk.prefill_tokens,
        chunk.prefill_pairs,
        1,
        chunk.prefill_context_tokens,
    )
    alone = max(decode_s, cost.iteration_s(chunk))
    # One forward is never shorter than either part, nor longer than one after the other.
    assert alone <= cost.iteration_s(both) * (1 + 1e-12)
    assert cost.iteration_s(both) <= decode_s + cost.iteration_s(chunk)


def test_attention_apart_reads_more_weights_and_holds_more_rollouts() -> None:
    """Of DeepSeek-V3 each GPU reads and holds all of attention, and the latents of its own rollouts
    where tensor parallelism has every GPU hold those of all."""
    model, large = load_model("deepseek-v3"), replace(IDEAL, memory_bytes=200e9)
    free = replace(large, all_reduce_floor_s=0.0, interconnect_bytes_per_s=1e30)
    sliced, apart = (RooflineCost(model, free, 8, data_parallel_attention=a) for a in (False, True))
    assert gpu_s(apart, 8) > gpu_s(sliced, 8)
    assert 5 < apart.kv_pool_tokens / sliced.kv_pool_tokens < 8


def test_a_model_that_does_not_fit_says_how_many_gpus_would() -> None:
    model, gpu = load_model("llama-3.1-70b"), load_gpu("h100-sxm")
    with refuses("cluster.tensor_parallel", "tensor_parallel 4 would fit"):
        kv_pool_tokens(model, gpu, 1)
    assert kv_pool_tokens(model, gpu, 4) > 100_000
    with pytest.raises(ScenarioError, match="kv_memory_utilization"):
        kv_pool_tokens(model, gpu, 4, memory_utilization=1.2)
    tiny = replace(gpu, memory_bytes=1e9)
    with pytest.raises(ScenarioError, match="no number of them"):
        kv_pool_tokens(model, tiny, 1)


def test_the_pool_is_what_weights_leave() -> None:
    """More memory or GPUs hold more; rollouts longer than a window leave fewer bytes a token."""
    model, gemma = load_model("llama-3.1-8b"), load_model("gemma-3-27b")
    shares = [kv_pool_tokens(model, IDEAL, 1, share) for share in (0.3, 0.5, 0.9)]
    assert shares == sorted(shares)
    gpus = [kv_pool_tokens(model, IDEAL, n) for n in (1, 2, 4, 8, 16)]
    assert all(2 * one < two for one, two in itertools.pairwise(gpus[:4]))
    assert gpus[4] < 1.2 * gpus[3]  # eight heads of keys: sixteen GPUs hold each twice
    short, long = (kv_pool_tokens(gemma, IDEAL, 1, rollout_tokens=n) for n in (1024, 10**9))
    assert long / short == pytest.approx(62 / 10, rel=1e-3)  # layers with a window


def test_switches_cost_only_where_gpus_are_shared() -> None:
    model, gpu = load_model("qwen3-8b"), load_gpu("h100-sxm")
    shared = RooflineCost(model, gpu, trainer_gpus=8, switch_fixed_s=1.0)
    assert shared.switch_to_train_s == shared.switch_to_rollout_s > 1.0
    assert replace(shared, offload_bytes_per_s=1e9).switch_to_train_s > shared.switch_to_train_s
    assert replace(shared, offload_optimizer=False).switch_to_train_s == 1.0
    trainer = RooflineTrainer(model, gpu, 8, weights="lora")
    assert replace(shared, trainer=trainer).switch_to_train_s == 1.0  # frozen weights stay
    apart = replace(shared, placement="disaggregated")
    assert (apart.switch_to_train_s, apart.switch_to_rollout_s) == (0.0, 0.0)


def test_warnings_name_each_range_left_and_only_those() -> None:
    model = load_model("qwen3-8b")
    cost = RooflineCost(model, load_gpu("h100-sxm"))
    assert cost.warnings(Extremes(512, 10**7, 8192, 10**6, 32_768)) == []
    (rollouts,) = cost.warnings(Extremes(rollouts=513))
    assert rollouts.startswith("513 rollouts")
    (tokens,) = cost.warnings(Extremes(rollout_tokens=40_000))
    assert "40,000 tokens in a rollout" in tokens
    unmeasured = RooflineCost(model, load_gpu("mi300x")).warnings(Extremes())
    assert [("engine" in w, "trainer" in w) for w in unmeasured] == [(True, False), (False, True)]
    b200 = load_gpu("b200")
    (unnamed,) = RooflineCost(model, b200).warnings(Extremes())
    assert "trainer efficiencies are assumed" in unnamed
    named = RooflineTrainer(model, b200, attention="flash_4")
    assert RooflineCost(model, b200, trainer=named).warnings(Extremes()) == []
    copied = RooflineTrainer(model, cost.gpu, state_copies="pageable")
    (twice,) = RooflineCost(model, cost.gpu, trainer=copied).warnings(Extremes())
    assert "set engine_sleep" in twice
    asleep = RooflineCost(model, cost.gpu, trainer=copied, engine_sleep="offload")
    apart = RooflineCost(model, cost.gpu, trainer=copied, placement="disaggregated")
    assert asleep.warnings(Extremes()) == apart.warnings(Extremes()) == []
    oss = RooflineCost(load_model("gpt-oss-20b"), load_gpu("h100-sxm"))
    (floats,) = oss.warnings(Extremes(rollout_tokens=1000))
    assert "products of mxfp4 weights" in floats


def test_options_reach_engine_and_trainer() -> None:
    options = {"host_s": "2e-3", "trainer": {"log_prob_passes": 0, "microbatch_tokens": 4096}}
    section = RooflineSection.from_mapping(options, "cost.roofline")
    cost = RooflineCost.from_options(
        load_model("qwen3-8b"), load_gpu("h100-sxm"), section, trainer_gpus=8
    )
    assert cost.host_s == 2e-3
    phases = dict(cost.train(TrainLoad([(100, [900, 400])] * 8)).phases_s)
    assert "log_prob" not in phases
    assert phases["forward"] > 0
