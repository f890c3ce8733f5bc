"""SkyRL: the console's ``Step N:`` with a printed mapping, TensorBoard.

Keys: skyrl/train/trainer.py, fully_async_trainer.py and utils/tracking.py (August 2026). Traps held
here: the console prints floats as texts, over many lines; where ``async/`` is logged, ``generate``
is a wait. Its dump of batches is a pickle of the trainer's own objects, which is never loaded.
"""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.consoles import DictConsole
from rollcast.simulator.stacks.log_format import Raw, Row, StackLog
from rollcast.simulator.stacks.settings import Settings

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


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    return any(key.startswith(_A) for row in rows for key in row)


def _derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    if f"{_T}policy_train" not in raw:
        row.pop("critic_update_s", None)  # inside train_critic_and_policy


LOG = StackLog(
    "skyrl",
    _METRICS,
    marks=(
        f"{_T}generate",
        f"{_T}fwd_logprobs_values_reward",
        f"{_G}avg_num_tokens",
        f"{_T}train_critic_and_policy",
        f"{_A}staleness_mean",
    ),
    start=rb"\bStep \d{1,12}: ?(?:$|\{)",
    cue=b"Step ",
    console=lambda: DictConsole(r"\bStep (?P<step>\d{1,12}): ?(?=$|\{)"),
    overlapped=_overlapped,
    generation_waits=True,
    inside={"checkpoint": False, "validation": False},
    derive=_derive,
    exceeded="capacity",
    how={
        1: "the console, or trainer.logger=tensorboard, holds timing/*",
        2: "SkyRL dumps rollouts as pickles only, which are not loaded",
        3: "SkyRL writes no times of single requests",
    },
)
