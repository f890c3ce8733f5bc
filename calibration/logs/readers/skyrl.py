"""SkyRL: the console's ``Step N:`` with a printed mapping, TensorBoard.

Keys: skyrl/train/trainer.py, fully_async_trainer.py and utils/tracking.py (August 2026). Traps held
here: the console prints floats as texts, over many lines; where ``async/`` is logged, ``generate``
is a wait. Its dump of batches is a pickle of the trainer's own objects, which is never loaded.
"""

from __future__ import annotations

from collections.abc import Iterable

from calibration.logs.readers.consoles import DictConsole
from calibration.logs.readers.stack import Raw, Row, Stack
from calibration.logs.settings import Settings

_T, _G, _A = "timing/", "generate/", "async/"
_METRICS = {
    "step_s": (f"{_T}step",),
    "generation_s": (f"{_T}generate",),
    "wait_s": (f"{_T}wait_for_generation_buffer",),
    "log_prob_s": (f"{_T}fwd_logprobs_values_reward",),
    "advantage_s": (f"{_T}compute_advantages_and_returns",),
    "update_s": (f"{_T}policy_train", f"{_T}train_critic_and_policy"),
    "critic_update_s": (f"{_T}critic_train",),
    "data_s": (f"{_T}convert_to_training_input",),
    "sync_s": (f"{_T}sync_weights",),
    "validation_s": (f"{_T}eval",),
    "checkpoint_s": (f"{_T}save_checkpoints",),
    "mean_new_tokens": (f"{_G}avg_num_tokens",),
    "max_new_tokens": (f"{_G}max_num_tokens",),
    "min_new_tokens": (f"{_G}min_num_tokens",),
    "rollouts": (f"{_G}batch_num_seq",),
    "mean_request_s": (f"{_G}trajectory_time_llm_mean",),
    "max_request_s": (f"{_G}trajectory_time_llm_max",),
    "mean_environment_s": (f"{_G}trajectory_time_env_mean",),
    "max_environment_s": (f"{_G}trajectory_time_env_max",),
    "mean_staleness": (f"{_A}staleness_mean",),
    "max_staleness": (f"{_A}staleness_max",),
    "dropped_rollouts": (f"{_A}num_rollouts_dropped",),
    "mean_reward": ("reward/avg_raw_reward", "reward/avg_pass_at_1"),
}
_SETTINGS = {
    "model": ("trainer.policy.model.path",),
    "workload.batch_groups": ("trainer.train_batch_size",),
    "workload.group_size": ("generator.n_samples_per_prompt",),
    "workload.max_new_tokens": ("generator.sampling_params.max_generate_length",),
    "cluster.replicas": ("generator.num_inference_engines",
                         "generator.inference_engine.num_engines"),
    "cluster.tensor_parallel": ("generator.inference_engine_tensor_parallel_size",
                                "generator.inference_engine.tensor_parallel_size"),
    "engine.max_seqs": ("generator.max_num_seqs",),
    "engine.max_batched_tokens": ("generator.max_num_batched_tokens",),
    "run.colocated": ("trainer.placement.colocate_all",),
    "run.nodes": ("trainer.placement.policy_num_nodes",),
    "run.gpus_per_node": ("trainer.placement.policy_num_gpus_per_node",),
    "run.mini_batch_groups": ("trainer.policy_mini_batch_size",),
    "run.micro_batch_rollouts": ("trainer.micro_train_batch_size_per_gpu",),
    "run.strategy": ("trainer.strategy",),
    "run.max_staleness": ("trainer.fully_async.max_staleness_steps",),
    "run.gpu_memory_share": ("generator.gpu_memory_utilization",),
    "run.max_turns": ("generator.max_turns",),
    "run.algorithm": ("trainer.algorithm.advantage_estimator",),
    "run.max_prompt_tokens": ("trainer.max_prompt_length",),
}  # fmt: skip


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    return any(key.startswith(_A) for row in rows for key in row)


def _derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    if overlapped and "generation_s" in row:
        row.setdefault("wait_s", row["generation_s"])
        del row["generation_s"]
    if f"{_T}policy_train" not in raw:
        row.pop("critic_update_s", None)  # inside train_critic_and_policy
    for flag in ("checkpoint", "validation"):
        if f"{flag}_s" in row:
            row[f"{flag}_inside"] = 0.0


_ADVICE = {
    "one_step_off": (
        "trainer.placement.colocate_all=false, with the fully asynchronous trainer and "
        "trainer.fully_async.max_staleness_steps"
    ),
    "split_fewer": "trainer.placement.policy_num_gpus_per_node up",
}  # fmt: skip
"""Our what-ifs in settings of theirs."""

STACK = Stack(
    "skyrl",
    _METRICS,
    marks=(f"{_T}generate", f"{_T}fwd_logprobs_values_reward", f"{_G}avg_num_tokens",
           f"{_T}train_critic_and_policy", f"{_A}staleness_mean"),
    settings=_SETTINGS,
    start=rb"\bStep \d{1,12}: ?(?:$|\{)",
    cue=b"Step ",
    console=lambda: DictConsole(r"\bStep (?P<step>\d{1,12}): ?(?=$|\{)"),
    overlapped=_overlapped,
    derive=_derive,
    advice=_ADVICE,
    exceeded="capacity",
    how={
        1: "the console, or trainer.logger=tensorboard, holds timing/*",
        2: "SkyRL dumps rollouts as pickles only, which are not loaded",
        3: "SkyRL writes no times of single requests",
    },
)  # fmt: skip
