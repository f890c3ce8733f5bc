"""OpenRLHF: ``Global step N: {...}`` on the console, TensorBoard.

Keys: openrlhf/trainer/ppo_trainer.py and ppo_trainer_async.py (0.11, since April 2026). Traps held
here: ``timing/step_total`` is the sum of the phases in the synchronous trainer and wall time in the
asynchronous one; lengths have a mean and no maximum; nothing is dumped.
"""

from __future__ import annotations

from collections.abc import Iterable

from calibration.logs.readers.consoles import DictConsole
from calibration.logs.readers.stack import Raw, Row, Stack
from calibration.logs.settings import Setting, Settings, value
from calibration.logs.settings import whole as setting

_T = "timing/"
_METRICS = {
    "step_s": (f"{_T}step_total",),
    "generation_s": (f"{_T}generation",),
    "log_prob_s": (f"{_T}make_experience",),
    "update_s": (f"{_T}ppo_train", f"{_T}policy_train"),
    "sync_s": (f"{_T}broadcast",),
    "mean_new_tokens": ("rollout/response_length_mean", "response_length"),
    "truncated_share": ("rollout/truncated_rate", "truncated"),
    "rollouts": ("rollout/num_samples",),
    "mean_reward": ("rollout/reward_mean", "reward"),
    "reward_sd": ("rollout/reward_std",),
}
_SETTINGS = {
    "model": ("pretrain", "actor.model_name_or_path"),
    "workload.batch_groups": ("rollout_batch_size", "rollout.batch_size"),
    "workload.group_size": ("n_samples_per_prompt", "rollout.n_samples_per_prompt"),
    "workload.max_new_tokens": ("generate_max_len", "max_new_tokens", "rollout.max_new_tokens"),
    "cluster.replicas": ("vllm_num_engines", "vllm.num_engines"),
    "cluster.tensor_parallel": ("vllm_tensor_parallel_size", "vllm.tensor_parallel_size"),
    "run.colocated": ("colocate_all_models", "train.colocate_all"),
    "run.asynchronous": ("async_train", "train.async_enable"),
    "run.nodes": ("actor_num_nodes", "actor.num_nodes"),
    "run.gpus_per_node": ("actor_num_gpus_per_node", "actor.num_gpus_per_node"),
    "run.mini_batch_rollouts": ("train_batch_size", "train.batch_size"),
    "run.micro_batch_rollouts": ("micro_train_batch_size", "train.micro_batch_size"),
    "run.gpu_memory_share": ("vllm_gpu_memory_utilization", "vllm.gpu_memory_utilization"),
    "run.max_prompt_tokens": ("prompt_max_len", "data.prompt_max_len"),
    "run.algorithm": ("advantage_estimator", "algo.advantage_estimator"),
    "run.filter_groups": ("dynamic_filtering", "algo.dynamic_filtering_enable"),
}


def _implied(settings: Settings) -> Iterable[Setting]:
    """Engines without ``--colocate_all_models`` have GPUs of their own."""
    engines = settings.get("cluster.replicas")
    count = setting(settings, "cluster.replicas")
    if engines is None or count is None or "run.colocated" in settings:
        return
    yield engines.implies("run.colocated", False)
    yield engines.implies(
        "run.rollout_gpus", count * (setting(settings, "cluster.tensor_parallel") or 1)
    )


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    said = value(settings, "run.asynchronous")
    if said is not None:
        return said is True
    # the sum of the phases says: synchronous
    for row in rows:
        parts = [row[k] for k in (f"{_T}generation", f"{_T}make_experience", f"{_T}ppo_train",
                                  f"{_T}broadcast") if k in row]  # fmt: skip
        step = row.get(f"{_T}step_total")
        if step is not None and len(parts) == 4 and sum(parts) > 1.05 * step + 0.1:
            return True
    return False


def _derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    if overlapped and "generation_s" in row:
        del row["generation_s"]  # of another batch than the one trained on
    if "rollouts" not in row:
        size = [setting(settings, f"workload.{key}") for key in ("batch_groups", "group_size")]
        if size[0] and size[1] and "step_s" in row:
            row["rollouts"] = float(size[0] * size[1])


_ADVICE = {
    "sync": "without --async_train",
    "one_step_off": "--async_train, without --colocate_all_models",
    "split_fewer": "--actor_num_gpus_per_node up",
}  # fmt: skip
"""Our what-ifs in settings of theirs."""

STACK = Stack(
    "openrlhf",
    _METRICS,
    marks=(f"{_T}make_experience", f"{_T}ppo_train", "rollout/response_length_mean"),
    settings=_SETTINGS,
    start=rb"\bGlobal step \d{1,12}: ?\{",
    cue=b"Global step ",
    console=lambda: DictConsole(r"\bGlobal step (?P<step>\d{1,12}): ?(?=\{)"),
    overlapped=_overlapped,
    implied=_implied,
    derive=_derive,
    advice=_ADVICE,
    how={
        1: "the console holds 'Global step N: {...}' with timing/* since April 2026",
        2: "OpenRLHF dumps no rollouts",
        3: "OpenRLHF writes no times of single requests",
    },
)
