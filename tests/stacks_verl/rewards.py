"""Rewards for servers that draw tokens at random: long responses earn."""

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    return float(len(solution_str) > 30)


def some_fail(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    """As above, but every prompt of some kinds fails: a rollout's reward cannot be computed."""
    if int(ground_truth) % 4 == 0:
        raise ValueError("this prompt fails")
    return compute_score(data_source, solution_str, ground_truth)
