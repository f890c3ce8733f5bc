"""A reward for servers that draw tokens at random: long responses earn."""

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    return float(len(solution_str) > 30)
