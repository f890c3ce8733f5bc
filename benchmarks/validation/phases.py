"""Published phases of RL steps, each judged on its own: generation, log-probs, update, refit, rest.

A constant is fitted to the phase that it names and to nothing else, and a whole step counts as met
only where its phases are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from benchmarks.validation.files import PUBLISHED, number, one_of, read_rows, whole
from benchmarks.validation.rl_steps import (
    DRAWS,
    FRAMEWORKS,
    SPREADS,
    RlRun,
    costs_drawn,
    read_parallel,
    scenario,
    smaller,
)
from benchmarks.validation.verdict import (
    Case,
    Check,
    Kind,
    Role,
    Source,
    bias,
    explain,
    grouped,
    log_sd,
    mape_checks,
)
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.interval import ends
from rollcast.simulator.studies.simulate import from_raw, simulate

FILE = "rl_phases.csv"
Phase = Literal["generation", "log_prob", "update", "refit", "rest"]
COLUMNS = (
    "name",
    "framework",
    "gpu",
    "model",
    "gpus",
    "tensor_parallel",
    "parallel",
    "recompute",
    "groups",
    "group_size",
    "minibatches",
    "microbatch_tokens",
    "prompt_tokens",
    "total_tokens",
    "mean_new_tokens",
    "runaway",
    "kv_memory_utilization",
    "log_prob_passes",
    "generation_s",
    "log_prob_s",
    "update_s",
    "refit_s",
    "rest_s",
    "role",
    "log_prob_role",
    "source",
)
# What a simulation calls the parts of each.
PARTS: Mapping[str, Phase] = {
    "rollout": "generation",
    "log_prob": "log_prob",
    "forward": "update",
    "backward": "update",
    "gradient_exchange": "update",
    "optimizer": "update",
    "sync": "refit",
    "switch": "refit",
    "rest": "rest",
}
ROLES = ("calibrated", "held out")
TARGET, BIAS = 0.20, 0.10  # of generation, held out
NEAR = 0.20  # within which a phase is met
SMALL = 0.05  # of a step: a phase that is less and forecast as less counts as met


@dataclass(frozen=True)
class Step:
    """A published step on shared GPUs: its run, and seconds of the phases that are judged.
    log_prob_role: of that phase alone, to which figures of the trainer are fitted."""

    run: RlRun
    log_prob_role: Role
    microbatch_tokens: int | None
    phases_s: Mapping[Phase, float]


def read_steps(path: Path) -> list[Step]:
    """The steps typed in. Raises ScenarioError for a row that is wrong."""
    steps = []
    for line, row in enumerate(read_rows(path, COLUMNS), start=2):
        where = f"{path.name}, line {line}"
        gpus = whole(row, "gpus", where)
        counts = {
            key: whole(row, key, where)
            for key in (
                "tensor_parallel",
                "groups",
                "group_size",
                "minibatches",
                "prompt_tokens",
                "total_tokens",
            )
        }
        phases_s: dict[Phase, float] = {
            phase: number(row, f"{phase}_s", where, 1e-9)
            for phase in get_args(Phase)
            if row[f"{phase}_s"]
        }
        run = RlRun(
            row["name"],
            one_of(row, "framework", where, list(FRAMEWORKS)),
            row["gpu"],
            row["model"],
            overlapped=False,
            rollout_gpus=gpus,
            trainer_gpus=gpus,
            parallel=read_parallel(row["parallel"], where),
            recompute=one_of(row, "recompute", where, ("full", "none")),
            mean_new_tokens=number(row, "mean_new_tokens", where, 1.0),
            runaway=number(row, "runaway", where, 0.0),
            kv_memory_utilization=number(row, "kv_memory_utilization", where, 0.01),
            log_prob_passes=whole(row, "log_prob_passes", where, 0),
            step_s=sum(phases_s.values()),
            against="",
            role=one_of(row, "role", where, ROLES),  # type: ignore[arg-type]
            **counts,
        )
        budget = whole(row, "microbatch_tokens", where) if row["microbatch_tokens"] else None
        log_prob_role = one_of(row, "log_prob_role", where, ROLES)
        steps.append(Step(run, log_prob_role, budget, phases_s))  # type: ignore[arg-type]
    return steps


def keys_of(step: Step, spread: str = "assumed") -> dict[str, Any]:
    """The scenario of a step, with one of `rl_steps.SPREADS`; the same one whatever is judged."""
    keys = {**scenario(step.run, spread), "steps": 1}
    if step.microbatch_tokens:
        keys["cost"]["roofline"]["trainer"]["microbatch_tokens"] = step.microbatch_tokens
    return keys


def forecast_s(keys: Mapping[str, Any]) -> dict[Phase, float]:
    """Seconds of each phase of the scenario's only step."""
    return _phases_s(from_raw(RawScenario(dict(keys))))


def _phases_s(built: Scenario) -> dict[Phase, float]:
    seconds: dict[Phase, float] = dict.fromkeys(get_args(Phase), 0.0)
    for phase in simulate(built).run.phases:
        seconds[PARTS[phase.kind]] += phase.end_s - phase.start_s
    return seconds


def drawn_s(step: Step, draw: int) -> dict[Phase, float]:
    """The forecast with the spread of lengths, and the costs, drawn anew."""
    spread = list(SPREADS)[np.random.default_rng(draw).integers(len(SPREADS))]
    return _phases_s(costs_drawn(keys_of(step, spread), draw))


def judge(steps: list[Step]) -> tuple[list[Case], dict[str, dict[str, Any]]]:
    """A case for each published phase, and the scenarios behind them."""
    cases, scenarios = [], {}
    for step in steps:
        scenarios[step.run.name] = keys_of(step)
        guess = forecast_s(scenarios[step.run.name])
        small = replace(step, run=smaller(step.run))
        base = forecast_s(keys_of(small))
        drawn = [drawn_s(small, draw) for draw in range(DRAWS)]
        for phase, measured_s in step.phases_s.items():
            role = step.log_prob_role if phase == "log_prob" else step.run.role
            low, high = ends([guess[phase] * draw[phase] / base[phase] for draw in drawn]).tolist()
            cases.append(
                Case(
                    phase,
                    step.run.name,
                    "s",
                    measured_s,
                    guess[phase],
                    role,
                    low,
                    high,
                    step.run.name,
                )
            )
    return cases, scenarios


def met(case: Case, step_s: float) -> bool:
    """Whether a phase is forecast within 20 %, or by less than a twentieth of its step."""
    return abs(case.error) <= NEAR or abs(case.forecast - case.measured) <= SMALL * step_s


def totals(cases: list[Case]) -> list[str]:
    """A sentence for each step: met, or what of it is not."""
    sentences = []
    for name, phases in grouped(cases, lambda case: case.name).items():
        step_s = sum(case.measured for case in phases)
        error = sum(case.forecast for case in phases) / step_s - 1
        missed = [f"{c.group} {c.error:+.0%}" for c in phases if not met(c, step_s)]
        verdict = f"not met: {', '.join(missed)}" if missed else "met in every phase"
        sentences.append(f"{name}, sum of the judged phases {error:+.0%}, {verdict}")
    return sentences


def source(data: Path) -> Source:
    """Phases of the steps typed in; needs no data set."""
    cases, scenarios = judge(read_steps(PUBLISHED / FILE))
    held = [case for case in cases if case.role == "held out"]
    generation = [case for case in held if case.group == "generation"]
    drift = Check(
        "held out, generation, bias", bias(generation), BIAS, len(generation), signed=True
    )
    checks = [
        check
        if check.name == "held out, generation"
        else Check(check.name, check.value, None, check.cases, check.note)
        for check in mape_checks(held, TARGET, "held out, ")
    ]
    spreads = ", ".join(f"{name} {log_sd(errors):.2f}" for name, errors in grouped(held).items())
    return Source(
        "phases",
        "Phases of RL steps",
        "NVIDIA's blog on NeMo-RL v0.3 and a rerun of its table (NeMo-RL issue 959), H100; a run "
        "of verl on A100 (verldata); py-inference-scheduler's log",
        calibrated="host_s and host_per_rollout_s of the stacks on generation, offload_bytes_per_s "
        "on refit, rest_s on rest: of Llama-3.1-8B and Qwen3-32B with Megatron, and verl's run; on "
        "log-probs the logits' traffic of Megatron, of the same two, and an expert's kernels in "
        "it, of Qwen3-30B-A3B",
        held_out="the other models and trainers, and all reruns",
        assumed=(
            "lengths: lognormal cut at the cap with the published mean; standard deviation of the "
            "log 0.6, range over 0.3 to 0.9",
            "prompts of 105 and 110 tokens as in later runs of the same recipes; refit is what the "
            "forecast calls sync and both switches",
            "what a step holds beside its phases is its rest",
        ),
        cases=tuple(cases),
        checks=(*checks, drift),
        misses=(
            *explain(held, _KINDS, beyond=NEAR),
            *totals(cases),
            f"Standard deviation of the logarithm, held out: {spreads}",
        ),
        scenarios=scenarios,
    )


_KINDS = (
    Kind(
        "refit",
        lambda case: case.group == "refit",
        "the same tables differ by a factor of 1.3 to 1.9 between two clusters",
    ),
    Kind(
        "rest",
        lambda case: case.group == "rest",
        "data, rewards and logging: 3 to 8 s on one cluster, 7 to 14 s on another",
    ),
    Kind(
        "log_prob and update",
        lambda case: case.group in ("log_prob", "update"),
        "the trainer's presets",
    ),
)
