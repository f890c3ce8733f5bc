"""Scenarios of seconds that many tests change."""

from typing import Any

import yaml

COST = """\
cost:
  linear:
    iteration_s: 6.0e-3
    per_rollout_s: 2.0e-5
    per_context_token_s: 2.2e-8
    per_prefill_token_s: 4.0e-6
    train_per_token_s: 1.0e-5
    train_fixed_s: 0.0
    sync_s: 1.0
"""
"""The section ``cost``, linear."""
LINEAR: dict[str, float] = yaml.safe_load(COST)["cost"]["linear"]
FREE = dict.fromkeys(LINEAR, 0.0)
"""The coefficients of work that takes no time."""
MINIMAL: dict[str, Any] = {
    "engine": {"kv_tokens": 100_000},
    "workload": {
        "batch_groups": 4,
        "group_size": 4,
        "prompt_tokens": 100,
        "max_new_tokens": 1000,
        "lengths": {"family": "lognormal", "median_tokens": 200, "between_sd": 0, "within_sd": 0},
    },
    "cost": {"linear": LINEAR},
}
"""What a scenario needs."""
TINY = f"""\
cluster: {{replicas: 2}}
engine: {{max_seqs: 8, max_batched_tokens: 2048, kv_tokens: 100000}}
workload:
  batch_groups: 4
  group_size: 4
  prompt_tokens: 100
  max_new_tokens: 1000
  lengths: {{family: lognormal, median_tokens: 200, between_sd: 0.65, within_sd: 0.30}}
  rewards: {{family: beta_bernoulli, mean: 0.5, between_sd: 0.3}}
policy:
  - april: {{over_sampling: 2.0}}
{COST}steps: 3
seed: 0
"""
"""Two replicas under APRIL."""
