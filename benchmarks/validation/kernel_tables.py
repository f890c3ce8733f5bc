"""One decode step or one prefill of Qwen3-8B, from measured kernels of five GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from benchmarks.validation.architectures import architecture
from benchmarks.validation.draws import drawn, interval, iteration_s
from benchmarks.validation.files import column, read_table
from benchmarks.validation.verdict import Case, Source, grouped, mape, mape_checks
from rollcast.simulator.costs import CostModel, Iteration, RooflineCost
from rollcast.simulator.costs.presets.gpus import load_gpu

FILE = "kernel_table_latency_qwen3_8b.csv"
TARGET = 0.15
SYSTEMS = {
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "a100_sxm": "a100-80gb",
    "l40s": "l40s",
    "b200_sxm": "b200",
}
SHARED = "l40s"  # in the host of these tables its GPUs share a link


@dataclass(frozen=True, slots=True)
class Step:
    """One row: a decode step at ``context`` tokens a rollout, or a prefill of them."""

    model: str = column()
    gpu: str = column("system", SYSTEMS)
    tensor_parallel: int = column("tp")
    phase: str = column(valid=("decode", "prefill"))
    batch: int = column()
    context: int = column()
    latency_ms: float = column()

    @property
    def work(self) -> Iteration:
        """What the step computes. In a decode step the new token is the last of the context."""
        tokens = self.batch * self.context
        if self.phase == "decode":
            return Iteration(self.batch, tokens)
        pairs = self.batch * (self.context * (self.context + 1) // 2)
        return Iteration(self.batch, tokens, tokens, pairs, self.batch, tokens)


@cache
def _cost(model: str, gpu: str, tensor_parallel: int) -> RooflineCost:
    board = load_gpu(gpu)
    if gpu == SHARED:
        board = replace(board, interconnect_shared=True)
    return RooflineCost(
        architecture(model), board, tensor_parallel, host_s=0.0, host_per_rollout_s=0.0
    )


@cache
def _drawn(model: str, gpu: str, tensor_parallel: int) -> tuple[CostModel, ...]:
    return drawn(_cost(model, gpu, tensor_parallel))


def judge(steps: list[Step]) -> list[Case]:
    """Cases in the order of the rows; in each GPU's rows the presets saw every second, from the
    first on."""
    cases = []
    position: dict[str, int] = {}
    for step in steps:
        index = position[step.gpu] = position.get(step.gpu, -1) + 1
        key = (step.model, step.gpu, step.tensor_parallel)
        cost, work = _cost(*key), step.work
        milliseconds = 1e3 * cost.iteration_s(work)
        ends = interval(milliseconds, _drawn(*key), cost, partial(iteration_s, work=work))
        cases.append(
            Case(
                f"{step.gpu}, {step.phase}",
                f"tp {step.tensor_parallel}, {step.batch} x {step.context}",
                "ms",
                step.latency_ms,
                milliseconds,
                "held out" if index % 2 else "calibrated",
                *ends,
            )
        )
    return cases


def _by_parallelism(cases: list[Case]) -> str:
    parts = grouped(cases, lambda case: case.name.split(",")[0])
    return ", ".join(f"{name}: {mape(members):.1%}" for name, members in parts.items())


def source(data: Path) -> Source:
    """Held-out rows by GPU and phase, and within them by tensor parallelism. Raises AbsentError."""
    cases = judge(read_table(data / FILE, Step))
    held = [case for case in cases if case.role == "held out"]
    checks = mape_checks(held, TARGET, "held-out rows, ")
    checks = [
        replace(check, note=f"{check.note}; {_by_parallelism(members)}")
        for check, members in zip(checks, grouped(held).values(), strict=True)
    ]
    misses = [f"{c.name}: {c.value:.1%}; {c.note}" for c in checks if c.met is False]
    notes = (
        "L40S, tensor parallelism over PCIe: the tables give each of two GPUs 16e9 bytes/s, of "
        "four 3.6e9 and of eight 1.9e9, so two talk directly and more share one link. On the "
        "rows fitted to that law errs by 6 %, shares for half the number of GPUs by 10 % and a "
        "link for each GPU by 26 %. Hosts differ: in TensorRT-LLM's table of throughput each "
        "of four and eight has a link of 15e9, which is what the preset takes; here it is told "
        "that they share (interconnect_shared). A run over PCIe carries a warning",
    )
    return Source(
        "kernel_tables",
        "Kernel tables: one decode step or one prefill of Qwen3-8B",
        "aiconfigurator 0.12.0, vLLM backend, predicted from measured kernels; tp 1 to 8, decode "
        "at batch 1 to 512 and 512 to 32,768 tokens, prefill of 1 to 16 prompts of 128 to 16,384",
        calibrated="the presets' four kernel efficiencies and two of tensor parallelism, on the "
        "first, third, ... row of each GPU",
        held_out="the second, fourth, ... row",
        assumed=("no host overhead: the tables are kernels alone", *notes),
        cases=tuple(cases),
        checks=tuple(checks),
        misses=tuple(misses),
        listed=False,
    )
