"""What each stack's launch settings imply: GPUs, batches and models that others decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.stacks.launch import ENTRY, Given
from rollcast.simulator.stacks.settings import Place, Setting, Settings, meanings
from rollcast.simulator.stacks.stack import Stack, all_stacks

STACKS = all_stacks()
HERE = Place("run.sh", 1)
TRAINER = "cost.roofline.trainer"
NOT_SCORED = {"run.log_probs": False}
ALLOWED: Mapping[str, frozenset[Any]] = {
    "run.recompute": frozenset({"full", "selective", "none"}),
    "run.strategy": frozenset({"fsdp", "fsdp2", "megatron", "deepspeed", "dtensor", "ddp"}),
    "run.quantized_base": frozenset({"4bit", "8bit", "none"}),
    "run.trainer_dtype": frozenset({"fp32", "bf16", "fp16"}),
}


def known(stack: str, said: Mapping[str, Any]) -> Settings:
    """What holds in a run that was given this, by the stack's keys."""
    launch, implied = STACKS[stack].launch, STACKS[stack].implied
    read = launch.read([Given(key, its, HERE) for key, its in said.items()], implied)
    return {**launch.unsaid(read, Place(stack), implied), **read}


def values(stack: str, said: Mapping[str, Any]) -> dict[str, Any]:
    return {ours: setting.value for ours, setting in known(stack, said).items()}


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # OpenRLHF: each role has GPUs of its own, unless it shares
    (
        "openrlhf",
        {"vllm_num_engines": 4, "vllm_tensor_parallel_size": 2, "reward_pretrain": "rm"},
        {
            "run.colocated": False,
            "run.rollout_gpus": 8,
            "cluster.trainer_gpus": 8,
            "run.critic": True,
            "run.critic_gpus": 8,
            "run.reference_gpus": 8,
            "run.reward_model_gpus": 8,
            "run.strategy": "deepspeed",
        },
    ),
    (
        "openrlhf",
        {"vllm_num_engines": 8, "colocate_all_models": True, "reward_pretrain": "rm"},
        {"run.colocated": True, "run.reference": True},
    ),
    (
        "openrlhf",
        {"vllm.num_engines": 2, "train.colocate_all": True, "train.async_enable": True},
        {"run.colocated": False, "run.rollout_gpus": 2, "run.asynchronous": True},
    ),
    (
        "openrlhf",
        {"init_kl_coef": 0, "advantage_estimator": "rloo", "remote_rm_url": "here"},
        {"run.reference": False, "run.critic": False, "run.reward_models": False},
    ),
    (  # the critic's GPUs, where there is one
        "openrlhf",
        {"colocate_critic_reward": True, "advantage_estimator": "rloo", "reward_pretrain": "rm"},
        {"run.share_reward_model": True, "run.reward_model_gpus": 8},
    ),
    # slime
    (
        "slime",
        {"colocate": True, "rollout-batch-size": 32, "n-samples-per-prompt": 8},
        {"run.offload_optimizer": True, "run.free_engine": True, "run.asynchronous": False},
    ),
    (
        "slime",
        {
            "rollout-batch-size": 32,
            "n-samples-per-prompt": 8,
            "num-steps-per-rollout": 4,
            ENTRY: "train_async.py",
        },
        {
            "run.mini_batch_rollouts": 64,
            "run.offload_optimizer": False,
            "run.asynchronous": True,
            "run.colocated": False,
        },
    ),
    (
        "slime",
        {
            "recompute-method": "block",
            "recompute-num-layers": 5,
            "pipeline-model-parallel-size": 2,
            "advantage-estimator": "ppo",
        },
        {"run.recompute_layers": 10, "run.critic": True, "run.reference": False},
    ),
    # TRL: either of batch and GPUs follows from the other
    (
        "trl",
        {
            "torchrun.nproc_per_node": 8,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 4,
            "num_generations": 8,
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_tensor_parallel_size": 2,
            "beta": 0.04,
        },
        {
            "cluster.trainer_gpus": 8,
            "run.batch_rollouts": 64,
            "workload.batch_groups": 8,
            "cluster.replicas": 4,
            "run.colocated": True,
            "run.reference": True,
            "run.strategy": "ddp",
        },
    ),
    (
        "trl",
        {
            "generation_batch_size": 64,
            "per_device_train_batch_size": 4,
            "steps_per_generation": 2,
            "accelerate.deepspeed_config.zero_stage": 3,
            "accelerate.deepspeed_config.offload_optimizer_device": "cpu",
            "use_peft": True,
            "lora_r": 16,
        },
        {
            "cluster.trainer_gpus": 8,
            "run.strategy": "deepspeed",
            "run.cpu_optimizer": True,
            "run.lora_rank": 16,
            "run.reference": False,
        },
    ),
    ("trl", {"weight_sync_steps": 2}, {"run.asynchronous": True, "run.colocated": False}),
    ("trl", {"load_in_4bit": True}, {"run.quantized_base": "4bit", "run.lora_rank": 0}),
    # log-probabilities before the update, as TRL 1.16 computed them on a GPU (benchmarks/data/gpu):
    # not where weights change only between generations, unless the engine's are corrected
    ("trl", {"gradient_accumulation_steps": 8}, {"run.log_probs": False}),
    ("trl", {"num_iterations": 2}, {"run.log_probs": None}),
    ("trl", {"steps_per_generation": 2}, {"run.log_probs": None}),
    ("trl", {"use_vllm": True}, {"run.log_probs": None}),
    ("trl", {"use_vllm": True, "vllm_importance_sampling_correction": False}, NOT_SCORED),
    ("trl", {"weight_sync_steps": 2}, NOT_SCORED),
    ("trl", {"rlhf_type": "grpo"}, {"run.log_probs": None}),
    # NeMo-RL: keys of the split that is not there do not count
    (
        "nemo_rl",
        {
            "policy.megatron_cfg.enabled": True,
            "policy.megatron_cfg.tensor_model_parallel_size": 4,
            "policy.dtensor_cfg.tensor_parallel_size": 2,
            "policy.megatron_cfg.activation_checkpointing": True,
            "policy.megatron_cfg.recompute_granularity": "selective",
            "policy.max_total_sequence_length": 4096,
            "cluster.num_nodes": 2,
            "cluster.gpus_per_node": 8,
        },
        {
            f"{TRAINER}.tensor_parallel": 4,
            "run.strategy": "megatron",
            "run.recompute": "selective",
            "cluster.trainer_gpus": 16,
            "workload.max_new_tokens": 4096,
        },
    ),
    (
        "nemo_rl",
        {"policy.dtensor_cfg.tensor_parallel_size": 2, "policy.dtensor_cfg.enabled": True},
        {f"{TRAINER}.tensor_parallel": 2, "run.strategy": "dtensor", "run.recompute": "none"},
    ),
    # prime-rl
    (
        "prime_rl",
        {
            "inference_gpu_ids": [0, 1, 2],
            "trainer_gpu_ids": [3],
            "orchestrator.batch_size": 64,
            "orchestrator.rollouts_per_example": 8,
        },
        {
            "run.rollout_gpus": 3,
            "cluster.trainer_gpus": 1,
            "workload.batch_groups": 8,
            "run.strategy": "fsdp2",
            "run.asynchronous": True,
        },
    ),
    (
        "prime_rl",
        {
            "deployment.num_train_nodes": 2,
            "deployment.num_infer_nodes": 3,
            "deployment.num_infer_replicas": 2,
            "seq_len": 8192,
        },
        {
            "cluster.trainer_gpus": 16,
            "run.rollout_gpus": 48,
            "workload.max_new_tokens": 8192,
            "run.max_pass_tokens": 8192,
        },
    ),
    # AReaL
    (
        "areal",
        {"rollout.backend": "sglang:d4t2", "actor.backend": "megatron:(attn:d4p4t2|ffn:d2p4e4)"},
        {
            "run.engine": "sglang",
            "cluster.replicas": 4,
            "cluster.tensor_parallel": 2,
            "cluster.trainer_gpus": 32,
            "run.strategy": "megatron",
            f"{TRAINER}.pipeline_parallel": 4,
            f"{TRAINER}.expert_parallel": 4,
            "run.colocated": False,
        },
    ),
    (
        "areal",
        {"allocation_mode": "vllm:d4p1t2+d4p1t1c2", "vllm.gpu_memory_utilization": 0.7},
        {
            "run.engine": "vllm",
            "run.gpu_memory_share": 0.7,
            "run.rollout_gpus": 8,
            "cluster.trainer_gpus": 8,
            "run.strategy": "fsdp2",
            f"{TRAINER}.sequence_parallel": 2,
        },
    ),
    (
        "areal",
        {"rollout.max_head_offpolicyness": 0, "actor.kl_ctl": 0.0},
        {"run.asynchronous": False, "run.reference": False, "run.critic": False},
    ),
    # SkyRL
    (
        "skyrl",
        {
            "trainer.placement.colocate_all": False,
            "generator.inference_engine.num_engines": 2,
            "generator.inference_engine.tensor_parallel_size": 4,
            "trainer.placement.policy_num_gpus_per_node": 4,
        },
        {"run.rollout_gpus": 8, "cluster.trainer_gpus": 4, "run.reference": True},
    ),
    (
        "skyrl",
        {"trainer.strategy": "megatron", "trainer.gradient_checkpointing": False},
        {"run.recompute": "full", "run.colocated": True, "run.asynchronous": False},
    ),
    # ROLL: a batch of environments counts rollouts
    (
        "roll",
        {
            "rollout_batch_size": 1024,
            "train_env_manager.group_size": 8,
            "actor_train.device_mapping": "list(range(0,8))",
            "actor_infer.device_mapping": "list(range(8,16))",
            "actor_train.training_args.per_device_train_batch_size": 2,
            "actor_train.training_args.gradient_accumulation_steps": 16,
            "actor_train.strategy_args.strategy_name": "megatron_train",
            "actor_train.strategy_args.strategy_config.tensor_model_parallel_size": 2,
            "adv_estimator": "grpo",
        },
        {
            "workload.batch_groups": 128,
            "run.batch_rollouts": 1024,
            "run.colocated": False,
            "run.mini_batch_rollouts": 128,
            "run.recompute": "none",
            "run.critic": False,
            "run.lora_rank": 0,
        },
    ),
    # a divergence in the reward weighs 0.2 unless it is said, and brings a reference
    ("roll", {"enable_reference": False}, {"run.reference": True}),
    ("roll", {"init_kl_coef": 0.0}, {"run.reference": False}),
    ("roll", {"init_kl_coef": 0.0, "use_kl_loss": True}, {"run.reference": True}),
    ("roll", {"init_kl_coef": 0.0, "enable_reference": True}, {"run.reference": True}),
    # RLinf
    (
        "rlinf",
        {
            "cluster.component_placement.actor": "24-63",
            "cluster.component_placement.rollout": "0-15",
            "cluster.component_placement.inference": "16-23",
            "rollout.tensor_parallel_size": 2,
            "actor.enable_offload": True,
        },
        {
            "cluster.trainer_gpus": 40,
            "run.rollout_gpus": 16,
            "cluster.replicas": 8,
            "run.reference_gpus": 8,
            "run.colocated": False,
            "run.offload_optimizer": True,
        },
    ),
    (
        "rlinf",
        {"cluster.component_placement.actor,rollout,reward": "all", "cluster.num_nodes": 2},
        {"run.colocated": True, "run.asynchronous": False},
    ),
    (
        "rlinf",
        {
            "cluster.component_placement.actor,reward": "all",
            "cluster.component_placement.rollout": "0-3",
        },
        {"run.colocated": True, "run.asynchronous": False, "run.rollout_gpus": 4},
    ),
    (
        "rlinf",
        {
            "cluster.component_placement.actor": "0-7",
            "cluster.component_placement.rollout": "4-5,8-11",
        },
        {"run.colocated": True, "cluster.trainer_gpus": 8, "cluster.replicas": 6},
    ),
    # verl
    (
        "verl",
        {
            "rollout.nnodes": 2,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
            "async_training.require_batches": 4,
            "async_training.staleness_threshold": 0.5,
            "async_training.trigger_parameter_sync_step": 4,
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size": 2,
        },
        {
            "workload.batch_groups": 128,
            "run.max_staleness": 5,
            "run.asynchronous": True,
            "run.colocated": False,
            "run.strategy": "megatron",
        },
    ),
    (
        "verl",
        {
            "actor_rollout_ref.actor.ppo_micro_batch_size": 64,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size": 128,
            "trainer.nnodes": 2,
            "algorithm.use_kl_in_reward": True,
            "reward_model.enable_resource_pool": True,
            "reward_model.nnodes": 2,
            "reward_model.n_gpus_per_node": 8,
        },
        {
            "run.micro_batch_rollouts": 4,
            "run.log_prob_micro_rollouts": 8,
            "run.reference": True,
            "run.critic": True,
            "run.reward_model_gpus": 16,
            "run.asynchronous": False,
        },
    ),
]


@pytest.mark.parametrize(
    ("stack", "said", "held"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)]
)
def test_settings_imply_others(stack: str, said: dict[str, Any], held: dict[str, Any]) -> None:
    got = values(stack, said)
    assert {ours: got.get(ours) for ours in held} == held


def test_all_gpus_of_nodes_that_are_not_counted_are_not_guessed() -> None:
    said = {"cluster.component_placement.actor,rollout,reward": "all", "cluster.num_nodes": 2}
    assert "cluster.trainer_gpus" not in known("rlinf", said)


def test_a_key_says_nothing_without_its_part_and_has_no_default_without_its_condition() -> None:
    assert "run.engine" not in known("areal", {"allocation_mode": "d8p1t1"})
    assert "engine.max_seqs" not in known("areal", {})
    assert values("areal", {"rollout.backend": "vllm:d8"})["engine.max_seqs"] == 256


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_the_stacks_defaults_are_of_our_words(stack: Stack) -> None:
    rest = stack.launch.unsaid({}, HERE, stack.implied)
    assert rest.keys() <= meanings().keys()
    for ours, allowed in ALLOWED.items():
        for key in stack.launch.keys.get(ours, ()):
            spelt = [*key.values, *([key.ours(key.default)] if key.has_default else [])]
            assert set(spelt) <= allowed, (ours, key.key)


ANY = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-4, 10**6),
    st.floats(allow_nan=True),
    st.text(max_size=12),
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from(["sglang:d4t2+d8", "list(range(0,8))", "0-7", "all", "gae", "megatron"]),
)


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
@given(data=st.data())
def test_any_values_are_read_without_an_error(stack: Stack, data: st.DataObject) -> None:
    """And what was said is said, whatever follows; rules see each key as odd as it may be."""
    keys = data.draw(st.lists(st.sampled_from(sorted(stack.launch.meanings)), max_size=25))
    given = [Given(key, data.draw(ANY), HERE) for key in keys]
    read = stack.launch.read(given, stack.implied)
    rest = stack.launch.unsaid(read, Place(stack.name), stack.implied)
    assert not read.keys() & rest.keys()
    assert all(isinstance(one, Setting) for one in (*read.values(), *rest.values()))
    assert {*read, *rest} <= meanings().keys()
