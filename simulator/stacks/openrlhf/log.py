"""OpenRLHF: ``Global step N: {...}`` on the console, TensorBoard.

Keys: openrlhf/trainer/ppo_trainer.py and ppo_trainer_async.py (0.11, since April 2026). Traps held
here: ``timing/step_total`` is the sum of the phases in the synchronous trainer and wall time in the
asynchronous one; lengths have a mean and no maximum; nothing is dumped.
"""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.consoles import DictConsole
from rollcast.simulator.stacks.log_format import Raw, Row, StackLog
from rollcast.simulator.stacks.settings import Settings, value
from rollcast.simulator.stacks.settings import whole as setting

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


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    asynchronous = value(settings, "run.asynchronous")
    if asynchronous is not None:
        return asynchronous is True
    # the sum of the phases says: synchronous
    for row in rows:
        parts = [
            row[k]
            for k in (f"{_T}generation", f"{_T}make_experience", f"{_T}ppo_train", f"{_T}broadcast")
            if k in row
        ]
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


LOG = StackLog(
    "openrlhf",
    _METRICS,
    marks=(f"{_T}make_experience", f"{_T}ppo_train", "rollout/response_length_mean"),
    start=rb"\bGlobal step \d{1,12}: ?\{",
    cue=b"Global step ",
    console=lambda: DictConsole(r"\bGlobal step (?P<step>\d{1,12}): ?(?=\{)"),
    overlapped=_overlapped,
    derive=_derive,
    how={
        1: "the console holds 'Global step N: {...}' with timing/* since April 2026",
        2: "OpenRLHF dumps no rollouts",
        3: "OpenRLHF writes no times of single requests",
    },
)
