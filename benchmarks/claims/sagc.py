"""SAGC (arXiv 2606.02218): straggler rates, total time over group size, separating posteriors."""

from __future__ import annotations

import statistics
from typing import Any

from published_lengths import straggler_rate

from claims.common import Row, Section, relative, scenario
from simulator.scenario.file import RawScenario
from simulator.selection import is_straggler
from simulator.studies.simulate import Result, from_raw
from simulator.workload.length_specs import length_presets

SIZES = (4, 8, 16)
SETTINGS = {
    "Qwen2.5-3B GRPO": ("sagc-qwen2.5-3b-grpo", 0.141),
    "Qwen2.5-3B DAPO": ("sagc-qwen2.5-3b-dapo", 0.667),
    "Llama-3.2-3B GRPO": ("sagc-llama-3.2-3b-grpo", 0.887),
    "Llama-3.2-3B DAPO": ("sagc-llama-3.2-3b-dapo", 0.971),
}
HOURS = dict(zip(SIZES, (4.05, 7.77, 16.49), strict=True))
TAU = 1.25

MISSES = [
    "The rates at G = 8 check the draws, not the forecast: the spread was solved from them. No "
    "measured rate at 4 and 16 is at hand to test the forecast for those.",
    "Total time grows a little less than in proportion to G: fewer prompts share a step, so that "
    "the slowest of them is less extreme. How much hangs on the assumed spread between prompts.",
    "Separation with GRPO is missed: the paper leaves eta and the first lambda open. With ours "
    "lambda is still small after 30 steps, ln G alone decides, and the controller stays at 16 and "
    "learns nothing about 4. A larger eta makes it look around.",
]


def workload(preset: str, size: int) -> dict[str, Any]:
    shape = {"batch_groups": 64 // size, "group_size": size, "prompt_tokens": 256}
    return {**shape, "max_new_tokens": 8192, "lengths": {"preset": preset}}


def setting(preset: str, size: int) -> dict[str, Any]:
    """64 rollouts a step on four GPUs."""
    gpus = {"model": "qwen2.5-3b", "gpu": "h100-sxm", "cluster": {"replicas": 4}}
    return {**gpus, "workload": workload(preset, size)}


def run(preset: str, size: int, steps: int, policy: list[Any], seed: int = 0) -> Result:
    return scenario(**setting(preset, size), steps=steps, policy=policy, seed=seed)


def drawn_rate(preset: str, size: int, groups: int = 8_000) -> float:
    """Share of straggling groups among those that the workload really draws."""
    drawn = from_raw(RawScenario(setting(preset, size))).workload
    return statistics.fmean(is_straggler(drawn.draw(g, size).new_tokens) for g in range(groups))


def separated(preset: str, eta: float, seed: int, steps: int = 80) -> int | None:
    """The step from which every size has been tried and the posterior means stay in order."""
    result = run(preset, 8, steps, [{"sagc": {"eta": eta}}], seed)
    tried: set[int] = set()
    since = None
    for record in result.run.steps:
        rates = [record.policy[f"sagc_rate_{size}"] for size in SIZES]
        good = len(tried) == len(SIZES) and rates == sorted(rates)
        since = (record.step if since is None else since) if good else None
        tried.add(record.group_size)
    return since


def separation(preset: str, eta: float, runs: int = 5) -> str:
    found = [separated(preset, eta, seed) for seed in range(runs)]
    steps = [step for step in found if step is not None]
    if not steps:
        return f"not in 80 at eta {eta:g}"
    return f"{statistics.median(steps):.0f} at eta {eta:g} ({len(steps)} of {runs} seeds)"


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
    assumed = "alpha 0.1, gamma 0.99, first lambda 0; our default of eta is 0.05"
    for name in ("Qwen2.5-3B GRPO", "Qwen2.5-3B DAPO"):
        found = [separation(SETTINGS[name][0], eta) for eta in (0.05, 0.5, 2.0)]
        claim = f"steps until the posteriors of the sizes separate, {name}"
        error = "missed" if found[0].startswith("not") else relative(float(found[0].split()[0]), 30)
        rows.append(Row(claim, "about 30", "; ".join(found), f"{error} at 0.05", assumed))
    return rows


def rate_table() -> list[list[str]]:
    """Straggler rates of every setting and size from the one spread."""
    table = [["setting", *(f"G = {size}" for size in SIZES)]]
    for name, (preset, _) in SETTINGS.items():
        spread = length_presets()[preset].lengths["within_sd"]
        rates = (straggler_rate(spread, size, TAU) for size in SIZES)
        table.append([name, *(f"{100 * rate:.1f} %" for rate in rates)])
    return table


def section() -> Section:
    """The claims of SAGC."""
    return Section(
        "SAGC",
        "arXiv 2606.02218",
        "From the paper: the candidates, 64 rollouts a step, tau, and one straggler rate a setting "
        "(at G = 8), from which the spread within a group follows. From fits: H100 kernels.",
        [*rate_rows(), *time_rows(), *separation_rows()],
        MISSES,
        [("Forecast of the static straggler rates (G = 8 is the paper's)", rate_table())],
    )
