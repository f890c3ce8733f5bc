"""TRL under accelerate: how its launcher splits a model, and in what precision weights are kept."""

from pathlib import Path
from typing import Any

import pytest

from rollcast.simulator.check.question import question
from rollcast.simulator.launches.draft import Asked
from rollcast.simulator.launches.parts import given
from rollcast.simulator.launches.read import read_launch

GPUS = {"run.processes", "run.gpus_per_node"}


def asked(folder: Path, launcher: str, *flags: str) -> dict[str, Any]:
    script = folder / "run.sh"
    script.write_text(
        f"accelerate launch --num_processes 8 {launcher} trl/scripts/grpo.py "
        "--model_name_or_path Qwen/Qwen2.5-7B --dtype bfloat16 --num_generations 8 "
        f"{' '.join(flags)}\n"
    )
    found = question(read_launch(script), Asked(parts=given(None, "h100-sxm")))
    assert found.value("cluster.trainer_gpus") == 8
    below = "cost.roofline.trainer."
    return {
        part.key.removeprefix(below): part.value
        for part in found.parts
        if part.key.startswith(below)
    }


@pytest.mark.parametrize(
    ("launcher", "flags", "split", "kept"),
    [
        ("--use_deepspeed --zero_stage 3", (), ("deepspeed", "fsdp"), "fp32"),
        ("--use_deepspeed --zero_stage 2", (), ("deepspeed", "zero2"), "fp32"),
        ("--use_deepspeed", (), ("deepspeed", "zero2"), "fp32"),  # accelerate's own stage
        ("--use_fsdp", (), ("fsdp", None), "fp32"),
        ("--use_fsdp --fsdp_version 2", (), ("fsdp2", None), "fp32"),
        ("--fsdp_version 2 --use-fsdp", ("--bf16 false",), ("fsdp2", None), "bf16"),
        ("--multi_gpu", (), ("ddp", None), "bf16"),  # copies stay as they were loaded
    ],
)
def test_weights_are_stepped_in_fp32_where_they_are_split(
    tmp_path: Path, launcher: str, flags: tuple[str, ...], split: tuple[str, Any], kept: str
) -> None:
    """Whatever they are loaded in: ZeRO keeps weights of fp32, and accelerate casts those of FSDP
    unless there is no mixed precision."""
    trainer = asked(tmp_path, launcher, *flags)
    assert (trainer["backend"], trainer.get("sharding")) == split
    assert trainer.get("master_dtype", "fp32") == kept


@pytest.mark.parametrize(
    ("launcher", "whole"),
    [
        ("--use_deepspeed --zero_stage 3 --zero3_init_flag false", True),
        ("--use_deepspeed --zero_stage 3 --zero3_init_flag true", None),
        ("--use_deepspeed --zero_stage 3", None),
        ("--use_deepspeed --zero_stage 2 --zero3_init_flag false", None),  # shares no weights
    ],
)
def test_without_its_init_zero_3_has_all_weights_on_each_gpu_at_first(
    tmp_path: Path, launcher: str, whole: bool | None
) -> None:
    """accelerate/utils/dataclasses.py, set_deepspeed_weakref: transformers makes a model under
    zero.Init where zero3_init_flag is set; else deepspeed/runtime/engine.py moves all of it."""
    assert asked(tmp_path, launcher).get("whole_at_start") is whole


def test_fsdp_of_the_command_line_is_read_as_of_a_configuration(tmp_path: Path) -> None:
    trainer = asked(
        tmp_path,
        "--use_fsdp --fsdp_offload_params true --fsdp_activation_checkpointing true "
        "--fsdp_reshard_after_forward false",
    )
    assert trainer["states_on_host"] is True
    assert trainer["recompute"] == "full"


@pytest.mark.parametrize(
    ("launcher", "flags", "reduces"),
    [
        ("--use_fsdp", ("--gradient_accumulation_steps 4",), False),
        ("--use_fsdp", ("--gradient_accumulation_steps 4", "--sync_each_batch true"), True),
        ("--use_fsdp", ("--gradient_accumulation_steps 1",), None),
        ("--use_deepspeed --zero_stage 3", ("--gradient_accumulation_steps 4",), None),
    ],
)
def test_gradients_of_fsdp_wait_whole_for_the_last_pass(
    tmp_path: Path, launcher: str, flags: tuple[str, ...], reduces: bool | None
) -> None:
    """accelerate accumulates under no_sync; `sync_each_batch` reduces after each."""
    assert asked(tmp_path, launcher, *flags).get("reduce_every_microbatch") is reduces


@pytest.mark.parametrize(
    "launcher",
    ["accelerate launch --num_processes 8 --multi-gpu", "torchrun --nproc_per_node 8 --standalone"],
)
def test_a_switch_before_the_script_takes_no_value(tmp_path: Path, launcher: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{launcher} grpo.py --num_generations 8 --max_completion_length 64\n")
    launch = read_launch(script, stack="trl")
    assert launch.raw()["num_generations"] == 8
    assert {launch.settings[key].value for key in GPUS & launch.settings.keys()} == {8}
