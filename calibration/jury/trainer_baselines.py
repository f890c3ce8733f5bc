"""Optimiser steps of prime-rl's published baselines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from calibration.jury.architectures import architecture
from calibration.jury.files import number, one_of, read_rows, whole
from calibration.jury.fitting import fit_relative, halves
from calibration.jury.verdict import (
    Case,
    Check,
    Kind,
    Source,
    explain,
    grouped,
    mape,
    mape_checks,
)
from simulator.costs import RooflineTrainer, TrainLoad
from simulator.costs.hardware import Gpu, load_gpu

FILE = "trainer_step_times.csv"
COLUMNS = (
    "gpu", "num_gpus", "model", "type", "lora_rank", "seq_len", "micro_batches", "ac",
    "attention", "success", "step_time_s",
)  # fmt: skip
TARGET = 0.15
BOARDS = {
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA B200": "B200",
    "NVIDIA RTX A6000": "RTX A6000",
}
_PRESETS = {"H100": "h100-sxm", "H200": "h200-sxm", "B200": "b200"}


@cache
def board(name: str) -> Gpu:
    """The GPU, with memory enough: whether a step fits is not what is judged here."""
    if name in _PRESETS:
        return replace(load_gpu(_PRESETS[name]), memory_bytes=1e12)
    peaks = {"bandwidth_bytes_per_s": 768e9, "bf16_flop_per_s": 154.8e12}
    return Gpu.from_mapping({"name": "rtx-a6000", "preset": "l40s", "memory_bytes": 1e12, **peaks})


@dataclass(frozen=True, slots=True)
class Step:
    """One baseline: ``micro_batches`` sequences of ``length`` tokens a GPU and step."""

    gpu: str
    gpus: int
    model: str
    kind: str
    lora: bool
    length: int
    micro_batches: int
    recompute: str
    attention: str
    step_s: float

    @property
    def name(self) -> str:
        """The baseline in words."""
        weights = "adapters" if self.lora else "all weights"
        return (
            f"{self.model}, {self.kind}, {self.gpus} GPU, {self.length} tokens, {weights}, "
            f"{self.recompute.lower()}, flash attention {self.attention[-1]}"
        )

    @property
    def in_presets(self) -> bool:
        """Whether the presets were fitted to it: the 17 RL rows of H100, and the RL rows of
        Qwen3-4B on B200. Fine-tuning was not seen."""
        if self.kind != "rl":
            return False
        return self.gpu == "H100" or (self.gpu == "B200" and self.model == "Qwen3-4B")


def read_steps(path: Path) -> tuple[list[Step], int]:
    """The baselines that succeeded, and how many failed (out of memory). Raises AbsentError or
    ScenarioError."""
    steps, failed = [], 0
    for line, row in enumerate(read_rows(path, COLUMNS), start=2):
        where = f"{path.name}, line {line}"
        if one_of(row, "success", where, ("True", "False")) == "False":
            failed += 1
            continue
        steps.append(
            Step(
                BOARDS[one_of(row, "gpu", where, list(BOARDS))],
                whole(row, "num_gpus", where),
                row["model"].rsplit("/", 1)[-1].replace("-Instruct-2507", ""),
                one_of(row, "type", where, ("rl", "sft")),
                bool(row["lora_rank"]),
                whole(row, "seq_len", where),
                whole(row, "micro_batches", where),
                one_of(row, "ac", where, ("Recompute", "Offload")),
                row["attention"],
                number(row, "step_time_s", where, 1e-9),
            )
        )
    return steps, failed


_FULL_NAMES = {
    "Qwen3-0.6B": "Qwen/Qwen3-0.6B",
    "Qwen3-4B": "Qwen/Qwen3-4B-Instruct-2507",
    "Qwen3-30B-A3B": "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "Qwen3-235B-A22B": "Qwen/Qwen3-235B-A22B-Instruct-2507",
    "INTELLECT-3": "PrimeIntellect/INTELLECT-3",
}


@dataclass(frozen=True, slots=True)
class Stack:
    """A GPU, and what its trainer adds for each routed expert (`RooflineTrainer`)."""

    gpu: Gpu
    expert_launch_s: float = 0.0


def forecast_s(step: Step, stack: Stack) -> float:
    """Seconds of the step on ``stack``."""
    trainer = RooflineTrainer(
        architecture(_FULL_NAMES.get(step.model, step.model)),
        stack.gpu,
        step.gpus,
        weights="lora" if step.lora else "full",
        log_prob_passes=0,
        microbatch_tokens=step.length,
        expert_launch_s=stack.expert_launch_s,
    )
    return trainer.train(TrainLoad([(0, [step.length] * (step.micro_batches * step.gpus))])).total_s


def fit_stack(steps: list[Step], gpu: Gpu) -> Stack:
    """``gpu`` with the two efficiencies that a trainer's passes hang on fitted to ``steps``, and
    with what an expert's kernels take.

    At these lengths every pass is bound by compute, so a step is linear in the inverse of both
    efficiencies and in that.
    """
    gemm, attention = gpu.gemm_flop_efficiency, gpu.trainer_attention_flop_efficiency
    changes = [
        Stack(replace(gpu, gemm_flop_efficiency=gemm / 2)),
        Stack(replace(gpu, trainer_attention_flop_efficiency=attention / 2)),
        Stack(gpu, _UNIT_S),
    ]
    now = np.array([forecast_s(step, Stack(gpu)) for step in steps])
    # halving an efficiency adds its part once more
    columns = np.stack([np.array([forecast_s(s, c) for s in steps]) - now for c in changes], axis=1)
    fixed = now - columns[:, :2].sum(axis=1)
    used = columns.any(axis=0)  # no mixture, no experts
    factors = np.zeros(len(changes))
    measured = np.array([step.step_s for step in steps])
    factors[used] = fit_relative(fixed, columns[:, used], measured)
    fitted = replace(
        gpu,
        gemm_flop_efficiency=_slowed(gemm, float(factors[0])),
        trainer_attention_flop_efficiency=_slowed(attention, float(factors[1])),
    )
    return Stack(fitted, float(factors[2]) * _UNIT_S)


def _slowed(efficiency: float, factor: float) -> float:
    """What of an efficiency is left where its part takes ``factor`` times as long; 1.5 at most."""
    return min(1.5, efficiency / factor) if factor > 0 else 1.5


_UNIT_S = 1e-4


def judge(steps: list[Step]) -> tuple[list[Case], list[Case], dict[str, Stack]]:
    """Cases with the presets as they are; cases of a fit to half the rows of each GPU; its
    stacks."""
    as_is = [
        Case(
            f"{step.gpu}, {step.model}",
            step.name,
            "s",
            step.step_s,
            forecast_s(step, Stack(board(step.gpu))),
            "calibrated" if step.in_presets else "held out",
        )
        for step in steps
    ]
    refit, stacks = [], {}
    for gpu in dict.fromkeys(step.gpu for step in steps):
        mine = [step for step in steps if step.gpu == gpu]
        seen, unseen = halves(len(mine))
        fitted = stacks[gpu] = fit_stack([mine[i] for i in seen], board(gpu))
        refit += [
            Case(gpu, mine[i].name, "s", mine[i].step_s, forecast_s(mine[i], fitted))
            for i in unseen
        ]
    return as_is, refit, stacks


def source(data: Path) -> Source:
    """Presets on rows that they did not see, and a fit of half of each GPU. Raises AbsentError."""
    steps, failed = read_steps(data / FILE)
    as_is, refit, stacks = judge(steps)
    held = [case for case in as_is if case.role == "held out"]
    by_gpu = grouped(held, lambda case: case.group.split(",")[0])
    checks = [
        Check(f"presets, held out, {gpu}", mape(members), TARGET, len(members))
        for gpu, members in by_gpu.items()
    ]
    checks += mape_checks(refit, TARGET, "fitted to half, held-out half, ")
    checks += mape_checks(held, None, "presets, held out, ")
    checks.append(
        Check(
            "presets, rows they were fitted to",
            mape([case for case in as_is if case.role == "calibrated"]),
            None,
            len(as_is) - len(held),
        )
    )
    misses = [f"{c.name}: {c.value:.1%} {c.note}".rstrip() for c in checks if c.met is False]
    misses += explain(as_is, _KINDS, beyond=TARGET)
    spelt = "; ".join(
        f"{name} gemm {stack.gpu.gemm_flop_efficiency:.2f}, attention "
        f"{stack.gpu.trainer_attention_flop_efficiency:.2f}, an expert "
        f"{1e3 * stack.expert_launch_s:.2f} ms"
        for name, stack in stacks.items()
    )
    return Source(
        "trainer_baselines",
        "Trainer baselines: one optimiser step",
        "PrimeIntellect-ai/prime-rl, benchmarks/baselines, 16,384 or 65,536 tokens a sequence, two "
        "sequences a GPU and step",
        calibrated="presets: the 17 RL rows of H100, and the three of Qwen3-4B on B200. Beside "
        "them a fit of gemm and attention efficiency, and of what an expert's kernels take a layer "
        "and forward, to the first, third, ... row of each GPU: " + spelt,
        held_out="presets: H200, RTX A6000, fine-tuning on H100 and the rest of B200; fit: the "
        "second, fourth, ... row",
        assumed=(
            "RTX A6000: peaks of its datasheet, kernel efficiencies of the L40S",
            "activations offloaded to the host count as recomputed",
            f"{failed} baselines that failed for want of memory are left out",
        ),
        cases=tuple(as_is),
        checks=tuple(checks),
        misses=tuple(misses),
        listed=False,
    )


_KINDS = (
    Kind(
        "fine-tuning, one small model",
        lambda case: ", sft" in case.name and "0.6B" in case.name,
        "the trainer prices the fp32 log-softmax of RL, which fine-tuning does not run; with a "
        "small model and a large vocabulary it is most of the step (traffic_per_logit sets it)",
    ),
    Kind(
        "mixtures on B200",
        lambda case: "B200" in case.group and "Qwen3-4B" not in case.group,
        "with sequences four times as long the step takes 2.8 to 3.7 times as long, though "
        "attention should make it more than four: routed experts ran as many small kernels on "
        "that stack (expert_launch_s, which the presets leave at 0)",
    ),
    Kind(
        "flash attention 2 on H200",
        lambda case: "H200" in case.group and case.name.endswith("2"),
        "the preset's attention efficiency is flash attention 3's",
    ),
    Kind(
        "RTX A6000",
        lambda case: case.group.startswith("RTX"),
        "its efficiencies are assumed (the fit finds a higher one for attention), and the "
        "elementwise traffic fitted on H100 weighs heavily at its bandwidth: the fit of the matrix "
        "products runs into its bound of 1.5",
    ),
)
