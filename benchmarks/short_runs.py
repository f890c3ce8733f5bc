"""What a run of 10 steps says of one of 500: ``python -m benchmarks.short_runs``.

For every policy the steady step time (``step_s``) of a short and of a long run of one scenario, and
how far they are apart: as they are, and by token. The first ten steps of a run have other lengths
than the 500; that is chance and no start-up, and all policies have it alike. By token each step
time is divided by the mean of the tokens trained on in the steps that it is the mean of. Beside
them the plain mean of the ten steps, start-up and all, which `step_s` used to be.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from simulator.scenario.file import parse_scenario
from simulator.studies.simulate import Result, from_raw, simulate

SCENARIO = """
model: qwen3-8b
gpu: h100-sxm
cluster: {placement: disaggregated, replicas: 4, tensor_parallel: 1, trainer_gpus: 4}
engine: {max_seqs: 128}
workload:
  batch_groups: 64
  group_size: 8
  prompt_tokens: 256
  max_new_tokens: 2048
  lengths: {family: lognormal, median_tokens: 500, between_sd: 0.4, within_sd: 0.3}
"""
POLICIES = (
    "sync", "april", "sagc", "pods(keep=4)", "prefix_reuse", "dynamic_sampling", "tail_batching",
    "one_step_off", "one_step_off(steps=3)", "fully_async",
    "fully_async(max_staleness=2, in_flight=2)",
    "fully_async(max_staleness=2, in_flight=2, exceeded=capacity)", "pipeline_rl",
    "partial_rollout", "colocate_async", "token_budget(tokens=1024)", "sorted_rl", "seer",
    "rhyme_rl", "longest_first", "difficulty", "streaming",
)  # fmt: skip


def run(policy: str, steps: int) -> Result:
    """The scenario's run of so many steps."""
    return simulate(from_raw(parse_scenario(SCENARIO), f"steps={steps}").with_policy(policy))


def per_token(result: Result) -> float:
    """Seconds a step over tokens a step, of the steady steps."""
    start, stop = result.summary["steady_steps"]
    tokens = [record.trained_tokens + record.masked_tokens for record in result.run.steps]
    return float(result.summary["step_s"] / np.mean(tokens[start:stop]))


def row(policy: str, steps: int, more: int) -> tuple[str, float]:
    """A line of the table, and the distance by token."""
    short, long = run(policy, steps), run(policy, more)
    found, truth = short.summary["step_s"], long.summary["step_s"]
    plain = short.summary["makespan_s"] / steps
    by_token = per_token(short) / per_token(long) - 1
    return (
        f"| {policy} | {plain / truth - 1:+.1%} | {found:.2f} | {truth:.2f} | "
        f"{found / truth - 1:+.1%} | {by_token:+.1%} | {short.summary['fill_s']:.0f} | "
        f"{long.summary['fill_s']:.0f} |",
        by_token,
    )


def main() -> int:
    """Prints the table; 1 where a policy is more than 2 % off by token."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", type=int, default=10)
    parser.add_argument("--long", type=int, default=500)
    parser.add_argument("--policy", action="append")
    given = parser.parse_args()
    print(
        f"| policy | plain mean of {given.short} | step_s, {given.short} | step_s, {given.long} "
        "| apart | by token | fill_s | fill_s |\n|---|---|---|---|---|---|---|---|"
    )
    worst = 0.0
    for policy in given.policy or POLICIES:
        line, apart = row(policy, given.short, given.long)
        worst = max(worst, abs(apart))
        print(line, flush=True)
    print(f"\nat most {worst:.1%} by token")
    return int(worst > 0.02)


if __name__ == "__main__":
    sys.exit(main())
