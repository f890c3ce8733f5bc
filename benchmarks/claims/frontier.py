"""The policies beyond one batch at a time, each against what its authors publish.

verl's own runs are forecast as published. The papers' settings are of tens to hundreds of GPUs, and
few of them say how long their responses were: here each is scaled down with the same load on each
GPU, and what is compared is a ratio.
"""

import statistics
from functools import cache
from typing import Any

from benchmarks.claims.common import Row, lognormal, percent, relative
from benchmarks.published_lengths import lognormal_for_moments
from benchmarks.runner import simulated
from benchmarks.validation.published_runs import published_sources
from benchmarks.validation.run_phases import forecast
from benchmarks.validation.runs import pairs
from rollcast.simulator.core.spans import TRAINED
from rollcast.simulator.studies.simulate import Result

WARM_UP_STEPS = 2


LINEAR: dict[str, Any] = {
    "iteration_s": 8.0e-3,
    "per_rollout_s": 6.0e-5,
    "per_context_token_s": 2.0e-8,
    "per_prefill_token_s": 4.0e-6,
    "train_per_token_s": 1.0e-6,
}
"""Round figures for a small mixture of experts: rows that compare rollout phases only."""


LONG: dict[str, Any] = {
    "family": "lognormal",
    "median_tokens": 18_000,
    "between_sd": 0.7,
    "within_sd": 0.35,
}
"""Long responses, capped at 65,536 tokens."""


@cache
def moments(mean: int, sd: int, group_sd: int, cap: int) -> dict[str, Any]:
    """The capped lognormal with these moments, tokens."""
    return lognormal(lognormal_for_moments(mean, sd, group_sd, cap))


def step_s(result: Result) -> float:
    """Seconds a step, once it runs in."""
    steps = result.run.steps
    return (steps[-1].end_s - steps[WARM_UP_STEPS - 1].end_s) / (len(steps) - WARM_UP_STEPS)


def rollout_s(result: Result, first: int = 0) -> float:
    """Seconds of all rollout phases from step ``first`` on."""
    return sum(record.rollout_s for record in result.run.steps[first:])


def bubble(result: Result) -> float:
    """The share of slots that stood empty, of as many as a step starts rollouts."""
    segments, empty = result.run.segments, []
    for record in result.run.steps[WARM_UP_STEPS:]:
        mine = segments["step"] == record.step
        busy_s = float((segments["end_s"][mine] - segments["start_s"][mine]).sum())
        empty.append(1 - busy_s / (int(mine.sum()) * record.rollout_s))
    return statistics.fmean(empty)


def stale(result: Result) -> int:
    """The largest number of versions that a token trained on was behind."""
    segments = result.run.segments
    trained = segments["outcome"] == TRAINED
    return int((segments["trained_step"][trained] - segments["version"][trained]).max())


def apart(rollout_gpus: int, gpus: int) -> dict[str, Any]:
    """Replicas of one GPU, and the other GPUs for the trainer."""
    return {
        "placement": "disaggregated",
        "replicas": rollout_gpus,
        "trainer_gpus": gpus - rollout_gpus,
    }


def workload(
    groups: int, size: int, cap: int, lengths: dict[str, Any], prompts: int | None = None
) -> dict[str, Any]:
    """Prompts of 512 tokens, and responses up to the cap."""
    return {
        "batch_groups": groups,
        "group_size": size,
        "prompts": prompts,
        "prompt_tokens": 512,
        "max_new_tokens": cap,
        "lengths": lengths,
    }


# A 7B model, 8 GPUs


@cache
def seven(policy: str, rollout_gpus: int | None = None) -> Result:
    """verl's setting for Qwen2.5-7B, a sixteenth of it: 8 GPUs, 32 x 16 rollouts, cap 28,672."""
    cluster = {"replicas": 8} if rollout_gpus is None else apart(rollout_gpus, 8)
    return simulated(
        model="qwen2.5-7b",
        gpu="h100-sxm",
        cluster=cluster,
        workload=workload(32, 16, 28_672, moments(7_000, 6_000, 3_000, 28_672)),
        policy=policy,
        steps=7,
    )


def best(policy: str) -> tuple[float, int]:
    """Seconds a step at the best of three splits, and its GPUs for rollouts."""
    return min((step_s(seven(policy, gpus)), gpus) for gpus in (3, 4, 5))


SEVEN = {
    "pipeline_rl": ("pipeline_rl over synchronous, 7B", "about 2x (of learning)", 2.0),
    "streaming": ("streaming over synchronous", "1.12x to 2.12x", 1.12),
}


def seven_row(policy: str) -> Row:
    claim, text, published = SEVEN[policy]
    seconds, gpus = best(policy)
    gain = step_s(seven("sync")) / seconds
    return Row(
        claim,
        text,
        f"{gain:.2f}x with {gpus} of 8 GPUs for rollouts",
        f"{relative(gain, published)} of the low end",
        "mean 7,000, sd 6,000 (3,000 within a group), prompt 512; a sixteenth of GPUs and batch",
    )


# verl, its own runs


RUNS = {
    "fully_async over synchronous, verl's recipe, 7B": (
        "verl_fully_async_readme",
        ("verl-fa-7b-h20-async-64-64", "verl-fa-7b-h20-sync-128"),
    ),
    "verl V1, colocate_async over sync": (
        "verl_v1_async_page",
        ("verl-v1-35b-h100-colocate-async", "verl-v1-35b-h100-sync"),
    ),
    "verl V1, separate_async over sync": (
        "verl_v1_async_page",
        ("verl-v1-35b-h100-separate-async", "verl-v1-35b-h100-sync"),
    ),
}
"""Source and runs of a gain, in `benchmarks/data/published/runs`, the changed run first."""


def run_row(claim: str) -> Row:
    """How many times as fast one published run is as another, per rollout that it trains on."""
    source, names = RUNS[claim]
    published = published_sources()[source]
    found = {name: forecast(published.runs[name], seeds=1, draws=0) for name in names}
    [(_, measured, ratio)] = pairs({source: published}, found)
    return Row(
        claim,
        f"{1 / measured:.2f}x",
        f"{1 / ratio:.2f}x",
        relative(measured / ratio, 1.0),
        "the set-ups of the source, without what stacks are fitted to",
    )


# Order and placement


@cache
def ordered(policy: str, max_seqs: int = 32, prompts: int | None = None, steps: int = 3) -> Result:
    """Rollout phases of long responses: 100 x 8 on 8 replicas, cap 65,536."""
    return simulated(
        cluster={"replicas": 8},
        engine={"max_seqs": max_seqs, "kv_tokens": 1_300_000},
        cost={"linear": LINEAR},
        workload=workload(100, 8, 65_536, LONG, prompts),
        policy=policy,
        steps=steps,
    )


def order_rows() -> list[Row]:
    base = rollout_s(ordered("sync"))
    seer = base / rollout_s(ordered("seer")) - 1
    oracle = base / rollout_s(ordered("longest_first")) - 1
    assumed = (
        "lengths (median 18,000, cap 65,536), 32 slots a replica for 100 rollouts, linear costs"
    )
    epoch = {"prompts": 200, "steps": 8}
    again = rollout_s(ordered("sync", **epoch), 2)
    rhyme = again / rollout_s(ordered("rhyme_rl", **epoch), 2)
    known = again / rollout_s(ordered("longest_first", **epoch), 2)
    return [
        Row(
            "Seer's order by probes, rollout throughput",
            "+14 % of +104 % in all",
            f"{percent(seer)} (known lengths: {percent(oracle)})",
            f"{100 * (seer - 0.14):+.0f} points",
            assumed,
        ),
        Row(
            "RhymeRL's placement by the last epoch",
            "part of 1.43x, 1.56x, 2.34x",
            f"{rhyme:.2f}x (known lengths: {known:.2f}x)",
            "not separable",
            f"{assumed}; 200 prompts, epochs after the first",
        ),
    ]


def sorted_rows() -> list[Row]:
    spec = {"max_seqs": 512, "steps": 10}
    base = bubble(ordered("sync", **spec))
    rows = []
    for mode in ("on_policy", "partial"):
        left = bubble(ordered(f"sorted_rl(mode={mode})", **spec))
        cut = 1 - left / base
        rows.append(
            Row(
                f"SortedRL's bubbles, {mode}",
                "over 50 % fewer",
                f"{percent(-cut)} ({100 * base:.0f} % to {100 * left:.0f} %)",
                "agrees" if cut > 0.5 else f"{100 * (cut - 0.5):+.0f} points",
                "a load of 4 batches, all in flight; long responses, as for Seer",
            )
        )
    return rows


def shown_rows() -> list[Row]:
    spec = {"max_seqs": 512, "steps": 6}
    base, budget = ordered("sync", **spec), ordered("token_budget(tokens=16384)", **spec)
    ratio = rollout_s(base, 2) / rollout_s(budget, 2)
    again = {"prompts": 200, "steps": 8}
    chosen = ordered("difficulty", **again)
    last = chosen.run.steps[-1].policy
    away = (last["easy_prompts"] + last["hard_prompts"]) / 200
    return [
        Row(
            "Kimi k1.5's token budget, rollout phases",
            "none",
            f"{ratio:.2f}x, tokens up to {stale(budget)} versions old",
            "-",
            "16,384 tokens",
        ),
        Row(
            "prime-rl's difficulty pools",
            "none",
            f"{100 * away:.0f} % of prompts evicted after four epochs",
            "-",
            "rewards Beta-Bernoulli(0.5, sd 0.3), thresholds 0.95 and 0.05",
        ),
    ]


def rows() -> list[Row]:
    made = [*map(run_row, RUNS), *map(seven_row, SEVEN), *order_rows(), *sorted_rows()]
    return [*made, *shown_rows()]
