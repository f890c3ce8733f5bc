"""One decode step or one prefill of mixtures and of small dense models, from measured kernels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from benchmarks.validation.case import Case, Role
from benchmarks.validation.kernel_tables import ALONE, Phase, board, forecast, work
from benchmarks.validation.suite import Judged
from rollcast.simulator.costs import RooflineCost
from rollcast.simulator.costs.presets.model_options import Precision
from rollcast.simulator.costs.presets.models import load_model

Format = Literal["bf16", "mxfp4", "fp8_block", "nvfp4"]
# Beside what presets say or checkpoints do: the precision, and bytes of the KV cache.
PRECISIONS = {
    "fp8_block": (Precision.of_layers("fp8_block"), 2.0),
    "nvfp4": (Precision(attention="bf16", mlp="nvfp4", experts="nvfp4"), 1.0),
}
SMALL_FITTED = ("h100-sxm", "b200")


@dataclass(frozen=True, slots=True)
class Row:
    """A step of the model with weights in ``precision``, as ``backend`` runs it."""

    model: str
    precision: Format
    gpu: str
    tensor_parallel: int
    backend: str
    phase: Phase
    batch: int
    context: int
    latency_ms: float

    @property
    def group(self) -> str:
        """In 16 bit the rows of its GPU, but for small prefills."""
        if load_model(self.model).experts:
            where = self.gpu if self.precision == "bf16" else self.precision
            return f"{where}, mixture, {self.phase}"
        where = f"{self.gpu}, " if self.phase == "decode" else ""
        return f"{where}small dense, {self.phase}"

    @property
    def name(self) -> str:
        size = f"{self.batch} x {self.context}"
        return f"{self.model}, {self.gpu}, tp {self.tensor_parallel}, {self.backend}, {size}"

    @property
    def role(self) -> Role:
        if self.model == "qwen3-30b-a3b":
            kind = (self.phase, self.tensor_parallel, self.backend)
            return "calibrated" if kind == ("prefill", 1, "vllm") else "held out"
        small = self.model == "qwen3-0.6b" and self.phase == "decode"
        return "calibrated" if small and self.gpu in SMALL_FITTED else "held out"


@cache
def _cost(name: str, precision: Format, gpu: str, gpus: int) -> RooflineCost:
    model = load_model(name)
    if precision in PRECISIONS:
        formats, kv_bytes = PRECISIONS[precision]
        model = replace(model, precision=formats, kv_bytes_per_element=kv_bytes)
    return RooflineCost(model, board(gpu), gpus, **ALONE)


def case_of(row: Row) -> Case:
    cost = _cost(row.model, row.precision, row.gpu, row.tensor_parallel)
    guess, low, high = forecast(cost, work(row.phase, row.batch, row.context))
    return Case(row.group, row.name, "ms", row.latency_ms, guess, row.role, low, high)


def judge(rows: Sequence[Row]) -> Judged:
    return Judged([case_of(row) for row in rows])
