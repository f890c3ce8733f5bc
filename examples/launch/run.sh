#!/bin/bash
# GRPO with verl: Qwen2.5-7B on a node of eight GPUs. Nothing here is run by rollcast check.
set -euo pipefail

MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct}
PROMPT=1024
RESPONSE=$((4 * 1024))

ACTOR=(
    actor_rollout_ref.model.path="$MODEL"
    actor_rollout_ref.actor.strategy=fsdp
    actor_rollout_ref.actor.ppo_mini_batch_size=64
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((6 * (PROMPT + RESPONSE)))
    actor_rollout_ref.actor.use_kl_loss=True
)
ROLLOUT=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n=8
    actor_rollout_ref.rollout.tensor_model_parallel_size=2
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6
)

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=math/train.parquet \
    data.train_batch_size=256 \
    data.max_prompt_length=$PROMPT \
    data.max_response_length=$RESPONSE \
    "${ACTOR[@]}" \
    "${ROLLOUT[@]}" \
    trainer.nnodes=1 \
    trainer.n_gpus_per_node=8 \
    trainer.total_training_steps=300 "$@"
