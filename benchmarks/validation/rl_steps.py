"""Whole steps of published RL runs, and how much one-step-off saves of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.validation.coverage import of_cases
from benchmarks.validation.files import PUBLISHED, column, read_table
from benchmarks.validation.verdict import (
    Case,
    Check,
    Kind,
    Role,
    Source,
    explain,
    mape,
    mape_checks,
)
from rollcast.simulator.costs.stacks import Stack, trainer_defaults
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.interval import ends
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from rollcast.simulator.studies.uncertainty import uncertainty
from rollcast.simulator.values.chance import Drawn

FILE = "rl_steps.csv"
# Standard deviations of the log. All of it within groups: neither policy here looks at groups, and
# a step's mean then hardly varies with the draw.
SPREADS = {"assumed": 0.6, "narrow": 0.3, "wide": 0.9}
# Shares of responses that never stop by themselves, as shares of the assumed one.
RUNAWAYS = {"assumed": 1.0, "none": 0.0, "twice": 2.0}
DRAWS = 20  # of a step: the ends are the least and the largest of them, or nearly
STEPS = 4  # the last but one counts: nothing is generated beside the last
SPLITS = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_parallel")
NVLINK_GPUS = {"h100-sxm": 8, "a100-80gb": 8, "h20": 8, "gb200": 72}  # GPUs that talk over NVLink
RATIO_TARGET = 0.10
PRINTED = 0.15  # of held-out steps and ratios, outside intervals of 90 %, at most
BLACKWELL_ATTENTION = 0.5  # of the peak, by Transformer Engine's attention (assumed)
FRAMEWORKS = {"nemo": "NeMo-RL", "verl": "verl", "verl-0.11": "verl"}
STACKS: dict[str, Stack] = {"nemo": "nemo-rl", "verl": "verl-0.5", "verl-0.11": "verl"}


def read_parallel(text: str, where: str) -> tuple[int, ...]:
    """Tensor x context x expert x pipeline parallel; nothing where none is published."""
    sizes = tuple(int(part) if part.isdigit() else 0 for part in text.split("x")) if text else ()
    if text and (len(sizes) != len(SPLITS) or not all(sizes)):
        raise ScenarioError(f"{where}, parallel", f"{text!r} is not like 4x1x1x4")
    return sizes


@dataclass(frozen=True, slots=True)
class RlRun:
    """One published run; ``against`` names the on-policy run that a ratio is taken to. runaway: the
    share of responses that reach the cap whatever their prompt; mean_new_tokens: of the others."""

    name: str = column()
    framework: str = column(valid=tuple(FRAMEWORKS))
    gpu: str = column()
    model: str = column()
    overlapped: bool = column("mode", {"on_policy": False, "one_step_off": True})
    rollout_gpus: int = column()
    trainer_gpus: int = column()
    tensor_parallel: int = column()
    groups: int = column()
    group_size: int = column()
    minibatches: int = column()
    prompt_tokens: int = column()
    total_tokens: int = column()
    parallel: tuple[int, ...] = column(made=read_parallel)
    recompute: str = column(valid=("full", "none"))
    mean_new_tokens: float = column(least=1.0)
    runaway: float = column(least=0.0)
    kv_memory_utilization: float = column(least=0.01)
    log_prob_passes: int = column(least=0)
    step_s: float = column()
    against: str = column()
    role: Role = column(valid=("calibrated", "held out"))  # noqa: RUF009

    @property
    def max_new_tokens(self) -> int:
        """The cap on a response."""
        return self.total_tokens - self.prompt_tokens


def capped_mean(median: float, log_sd: float, cap: float) -> float:
    """Mean of a lognormal cut at ``cap``: E[min(X, cap)]."""
    mu, to_cap = math.log(median), math.log(cap)
    below = _normal_cdf((to_cap - mu - log_sd**2) / log_sd)
    above = 1 - _normal_cdf((to_cap - mu) / log_sd)
    return math.exp(mu + log_sd**2 / 2) * below + cap * above


def median_for_mean(mean: float, log_sd: float, cap: float) -> float:
    """The median at which responses cut at ``cap`` have ``mean``.

    Raises ScenarioError for a mean that does not lie below the cap.
    """
    if not 0 < mean < cap:
        raise ScenarioError("mean_new_tokens", f"{mean:g} is not between 0 and the cap of {cap:g}")
    low, high = 1e-3, cap
    while capped_mean(high, log_sd, cap) < mean:
        high *= 2
    for _ in range(80):
        middle = math.sqrt(low * high)
        if capped_mean(middle, log_sd, cap) < mean:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def read_runs(path: Path) -> list[RlRun]:
    """The runs typed in. Raises ScenarioError for a row that is wrong, or a ratio to no run."""
    runs = read_table(path, RlRun)
    names = {run.name for run in runs}
    for run in runs:
        if run.against and run.against not in names:
            raise ScenarioError(f"{path.name}, {run.name}", f"no run {run.against!r} to compare to")
    return runs


def gpu_of(gpu: str, framework: str) -> Any:
    """The GPU as a scenario names it; in Megatron with the attention of its own kernels."""
    if framework == "nemo" and gpu == "gb200":
        return {"preset": gpu, "trainer_attention_flop_efficiency": BLACKWELL_ATTENTION}
    return gpu


def scenario(run: RlRun, spread: str = "assumed", runaways: str = "assumed") -> dict[str, Any]:
    """The scenario of a run, with one of ``SPREADS`` and one of ``RUNAWAYS`` for what its lengths'
    mean leaves open."""
    log_sd = SPREADS[spread]
    median = median_for_mean(run.mean_new_tokens, log_sd, run.max_new_tokens)
    engine = {"max_seqs": 256, "max_batched_tokens": 8192}
    if run.framework != "nemo":  # verl's defaults of the time, and its recipe
        engine = {"max_seqs": 1024, "max_batched_tokens": max(8192, run.total_tokens)}
    return {
        "name": run.name,
        "model": run.model,
        "gpu": gpu_of(run.gpu, run.framework),
        "cluster": {
            "placement": "disaggregated" if run.overlapped else "colocated",
            "replicas": run.rollout_gpus // run.tensor_parallel,
            "tensor_parallel": run.tensor_parallel,
            "trainer_gpus": run.trainer_gpus,
        },
        "engine": engine,
        "workload": {
            "batch_groups": run.groups,
            "group_size": run.group_size,
            "prompt_tokens": run.prompt_tokens,
            "max_new_tokens": run.max_new_tokens,
            "lengths": {
                "family": "lognormal",
                "median_tokens": round(median, 1),
                "between_sd": 0.0,
                "within_sd": log_sd,
                "runaway": RUNAWAYS[runaways] * run.runaway,
            },
        },
        "policy": "one_step_off" if run.overlapped else [],
        "cost": {
            "roofline": {
                "stack": STACKS[run.framework],
                "kv_memory_utilization": run.kv_memory_utilization,
                "trainer": _trainer(run),
            }
        },
        "steps": STEPS,
        "seed": 0,
    }


def megatron(
    gpu: str, parallel: tuple[int, ...], total_tokens: int, recompute: str
) -> dict[str, Any]:
    """The trainer's options in NeMo-RL's recipes (`simulator/stacks/nemo_rl/costs.yaml`)."""
    options: dict[str, Any] = {key: n for key, n in zip(SPLITS, parallel, strict=True) if n > 1}
    options["recompute"] = recompute
    options["microbatch_tokens"] = total_tokens
    options["gpus_per_node"] = NVLINK_GPUS[gpu]
    options |= trainer_defaults("nemo_rl", "megatron")
    return options


def _trainer(run: RlRun) -> dict[str, Any]:
    """The trainer's options."""
    options: dict[str, Any] = {
        "log_prob_passes": run.log_prob_passes,
        "minibatches": run.minibatches,
    }
    if run.parallel:
        options |= megatron(run.gpu, run.parallel, run.total_tokens, run.recompute)
    return options


def forecast_s(keys: Mapping[str, Any]) -> float:
    """Time of the scenario's last step but one: past the start of the pipeline, and with the next
    batch generated beside it where that is so. Seconds."""
    return _step_s(from_raw(RawScenario(dict(keys))))


def _step_s(built: Scenario) -> float:
    return _late_step_s(simulate(built))


def _late_step_s(result: Result) -> float:
    return result.run.steps[-2].step_s


@lru_cache(maxsize=32)
def finished(run: RlRun) -> Result:
    """Its scenario, simulated."""
    return simulate(from_raw(RawScenario(scenario(run))))


def smaller(run: RlRun) -> RlRun:
    """The run with an eighth of its batch, whose draws take an eighth of the time: how far a draw
    moves a step hangs little on its size."""
    return replace(run, groups=max(run.groups // 8, run.minibatches))


def drawn_s(run: RlRun, draw: int) -> float:
    """The forecast with what its lengths leave open, and the costs, drawn anew; runs that are
    drawn alike may be divided."""
    rng = np.random.default_rng(draw)
    spread = list(SPREADS)[rng.integers(len(SPREADS))]
    runaways = list(RUNAWAYS)[rng.integers(len(RUNAWAYS))]
    return _step_s(costs_drawn(scenario(run, spread, runaways), draw))


def costs_drawn(keys: Mapping[str, Any], draw: int) -> Scenario:
    """The scenario with its costs drawn anew."""
    built = from_raw(RawScenario(dict(keys)))
    return replace(built, cost=built.cost.drawn(Drawn(np.random.default_rng(draw))))


def judge(runs: list[RlRun]) -> tuple[list[Case], dict[str, dict[str, Any]]]:
    """Cases of step times and of ratios, and the scenarios behind them."""
    scenarios = {run.name: scenario(run) for run in runs}
    guesses = {run.name: _late_step_s(finished(run)) for run in runs}
    drawn = {}
    for run in runs:
        small = smaller(run)
        level = guesses[run.name] / forecast_s(scenario(small))
        drawn[run.name] = [level * drawn_s(small, draw) for draw in range(DRAWS)]
    cases, known = [], {run.name: run.step_s for run in runs}
    for run in runs:
        low, high = ends(drawn[run.name]).tolist()
        cases.append(
            Case(
                f"{FRAMEWORKS[run.framework]} step",
                run.name,
                "s",
                run.step_s,
                guesses[run.name],
                run.role,
                low,
                high,
                run.name,
            )
        )
    for run in runs:
        if run.against:
            low, high = ends(np.divide(drawn[run.name], drawn[run.against])).tolist()
            cases.append(
                Case(
                    f"{FRAMEWORKS[run.framework]} ratio, one-step-off over on-policy",
                    run.name,
                    "",
                    run.step_s / known[run.against],
                    guesses[run.name] / guesses[run.against],
                    run.role if run.framework == "nemo" else "held out",
                    low,
                    high,
                    run.name,
                )
            )
    return cases, scenarios


def printed(runs: list[RlRun]) -> tuple[list[Case], list[Case]]:
    """Held-out steps, and ratios of them, with the intervals that ``rollcast simulate`` and
    ``rollcast compare`` print without being asked (`simulator.studies.uncertainty`), their lengths
    taken as the scenario gives them."""
    drawn, guesses = {}, {}
    for run in runs:
        result = finished(run)
        guesses[run.name] = _late_step_s(result)
        by_draw = uncertainty(result).draws["step_s"] / result.summary["step_s"]
        drawn[run.name] = guesses[run.name] * by_draw
    known = {run.name: run.step_s for run in runs}
    steps, ratios = [], []
    for run in runs:
        low, high = ends(drawn[run.name]).tolist()
        steps.append(
            Case("step", run.name, "s", run.step_s, guesses[run.name], run.role, low, high)
        )
        if run.against:
            low, high = ends(drawn[run.name] / drawn[run.against]).tolist()
            role = run.role if run.framework == "nemo" else "held out"
            forecast = guesses[run.name] / guesses[run.against]
            measured = run.step_s / known[run.against]
            ratios.append(Case("ratio", run.name, "", measured, forecast, role, low, high))
    return steps, ratios


def outside(name: str, cases: list[Case]) -> Check:
    """The share of held-out cases outside their intervals."""
    coverage = of_cases(name, cases)
    assert coverage is not None
    return Check(f"{name} outside what is printed", 1.0 - coverage.share, PRINTED, coverage.cases)


LEFT_OUT = (
    "Left out: DeepSeek-V3 and Qwen3-235B (their engines span nodes, which is not priced; see the "
    "mixtures), FP8 runs, MetaX C550 (no preset), and logs whose model or sizes are not "
    "published."
)


def wrong_signs(ratios: list[Case]) -> float:
    """Share of the ratios that are forecast on the other side of 1."""
    return sum((c.forecast < 1) != (c.measured < 1) for c in ratios) / len(ratios)


def source(data: Path) -> Source:
    """Step times and ratios of the runs typed in; needs no data set."""
    cases, scenarios = judge(read_runs(PUBLISHED / FILE))
    held = [case for case in cases if case.role == "held out"]
    ratios = [case for case in held if not case.unit]
    shown, shown_ratios = printed(read_runs(PUBLISHED / FILE))
    checks = [
        *mape_checks([case for case in held if case.unit], None),
        *mape_checks(ratios, None),
        Check("ratios, all pairs", mape(ratios), RATIO_TARGET, len(ratios)),
        Check("ratios on the wrong side of 1", wrong_signs(ratios), 0.0, len(ratios)),
        outside("held-out steps", shown),
        outside("held-out steps and ratios", [*shown, *shown_ratios]),
    ]
    return Source(
        "rl_steps",
        "Whole steps of RL runs, and one-step-off over on-policy",
        "NVIDIA-NeMo/RL performance summary v0.4 and v0.5 (H100, GB200); verl's one-step-off "
        "recipe (16 H20)",
        calibrated="nothing on totals but the elementwise traffic of NeMo-RL's trainer, "
        "0.7 of the default, on v0.4; its logits' on log-probs, its stack on phases "
        "(see there). verl: the mean length, which is not published, so that the forecast of "
        "log-prob and update on the on-policy row of FSDP2 is the published 374 s; Megatron's run "
        "of the same recipe is taken to have it too",
        held_out="NeMo-RL: v0.5 and GB200. verl: the one-step-off rows and the ratios",
        assumed=(
            "lengths: lognormal cut at the cap with the published mean; standard deviation of the "
            "log 0.6, range over 0.3 to 0.9",
            "NeMo-RL: 64 x 32 rollouts, 8 + 8 (32 + 32, GB200 4 + 4 and 16 + 16) GPUs when "
            "overlapped and the sharing of KV memory from its recipes; prompts from tokens/s/GPU; "
            "the trainer's layout, packing and recomputation (none of it for Qwen3-32B) from its "
            "recipes; Transformer Engine's attention at half of the GB200's peak",
            "verl: 512 x 12 rollouts, tensor parallel 2 and 16 optimiser steps a batch from its "
            "recipe, 1,024 sequences and an eager engine from its defaults of July 2025; prompts "
            "of 200 tokens; 0.5 % of the responses run to the cap (picked from 0, 0.5 and 2 % with "
            "the published steps in view), range 0 to 1 %",
            "engine, syncs, switches and rest are those of cost.roofline.stack; NeMo-RL: 4 "
            "optimiser steps a batch",
        ),
        cases=tuple(cases),
        checks=tuple(checks),
        misses=(*explain(cases, _KINDS, beyond=0.10), LEFT_OUT),
        scenarios=scenarios,
    )


_KINDS = (
    Kind(
        "Llama-3.1-8B, one step off",
        lambda case: case.name.startswith("llama") and "1off" in case.name,
        "the step is the trainer's, whose presets are a tenth too slow for this model in Megatron",
    ),
    Kind(
        "Qwen3-32B, steps",
        lambda case: bool(case.unit) and case.name.startswith("qwen3-32b"),
        "on GB200 the trainer's efficiencies are those of B200 kernels",
    ),
    Kind(
        "Qwen3-30B-A3B",
        lambda case: case.name.startswith("qwen3-30b"),
        "the layouts are those of the recipes, which the table gives the other way round",
    ),
    Kind(
        "verl, Megatron",
        lambda case: case.name.startswith("verl") and "megatron" in case.name,
        "two to four sequences a microbatch, and no more time on 12 GPUs than on 16, of which the "
        "trainer's presets know nothing; 29 and 40 s a step are rewards",
    ),
    Kind(
        "verl, FSDP2",
        lambda case: case.name.startswith("verl") and "fsdp" in case.name,
        "hangs on how many responses run to the cap, which is not published",
    ),
)
