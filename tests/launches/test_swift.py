"""ms-swift's `swift rlhf`: TRL's trainer with keys and defaults of its own."""

from pathlib import Path

import pytest

from rollcast.simulator.check.question import question
from rollcast.simulator.launches.draft import Asked
from rollcast.simulator.launches.parts import given
from rollcast.simulator.launches.read import read_launch

SCRIPT = (
    "NPROC_PER_NODE=4 swift rlhf --model Qwen/Qwen2.5-72B-Instruct --torch_dtype bfloat16 "
    "--use_vllm true --vllm_mode colocate --max_completion_length 1024 {} --rlhf_type grpo\n"
)


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
    more = (
        "--vllm_gpu_memory_utilization 0.55 --vllm_max_model_len 2048 --max_length 1024 "
        "--vllm_tensor_parallel_size 4 --num_generations 4 --deepspeed zero3_offload "
        f"--offload_model true --offload_optimizer true --sleep_level 1 {more}"
    )
    (tmp_path / "run.sh").write_text(SCRIPT.format(more))
    launch = read_launch(tmp_path / "run.sh")
    found = question(launch, Asked(parts=given(None, "h100-sxm")))
    assert found.scenario.cost.trainer_of.gathers_to_merge is at_once
    ledger = found.scenario.ledger
    assert ledger.fits is not at_once
