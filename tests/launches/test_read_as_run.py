"""What a launch says of passes, contexts and engines, read as its stack runs it."""

from __future__ import annotations

from typing import Any

import pytest

from rollcast.simulator.check.question import Question, question
from rollcast.simulator.costs.backends import backends_of
from rollcast.simulator.launches.draft import Asked, completed
from rollcast.simulator.launches.parts import given
from rollcast.simulator.launches.read import read_launch
from rollcast.simulator.launches.settle import of_release

TRAINER = "cost.roofline.trainer"
VERL = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B "
    "data.train_batch_size=64 trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.actor.use_dynamic_bsz=True"
)
SLIME = (
    "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate "
    "--hf-checkpoint Qwen/Qwen3-4B --rollout-batch-size 8 --n-samples-per-prompt 8 "
    "--rollout-max-response-len 4096 --rollout-num-gpus-per-engine 8"
)


def asked(command: str, *more: str) -> Question:
    launch = read_launch(None, [*command.split(), *more])
    return question(launch, Asked(parts=given(None, "h200-sxm")))


@pytest.mark.parametrize("split", [1, 2, 4])
def test_verl_multiplies_the_tokens_of_a_pass_by_the_gpus_that_share_it(split: int) -> None:
    """``ppo_max_token_len_per_gpu * ulysses_sequence_parallel_size`` (dp_actor.py)."""
    found = asked(
        VERL,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=10000",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=20000",
        f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={split}",
    )
    assert found.value(f"{TRAINER}.microbatch_tokens") == 10_000 * split
    assert found.value(f"{TRAINER}.log_prob_microbatch_tokens") == 20_000 * split
    back = found.saying(f"{TRAINER}.microbatch_tokens", 5_000 * split)
    assert back["run.max_pass_tokens"] == 5_000


@pytest.mark.parametrize(
    ("name", "engine"), [(None, None), ("sglang", "sglang"), ("vllm", None), ("hf", None)]
)
def test_a_launch_may_name_another_engine_than_its_stack_has(
    name: str | None, engine: str | None
) -> None:
    """As verl's examples for SGLang do."""
    found = asked(VERL, *([] if name is None else [f"actor_rollout_ref.rollout.name={name}"]))
    assert found.value("cost.roofline.engine") == engine


@pytest.mark.parametrize(("release", "bytes_each", "scored"), [("0.8", 4, 2), ("0.9", 4, 4)])
def test_a_scenario_of_verl_has_the_logits_of_its_launches(
    release: str, bytes_each: int, scored: int
) -> None:
    """Rows are packed and no entropy is in the loss, unless a launch says otherwise."""
    trainer = backends_of(f"verl-{release}")["fsdp"].options
    launch = of_release(read_launch(None, VERL.split()), release)
    found = question(launch, Asked(parts=given(None, "h200-sxm")))
    for key, wanted in [("logit_bytes", bytes_each), ("ungraded_logit_bytes", scored)]:
        assert found.value(f"{TRAINER}.{key}") == trainer[key] == wanted


def test_verl_says_whether_it_trains_the_tower() -> None:
    for frozen in (True, False):
        found = asked(VERL, f"actor_rollout_ref.actor.freeze_vision_tower={frozen}")
        assert found.value(f"{TRAINER}.freeze_tower") is frozen


def test_slime_does_so_by_context_parallel_alone() -> None:
    """``max_tokens_per_gpu * cp_size`` (slime/utils/dp_schedule.py)."""
    flags = ["--use-dynamic-batch-size", "--max-tokens-per-gpu", "9216"]
    split = ["--context-parallel-size", "4", "--tensor-model-parallel-size", "2"]
    found = asked(SLIME, *flags, *split, "--sequence-parallel")
    assert found.value(f"{TRAINER}.microbatch_tokens") == 4 * 9216


@pytest.mark.parametrize(
    ("flags", "key", "wanted"),
    [
        ([], "cost.roofline.data_parallel_attention", None),
        (["--sglang-enable-dp-attention"], "cost.roofline.data_parallel_attention", True),
        (["--megatron-to-hf-mode", "bridge"], f"{TRAINER}.split_recurrent", True),
        (["--megatron-to-hf-mode", "raw"], f"{TRAINER}.split_recurrent", False),
    ],
)
def test_slime_says_which_gpus_attend_for_themselves(
    flags: list[str], key: str, wanted: Any
) -> None:
    assert asked(SLIME, *flags).value(key) is wanted


def test_a_shape_has_as_many_positions_as_the_launch_needs() -> None:
    """Qwen3-Coder and the models of 2507 have longer contexts than others of their shape."""
    short, long = (
        asked(VERL, f"data.max_prompt_length={tokens}", "data.max_response_length=4096")
        for tokens in (2_048, 120_000)
    )
    assert short.value("model") == "qwen3-8b"
    assert long.value("model") == {"preset": "qwen3-8b", "max_positions": 124_096}
    assert long.scenario.ledger is not None


AUTOMODEL = (
    "python examples/run_grpo.py policy.model_name=Qwen/Qwen3-30B-A3B "
    "policy.dtensor_cfg.enabled=true policy.dtensor_cfg.expert_parallel_size=8 "
    "policy.megatron_cfg.enabled=false grpo.num_prompts_per_step=32 "
    "grpo.num_generations_per_prompt=16 policy.train_global_batch_size=512 "
    "cluster.num_nodes=2 cluster.gpus_per_node=8 policy.max_total_sequence_length=4096"
)


def test_automodel_deals_experts_out_to_gpus() -> None:
    launch = read_launch(None, AUTOMODEL.split(), "nemo_rl")
    found = question(launch, Asked(parts=given(None, "h100-sxm")))
    assert found.value(f"{TRAINER}.expert_parallel") == 8
    assert found.scenario.ledger is not None


SHARE = "cost.roofline.kv_memory_utilization"


@pytest.mark.parametrize(
    ("gpu", "flags", "share"),
    [
        ("h200-sxm", [], 0.897),  # 14,848 of 143,771 MiB
        ("h200-sxm", ["--sglang-chunked-prefill-size", "16384"], 0.811),
        ("h200-sxm", ["--sglang-speculative-algorithm", "EAGLE"], 0.882),
        ("h200-sxm", ["--sglang-mem-fraction-static", "0.6"], 0.6),
        ("b200", [], 0.852),
    ],
)
def test_sglang_takes_what_the_gpu_leaves_where_a_launch_does_not_say(
    gpu: str, flags: list[str], share: float
) -> None:
    """``_handle_gpu_memory_settings`` (sglang/srt/server_args.py), worked out by hand."""
    launch = read_launch(None, [*SLIME.split(), *flags])
    found = question(launch, Asked(parts=given(None, gpu)))
    assert found.value(SHARE) == pytest.approx(share, abs=0.004)


@pytest.mark.parametrize(
    ("gpu", "said", "most"),
    [
        ("h100-sxm", "", 1024),
        ("h20", "", 1024),
        ("a800", "", 1024),
        ("a100-80gb", "", 256),
        ("l40s", "", 256),
        ("h100-sxm", " policy.generation.vllm_cfg.max_num_seqs=64", 64),
        ("h100-sxm", " policy.generation.backend=megatron", 256),
    ],
)
def test_vllm_runs_as_many_at_once_as_the_gpu_lets_it(gpu: str, said: str, most: int) -> None:
    """``get_batch_defaults`` (vllm/engine/arg_utils.py), where a launch does not say."""
    launch = read_launch(None, (AUTOMODEL + said).split(), "nemo_rl")
    assert question(launch, Asked(parts=given(None, gpu))).scenario.engine.max_seqs == most


def test_what_a_layout_implies_decides_which_defaults_hold() -> None:
    """AReaL's trainer is FSDP by its layout; before 2.0 it stepped weights of ``actor.dtype``."""
    launch = read_launch(
        None,
        [
            "areal",
            "train",
            "rollout.backend=sglang:d4",
            "actor.backend=fsdp:d4",
            "actor.path=Qwen/Qwen3-8B",
            "actor.dtype=bfloat16",
            "actor.optimizer.type=adam_bf16",
            "train_dataset.batch_size=8",
        ],
        stack="areal",
    )
    for release, dtype in (("1.0", "bf16"), ("2.0", "fp32")):
        held = completed(of_release(launch, release))
        assert held["run.trainer_dtype"].value == dtype
        assert held["run.optimizer"].value == "adamw_kahan"  # of FSDP alone


def test_easyr1_steps_weights_of_16_bit_with_a_third_buffer() -> None:
    """``AnyPrecisionAdamW`` of ``use_kahan_summation=True`` (verl/utils/torch_functional.py)."""
    said = "worker.actor.optim.strategy=adamw_bf16 worker.actor.model.model_path=Qwen/Qwen3-8B"
    launch = read_launch(None, said.split(), stack="easyr1")
    assert completed(launch)["run.optimizer"].value == "adamw_kahan"


@pytest.mark.parametrize(
    ("more", "tensor"),
    [
        ("", 2),  # as the trainer is split
        (" policy.generation.mcore_generation_config.tensor_model_parallel_size=4", 4),
    ],
)
def test_an_engine_of_megatron_is_split_as_megatron_is(more: str, tensor: int) -> None:
    """And not as the settings of vLLM beside it say."""
    command = AUTOMODEL.replace("dtensor_cfg.enabled=true", "dtensor_cfg.enabled=false").replace(
        "megatron_cfg.enabled=false", "megatron_cfg.enabled=true"
    )
    command += (
        " policy.megatron_cfg.tensor_model_parallel_size=2 policy.generation.backend=megatron"
        " policy.generation.vllm_cfg.tensor_parallel_size=1"
    )
    launch = read_launch(None, (command + more).split(), "nemo_rl")
    found = question(launch, Asked(parts=given(None, "h100-sxm")))
    assert found.value("cluster.tensor_parallel") == tensor
