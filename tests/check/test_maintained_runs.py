"""Runs that maintainers make, and that look too large: one GPU, and a critic beside 70B."""

from pathlib import Path

from check.launches import asked

from rollcast.simulator.check.question import Question, question
from rollcast.simulator.check.search import that_fit
from rollcast.simulator.launches.read import read_launch
from rollcast.simulator.scenario.ledger import ledger_of

VERL = """
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\
    data.train_batch_size=128 data.max_prompt_length=512 data.max_response_length=1024 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.fsdp_config.param_offload=True \\
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=8 \\
    trainer.nnodes=1 trainer.n_gpus_per_node=1
"""
OPENRLHF = """
ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \\
    --ref_num_nodes 4 --ref_num_gpus_per_node 8 --critic_num_nodes 4 --critic_num_gpus_per_node 8 \\
    --actor_num_nodes 4 --actor_num_gpus_per_node 8 \\
    --vllm_num_engines 4 --vllm_tensor_parallel_size 8 \\
    --colocate_all_models --vllm_gpu_memory_utilization 0.5 --vllm_enable_sleep \\
    --deepspeed_enable_sleep --pretrain meta-llama/Llama-3.1-70B-Instruct \\
    --micro_train_batch_size 1 --train_batch_size 128 --micro_rollout_batch_size 2 \\
    --rollout_batch_size 128 --n_samples_per_prompt 1 --prompt_max_len 1024 \\
    --generate_max_len 1024 --zero_stage 3 --bf16 --init_kl_coef 1e-3 --adam_offload \\
    --gradient_checkpointing --advantage_estimator gae
"""


def _asked(text: str, folder: Path, gpu: str) -> Question:
    path = folder / "run.sh"
    path.write_text(text, "utf-8")
    return question(read_launch(path), asked(gpu, mean_tokens=300.0))


def test_seven_billion_on_one_gpu_with_its_states_on_the_host(tmp_path: Path) -> None:
    """verl's FSDP2 keeps them there; offloading between phases alone does not do."""
    small = _asked(VERL, tmp_path, "h20")
    ledger = ledger_of(small.scenario)
    assert not ledger.fits
    first = that_fit(small, ledger)[0]
    assert first.lines == (
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.fsdp_config.offload_policy=True",
    )
    assert not first.trains_otherwise
    assert first.ledger.nearly_sure


def test_seventy_billion_with_a_critic_on_32_gpus(tmp_path: Path) -> None:
    large = _asked(OPENRLHF, tmp_path, "a100-80gb")
    assert large.value("cost.roofline.trainer.critic") is True
    assert large.value("cost.roofline.trainer.optimizer_on_host") is True
    assert large.scenario.shape.held_gpus == 32
    ledger = ledger_of(large.scenario)
    assert ledger.nearly_sure
