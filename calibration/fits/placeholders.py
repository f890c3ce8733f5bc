"""Sections of a scenario whose values are put in their place later, or never asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ONE = {"family": "lognormal", "between_sd": 0, "within_sd": 0}
LENGTHS: Mapping[str, Any] = {**_ONE, "median_tokens": 1}
TURNS: Mapping[str, Any] = {**_ONE, "median": 1, "max_turns": 1, "observation_tokens": 0}
LINEAR: Mapping[str, float] = {
    "iteration_s": 1.0,
    "per_rollout_s": 0.0,
    "per_context_token_s": 0.0,
    "per_prefill_token_s": 0.0,
    "train_per_token_s": 0.0,
}
COST: Mapping[str, Any] = {"linear": LINEAR}
