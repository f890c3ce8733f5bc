"""Forks and relatives of the stacks: EasyR1, Megatron-SWIFT, LLaMA-Factory's PPO, AsyncGRPO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollcast.simulator.check.question import Question, question
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.draft import Asked, completed
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.parts import given
from rollcast.simulator.launches.read import read_launch
from rollcast.simulator.stacks.settings import value

TRAINER = "cost.roofline.trainer"
EASYR1 = """
data: {max_prompt_length: 2048, max_response_length: 2048, rollout_batch_size: 512}
algorithm: {disable_kl: false, adv_estimator: grpo}
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 1
    micro_batch_size_per_device_for_experience: 2
    model: {model_path: Qwen/Qwen2.5-7B-Instruct}
    offload: {offload_params: true, offload_optimizer: true}
  rollout: {n: 5, tensor_parallel_size: 2}
  ref: {fsdp: {enable_cpu_offload: true}}
trainer: {n_gpus_per_node: 8}
"""
PPO = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
reward_model: saves/reward
stage: ppo
finetuning_type: lora
cutoff_len: 1024
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
ppo_buffer_size: 2
max_new_tokens: 512
"""
SWIFT = (
    "NPROC_PER_NODE=8 megatron rlhf --rlhf_type {kind} --model Qwen/Qwen3-30B-A3B "
    "--tensor_model_parallel_size 2 --expert_model_parallel_size 4 --global_batch_size 64 "
    "--steps_per_generation 2 --num_generations 8 --max_completion_length 4096 --use_vllm true "
    "--vllm_mode colocate --vllm_tensor_parallel_size 2 --tuner_type lora\n"
)
ASYNC = """
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
args = AsyncGRPOConfig(per_device_train_batch_size=16, max_completion_length=1024)
AsyncGRPOTrainer(model="Qwen/Qwen3-0.6B", args=args).train()
"""


def launched(folder: Path, **files: str) -> Launched:
    """The launch of the last of these files, by their names with an underscore for the dot."""
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        path.write_text(text, encoding="utf-8")
    return read_launch(path)


def asked(launch: Launched, gpus: int | None = None) -> Question:
    return question(launch, Asked(parts=given(None, "h100-sxm"), gpus=gpus))


def test_easyr1_reads_the_file_that_config_names_and_overrides_over_it(tmp_path: Path) -> None:
    launch = launched(
        tmp_path,
        config_yaml=EASYR1,
        run_sh="python3 -m verl.trainer.main config=config.yaml worker.rollout.n=8 "
        "worker.actor.ulysses_size=2 data.max_response_length=4096 "
        "worker.actor.model.freeze_vision_tower=true\n",
    )
    assert launch.stack == "easyr1"
    assert not launch.unknown
    found = asked(launch)
    wanted: dict[str, Any] = {
        "workload.batch_groups": 512,
        "workload.group_size": 8,
        "workload.max_new_tokens": 4096,
        "cluster.tensor_parallel": 2,
        "cluster.replicas": 4,
        "cluster.trainer_gpus": 8,
        f"{TRAINER}.minibatches": 4,
        f"{TRAINER}.sequence_parallel": 2,
        f"{TRAINER}.freeze_tower": True,
        f"{TRAINER}.microbatch_tokens": 2048 + 4096,  # max_token_len of dp_actor.py
        f"{TRAINER}.log_prob_microbatch_tokens": 2 * (2048 + 4096),
        f"{TRAINER}.log_prob_passes": 2,
        f"{TRAINER}.reference_on_host": True,
        "cost.roofline.stack": "easyr1",
    }
    assert {key: found.value(key) for key in wanted} == wanted
    held = completed(launch)
    assert value(held, "run.offload_parameters") is value(held, "run.offload_optimizer") is True
    without = launched(
        tmp_path, config_yaml=EASYR1.replace("disable_kl: false", "disable_kl: true")
    )
    assert asked(without).value(f"{TRAINER}.log_prob_passes") == 1


def test_megatron_swift_counts_batches_in_responses(tmp_path: Path) -> None:
    launch = launched(tmp_path, run_sh=SWIFT.format(kind="grpo"))
    assert launch.stack == "megatron_swift"
    found = asked(launch)
    wanted: dict[str, Any] = {
        "workload.batch_groups": 16,
        "cluster.replicas": 4,
        "cluster.trainer_gpus": 8,
        f"{TRAINER}.backend": "megatron",
        f"{TRAINER}.minibatches": 2,
        f"{TRAINER}.tensor_parallel": 2,
        f"{TRAINER}.expert_parallel": 4,
        f"{TRAINER}.lora_rank": 8,
        f"{TRAINER}.log_prob_passes": 2,
    }
    assert {key: found.value(key) for key in wanted} == wanted


def test_llama_factory_has_one_stage_that_is_a_loop(tmp_path: Path) -> None:
    launch = launched(
        tmp_path, ppo_yaml=PPO, run_sh="NPROC_PER_NODE=4 llamafactory-cli train ppo.yaml\n"
    )
    assert launch.stack == "llamafactory"
    found = asked(launch)
    wanted: dict[str, Any] = {
        "workload.batch_groups": 128,
        "workload.group_size": 1,
        "workload.max_new_tokens": 512,
        "cluster.replicas": 4,
        "engine.max_seqs": 2,  # transformers generates the rows of a pass
        f"{TRAINER}.minibatches": 8,  # two steps, four times
        f"{TRAINER}.lora_rank": 8,
    }
    assert {key: found.value(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("teacher", "passes", "model"),
    [("Qwen/Qwen3-32B", 1, "qwen3-32b"), ("me/Qwen3-1.7B-tuned", 2, None), ("mine", 2, None)],
)
def test_a_teacher_of_another_size_is_a_model_of_its_own(
    tmp_path: Path, teacher: str, passes: int, model: str | None
) -> None:
    launch = launched(
        tmp_path,
        run_yaml="distillation: {num_prompts_per_step: 32, num_generations_per_prompt: 2}\n"
        "policy: {model_name: Qwen/Qwen3-1.7B-Base, max_total_sequence_length: 4096,\n"
        "  train_global_batch_size: 64}\n"
        f"teacher: {{model_name: {teacher}}}\ncluster: {{gpus_per_node: 8, num_nodes: 1}}\n",
    )
    found = asked(launch)
    assert found.value("workload.batch_groups") == 32
    assert found.value(f"{TRAINER}.log_prob_passes") == passes
    assert found.value(f"{TRAINER}.reference_model") == model


@pytest.mark.parametrize(("gpus", "trainer"), [(2, 1), (8, 7)])
def test_the_asynchronous_trainer_has_a_server_and_a_bound(
    tmp_path: Path, gpus: int, trainer: int
) -> None:
    found = asked(launched(tmp_path, train_py=ASYNC), gpus)
    assert found.value("cluster.placement") == "disaggregated"
    assert (found.value("cluster.replicas"), found.value("cluster.trainer_gpus")) == (1, trainer)
    assert found.value("policy")[0]["fully_async"]["max_staleness"] == 4
    assert found.value("cost.roofline.stack") == "trl"  # not as transformers generates


def test_the_asynchronous_trainer_counts_its_syncs(tmp_path: Path) -> None:
    text = ASYNC.replace("AsyncGRPOConfig(", "AsyncGRPOConfig(weight_sync_steps=4, ", 1)
    policy = asked(launched(tmp_path, train_py=text), 2).value("policy")[0]["fully_async"]
    assert (policy["sync_every"], policy["max_staleness"]) == (4, 19)  # of the fifth version


def test_gpus_beyond_the_trainers_processes_are_the_servers(tmp_path: Path) -> None:
    text = (
        "NPROC_PER_NODE=6 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-3B-Instruct --use_vllm "
        "true --vllm_mode server --num_generations 6 --per_device_train_batch_size 2\n"
    )
    found = asked(launched(tmp_path, run_sh=text), 8)
    assert (found.value("cluster.trainer_gpus"), found.value("cluster.replicas")) == (6, 2)


GIVEN = "trains on given answers, without rollouts: it is no RL loop"
OTHERS = {
    "run.sh, line 1: starts training.main_sft, which " + GIVEN: (
        "python3 training/main_sft.py n_nodes=1 gconfig.max_new_tokens=9 rollout.queue_size=4\n"
    ),
    "run.sh, line 1: it has load-debug-rollout-data: such a launch trains on rollouts of a "
    "file, and generates none": (
        "python3 train.py --rollout-batch-size 4 --load-debug-rollout-data d --colocate\n"
    ),
    "run.yaml: a launch without actor_train.* and student_train.* trains nothing": (
        "rollout_batch_size: 4\nresponse_length: 64\npretrain: m\n"
    ),
    "run.sh, line 1: starts openrlhf.cli.train_dpo, which " + GIVEN: (
        "deepspeed --module openrlhf.cli.train_dpo --max_len 8192 --zero_stage 3\n"
    ),
    "run.sh, line 1: starts openrlhf.cli.train_ppo, which generates with transformers on the "
    "trainer's GPUs, a loop that is not known here; train_ppo_ray is": (
        "deepspeed --module openrlhf.cli.train_ppo --prompt_max_len 1024 --zero_stage 2\n"
    ),
    "run.sh, line 1: starts openrlhf.cli.multi_agent_train_ppo_ray, which trains several agents of "
    "a workflow at once, a loop that is not known here": (
        "python3 -m openrlhf.cli.multi_agent_train_ppo_ray --prompt_max_len 1024 --zero_stage 2\n"
    ),
    "run.sh, line 1: starts openrlhf.cli.serve_rm, which generates, or scores, for another "
    "program, and trains nothing by itself": (
        "python -m openrlhf.cli.serve_rm --reward_pretrain m --port 5000 --bf16\n"
    ),
    "run.sh, line 1: starts skyrl_train.inference_engines.vllm.vllm_server, which trains nothing": (
        "uv run -m skyrl_train.inference_engines.vllm.vllm_server --model Qwen/Qwen3-8B "
        "--tensor-parallel-size 4 --max-model-len 4096 --enable-prefix-caching --dtype bfloat16 "
        "--seed 42 --gpu-memory-utilization 0.9 --trust-remote-code --max-num-seqs 1024\n"
    ),
    "run.sh, line 1: starts scripts.print_cfg, which trains nothing": (
        "python3 scripts/print_cfg.py --cfg job --config-name=ppo_trainer data.train_batch_size=4\n"
    ),
    "run.sh, line 2: starts batch_inference, which generates, or scores, for another "
    "program, and trains nothing by itself": (
        "read -r -d '' WORDS <<EOF\n../batch_inference.py --pretrain $P --rollout_batch_size 64 "
        "--max_new_tokens 9\nEOF\npython $WORDS\n"
    ),
    "run.sh, line 1: starts open_instruct.grpo_fast, which is a loop that is not known here; of "
    "TRL's GRPO and RLOO are": (
        "python mason.py --gpus 8 --beta 0 --num_train_epochs 1 -- uv run "
        "/w/open_instruct/grpo_fast.py --temperature 1 --learning_rate 1e-6 --max_length 8\n"
    ),
    "run.sh, line 1: starts verl.trainer.sft_trainer, which " + GIVEN: (
        "torchrun -m verl.trainer.sft_trainer data.train_batch_size=8 trainer.nnodes=1\n"
    ),
    "run.sh, line 1: starts trl sft, which "
    + GIVEN: "trl sft --model_name_or_path Qwen/Qwen3-8B\n",
    "run.sh, line 1: rlhf_type is dpo: such a launch " + GIVEN: SWIFT.format(kind="dpo"),
    "run.sh, line 1: loss-type is sft_loss: such a launch " + GIVEN: (
        "python3 train_async.py --loss-type sft_loss --rollout-batch-size 8\n"
    ),
    "run.py, line 2: calls DPOTrainer, which " + GIVEN: (
        "from trl import DPOTrainer\nDPOTrainer(model='Qwen/Qwen3-8B').train()\n"
    ),
    "run.py, line 2: calls OnlineDPOTrainer, which is a loop that is not known here; of TRL's GRPO "
    "and RLOO are": "from trl import OnlineDPOTrainer\nOnlineDPOTrainer(model='m').train()\n",
    "run.yaml: a launch without stage " + GIVEN: (
        "model_name_or_path: m\nfinetuning_type: full\ncutoff_len: 8\n"
    ),
    "run.toml, line 4: inference.deployment.type is disaggregated: such a launch has engines that "
    "prefill and decode apart, which are not priced here": (
        'model.name = "m"\norchestrator.batch_size = 8\n[inference.deployment]\n'
        'type = "disaggregated"\n'
    ),
    "run.yaml, line 1: stage is kto: such a launch " + GIVEN: (
        "stage: kto\nmodel_name_or_path: m\nfinetuning_type: full\n"
    ),
    "run.yaml, line 1: it has dpo.max_num_steps: such a launch " + GIVEN: (
        "dpo: {max_num_steps: 9}\npolicy: {model_name: m, train_global_batch_size: 8}\n"
    ),
    "run.yaml: a launch without gconfig.* and rollout.* " + GIVEN: (
        "actor: {path: m, backend: 'fsdp:d8'}\ntrain_dataset: {batch_size: 4}\n"
        "total_train_epochs: 1\n"
    ),
    "run.yaml, line 1: it has env.train.simulator_type: such a launch trains robots, which are not "
    "priced here": (
        "env: {train: {simulator_type: libero}}\ndata: {train_batch_size: 8}\n"
        "actor_rollout_ref: {rollout: {n: 8}}\ntrainer: {n_gpus_per_node: 8}\n"
    ),
    "run.sh, line 1: it has actor_rollout_ref.actor.mindspeed.param_offload: such a launch trains "
    "by MindSpeed, whose layout is not read here": (
        "python -m verl.trainer.main_ppo actor_rollout_ref.actor.mindspeed.param_offload=True\n"
    ),
    "run.sh, line 1: starts verl.experimental.vla.main_sac, which trains robots, which are not "
    "priced here": "python -m verl.experimental.vla.main_sac data.train_batch_size=32\n",
    "run.yaml, line 1: runner.task_type is embodied: such a launch trains robots or images, which "
    "are not priced here": (
        "runner: {task_type: embodied, max_epochs: 3}\nalgorithm: {group_size: 8}\n"
    ),
}


@pytest.mark.parametrize("message", OTHERS)
def test_what_is_no_known_loop_is_refused_in_a_sentence(tmp_path: Path, message: str) -> None:
    path = tmp_path / message.partition(",")[0].partition(":")[0]
    path.write_text(OTHERS[message], encoding="utf-8")
    with pytest.raises(ScenarioError) as error:
        read_launch(path)
    assert str(error.value) == message


def test_a_script_that_tunes_first_and_then_has_a_loop_is_one(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer, SFTTrainer\nSFTTrainer(model='m').train()\n"
        "GRPOTrainer(model='Qwen/Qwen3-8B', args=GRPOConfig(num_generations=4)).train()\n"
    )
    assert value(read_launch(tmp_path / "run.py").known, "workload.group_size") == 4


def test_an_array_that_is_not_known_is_no_value_of_the_flag_before_it(tmp_path: Path) -> None:
    """As the launchers of miles have it since mid-2026: ``--colocate ${MODEL_ARGS[@]}``."""
    launch = launched(
        tmp_path,
        run_sh='LINE="$(python3 shape.py qwen3-4B)" || exit 1\nread -ra MODEL <<< "$LINE"\n'
        "source ~/.bashrc\npython3 train.py --colocate ${MODEL[@]} --rollout-num-gpus 4 "
        "${MODEL[@]} --hf-checkpoint Qwen/Qwen3-4B --rollout-batch-size 8\n",
    )
    assert value(launch.settings, "run.colocated") is True
    assert value(launch.settings, "run.rollout_gpus") == 4
    assert not launch.unresolved
    assert launch.notes[-1] == "run.sh, line 2: what MODEL holds is not read: python3 is not run"
