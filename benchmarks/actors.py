"""What the world of actors costs, and what it gains, on two cores: ``python -m benchmarks.actors``.

Runs the built-in task for real, the cases one after another and then again (``--rounds``), and adds
what it measured to ``benchmarks/results/actors.json``; ``actors.md`` is made of all rounds there.
Every figure is a ratio of runs of one round, or of one run; medians over rounds, and their range.

- actors against one process: the same synchronous rollouts and updates, step by step; and the parts
  of the difference, as shares of a step of one process.
- weight sync: from the loop's asking until every replica has the weights, the check against the
  trainer's log-probabilities included; the driver's processor time a rollout, rewards included.
- two replicas against one: the same rollouts, enough of them to fill both; tokens over the time in
  which any rollout is in flight.
- one step off: a step over the longer of its rollouts and its update, as long as these take beside
  each other; and how much longer that is than alone, in the synchronous run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.runner import (
    RESULTS,
    ROOT,
    in_process,
    parser,
    progress,
    read_json,
    write_json,
    write_text,
)

if TYPE_CHECKING:
    from rollcast.engine.log import Iterations

STEPS, SETTLED = 14, 3

# 1,024 rollouts a step: two replicas that share nothing are then 1.79 times one (by `rollcast
# simulate`), and 1.60 times with half as many, of which the tail is a greater part.
_MANY = ("workload.batch_groups=128", f"steps={SETTLED + 3}")
CASES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "in process": ("engine.yaml", ("policy=[]",)),
    "actors": ("overlap.yaml", ("policy=[]",)),
    "one step off": ("overlap.yaml", ("policy=one_step_off",)),
    "one replica": ("overlap.yaml", ("policy=[]", *_MANY)),
    "two replicas": (
        "overlap.yaml",
        ("policy=[]", *_MANY, "cluster.placement=colocated", "cluster.replicas=2"),
    ),
}
"""Scenario and settings. Two colocated replicas have a core each, as one apart from its trainer."""


def run(case: str) -> dict[str, Any]:
    """One case, in this process: figures of its settled steps."""
    from rollcast.engine.vllm.environment import prepare

    prepare()
    from rollcast.engine.config import build_run
    from rollcast.engine.run import Progress, run_scenario
    from rollcast.simulator.scenario.file import override, read_scenario

    name, settings = CASES[case]
    raw = read_scenario(ROOT / "examples" / name)
    spec = build_run(override(raw, [f"steps={STEPS}", *settings]))
    used: list[float] = []

    def stepped(progress: Progress) -> None:
        used.append(time.process_time())

    real = run_scenario(spec, None, plot=False, on_step=stepped)
    result = real.run
    records = result.steps[SETTLED:]
    sync = [p.seconds for p in result.phases if p.kind == "sync" and p.step >= SETTLED]
    rollouts = sum(record.trained_rollouts for record in records)
    return {
        "step_s": [record.step_s for record in records],
        "rollout_s": [record.rollout_s for record in records],
        "train_s": [record.train_s for record in records],
        "sync_s": sync,
        "tokens_per_s": sum(r.generated_tokens for r in records)
        / sum(r.rollout_s for r in records),
        "tokens": [record.generated_tokens for record in records],
        "after_ends_s": after_ends_s(real.log.iterations),
        "driver_s_per_rollout": (used[-1] - used[SETTLED - 1]) / rollouts,
    }


def after_ends_s(iterations: Iterations) -> float:
    """What the iterations after which a rollout had ended took longer than others of as many
    rollouts (their median, by eighths), of one replica in the settled steps: a replica reports
    then, a process goes on."""
    settled = iterations["version"] >= SETTLED
    seconds, running = iterations["seconds"][settled], iterations["rollouts"][settled]
    decodes = (iterations["prefill_tokens"][settled] == 0)[1:]
    ended = (np.diff(running) < 0)[decodes]
    seconds, size = seconds[1:][decodes], running[1:][decodes] // 8
    longer = 0.0
    for one in np.unique(size):
        others = seconds[(size == one) & ~ended]
        if len(others):
            longer += float(np.sum(seconds[(size == one) & ended] - np.median(others)))
    return longer


Round = Mapping[str, dict[str, Any]]


def slower(one_round: Round) -> float:
    """Actors over one process: all settled steps, which have the same rollouts."""
    return sum(one_round["actors"]["step_s"]) / sum(one_round["in process"]["step_s"])


def of_it(key: str) -> Callable[[Round], float]:
    """The part of `slower` that is of one phase of a step."""
    return lambda one_round: (
        (sum(one_round["actors"][key]) - sum(one_round["in process"][key]))
        / sum(one_round["in process"]["step_s"])
    )


def after_ends(one_round: Round) -> float:
    """The part of `slower` that is of the iterations at which a replica reports."""
    actors, process = one_round["actors"], one_round["in process"]
    return float((actors["after_ends_s"] - process["after_ends_s"]) / sum(process["step_s"]))


def one_off(one_round: Round) -> float:
    """A step over the longer of its two sides, as they are beside each other."""
    run = one_round["one step off"]
    return fmean(run["step_s"]) / max(fmean(run["rollout_s"]), fmean(run["train_s"]))


def beside(key: str) -> Callable[[Round], float]:
    """How much longer rollouts or updates take beside each other than one after the other."""
    return lambda one_round: fmean(one_round["one step off"][key]) / fmean(one_round["actors"][key])


FIGURES: Sequence[tuple[str, str, str, Callable[[Round], float]]] = (
    ("actors over one process, synchronous, one replica", "<= 1.05", "{:.3f}", slower),
    ("of it in rollouts", "", "{:+.3f}", of_it("rollout_s")),
    ("of it in iterations after a rollout has ended", "", "{:+.3f}", after_ends),
    ("of it in updates", "", "{:+.3f}", of_it("train_s")),
    ("of it in weight syncs", "", "{:+.3f}", of_it("sync_s")),
    ("weight sync, ms", "<= 50", "{:.1f}", lambda f: 1e3 * median(f["actors"]["sync_s"])),
    (
        "driver's processor time a rollout, ms",
        "<= 2",
        "{:.2f}",
        lambda f: 1e3 * f["actors"]["driver_s_per_rollout"],
    ),
    (
        "two replicas over one, rollout tokens/s, 1,024 rollouts a step",
        ">= 1.6",
        "{:.2f}",
        lambda f: f["two replicas"]["tokens_per_s"] / f["one replica"]["tokens_per_s"],
    ),
    ("one step off: step over max(rollout, train)", "<= 1.10", "{:.3f}", one_off),
    ("rollouts beside an update, over alone", "", "{:.3f}", beside("rollout_s")),
    ("an update beside rollouts, over alone", "", "{:.3f}", beside("train_s")),
    (
        "one step off over synchronous, step",
        "",
        "{:.3f}",
        lambda f: fmean(f["one step off"]["step_s"]) / fmean(f["actors"]["step_s"]),
    ),
)
"""What is reported: its name, the target, its format, and how a round gives it."""


def table(rounds: Sequence[Round]) -> list[str]:
    lines = [
        f"# Actors on two cores, {len(rounds)} rounds",
        "",
        "Made by `python -m benchmarks.actors`, whose head says what each is: medians of the",
        "rounds, and their ranges.",
        "",
        "| what | target | measured |",
        "|---|---|--:|",
    ]
    for name, target, form, figure in FIGURES:
        values = []
        for one_round in rounds:
            with suppress(KeyError):  # of cases that were not asked for
                values.append(figure(one_round))
        if not values:
            continue
        low, high = form.format(min(values)), form.format(max(values))
        lines.append(f"| {name} | {target} | {form.format(median(values))} ({low}-{high}) |")
    return lines


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=1, help="five minutes each; 0 only reports")
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--fresh", action="store_true", help="forget the rounds there are")
    given = options.parse_args()
    kept = RESULTS / "actors.json"
    rounds = [] if given.fresh else read_json(kept, [])
    for _ in range(given.rounds):
        results = {}
        # The later of two runs has a warmer, or a busier, machine: every other round turns round.
        for case in sorted(given.cases, reverse=len(rounds) % 2 == 1):
            progress(case)
            results[case] = in_process("benchmarks.actors:run", case)
        rounds.append(results)
        write_json(kept, rounds)
    lines = "\n".join(table(rounds)) + "\n"
    write_text(RESULTS / "actors.md", lines)
    print(lines)


if __name__ == "__main__":
    main()
