"""One decode step or one prefill of Qwen3-8B, from measured kernels of five GPUs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

from benchmarks.validation.architectures import architecture
from benchmarks.validation.case import Case, alternating
from benchmarks.validation.draws import interval, iteration_s
from benchmarks.validation.files import column
from benchmarks.validation.suite import Judged
from rollcast.simulator.costs import Iteration, RooflineCost
from rollcast.simulator.costs.presets.gpus import Gpu, load_gpu

SYSTEMS = {
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "a100_sxm": "a100-80gb",
    "l40s": "l40s",
    "b200_sxm": "b200",
}
Phase = Literal["decode", "prefill"]


@dataclass(frozen=True, slots=True)
class Row:
    """A decode step at ``context`` tokens a rollout, or a prefill of them."""

    model: str = column()
    gpu: str = column("system", SYSTEMS)
    tensor_parallel: int = column("tp")
    phase: Phase = column()
    batch: int = column()
    context: int = column()
    latency_ms: float = column()

    @property
    def work(self) -> Iteration:
        return work(self.phase, self.batch, self.context)


def work(phase: Phase, batch: int, context: int) -> Iteration:
    """A step's work. In a decode step the new token is the last of the context."""
    tokens = batch * context
    if phase == "decode":
        return Iteration(batch, tokens)
    pairs = batch * (context * (context + 1) // 2)
    return Iteration(batch, tokens, tokens, pairs, batch, tokens)


def board(gpu: str) -> Gpu:
    """The preset; the L40S share a link in the host of these tables."""
    return replace(load_gpu(gpu), interconnect_shared=True) if gpu == "l40s" else load_gpu(gpu)


def forecast(cost: RooflineCost, step: Iteration) -> tuple[float, float, float]:
    """Milliseconds of a step, and the ends of the interval."""
    milliseconds = 1e3 * cost.iteration_s(step)
    return milliseconds, *interval(milliseconds, cost, partial(iteration_s, work=step))


ALONE: dict[str, Any] = dict.fromkeys(
    ("host_s", "host_per_rollout_s", "prefill_launch_s_per_layer"), 0.0
)
"""What hosts take: tables of kernels have none."""


@cache
def _cost(model: str, gpu: str, gpus: int) -> RooflineCost:
    return RooflineCost(architecture(model), board(gpu), gpus, **ALONE)


def cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Cases in the order of the rows; of each GPU's the presets saw every second, from the first
    on."""
    for row, role in zip(rows, alternating(rows, lambda row: row.gpu), strict=True):
        guess, low, high = forecast(_cost(row.model, row.gpu, row.tensor_parallel), row.work)
        name = f"tp {row.tensor_parallel}, {row.batch} x {row.context}"
        yield Case(f"{row.gpu}, {row.phase}", name, "ms", row.latency_ms, guess, role, low, high)


def judge(rows: Sequence[Row]) -> Judged:
    return Judged(list(cases(rows)))
