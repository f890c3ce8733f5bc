"""ms-swift's `swift rlhf`: TRL's trainer with keys and defaults of its own."""

from pathlib import Path

import pytest

from rollcast.simulator.check.question import Question, question
from rollcast.simulator.launches.draft import Asked, completed
from rollcast.simulator.launches.launched import Launched
from rollcast.simulator.launches.parts import given
from rollcast.simulator.launches.read import read_launch
from rollcast.simulator.stacks.settings import value

SCRIPT = (
    "NPROC_PER_NODE={gpus} swift rlhf --model {model} --torch_dtype bfloat16 "
    "--use_vllm true --vllm_mode colocate --max_completion_length 1024 {more} --rlhf_type grpo\n"
)


def launched(folder: Path, more: str, model: str = "Qwen/Qwen2.5-7B", gpus: int = 8) -> Launched:
    script = folder / "run.sh"
    script.write_text(SCRIPT.format(gpus=gpus, model=model, more=more))
    launch = read_launch(script)
    assert launch.stack == "trl"
    return launch


def asked(folder: Path, more: str, model: str = "Qwen/Qwen2.5-7B", gpus: int = 8) -> Question:
    return question(launched(folder, more, model, gpus), Asked(parts=given(None, "h100-sxm")))


def test_defaults_are_its_own(tmp_path: Path) -> None:
    """swift/arguments and swift/rlhf_trainers/args_mixin.py; no release of TRL decides them."""
    launch = launched(tmp_path, "--gradient_accumulation_steps 2 --max_length 4096")
    assert launch.notes == ()
    held = completed(launch)
    assert {key: value(held, key) for key in WANTED} == WANTED


WANTED = {
    "run.micro_batch_rollouts": 1,
    "run.batch_rollouts": 16,
    "workload.batch_groups": 2,
    "run.gpu_memory_share": 0.9,
    "engine.max_seqs": 256,
    "run.max_prompt_tokens": 4096,
    "run.lora_rank": 8,
    "run.kl_coefficient": 0.04,
    "run.fused_head": False,
    "run.recompute": "full",
    "run.temperature": 0.9,
    "run.strategy": "ddp",
}


def test_swift_starts_torchrun_on_the_nodes_of_its_environment(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "export NNODES=3\n" + SCRIPT.format(gpus=4, model="a", more="")
    )
    held = completed(read_launch(tmp_path / "run.sh"))
    assert (value(held, "cluster.trainer_gpus"), value(held, "cluster.replicas")) == (12, 12)


def test_keys_mean_that_only_of_the_fork(tmp_path: Path) -> None:
    (tmp_path / "grpo.sh").write_text(
        "trl grpo --model_name_or_path Qwen/Qwen2.5-7B --train_type full --max_length 4096\n"
    )
    held = completed(read_launch(tmp_path / "grpo.sh"), 8)
    assert value(held, "run.max_prompt_tokens") is None
    assert value(held, "run.micro_batch_rollouts") == 8


@pytest.mark.parametrize(
    ("more", "weights", "rank"),
    [
        ("--train_type full", "full", None),
        ("--tuner_type full --lora_rank 16", "full", None),
        ("--train_type lora --lora_rank 32", "lora", 32),
        ("", "lora", 8),
    ],
)
def test_adapters_are_trained_unless_it_says_full(
    tmp_path: Path, more: str, weights: str, rank: int | None
) -> None:
    trainer = asked(tmp_path, f"--deepspeed zero3 {more}").scenario.cost.trainer_of
    assert trainer.weights == weights
    assert rank in (None, trainer.lora_rank)
    assert trainer.master_dtype == "fp32"


@pytest.mark.parametrize(
    ("name", "states", "optimizer"),
    [("zero3_offload", True, True), ("zero3", False, False), ("zero2_offload", False, True)],
)
def test_weights_of_zero3_offload_are_on_the_host(
    tmp_path: Path, name: str, states: bool, optimizer: bool
) -> None:
    trainer = asked(tmp_path, f"--train_type full --deepspeed {name}").scenario.cost.trainer_of
    assert (trainer.states_on_host, trainer.optimizer_on_host) == (states, optimizer)


@pytest.mark.parametrize(
    ("more", "at_once"),
    [
        ("", True),
        ("--move_model_batches 1", True),
        ("--move_model_batches 16", False),
        ("--vllm_enable_lora true", False),
        ("--vllm_enable_lora false", True),
    ],
)
def test_all_weights_are_gathered_to_merge_unless_sent_in_parts(
    tmp_path: Path, more: str, at_once: bool
) -> None:
    """Of a 72B on four GPUs that is what decides: its own script for these has 16 parts."""
    found = asked(
        tmp_path,
        "--vllm_gpu_memory_utilization 0.55 --vllm_max_model_len 2048 --max_length 1024 "
        "--vllm_tensor_parallel_size 4 --num_generations 4 --deepspeed zero3_offload "
        f"--offload_model true --offload_optimizer true --sleep_level 1 {more}",
        "Qwen/Qwen2.5-72B-Instruct",
        4,
    )
    assert found.scenario.cost.trainer_of.gathers_to_merge is at_once
    ledger = found.scenario.ledger
    assert ledger.fits is not at_once
