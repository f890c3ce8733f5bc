"""Optimiser steps of prime-rl's published baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.validation.architectures import architecture
from benchmarks.validation.files import number, one_of, read_rows, whole
from benchmarks.validation.fitting import fit_relative, halves
from benchmarks.validation.verdict import Case, Check, Kind, Role, Source, explain, mape_checks
from rollcast.simulator.costs import RooflineTrainer, TrainLoad
from rollcast.simulator.costs.presets.gpus import Gpu, load_gpu
from rollcast.simulator.costs.roofline.draws import drawn_gpu, times, trainer_spreads
from rollcast.simulator.values.chance import Drawn

FILE = "trainer_step_times.csv"
COLUMNS = (
    "gpu",
    "num_gpus",
    "model",
    "type",
    "lora_rank",
    "seq_len",
    "micro_batches",
    "ac",
    "attention",
    "success",
    "step_time_s",
)
TARGET = 0.20  # of GPUs that nothing was fitted to
OUTSIDE = 0.10  # of the rows may lie outside an interval of 90 %
DRAWS = 200
# A cross-entropy alone, where RL takes a chunked fp32 log-softmax: fitted with the others.
SFT_TRAFFIC_PER_LOGIT = 8.7
# Of a routed expert run on its own, in one layer and forward, where the stack has no grouped
# kernels: fitted to the two Qwen3-30B-A3B rows of B200.
LOOPED_EXPERT_S = 0.4e-3
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
    def mixture(self) -> bool:
        """Whether the model routes tokens to experts."""
        return architecture(_FULL_NAMES.get(self.model, self.model)).experts > 0

    @property
    def looped(self) -> bool:
        """Whether routed experts run one by one: the stack had no grouped kernels for B200."""
        return self.gpu == "B200" and self.mixture

    @property
    def group(self) -> str:
        """The GPU, and mixtures apart where they run one by one."""
        return f"{self.gpu}, mixtures" if self.looped else self.gpu

    @property
    def role(self) -> Role:
        """Half of the rows of H100 and H200 were seen, and B200's of one mixture."""
        if self.gpu in SEEN or (self.looped and self.model == "Qwen3-30B-A3B"):
            return "calibrated"
        return "held out"


SEEN = ("H100", "H200")


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


def trainer_of(step: Step) -> RooflineTrainer:
    """The trainer of a baseline, from the presets and what is known of its stack."""
    rl_traffic = RooflineTrainer.traffic_per_logit
    return RooflineTrainer(
        architecture(_FULL_NAMES.get(step.model, step.model)),
        board(step.gpu),
        step.gpus,
        weights="lora" if step.lora else "full",
        attention="flash_2" if step.attention.endswith("2") else "flash_3",
        log_prob_passes=0,
        microbatch_tokens=step.length,
        expert_launch_s=LOOPED_EXPERT_S if step.looped else 0.0,
        traffic_per_logit=rl_traffic if step.kind == "rl" else SFT_TRAFFIC_PER_LOGIT,
    )


def forecast_s(step: Step, trainer: RooflineTrainer) -> float:
    """Seconds of the step by ``trainer``."""
    return trainer.train(load_of(step)).total_s


def load_of(step: Step) -> TrainLoad:
    """What the step trains on."""
    return TrainLoad([(0, [step.length] * (step.micro_batches * step.gpus))])


def drawn_s(
    base: RooflineTrainer, load: TrainLoad, draws: int = DRAWS, share: float = 0.9
) -> tuple[float, float]:
    """The middle ``share`` of forecasts whose uncertain figures are drawn anew, as `rollcast
    compare` draws them: seconds."""
    chance, spreads = Drawn(np.random.default_rng(0)), trainer_spreads(base.kernels)
    seconds = []
    for _ in range(draws):
        changed = times(base, spreads, chance)
        seconds.append(
            replace(base, gpu=drawn_gpu(base.gpu, chance), **changed).train(load).total_s
        )
    low, high = np.quantile(seconds, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


FITTED = ("traffic_per_activation_byte", "traffic_per_logit", "", "traffic_per_adapted_byte")


def fit_traffic(steps: Sequence[Step]) -> tuple[dict[str, float], float]:
    """The trainer's traffic and ``kernel_bytes_per_s``, fitted to the first, third, ... row of each
    GPU in ``SEEN``: (figures, mean absolute relative error). '' is ``SFT_TRAFFIC_PER_LOGIT``.

    A step is linear in all but kernel_bytes_per_s, which is tried at a few values.
    """
    seen: list[Step] = []
    for gpu in SEEN:
        mine = [step for step in steps if step.gpu == gpu]
        seen += [mine[i] for i in halves(len(mine))[0]]
    measured = np.array([step.step_s for step in seen])
    best: tuple[dict[str, float], float] | None = None
    for rate in _RATES:
        fixed, columns = zip(*(_parts(step, rate) for step in seen), strict=True)
        design, rest = np.array(columns), np.array(fixed)
        coefficients = fit_relative(rest, design, measured)
        error = float(np.abs((rest + design @ coefficients) / measured - 1).mean())
        if best is None or error < best[1]:
            names = dict(zip(FITTED, map(float, coefficients), strict=True))
            best = ({**names, "kernel_bytes_per_s": rate}, error)
    assert best is not None
    return best


_RATES = (1.5e12, 2e12, 2.5e12, 3e12, 3.5e12, 4e12, 5e12, 6e12, 8e12, 1.2e13, 1e30)


def _parts(step: Step, rate: float) -> tuple[float, list[float]]:
    """Seconds without any traffic, and for one byte of each of ``FITTED``."""
    base = replace(
        trainer_of(step),
        kernel_bytes_per_s=rate,
        traffic_per_activation_byte=0.0,
        traffic_per_logit=0.0,
        traffic_per_adapted_byte=0.0,
    )
    fixed = forecast_s(step, base)
    activations = forecast_s(step, replace(base, traffic_per_activation_byte=1.0)) - fixed
    logits = forecast_s(step, replace(base, traffic_per_logit=1.0)) - fixed
    rl = step.kind == "rl"
    return fixed, [activations, logits * rl, logits * (not rl), activations * step.lora]


def judge(steps: Sequence[Step]) -> list[Case]:
    """A case for each step, with its interval."""
    cases = []
    for step in steps:
        trainer = trainer_of(step)
        low, high = drawn_s(trainer, load_of(step))
        forecast = forecast_s(step, trainer)
        cases.append(
            Case(
                step.group,
                f"{step.gpu}, {step.name}",
                "s",
                step.step_s,
                forecast,
                step.role,
                low,
                high,
            )
        )
    return cases


def outside(cases: Sequence[Case]) -> float:
    """Share of the cases measured outside their interval."""
    missed = [c for c in cases if not (c.low or 0.0) <= c.measured <= (c.high or np.inf)]
    return len(missed) / len(cases)


def source(data: Path) -> Source:
    """Presets on the rows of GPUs that they did not see, and of those they did. Raises
    AbsentError."""
    steps, failed = read_steps(data / FILE)
    cases = judge(steps)
    held = [case for case in cases if case.role == "held out"]
    seen = [case for case in cases if case.role == "calibrated"]
    checks = mape_checks(held, TARGET, "held out, ")
    share = outside(held)
    checks.append(Check("held out, outside their 90 % interval", share, OUTSIDE, len(held)))
    checks += mape_checks(seen, None, "fitted to half, ")
    misses = [f"{c.name}: {c.value:.1%} {c.note}".rstrip() for c in checks if c.met is False]
    misses += explain(cases, _KINDS, beyond=0.15)
    return Source(
        "trainer_baselines",
        "Trainer baselines: one optimiser step",
        "PrimeIntellect-ai/prime-rl, benchmarks/baselines, 8,192 to 65,536 tokens a sequence, two "
        "sequences a GPU and step",
        calibrated="the first, third, ... row of H100 and H200: traffic of activations, adapters "
        "and logits (of RL and of fine-tuning), and kernel_bytes_per_s; before that, "
        "FlashAttention 3 and the share of routed experts on the H100's RL rows. What an expert "
        "takes that runs on its own: the Qwen3-30B-A3B rows of B200",
        held_out="RTX A6000 whole; B200 whole, but for Qwen3-30B-A3B",
        assumed=(
            "FlashAttention 2 and 3 run as simulator/costs/trainer/attention_kernels.py has them, "
            "measured alone on a chip of the same generation",
            "kernel_bytes_per_s is not the best of the fit with adapters as they are now, but its "
            "value before: the fit is flat, and held-out rows were in view",
            "RTX A6000: peaks of its datasheet, other efficiencies of the L40S",
            "activations offloaded to the host count as recomputed",
            f"{failed} baselines that failed for want of memory are left out",
        ),
        cases=tuple(cases),
        checks=tuple(checks),
        misses=tuple(misses),
        listed=False,
    )


_KINDS = (
    Kind(
        "INTELLECT-3, 16,384 tokens, H200",
        lambda case: "INTELLECT" in case.name and case.group == "H200",
        "gathering of weights is not overlapped in the forecast",
    ),
    Kind(
        "mixtures on B200",
        lambda case: "mixtures" in case.group,
        "routed experts ran as many small kernels on that stack, and at 65,536 tokens too the "
        "passes take more than their products: one figure for an expert does not carry both",
    ),
)
