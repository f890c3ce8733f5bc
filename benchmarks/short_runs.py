"""What a run of 10 steps says of one of 500: ``python -m benchmarks.short_runs [--policy P ...]``.

For every policy the steady step time (``step_s``) of a short and of a long run of one scenario, and
how far they are apart: as they are, and by token. The first ten steps of a run have other lengths
than the 500; that is chance and no start-up, and all policies have it alike. By token each step
time is divided by the mean of the tokens trained on in the steps that it is the mean of. Beside
them the plain mean of the ten steps, start-up and all, and by how many seconds the start-up takes
longer than as many steady steps (less, where suspended rollouts are not yet there to be resumed).

Where steps are small and lengths rare, ten steps cannot know (of 160 prompts none may run away): of
short runs with other seeds (``--seeds N``), how far they are off, and how many of their intervals
hold what the long run says. These are intervals of the sampling error alone: lengths and costs are
exact.

What is found is kept in results/short_runs.json, policy by policy, and results/short_runs.md is
made of that.
"""

import sys
from typing import Any

import numpy as np

from benchmarks.runner import RESULTS, parser, read_json, write_json, write_text
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from rollcast.simulator.studies.uncertainty import uncertainty

PATH = RESULTS / "short_runs.json"
SHORT, LONG = 10, 500

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
    "sync",
    "april",
    "sagc",
    "pods(keep=4)",
    "prefix_reuse",
    "dynamic_sampling",
    "tail_batching",
    "one_step_off",
    "one_step_off(steps=3)",
    "fully_async",
    "fully_async(max_staleness=2, in_flight=2)",
    "fully_async(max_staleness=2, in_flight=2, exceeded=capacity)",
    "pipeline_rl",
    "partial_rollout",
    "colocate_async",
    "token_budget(tokens=1024)",
    "sorted_rl",
    "seer",
    "rhyme_rl",
    "longest_first",
    "difficulty",
    "streaming",
)


SMALL = ("workload.batch_groups=16", "workload.max_new_tokens=8192")
LENGTHS = {
    "narrow": "{family: lognormal, median_tokens: 800, between_sd: 0.4, within_sd: 0.3}",
    "wide": "{family: lognormal, median_tokens: 800, between_sd: 0.8, within_sd: 0.3}",
    "0.2 % run away": "{family: lognormal, median_tokens: 800, between_sd: 0.4, within_sd: 0.3, "
    "runaway: 0.002}",
    "0.03 % run away": "{family: lognormal, median_tokens: 800, between_sd: 0.4, within_sd: 0.3, "
    "runaway: 0.0003}",
}
"""Of the small steps, 16 x 8 under a cap of 8,192 tokens."""


def run(policy: str, steps: int, *settings: str, seed: int = 0) -> Result:
    raw = parse_scenario(SCENARIO)
    return simulate(from_raw(raw, f"steps={steps}", *settings, seed=seed).with_policy(policy))


def per_token(result: Result) -> float:
    """Seconds a step over tokens a step, of the steady steps."""
    start, stop = result.summary["steady_steps"]
    tokens = [record.trained_tokens + record.masked_tokens for record in result.run.steps]
    return float(result.summary["step_s"] / np.mean(tokens[start:stop]))


def row(policy: str) -> dict[str, float]:
    """A short run against a long one."""
    short, long = run(policy, SHORT), run(policy, LONG)
    truth = long.summary["step_s"]
    return {
        "plain": short.summary["makespan_s"] / SHORT / truth - 1,
        "short_s": short.summary["step_s"],
        "long_s": truth,
        "apart": short.summary["step_s"] / truth - 1,
        "by_token": per_token(short) / per_token(long) - 1,
        "startup_extra_s": startup_extra_s(short),
        "long_startup_extra_s": startup_extra_s(long),
    }


def startup_extra_s(result: Result) -> float:
    """Seconds of the start-up beyond as many steady steps."""
    summary = result.summary
    return float(summary["startup_s"] - summary["steady_steps"][0] * summary["step_s"])


def coverage(policy: str, lengths: str, seeds: int) -> dict[str, float]:
    """Of short runs with small steps: the share whose interval holds the long run's figure, the
    root mean square of how far they are off, and the median width of their intervals."""
    settings = (*SMALL, f"workload.lengths={LENGTHS[lengths]}")
    truth = run(policy, LONG, *settings, seed=99991).summary["step_s"]
    held, off, widths, interval_known = [], [], [], []
    for seed in range(seeds):
        result = run(policy, SHORT, *settings, seed=seed)
        result_uncertainty = uncertainty(result, costs=[])
        low, high = result_uncertainty.intervals["step_s"]
        held.append(low <= truth <= high)
        off.append(result.summary["step_s"] / truth - 1)
        widths.append((high - low) / truth)
        interval_known.append(bool(result_uncertainty.sampling_error.warning))
    return {
        "held": float(np.mean(held)),
        "off": float(np.sqrt(np.mean(np.square(off)))),
        "width": float(np.median(widths)),
        "warned": float(np.mean(interval_known)),
        "seeds": seeds,
    }


def page(results: dict[str, Any]) -> str:
    """The results in words and tables."""
    rows = {name: entry["run"] for name, entry in results.items() if "run" in entry}
    lines = [
        "# Ten steps against 500",
        "",
        "`python -m benchmarks.short_runs` (what each column is stands there). 64 groups of 8 "
        "rollouts a step:",
        "",
        f"| policy | plain mean of {SHORT} | step_s, {SHORT} | step_s, {LONG} | apart | by token "
        f"| start-up's extra s, {SHORT} | start-up's extra s, {LONG} |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name in POLICIES:
        if name in rows:
            r = rows[name]
            lines.append(
                f"| {name} | {r['plain']:+.1%} | {r['short_s']:.2f} | {r['long_s']:.2f} "
                f"| {r['apart']:+.1%} | {r['by_token']:+.1%} | {r['startup_extra_s']:.0f} "
                f"| {r['long_startup_extra_s']:.0f} |"
            )
    within = sum(abs(r["by_token"]) <= 0.02 for r in rows.values())
    worst = max((abs(r["by_token"]) for r in rows.values()), default=0.0)
    lines += ["", f"{within} of {len(rows)} within 2 % by token, the worst {worst:.1%}.", ""]
    covered = {name: entry["coverage"] for name, entry in results.items() if "coverage" in entry}
    lines += [
        "16 groups of 8 a step: the share of 90 % intervals of 10 steps (of the sampling error "
        "alone) that hold the step time of 500, and in brackets how far 10 steps are off (root "
        "mean square):",
        "",
        "| policy | " + " | ".join(LENGTHS) + " |",
        "|---|" + "--:|" * len(LENGTHS),
    ]
    shares = []
    for name in POLICIES:
        if name in covered:
            cells = [covered[name].get(steps) for steps in LENGTHS]
            shares += [cell["held"] for cell in cells if cell]
            texts = (f"{cell['held']:.0%} ({cell['off']:.0%})" if cell else "" for cell in cells)
            lines.append(f"| {name} | {' | '.join(texts)} |")
    if shares:
        seeds = {cell["seeds"] for entry in covered.values() for cell in entry.values()}
        lines += ["", f"{np.mean(shares):.0%} of them all do, of {max(seeds):.0f} seeds each."]
    return "\n".join(lines).replace("%", " %").replace("  %", " %") + "\n"


def main() -> int:
    """Adds what it measures to the results; 1 where a policy is more than 2 % off by token."""
    options = parser(__doc__)
    options.add_argument("--policy", action="append")
    options.add_argument("--seeds", type=int, default=0, help="of the intervals; 0 for none")
    given = options.parse_args()
    worst = 0.0
    for policy in given.policy or POLICIES:
        results = read_json(PATH, {})
        entry = results.setdefault(policy, {})
        if given.seeds:
            entry["coverage"] = {name: coverage(policy, name, given.seeds) for name in LENGTHS}
        else:
            entry["run"] = row(policy)
            worst = max(worst, abs(entry["run"]["by_token"]))
        write_json(PATH, results)
        write_text(PATH.with_suffix(".md"), page(results))
        print(policy, entry, flush=True)
    return int(worst > 0.02)


if __name__ == "__main__":
    sys.exit(main())
