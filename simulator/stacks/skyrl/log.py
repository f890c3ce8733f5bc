"""What SkyRL's keys do not say by themselves."""

from __future__ import annotations

from rollcast.simulator.stacks.log_format import Raw, Row
from rollcast.simulator.stacks.settings import Settings, whole


def derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    """``train_critic_and_policy`` includes the critic's update; groups are dropped whole."""
    groups, size = raw.get("async/num_groups_dropped"), whole(settings, "workload.group_size")
    if groups is not None and size is not None:
        row.setdefault("dropped_rollouts", groups * size)
    if "timing/policy_train" not in raw:
        row.pop("critic_update_s", None)
