"""The planner against brute force: is what it recommends the best, and for how much less work?

Random planning problems (model, GPU, batch, lengths, limits, objective), each small enough that
every choice can be simulated for as many steps as the planner's last rung. Shown are how much worse
the recommended choice is than the brute-force best, by brute force's own figures, and the share of
its simulated steps. Draws for intervals are left out on both sides.

    python -m benchmarks.planner [--problems 20] [--first 0] [--large]

With --large: one problem of about 2,000 choices (64 GPUs, 32B, 512 rollouts), timed, with one
worker and with one a core; brute force is not run, its steps are known.
"""

from functools import partial
from typing import Any

import numpy as np

from benchmarks.runner import ROOT, parser, timed
from rollcast.simulator.planner.choices import Choice, enumerated
from rollcast.simulator.planner.measure import Measured, Task
from rollcast.simulator.planner.planner import Question, answer, question, work_for
from rollcast.simulator.planner.whole_run import quality_of
from rollcast.simulator.planner.workers import cores, local
from rollcast.simulator.scenario.file import RawScenario, read_scenario

LARGE = ROOT / "benchmarks" / "data" / "plans" / "large.yaml"
POLICIES = (
    "sync",
    "april(over_sampling=1.5)",
    "partial_rollout",
    "one_step_off",
    "fully_async(max_staleness=2)",
    "tail_batching",
    "streaming(groups=2)",
)


def problem(number: int) -> dict[str, Any]:
    """A random scenario with its question."""
    rng = np.random.default_rng([2026, number])
    model = rng.choice(["qwen2.5-1.5b", "qwen3-4b", "qwen3-8b", "qwen3-14b"])
    gpu = rng.choice(["h100-sxm", "a100-80gb", "h200-sxm"])
    groups, size = int(rng.choice([8, 12, 16, 24])), int(rng.choice([4, 8]))
    cap = int(rng.choice([2048, 4096, 8192, 16384]))
    lengths = {
        "family": str(rng.choice(["lognormal", "gamma", "weibull"])),
        "median_tokens": float(cap * rng.uniform(0.08, 0.5)),
        "between_sd": float(rng.uniform(0.2, 0.9)),
        "within_sd": float(rng.uniform(0.2, 0.7)),
    }
    policies = ["sync", *rng.choice(POLICIES[1:], size=3, replace=False).tolist()]
    gpus = [[8, 16, 32], [8, 16], [16, 32, 64]][rng.integers(3)]
    plan: dict[str, Any] = {
        "run": {"steps": 300},
        "choose": {
            "gpus": gpus,
            "placement": ["colocated", "disaggregated"],
            "tensor_parallel": [1, 2, 4],
            "policy": policies,
        },
        "objective": str(rng.choice(["usd", "hours", "balanced"])),
    }
    if rng.random() < 0.4:
        plan["limits"] = {"staleness": int(rng.integers(0, 3))}
    return {
        "model": str(model),
        "gpu": str(gpu),
        "workload": {
            "batch_groups": groups,
            "group_size": size,
            "prompt_tokens": int(rng.choice([128, 512, 2048])),
            "max_new_tokens": cap,
            "lengths": lengths,
        },
        "cluster": {"replicas": 8, "trainer_gpus": 8},
        "seed": number,
        "plan": plan,
    }


def brute_force(asked: Question, workers: int) -> tuple[dict[str, float], int]:
    """The objective of every choice within the limits, by its words; and the steps simulated."""
    choices = [
        choice
        for choice in enumerated(asked.cluster, asked.choose, asked.policies, asked.apart)
        if isinstance(choice, Choice)
    ]
    values: dict[str, float] = {}
    steps = 0
    with local(work_for(asked), workers) as crew:
        estimates = dict(crew.results(choices))
        runs = [i for i, made in estimates.items() if hasattr(made, "setup")]
        tasks = [Task(choices[i], asked.rungs.last) for i in runs]
        for place, result in crew.results(tasks):
            i = runs[place]
            if not isinstance(result, Measured):
                continue
            steps += result.steps
            setup = estimates[i].setup
            quality = quality_of(choices[i].policy, asked.quality)
            made = result.run_cost(asked.work, setup.gpus, setup.usd_per_gpu_hour, quality)
            if not list(asked.objective.beyond(setup, result, made)):
                values[choices[i].name] = asked.objective.value(made)
    return values, steps


def small(first: int, problems: int, workers: int) -> None:
    print("| problem | choices | recommended over best | share of brute force's steps | seconds |")
    print("|---|---|---|---|---|")
    worse, shares = [], []
    for number in range(first, first + problems):
        data = problem(number)
        asked = question(RawScenario(data, name=f"problem {number}"), intervals=False)
        planned, spent, _ = timed(partial(answer, asked, workers))
        values, steps = brute_force(asked, workers)
        best = min(values, key=lambda name: values[name])
        row = planned.recommended
        ratio = values[row.choice.name] / values[best] if row else float("nan")
        share = planned.simulated_steps / steps
        worse.append(ratio)
        shares.append(share)
        note = "" if row and row.choice.name == best else f" (best: {best})"
        print(
            f"| {number} {data['model']} {data['plan']['objective']} | {len(values)} | "
            f"{ratio - 1:.2%}{note} | {share:.1%} | {spent:.1f} |",
            flush=True,
        )
    close = sum(ratio <= 1.02 for ratio in worse)
    print(
        f"\nwithin 2 %: {close} of {problems}; worst {max(worse) - 1:.2%}; "
        f"steps: {max(shares):.1%} at most, {np.mean(shares):.1%} in the mean"
    )


def large() -> None:
    """One problem, with one worker a core and with one."""
    asked = question(read_scenario(LARGE))
    every = enumerated(asked.cluster, asked.choose, asked.policies, asked.apart)
    seconds = {}
    for workers in (cores(), 1):
        planned, seconds[workers], _ = timed(partial(answer, asked, workers))
        share = planned.simulated_steps / planned.brute_force_steps
        print(
            f"{len(every)} choices, {workers} workers: {seconds[workers]:.1f} s; "
            f"{planned.simulated_steps:,} steps to choose, brute force "
            f"{planned.brute_force_steps:,} ({share:.1%})",
            flush=True,
        )
        print(" ".join(planned.sentences[:2]), flush=True)
    print(f"speed-up of workers: {seconds[1] / seconds[cores()]:.2f}x")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--problems", type=int, default=20)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--workers", type=int, default=cores())
    options.add_argument("--large", action="store_true")
    given = options.parse_args()
    if given.large:
        large()
    else:
        small(given.first, given.problems, given.workers)


if __name__ == "__main__":
    main()
