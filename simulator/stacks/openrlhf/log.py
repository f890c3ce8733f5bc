"""What OpenRLHF's keys do not say by themselves."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.stacks.log_format import Raw, Row
from rollcast.simulator.stacks.settings import Settings, value, whole

_PHASES = ("generation", "make_experience", "ppo_train", "broadcast")


def overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    """Where no setting says so: whether the phases take longer than the step."""
    asynchronous = value(settings, "run.asynchronous")
    if asynchronous is not None:
        return asynchronous is True
    for row in rows:
        parts = [row[f"timing/{name}"] for name in _PHASES if f"timing/{name}" in row]
        step = row.get("timing/step_total")
        if step is not None and len(parts) == 4 and sum(parts) > 1.05 * step + 0.1:
            return True
    return False


def derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    """Generation beside the training is of another batch; rollouts follow from the settings."""
    if overlapped:
        row.pop("generation_s", None)
    if "rollouts" not in row:
        groups, size = (
            whole(settings, f"workload.{key}") for key in ("batch_groups", "group_size")
        )
        if groups and size and "step_s" in row:
            row["rollouts"] = float(groups * size)
