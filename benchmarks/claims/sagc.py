"""SAGC (arXiv 2606.02218): straggler rates, total time over group size, separating posteriors."""

import math
import statistics
from functools import cache
from typing import Any

from benchmarks.claims.common import Row, Table, relative
from benchmarks.published_lengths import straggler_rate
from benchmarks.runner import simulated
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.policy import GroupOutcome, StepOutcome
from rollcast.simulator.loop.selection import is_straggler
from rollcast.simulator.policies import SAGC
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import Result, from_raw
from rollcast.simulator.workload.base import Workload
from rollcast.simulator.workload.length_specs import length_presets

SIZES = (4, 8, 16)
SETTINGS = {
    "Qwen2.5-3B GRPO": ("sagc-qwen2.5-3b-grpo", 0.141),
    "Qwen2.5-3B DAPO": ("sagc-qwen2.5-3b-dapo", 0.667),
    "Llama-3.2-3B GRPO": ("sagc-llama-3.2-3b-grpo", 0.887),
    "Llama-3.2-3B DAPO": ("sagc-llama-3.2-3b-dapo", 0.971),
}
MEASURED = (
    "qwen3-30b-a3b-thinking",
    "deepseek-r1-distill-qwen-7b",
    "llama-3.1-8b-instruct",
    "qwen2.5-7b-instruct-1m",
)
HOURS = dict(zip(SIZES, (4.05, 7.77, 16.49), strict=True))
TAU = 1.25
ETAS = (0.05, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0)
SEEDS, STEPS = 60, 120


def section_of(preset: str, size: int) -> dict[str, Any]:
    shape = {"batch_groups": 64 // size, "group_size": size, "prompt_tokens": 256}
    return {**shape, "max_new_tokens": 8192, "lengths": {"preset": preset}}


def setting(preset: str, size: int) -> dict[str, Any]:
    """64 rollouts a step on four GPUs."""
    gpus = {"model": "qwen2.5-3b", "gpu": "h100-sxm", "cluster": {"replicas": 4}}
    return {**gpus, "workload": section_of(preset, size)}


def run(preset: str, size: int, steps: int, policy: list[Any], seed: int = 0) -> Result:
    return simulated(**setting(preset, size), steps=steps, policy=policy, seed=seed)


def drawn_rate(preset: str, size: int, groups: int = 8_000) -> float:
    """Share of straggling groups among those that the workload really draws."""
    drawn = from_raw(RawScenario(setting(preset, size))).workload
    return statistics.fmean(is_straggler(drawn.draw(g, size).new_tokens) for g in range(groups))


@cache
def lengths(preset: str, seed: int, group: int, size: int) -> tuple[int, ...]:
    return tuple(workload(preset, seed).draw(group, size).new_tokens)


@cache
def workload(preset: str, seed: int) -> Workload:
    """Of 64 rollouts a step, whatever the preset."""
    return from_raw(RawScenario({**setting(preset, 8), "seed": seed})).workload


def separated(preset: str, eta: float, seed: int) -> float:
    """The step from which every size has been tried and the posterior means stay in order; infinite
    where that does not come about. The controller sees lengths alone, so that no cluster is needed:
    a synchronous step completes the groups that it draws."""
    policy = SAGC(eta=eta, seed=seed)
    state, tried = policy.init(), set()
    since, group = math.inf, 0
    for step in range(STEPS):
        plan = policy.plan(StepPlan(Batch(8, 8)), state)
        size = plan.batch.group_size
        complete = []
        for _ in range(plan.batch.groups):
            drawn = lengths(preset, seed, group, size)
            complete.append(GroupOutcome(group, size, drawn, (0.0,) * size, True, 0))
            group += 1
        state = policy.observe(state, StepOutcome(plan, tuple(complete), 0, 0))
        tried.add(size)
        rates = [events / (events + others) for events, others in state.posteriors]
        good = len(tried) == len(SIZES) and rates == sorted(rates)
        since = min(since, step) if good else math.inf
    return since


@cache
def separation(preset: str, eta: float) -> tuple[float, int]:
    """(median step of separation over all seeds, how many of them separate)."""
    steps = [separated(preset, eta, seed) for seed in range(SEEDS)]
    return statistics.median(steps), sum(map(math.isfinite, steps))


def rate_rows() -> list[Row]:
    rows = []
    for name, (preset, published) in SETTINGS.items():
        drawn = drawn_rate(preset, 8)
        shown = (f"{100 * published:.1f} %", f"{100 * drawn:.1f} %", relative(drawn, published))
        assumed = "nothing: the spread within a group follows from this rate"
        rows.append(Row(f"straggler rate at G = 8, {name}", *shown, assumed))
    return rows


def time_rows() -> list[Row]:
    preset = SETTINGS["Qwen2.5-3B GRPO"][0]
    total = {g: run(preset, g, 480 * g // 64, []).summary["makespan_s"] for g in SIZES}
    rows = []
    for size in SIZES[1:]:
        published, forecast = HOURS[size] / HOURS[4], total[size] / total[4]
        claim = f"total time of the same prompts, G = {size} over G = 4"
        shown = (f"{published:.2f}x", f"{forecast:.2f}x", relative(forecast, published))
        rows.append(Row(claim, *shown, "GPUs, median and spread between prompts, prompt, cap"))
    return rows


def separation_rows() -> list[Row]:
    rows = []
    assumed = f"alpha 0.1, gamma 0.99, first lambda 0; eta {SAGC.eta:g} was chosen for this"
    for name in ("Qwen2.5-3B GRPO", "Qwen2.5-3B DAPO"):
        median, count = separation(SETTINGS[name][0], SAGC.eta)
        claim = f"steps until the posteriors of the sizes separate, {name}"
        shown = f"{median:g}, median of {SEEDS} seeds ({count} within {STEPS})"
        rows.append(Row(claim, "about 30", shown, relative(median, 30), assumed))
    return rows


def separation_table() -> list[list[str]]:
    """What other values of eta do, in every setting and on presets of measured lengths."""
    table = [["setting", *(f"eta {eta:g}" for eta in ETAS)]]
    presets = {name: preset for name, (preset, _) in SETTINGS.items()}
    presets.update({name: name for name in MEASURED})
    for name, preset in presets.items():
        separations = [separation(preset, eta) for eta in ETAS]
        table.append(
            [
                name,
                *(
                    f"{median:g} ({count})".replace("inf", f"over {STEPS}")
                    for median, count in separations
                ),
            ]
        )
    return table


def rate_table() -> list[list[str]]:
    """Straggler rates of every setting and size from the one spread."""
    table = [["setting", *(f"G = {size}" for size in SIZES)]]
    for name, (preset, _) in SETTINGS.items():
        spread = length_presets()[preset].lengths["within_sd"]
        rates = (straggler_rate(spread, size, TAU) for size in SIZES)
        table.append([name, *(f"{100 * rate:.1f} %" for rate in rates)])
    return table


def rows() -> list[Row]:
    return [*rate_rows(), *time_rows(), *separation_rows()]


def tables() -> list[Table]:
    """Rates at other sizes, and steps at other values of eta."""
    separating = (
        f"Steps until the posteriors separate, median of {SEEDS} seeds (and how many did "
        f"within {STEPS}); the default of eta is {SAGC.eta:g}"
    )
    rates = "Forecast of the static straggler rates (G = 8 is the paper's)"
    return [(rates, rate_table()), (separating, separation_table())]
