"""What EasyR1's keys do not say by themselves."""

from __future__ import annotations

from rollcast.simulator.stacks.log_format import Raw, Row
from rollcast.simulator.stacks.settings import Settings


def derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    """The weight sync is inside the generation; rollouts follow from tokens."""
    if "generation_s" in row:
        row["sync_inside_generation"] = 1.0
    tokens = row.get("mean_new_tokens", 0.0) + row.get("mean_prompt_tokens", 0.0)
    if "total_tokens" in row and "mean_prompt_tokens" in row and tokens > 0:
        row["rollouts"] = float(round(row["total_tokens"] / tokens))
