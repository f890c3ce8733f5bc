"""Stacks as presets: what they set, what is given in their place, and their spread."""

from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

from rollcast.simulator.costs import RooflineCost, RooflineTrainer, stacks
from rollcast.simulator.costs.backends import backends_of
from rollcast.simulator.costs.base import Extremes, TrainLoad
from rollcast.simulator.costs.engine.hosts import engine_presets
from rollcast.simulator.costs.memory.kv_pool import kv_bytes_per_token
from rollcast.simulator.costs.phase_figures import FixedSeconds
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.presets.provenance import Kind
from rollcast.simulator.costs.roofline import draws
from rollcast.simulator.costs.roofline.cost import RooflineSection
from rollcast.simulator.costs.roofline.memory_phases import Batch, cluster_ledger
from rollcast.simulator.costs.stack_figures import stack_figures
from rollcast.simulator.costs.stacks import STACKS, Stack, no_step_measured
from rollcast.simulator.costs.sync.sleep import engine_switch_s
from rollcast.simulator.costs.sync.weight_sync import WeightSync
from rollcast.simulator.costs.trainer.states import base_bytes_each
from rollcast.simulator.costs.trainer.step_options import MOVED_SHARES
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.costs import preset_of
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.scenario.scenario import build_scenario
from rollcast.simulator.stacks.stack import all_stacks, exporters, logged, priced
from rollcast.simulator.values import given
from rollcast.simulator.values.chance import Drawn, Levels

MODEL, GPU = load_model("llama-3.1-8b"), load_gpu("h100-sxm")


def cost(placement: str = "colocated", **options: object) -> RooflineCost:
    section = RooflineSection.from_mapping(options, "cost.roofline")
    return RooflineCost.from_options(MODEL, GPU, section, trainer_gpus=8, placement=placement)  # type: ignore[arg-type]


def test_every_stack_has_figures_and_a_source() -> None:
    assert set(STACKS) == set(get_args(Stack))
    for name, stack in STACKS.items():
        for low, high in (stack.rest_spread, stack.loop_spread, stack.fixed_spread):
            assert low < 1 < high
        assert all(its.kind in get_args(Kind) and its.source for its in stack.sources.values())
        assert cost(stack=name).stack == name
        keys = [figure.key for figure in stack_figures(name)]
        assert {"engine", "loop_s", "fixed.generation", "rest_s"} < set(keys)


def test_a_version_takes_the_preset_nearest_to_it() -> None:
    assert replace(STACKS["verl-0.4"], always_sleeps=False) == STACKS["verl-0.5"]
    assert STACKS["verl-0.6"] == STACKS["verl-0.7"]  # 0.6 was the first with CUDA graphs
    assert replace(STACKS["verl-0.7"], adapter="adapter_to_server") == STACKS["verl-0.8"]
    assert STACKS["verl-0.9"] == STACKS["verl"]
    assert STACKS["miles"] == STACKS["relax"] == STACKS["slime"] != STACKS["vime"]


def test_a_stack_that_is_only_priced_is_neither_read_nor_exported() -> None:
    alone = {"unknown", "unirl", "torchforge", "deepspeed_chat", "rollcast"}
    assert alone <= priced().keys()
    for known in (all_stacks(), logged(), exporters()):
        assert alone.isdisjoint(known)


def test_a_stack_sets_what_nobody_gave() -> None:
    found, preset, host = cost(stack="nemo-rl"), STACKS["nemo-rl"], engine_presets()["vllm-0.11"]
    assert (found.engine, found.cuda_graphs, found.rest_s) == ("vllm-0.11", True, preset.rest_s)
    assert (found.host_s, found.host_per_rollout_s) == (host.host_s, host.host_per_rollout_s)
    assert (found.loop_s, found.loop_per_rollout_s) == (preset.loop_s, preset.loop_per_rollout_s)
    assert found.switch_fixed_s == engine_switch_s(MODEL, GPU, 1, "offload")
    assert found.offload_optimizer is True
    assert found.sync == WeightSync("cuda_ipc_overlapped")
    for stack, mechanism in (("nemo-rl-0.4", "nccl_overlapped"), ("nemo-rl-0.3", "nccl_packed")):
        assert cost("disaggregated", stack=stack).sync == WeightSync(mechanism)
    assert cost(stack="verl-0.5").cuda_graphs is False
    assert cost(stack="verl").offload_optimizer is False
    assert cost().cuda_graphs is cost().offload_optimizer is True
    assert (cost().loop_s, cost().opening_s(8)) == (0, 0)
    assert cost(stack="slime").sync == WeightSync("cuda_ipc", per_tensor_s=0.0)
    own = cost(stack="deepspeed-chat")
    assert own.engine is None
    assert own.launch_s_per_layer > 3 * cost(stack="verl-0.5").launch_s_per_layer
    assert cost(cuda_graphs=False).launch_s_per_layer == cost(stack="slime").launch_s_per_layer
    assert cost("disaggregated", stack="skyrl-0.1").sync == WeightSync(
        "nccl_per_tensor", per_tensor_s=8.5e-3
    )
    assert cost(stack="skyrl-0.1").sync == WeightSync("cuda_ipc")
    assert cost("disaggregated", stack="skyrl").sync == WeightSync("nccl_packed")


@pytest.mark.parametrize(
    ("stack", "placement", "share"),
    [
        ("verl-0.3", "colocated", 0.5),
        ("verl", "disaggregated", 0.5),
        ("nemo-rl", "colocated", 0.6),
        ("skyrl", "colocated", 0.8),
        ("trl", "colocated", 0.3),
        ("trl", "disaggregated", 0.9),
        ("slime", "colocated", 0.9),
        (None, "colocated", 0.9),
    ],
)
def test_an_engine_has_its_stack_s_share_of_a_gpu_unless_it_is_given(
    stack: str, placement: str, share: float
) -> None:
    assert cost(placement, stack=stack).kv_memory_utilization == share
    assert cost(placement, stack=stack, kv_memory_utilization=0.7).kv_memory_utilization == 0.7


@pytest.mark.parametrize(
    ("stack", "given", "most"),
    [
        ("verl-0.5", "", 1024),
        ("verl", "", 256),
        ("slime", "", 512),
        ("nemo-rl", "", 256),
        ("verl-0.7", "{max_seqs: 64}", 64),
        ("verl-0.7", "{max_batched_tokens: 600}", 600),
    ],
)
def test_a_stack_says_how_many_rollouts_its_engines_run_at_once(
    stack: str, given: str, most: int
) -> None:
    text = f"""
model: qwen3-8b
gpu: h100-sxm
cluster: {{placement: colocated, replicas: 1, tensor_parallel: 1, trainer_gpus: 1}}
workload:
  batch_groups: 4
  group_size: 4
  prompt_tokens: 50
  max_new_tokens: 100
  lengths: {{mean_tokens: 60}}
cost: {{roofline: {{stack: {stack}}}}}
engine: {given or "{}"}
"""
    engine = build_scenario(parse_scenario(text)).engine
    assert engine.max_seqs == most <= engine.max_batched_tokens


def test_unknown_graphs_are_drawn_and_forecast_as_the_stack_has_them_by_default() -> None:
    graphs, eager = cost(cuda_graphs=True), cost(cuda_graphs=False)
    unknown = cost(cuda_graphs="unknown")
    seconds = {on: of.decode_curve(4).seconds(4000) for on, of in ((1, graphs), (0, eager))}
    assert seconds[0] > 1.3 * seconds[1]
    assert unknown.decode_curve(4).seconds(4000) == seconds[1]
    verl = cost(stack="verl-0.5", cuda_graphs="unknown")
    assert (verl.with_graphs, cost(stack="unknown").with_graphs) == (False, True)
    assert cost(stack="unknown").cuda_graphs == "unknown"
    assert cost(stack="unknown", cuda_graphs=True).cuda_graphs is True
    rng = np.random.default_rng(1)
    drawn = [unknown.with_figures_drawn(Drawn(rng)).with_graphs for _ in range(400)]
    assert 160 < sum(drawn) < 240
    level = {"host time/cuda_graphs": 1.645}
    assert unknown.with_figures_drawn(Levels()).with_graphs
    assert not unknown.with_figures_drawn(Levels(level)).with_graphs
    assert verl.with_figures_drawn(Levels(level)).with_graphs


def test_a_warning_says_by_how_much_unknown_graphs_move_this_run() -> None:
    load = Extremes(rollouts=4, context_tokens=4000, rollout_tokens=2000)
    (said,) = [w for w in cost(cuda_graphs="unknown").warnings(load) if "CUDA graphs" in w]
    for rollouts, context in ((1, 2000), (4, 4000)):
        eager, graphs = (
            cost(cuda_graphs=on).decode_curve(rollouts).seconds(context) for on in (False, True)
        )
        assert f"{eager / graphs:.2g} times as long without them at {rollouts} rollout" in said
    assert not any("CUDA graphs" in w for w in cost(cuda_graphs=False).warnings(load))


def test_a_cost_model_of_python_takes_its_stack_as_a_scenario_does() -> None:
    section = RooflineSection.from_mapping({"stack": "nemo-rl"}, "cost.roofline")
    trainer = RooflineTrainer(MODEL, GPU, 8, **given(section.trainer))
    made = RooflineCost(MODEL, GPU, trainer_gpus=8, trainer=trainer, stack="nemo-rl")
    assert made == cost(stack="nemo-rl")
    assert made.switch_fixed_s == engine_switch_s(MODEL, GPU, 1, "offload")


def test_what_is_given_stays() -> None:
    own = cost(
        stack="nemo-rl",
        engine="sglang",
        cuda_graphs=False,
        rest_s=0,
        sync="disk",
        host_s=0.1,
        switch_fixed_s=2,
        loop_s=0,
        offload_optimizer=False,
        fixed={"update": 3},
        phase_factors={"decode": 1.5},
    )
    assert (own.engine, own.cuda_graphs, own.rest_s) == ("sglang", False, 0)
    assert own.sync == WeightSync("disk")
    # The engine's figures are of the engine that is given, the loop's are of the stack.
    preset = STACKS["nemo-rl"]
    host = engine_presets()["sglang"].host_per_rollout_s
    assert (own.host_s, own.host_per_rollout_s) == (0.1, host)
    assert (own.loop_s, own.loop_per_rollout_s) == (0, preset.loop_per_rollout_s)
    assert (own.switch_fixed_s, own.offload_optimizer) == (2, False)
    assert (own.fixed.update, own.phase_factors.of("decode")) == (3, 1.5)
    slower = cost(stack="nemo-rl", host_factor=2.0)
    assert slower.loop_s == pytest.approx(2 * preset.loop_s)
    assert replace(slower, rest_s=1.0).loop_s == slower.loop_s


@pytest.mark.parametrize("backend", ["fsdp2", "megatron"])
def test_a_trainer_on_megatron_has_the_factors_of_its_stack_there(backend: str) -> None:
    """Of log-probabilities and updates; its other phases have the stack's."""
    stack, spelt = STACKS["verl"], {"stack": "verl", "trainer": {"backend": backend}}
    factors = RooflineSection.from_mapping(spelt, "cost.roofline").phase_factors
    assert factors == stack.factors_on(backend)
    assert (factors.decode, factors.sync) == (stack.phase_factors.decode, stack.phase_factors.sync)
    assert (factors.update == stack.phase_factors.update) == (backend != "megatron")
    listed = {figure.key: figure.value for figure in stack_figures("verl", backend)}
    assert float(listed["phase_factors.update"]) == factors.update
    spelt["phase_factors"] = {"update": 3.0}
    assert RooflineSection.from_mapping(spelt, "cost.roofline").phase_factors.update == 3.0


def test_an_http_client_reads_no_faster_than_its_pool_looks_at_connections() -> None:
    """slime's: thousands of short rollouts wait for it, a few hundred hardly; who spreads requests
    over processes says so."""
    slime, apart = cost(stack="slime"), cost(stack="slime", client_factor=0)
    assert slime.opening_s(100) - apart.opening_s(100) == pytest.approx(0.2)
    assert slime.reading_s(100, 64) == pytest.approx(100 * 5e-4 * 8)
    assert apart.reading_s(100, 64) == cost(stack="verl").reading_s(100, 64) == 0
    rng = np.random.default_rng(3)
    drawn = [slime.with_figures_drawn(Drawn(rng)).reading_s(100, 64) / 0.4 for _ in range(200)]
    assert 0.4 <= min(drawn) < 0.5 < 1.3 < max(drawn) <= 1.5


def test_a_loop_is_that_around_the_engine_that_the_stack_has_by_default() -> None:
    prior, inside = STACKS["unknown"], STACKS["verl-0.5"]
    assert prior.loop_s > inside.loop_s == 0
    for engine, expected in ((None, inside), ("vllm-0.5", inside), ("sglang", prior)):
        found = cost(stack="verl-0.5", engine=engine)
        assert (found.loop_s, found.loop_per_rollout_s) == (
            expected.loop_s,
            expected.loop_per_rollout_s,
        )
    rng, other = np.random.default_rng(3), cost(stack="verl-0.5", engine="sglang")
    drawn = [other.with_figures_drawn(Drawn(rng)).loop_s / other.loop_s for _ in range(200)]
    low, high = prior.loop_spread
    assert low <= min(drawn) < 1.3 * low
    assert high / 1.3 < max(drawn) <= high
    assert cost(stack="verl-0.5", engine="sglang", loop_s=0.007).loop_s == 0.007


@pytest.mark.parametrize(
    ("stack", "placement", "mechanism"),
    [
        ("nemo-rl", "colocated", "adapter"),
        ("trl", "colocated", "cuda_ipc"),
        ("trl", "disaggregated", "adapter"),
        ("slime", "colocated", "adapter_tensors"),
        ("verl-0.5", "colocated", "adapter_gathered"),
        ("verl-0.7", "colocated", "adapter_with_base"),
        ("verl", "colocated", "adapter_to_server"),
        ("verl", "disaggregated", "adapter_gathered"),
    ],
)
def test_adapters_are_sent_alone_unless_the_stack_merges_them(
    stack: Stack, placement: str, mechanism: str
) -> None:
    trained = {"weights": "lora", "tensor_parallel": 1}
    found = cost(placement, stack=stack, trainer=trained)
    assert found.sync is not None
    assert found.sync.mechanism == mechanism
    assert found.serves_adapters == (mechanism != "cuda_ipc")


def test_adapters_that_are_merged_cost_the_engine_nothing() -> None:
    trained = {"weights": "lora", "tensor_parallel": 1}
    served, merged = (
        cost(stack="verl", trainer=trained, merges_adapters=merges) for merges in (None, True)
    )
    full = cost(stack="verl", trainer={**trained, "weights": "full"})
    assert merged.sync == full.sync != served.sync
    assert merged.decode_curve(64).seconds(64_000) == full.decode_curve(64).seconds(64_000)
    assert served.decode_curve(64).seconds(64_000) > full.decode_curve(64).seconds(64_000)
    alone = cost(stack="trl", trainer=trained, merges_adapters=False)
    assert alone.serves_adapters  # against the stack's own habit


@pytest.mark.parametrize("bits", [4, 16])
def test_weights_that_engine_and_trainer_share_count_once(bits: int) -> None:
    """And leave the pool what they do not take of the engine's share."""
    trained = {"weights": "lora", "tensor_parallel": 1, "base_bits": bits}
    apart, shared = (
        cost(stack="trl", trainer=trained, shares_weights=shares) for shares in (False, True)
    )
    token = kv_bytes_per_token(MODEL, 1)
    share = base_bytes_each(apart.model, bits) / 2
    saved = (apart.model.weight_bytes * (1 - share)) / token
    assert shared.kv_pool_tokens - apart.kv_pool_tokens == pytest.approx(saved, abs=1)

    def generating(one: RooflineCost) -> float:
        held = cluster_ledger(one, Batch(64, 512, 512, 0, 700.0, None, 64, 8192)).holdings
        return sum(h.total for h in held if (h.phase, h.pool) == ("generation", "colocated"))

    less = apart.model.weight_bytes * share
    assert generating(apart) - generating(shared) == pytest.approx(less, rel=1e-3)
    full = cost(stack="trl", shares_weights=True)  # what is trained is no engine's
    assert full.kv_pool_tokens == cost(stack="trl").kv_pool_tokens


@pytest.mark.parametrize("weights", ["full", "lora"])
def test_weights_of_the_trainer_itself_are_not_sent(weights: str) -> None:
    trained = {"weights": weights, "backend": "ddp"}
    alone, served = (cost(stack=of, trainer=trained) for of in ("trl-transformers", "trl"))
    assert alone.sync_s == 0 < served.sync_s
    assert alone.serves_adapters == (weights == "lora")
    assert alone.rest_s == served.rest_s


def test_an_engine_that_serves_adapters_keeps_the_weights_that_they_are_of() -> None:
    full, lora = (cost(stack="slime", trainer={"weights": w}) for w in ("full", "lora"))
    assert full.switch_fixed_s == engine_switch_s(MODEL, GPU, 1, "discard")
    assert lora.switch_fixed_s == engine_switch_s(MODEL, GPU, 1, "offload") > full.switch_fixed_s
    sent_anew = cost(stack="verl-0.7", trainer={"weights": "lora", "tensor_parallel": 1})
    assert sent_anew.switch_fixed_s == engine_switch_s(MODEL, GPU, 1, "discard")


@pytest.mark.parametrize(("stack", "scored"), [("verl-0.7", 2), ("verl-0.8", 2), ("verl", 4)])
def test_both_fsdps_of_verl_have_the_same_logits(stack: Stack, scored: int) -> None:
    for backend in ("fsdp", "fsdp2"):
        trainer = cost(stack=stack, trainer={"backend": backend}).trainer_of
        assert (trainer.logit_bytes, trainer.ungraded_logit_bytes) == (4, scored)


def test_a_trainer_that_parks_frozen_weights_moves_them() -> None:
    parked = cost(stack="slime", trainer={"weights": "lora"})
    left = cost(stack="slime", trainer={"weights": "lora", "parks_frozen": False})
    down, up = parked.trainer_of.copies_s()
    assert left.trainer_of.copies_s() == (0, 0)
    moved_s = parked.switch_to_rollout_s - left.switch_to_rollout_s
    assert moved_s == pytest.approx(parked.phase_factors.of("sync") * down)
    assert up < down
    full = cost(stack="slime", trainer={"weights": "full", "parks_frozen": False})
    assert full.trainer_of.copies_s() == cost(stack="slime").trainer_of.copies_s()


def test_tensors_are_converted_or_quantised_one_by_one_where_the_stack_does_so() -> None:
    def sync(model: str, backend: str) -> WeightSync | None:
        options = {"stack": "skyrl", "trainer": {"backend": backend}}
        section = RooflineSection.from_mapping(options, "cost.roofline")
        return RooflineCost.from_options(load_model(model), GPU, section, trainer_gpus=8).sync

    plain = WeightSync("cuda_ipc")
    eight = load_model({"preset": "qwen3-8b", "precision": "fp8"})
    section = RooflineSection.from_mapping({"stack": "slime"}, "cost.roofline")
    made = RooflineCost.from_options(eight, GPU, section, trainer_gpus=8).sync
    assert made == replace(plain, per_tensor_s=6e-4)  # beside no time in SGLang's loader
    slow = replace(plain, per_tensor_s=8e-4 + plain.preset.per_tensor_s)
    assert sync("qwen3-30b-a3b", "megatron") == slow
    assert sync("qwen3-30b-a3b", "fsdp2") == sync("qwen3-8b", "megatron") == plain


def test_verl_s_rest_grows_with_the_tokens_of_a_batch_unless_it_is_given() -> None:
    def rest_s(load: TrainLoad, **said: object) -> float:
        return dict(cost(stack="verl", **said).train(load).phases_s).get("rest", 0.0)

    small, large = TrainLoad([(100, [300, 100])]), TrainLoad([(100, [300, 100])] * 2000)
    assert rest_s(large) == pytest.approx(2000 * rest_s(small)) == pytest.approx(1.2)
    assert rest_s(small, rest_s=3.0) == rest_s(large, rest_s=3.0) == 3.0
    assert rest_s(small, rest_s=0.0) == 0.0
    assert rest_s(large, rest_s=3.0, rest_per_token_s=1e-5) == pytest.approx(15.0)
    rng = np.random.default_rng(3)
    drawn = [cost(stack="verl").with_figures_drawn(Drawn(rng)) for _ in range(99)]
    assert {one.rest_s for one in drawn} == {0.0}
    assert len({one.rest_per_token_s for one in drawn}) > 50
    own = cost(stack="verl", rest_s=3.0).with_figures_drawn(Drawn(rng))
    assert (own.rest_s, own.rest_per_token_s) == (3.0, 0.0)


def test_its_own_figures_are_drawn_within_its_spreads() -> None:
    rng, preset = np.random.default_rng(3), STACKS["nemo-rl"]
    base = cost(stack="nemo-rl")
    drawn = [base.with_figures_drawn(Drawn(rng)) for _ in range(300)]
    for name, (low, high) in (
        ("rest_s", preset.rest_spread),
        ("loop_s", preset.loop_spread),
        ("loop_per_rollout_s", preset.loop_spread),
        ("host_s", (0.4, 2.2)),
        ("offload_bytes_per_s", (0.25, 2.5)),
    ):
        found = np.array([getattr(each, name) / getattr(base, name) for each in drawn])
        assert low <= found.min() < 1.3 * low
        assert high / 1.3 < found.max() <= high
    assert all(each.sync and each.sync.mechanism == "cuda_ipc_overlapped" for each in drawn)
    assert cost().with_figures_drawn(Drawn(rng)).rest_s == 0
    own = cost(stack="nemo-rl", rest_s=9, loop_s=0.01).with_figures_drawn(Drawn(rng))
    assert (own.rest_s, own.loop_s) == (9, 0.01)  # who gives a figure knows it
    assert own.loop_per_rollout_s != base.loop_per_rollout_s


def test_fixed_seconds_of_a_stack_are_drawn_and_those_given_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    preset = replace(STACKS["nemo-rl"], fixed=FixedSeconds(generation=4.0), fixed_spread=(0.5, 2))
    monkeypatch.setattr(draws, "STACKS", {**STACKS, "nemo-rl": preset})
    rng = np.random.default_rng(3)
    base = replace(cost(stack="nemo-rl"), fixed=FixedSeconds(generation=4.0, sync=9.0))
    found = [base.with_figures_drawn(Drawn(rng)).opening_s(8) for _ in range(200)]
    assert 2 <= min(found) < 2.4
    assert 6.5 < max(found) <= 8
    assert base.with_figures_drawn(Drawn(rng)).fixed.sync == 9.0
    given_s = replace(base, fixed=FixedSeconds(generation=5.0))
    assert given_s.with_figures_drawn(Drawn(rng)).opening_s(8) == 5


def test_megatron_fuses_activations_where_its_stack_does() -> None:
    """NeMo-RL from 0.5, and slime by Megatron-LM's own default."""

    def moved(stack: str) -> float:
        options = backends_of(stack)["megatron"].options
        share = MOVED_SHARES[options.get("kernels", "eager")]
        return share * options["traffic_per_activation_byte"]  # type: ignore[no-any-return]

    assert moved("nemo-rl-0.4") == moved("nemo-rl-0.3") == moved("skyrl") == moved("unknown")
    assert moved("nemo-rl") == moved("nemo-rl-0.5") == moved("slime") < moved("unknown") / 2
    assert preset_of("nemo_rl", "0.4.0") == "nemo-rl-0.4"
    assert [preset_of("nemo_rl", release) for release in ("0.5.0", "0.9")] == [
        "nemo-rl-0.5",
        "nemo-rl-0.7",
    ]
    assert [preset_of("slime", release) for release in ("0.1.0", "0.3.1")] == [
        "slime-0.1",
        "slime-0.2",
    ]


def test_automodel_came_without_flash_linear_attention_until_nemo_rl_0_7() -> None:
    releases = ("nemo-rl-0.4", preset_of("nemo_rl", "0.6.0"), "nemo-rl-0.7", "nemo-rl")
    known = [backends_of(str(release))["dtensor"].options for release in releases]
    assert [one.get("linear_attention") for one in known] == ["torch", "torch", None, None]


def test_a_stack_of_which_no_step_was_measured_says_so() -> None:
    said = no_step_measured("openrlhf")
    assert said.startswith("stack openrlhf: no step of it was measured; its loop's costs are those")
    assert "0.1 to 5 times" in said
    assert said in cost(stack="openrlhf").warnings(Extremes())
    assert no_step_measured("unknown")
    assert not no_step_measured("nemo-rl")
    warned = cost(stack="nemo-rl").warnings(Extremes())
    assert not [sentence for sentence in warned if "no step of it" in sentence]


def test_figures_of_the_prior_make_no_stack_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = priced()["unknown"].costs["presets"]["unknown"]
    fitted = {**prior, "loop": {**prior["loop"], "kind": "fitted"}}
    folder = SimpleNamespace(costs={"presets": {"unknown": fitted}})
    monkeypatch.setattr(stacks, "priced", lambda: {"unknown": folder})
    own = {"settings": prior["settings"]}
    assert not stacks._preset("new", own).measured
    assert stacks._preset("new", {**own, "loop": fitted["loop"]}).measured
    assert not stacks._preset("unknown", fitted).measured
    with pytest.raises(ScenarioError, match=r"stacks\.new\.host: unknown key"):
        stacks._preset("new", {**own, "host": {}})
