"""Batches that a stack refuses to deal out to its GPUs, by the rules of its table."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.dealt import check_batches
from rollcast.simulator.launches.draft import check_chosen, check_dealt, completed
from rollcast.simulator.stacks.deals import deals
from rollcast.simulator.stacks.stack import all_stacks
from tests.check.launches import VERL, launched
from tests.laws import examples

_ACTOR = "actor_rollout_ref.actor"
ROWS = {f"{_ACTOR}.use_dynamic_bsz": False, f"{_ACTOR}.ppo_micro_batch_size_per_gpu": 4}
SKYRL: Mapping[str, Any] = {
    "trainer.policy.model.path": "Qwen/Qwen2.5-7B",
    "trainer.train_batch_size": 128,
    "trainer.policy_mini_batch_size": 64,
    "trainer.micro_train_batch_size_per_gpu": 10,
    "generator.n_samples_per_prompt": 5,
    "trainer.placement.policy_num_gpus_per_node": 8,
}
NEMO = {"grpo.num_prompts_per_step": 32, "grpo.num_generations_per_prompt": 16}
TRL = {"per_device_train_batch_size": 2, "num_generations": 8, "gradient_accumulation_steps": 1}


def refusal(
    said: Mapping[str, Any], stack: str = "verl", release: str | None = "0.7", gpus: int | None = 7
) -> str:
    """Why a launch's batch is refused; empty where it is not."""
    launch = launched(said, stack, release)
    try:
        check_batches(launch, completed(launch, gpus))
    except ScenarioError as error:
        return str(error)
    return ""


def test_verl_does_not_deal_a_batch_of_512_to_seven_gpus() -> None:
    said = {**VERL, "data.train_batch_size": 512, **ROWS}
    assert refusal(said, gpus=8) == ""
    sentence = refusal(said)
    assert sentence.startswith("data.train_batch_size in run.sh, line 3: ")
    assert "4,096 rollouts of a batch (512 x 8) cannot be dealt out" in sentence
    assert sentence.endswith("verl wants a multiple of 7 GPUs by --gpus in the command line")


def test_a_plan_asks_of_every_number_of_gpus() -> None:
    launch = launched({**VERL, **ROWS})
    for gpus in (8, 16, 12):  # 12 are no whole nodes, which others say
        check_dealt(launch, gpus)
    with pytest.raises(ScenarioError, match="wants a multiple of 7 GPUs"):
        check_dealt(launch, 7)


def test_a_plan_asks_of_every_split_too() -> None:
    launch = launched({**VERL, **ROWS})
    known = completed(launch, 16)
    check_chosen(launch, known, {"cluster.trainer_gpus": 8, "cluster.tensor_parallel": 4})
    for chosen in ({"cluster.trainer_gpus": 12}, {"workload.batch_groups": 9}):
        with pytest.raises(ScenarioError, match="cannot be dealt out"):
            check_chosen(launch, known, chosen)


@pytest.mark.parametrize(
    ("said", "release", "refused"),
    [
        ({}, "0.7", True),  # a batch in chunks, whatever fills the passes
        ({"data.train_batch_size": 70}, "0.9", True),  # 256 rollouts of an optimiser step
        ({"data.train_batch_size": 64, f"{_ACTOR}.ppo_mini_batch_size": 7}, "0.9", False),
        ({"data.train_batch_size": 64, f"{_ACTOR}.ppo_mini_batch_size": 7}, "0.7", True),
        ({"data.train_batch_size": 70}, "0.7", False),  # 36 of 256 each: an optimiser step is cut
        ({"data.train_batch_size": 70, **ROWS}, "0.6", False),
        ({"data.train_batch_size": 70, **ROWS, f"{_ACTOR}.ppo_micro_batch_size_per_gpu": 5}, "0.6",
         True),  # 36 are no multiple of 5
        ({"async_training.require_batches": 4}, "0.7", False),
        ({"data.train_batch_size": 1, **ROWS, "trainer.rejection_sample": True}, "0.4", False),
    ],
)  # fmt: skip
def test_what_verl_refuses_hangs_on_its_release(
    said: Mapping[str, Any], release: str, refused: bool
) -> None:
    assert bool(refusal({**VERL, **said}, release=release)) == refused


@pytest.mark.parametrize(
    ("stack", "said", "gpus", "words"),
    [
        ("skyrl", SKYRL, 8, ""),
        ("skyrl", {**SKYRL, "trainer.train_batch_size": 100}, 8, "100 prompts of a batch"),
        ("skyrl", {**SKYRL, "trainer.micro_train_batch_size_per_gpu": 16}, 8,
         "40 of 320 rollouts of an optimiser step (64 x 5) for each of 8 data-parallel GPUs"),
        ("nemo_rl", NEMO, 8, ""),
        ("nemo_rl", {**NEMO, "grpo.num_prompts_per_step": 40}, 8, "640 rollouts of a batch"),
        ("nemo_rl", NEMO, 7, "512 rollouts of an optimiser step"),
        ("openrlhf", {"train.batch_size": 128, "train.micro_batch_size": 4}, 8, ""),
        ("openrlhf", {"train.batch_size": 128, "train.micro_batch_size": 4}, 6, "128 rollouts"),
        ("trl", {**TRL, "vllm_mode": "colocate", "use_vllm": True}, 4, ""),
        ("trl", {**TRL, "vllm_mode": "colocate", "use_vllm": True}, 3, "6 completions"),
        ("trl", {**TRL, "use_vllm": False, "unsloth": True}, 3, ""),
        ("slime", {"global-batch-size": 256, "rollout-batch-size": 32}, 8, ""),
        ("slime", {"global-batch-size": 255, "rollout-batch-size": 32}, 8, "255 rollouts"),
        ("prime_rl", {"orchestrator.batch_size": 100, "orchestrator.group_size": 16}, None,
         "100 rollouts of a batch"),
        ("rlinf", {"actor.global_batch_size": 100, "actor.micro_batch_size": 8,
                   "actor.training_backend": "fsdp", "cluster.num_nodes": 1,
                   "cluster.component_placement.actor": "0-7",
                   "cluster.component_placement.rollout": "0-7"}, None, "100 rollouts"),
    ],
)  # fmt: skip
def test_what_other_stacks_refuse(
    stack: str, said: Mapping[str, Any], gpus: int | None, words: str
) -> None:
    sentence = refusal(said, stack, "1.0" if stack == "trl" else None, gpus)
    assert (words in sentence) if words else not sentence


def test_a_stack_that_nothing_tells_refuses_nothing_that_its_forks_take() -> None:
    said = {**TRL, "use_vllm": False}
    assert refusal(said, "trl", None, 3) == ""
    assert refusal(said, "trl", "0.20", 3)


@settings(max_examples=examples(100), deadline=None)
@given(
    groups=st.integers(1, 64), size=st.integers(1, 8), gpus=st.sampled_from([1, 2, 3, 4, 6, 7, 8])
)
def test_verl_takes_a_batch_of_rows_where_it_divides(groups: int, size: int, gpus: int) -> None:
    said = {
        **VERL,
        **ROWS,
        "data.train_batch_size": groups,
        "actor_rollout_ref.rollout.n": size,
        f"{_ACTOR}.ppo_mini_batch_size": groups,
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu": 1,
    }
    assert bool(refusal(said, gpus=gpus)) == (groups * size % gpus > 0)


def test_rules_name_settings_that_there_are() -> None:
    assert any(stack.launch.deals for stack in all_stacks().values())
    with pytest.raises(ValueError, match=r"f: deals: run\.rolls is no setting"):
        deals([{"parts": "rolls", "of": ["run.rolls"], "among": ["trainer_gpus"]}], "f")
    with pytest.raises(ValueError, match=r"f: deals: .*unexpected keyword"):
        deals([{"parts": "rolls", "of": [], "among": [], "to": []}], "f")
