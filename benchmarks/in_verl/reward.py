"""verl's ``reward.custom_reward_function`` for the built-in task."""

from __future__ import annotations

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **more: Any
) -> float:
    """As `engine.tasks.collatz`: 1 where what follows the last ``=`` is the answer."""
    sign, answer = solution_str.rpartition("=")[1:]
    return float(bool(sign) and answer == ground_truth)
