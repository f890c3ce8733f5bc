"""How far a log goes, and what it lacks of each level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcast.calibration.logs import columns
from rollcast.calibration.logs.run_log import Gap
from rollcast.simulator.stacks.log_format import StackLog

if TYPE_CHECKING:
    import pandas as pd

_WANTED = (
    *("generation_s", "update_s", "mean_new_tokens", "max_new_tokens", "min_new_tokens"),
    *("truncated_share", "mean_prompt_tokens", "rollouts", "sync_s"),
)
"""Columns of steps.csv whose absence is told."""


def level_of(steps: pd.DataFrame, rollouts: pd.DataFrame, requests: pd.DataFrame) -> int:
    """The highest level that is there with all below it."""
    reached = (bool(steps["step_s"].notna().any()), _has_lengths(rollouts), len(requests) > 0)
    return (*reached, False).index(False)


def _has_lengths(rollouts: pd.DataFrame) -> bool:
    known = rollouts["new_tokens"].notna() | rollouts["characters"].notna()
    return len(rollouts) > 0 and bool(known.all())


def gaps_of(
    stack: StackLog,
    steps: pd.DataFrame,
    rollouts: pd.DataFrame,
    requests: pd.DataFrame,
    unnamed: bool,
) -> tuple[Gap, ...]:
    """What is missing at each level. unnamed: whether only their order shows some groups."""
    gaps: list[Gap] = []

    def lacks(level: int, column: str, why: str) -> None:
        gaps.append(Gap(level, column, why))

    if steps["step_s"].isna().all():
        lacks(1, "step_s", f"no step has its seconds; {stack.how.get(1, '')}")
    missing = [name for name in _WANTED if steps[name].isna().all()]
    if "generation_s" in missing and (steps["overlapped"] == 1).any():
        missing.remove("generation_s")
        why = "rollouts overlapped training: the log holds only the wait for them"
        lacks(1, "generation_s", why)
    if "sync_s" in missing and (steps["sync_inside_generation"] == 1).any():
        missing.remove("sync_s")
        lacks(1, "sync_s", "the weight sync is part of generation_s")
    for name in missing:
        lacks(1, name, f"not in the log: {columns.STEPS[name].meaning}")
    if (steps["truncated_share_unsure"] == 1).any():
        why = "it counts the longest of each batch as cut, since the cap is not in the log"
        lacks(1, "truncated_share", why)
    if not len(rollouts):
        lacks(2, "rollouts", f"no single rollouts; {stack.how.get(2, '')}")
    elif not _has_lengths(rollouts):
        lacks(2, "new_tokens", "some rollouts have no length")
    elif rollouts["new_tokens"].isna().any():
        why = "only the text was dumped: its tokens need the tokenizer, or an estimate from "
        lacks(2, "new_tokens", f"{why}characters")
    if rollouts["reward"].isna().any():
        lacks(2, "reward", "some rollouts have no reward")
    if len(rollouts) and unnamed:
        why = "groups are told by prompts that follow each other: the group's size is not in the "
        lacks(2, "group", f"{why}log")
    if not len(requests):
        lacks(3, "requests", f"no times of requests; {stack.how.get(3, '')}")
    return tuple(gaps)
