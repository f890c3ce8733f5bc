"""A stack's trainer by backend: what it sets, what stays as given, and what cannot be."""

from dataclasses import replace
from typing import Any

import pytest

from rollcast.simulator.costs import RooflineCost, RooflineTrainer, TrainLoad
from rollcast.simulator.costs.backends import BACKENDS, backends_of
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.options import RooflineSection
from rollcast.simulator.costs.stacks import STACKS
from rollcast.simulator.costs.trainer.attention_kernels import kernel_presets
from rollcast.simulator.costs.trainer.options import TrainerOptions
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw
from rollcast.simulator.values import keys

MODEL, GPU = load_model("qwen3-8b"), load_gpu("h100-sxm")
STEP: dict[str, Any] = {
    "model": "qwen3-8b",
    "gpu": "h100-sxm",
    "cluster": {"replicas": 8, "trainer_gpus": 8},
    "workload": {
        "batch_groups": 8,
        "group_size": 8,
        "prompt_tokens": 100,
        "max_new_tokens": 1000,
        "lengths": {
            "family": "lognormal",
            "median_tokens": 500,
            "between_sd": 0.3,
            "within_sd": 0.3,
        },
    },
}


def trainer(**roofline: Any) -> TrainerOptions:
    return RooflineSection.from_mapping(roofline, "cost.roofline").trainer


@pytest.mark.parametrize("stack", STACKS)
def test_every_backend_of_every_stack_prices_an_update(stack: str) -> None:
    assert backends_of(stack)
    for backend, its in backends_of(stack).items():
        assert backend in BACKENDS
        assert its.options.keys() <= set(keys(TrainerOptions))
        assert all(source.source for source in its.sources.values())
        options = {"stack": stack, "trainer": {"backend": backend}}
        section = RooflineSection.from_mapping(options, "cost.roofline")
        cost = RooflineCost.from_options(MODEL, GPU, section, trainer_gpus=8)
        assert cost.trainer_of.backend == backend
        for key, value in its.options.items():
            if key == "attention":  # becomes the GPU's figure
                known = kernel_presets()[value, "hopper"].share
                assert cost.trainer_of.gpu.trainer_attention_flop_efficiency == known
            else:
                assert getattr(cost.trainer_of, key) == value


def test_a_backend_sets_what_nobody_gave() -> None:
    plain = TrainerOptions()
    nemo = trainer(stack="nemo-rl", trainer={"backend": "megatron"})
    assert (nemo.sharding, nemo.overlap, nemo.expert_launch_s) == ("zero1", 1.0, 2.0e-4)
    given = {"backend": "megatron", "overlap": 0.5, "sharding": None, "recompute": "mlp"}
    own = trainer(stack="nemo-rl", trainer=given)
    assert (own.overlap, own.sharding, own.recompute) == (0.5, None, "mlp")
    assert own.expert_launch_s == 2.0e-4
    assert trainer(stack="nemo-rl", trainer={"backend": "megatron", "shard": False}).kept == "none"
    # Without a stack a backend is what it is in most stacks; without both nothing changes.
    assert trainer(trainer={"backend": "megatron"}).sharding == "zero1"
    assert trainer() == trainer(trainer=None) == plain


def test_a_default_that_contradicts_what_is_given_is_left_out() -> None:
    assert trainer(stack="trl").microbatch_rollouts == 8
    packed = trainer(stack="trl", trainer={"batching": "packed"})
    assert (packed.batching, packed.microbatch_rollouts) == ("packed", None)
    padded = trainer(stack="trl", trainer={"batching": "padded"})
    assert (padded.batching, padded.microbatch_rollouts) == ("padded", 8)
    assert trainer(stack="nemo-rl").recompute == "none"
    assert trainer(stack="verl", trainer={"backend": "megatron"}).graded_traffic_per_logit == 48.0
    fused = trainer(stack="verl", trainer={"backend": "megatron", "traffic_per_logit": 8.7})
    assert fused.graded_traffic_per_logit is None
    some = trainer(stack="nemo-rl", trainer={"recompute_layers": 4})
    assert (some.recompute, some.recompute_layers) == ("full", 4)


def test_a_stack_has_a_backend_of_its_own() -> None:
    assert trainer(stack="nemo-rl").backend == "dtensor"
    assert trainer(stack="slime", trainer=None).backend == "megatron"
    assert trainer(stack="verl").backend == "fsdp"
    # The layout that is given says more than the default.
    assert trainer(stack="verl", trainer={"pipeline_parallel": 2}).backend == "megatron"
    assert trainer(stack="verl", trainer={"sequence_parallel": 2}).backend == "fsdp"
    assert trainer(stack="verl", trainer={"context_parallel": 2}).backend == "megatron"


@pytest.mark.parametrize("backend", ["fsdp2", "megatron"])
def test_skyrl_copies_states_inside_the_phases_that_need_them(backend: str) -> None:
    """Its timers hold what verl's do, but after the update the timer of the sync does; Megatron's
    weights go to pageable memory."""
    roofline = {"stack": "skyrl", "trainer": {"backend": backend}}
    cost = from_raw(RawScenario({**STEP, "cost": {"roofline": roofline}})).cost
    assert isinstance(cost, RooflineCost)
    stays = replace(cost, offload_optimizer=False)
    assert cost.switch_to_train_s == stays.switch_to_train_s
    load = TrainLoad([(100, [1000] * 8)] * 8)
    copied, here = (dict(each.train(load).phases_s) for each in (cost, stays))
    read_s = sum(cost.trainer_of.read_copies_s(cost.offload_bytes_per_s))
    assert copied["log_prob"] - here["log_prob"] == pytest.approx(read_s)
    down_s, up_s = cost.trainer_of.copies_s(cost.offload_bytes_per_s)
    assert copied["forward"] - here["forward"] == pytest.approx(up_s)
    moved_s = cost.phase_factors.of("sync") * down_s
    assert cost.switch_to_rollout_s - stays.switch_to_rollout_s == pytest.approx(moved_s)
    assert cost.trainer_of.state_copies == ("pinned" if backend == "fsdp2" else "pageable_weights")


def test_recomputing_is_offered_where_it_makes_a_rollout_fit() -> None:
    long = TrainLoad([(100, [60_000])])
    kept = RooflineTrainer(MODEL, GPU, 8, recompute="none")
    with pytest.raises(ScenarioError, match=r"what would fit: .*trainer\.recompute: full"):
        kept.train(long)
    assert RooflineTrainer(MODEL, GPU, 8, recompute="full").train(long).total_s > 0
