"""What a launch says of passes, contexts and engines, read as its stack runs it."""

from __future__ import annotations

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


def test_a_change_of_tokens_is_said_for_one_gpu() -> None:
    """``ppo_max_token_len_per_gpu * ulysses_sequence_parallel_size`` (verl, dp_actor.py)."""
    found = asked(VERL, "actor_rollout_ref.actor.ulysses_sequence_parallel_size=4")
    assert found.saying(f"{TRAINER}.microbatch_tokens", 20_000)["run.max_pass_tokens"] == 5_000


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
    said = "python3 -m verl.trainer.main worker.actor.optim.strategy=adamw_bf16 data.seed=1"
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
