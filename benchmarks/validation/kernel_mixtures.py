"""One decode step or one prefill of mixtures and of small dense models, from measured kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from benchmarks.validation.draws import drawn, interval, iteration_s
from benchmarks.validation.files import PUBLISHED, number, one_of, read_rows, whole
from benchmarks.validation.kernel_tables import SHARED, Step
from benchmarks.validation.verdict import Case, Source, mape_checks
from rollcast.simulator.costs import CostModel, RooflineCost
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.presets.precision import Precision

FILE = "kernel_mixtures.csv"
COLUMNS = (
    "model",
    "precision",
    "gpu",
    "tensor_parallel",
    "backend",
    "phase",
    "batch",
    "context",
    "latency_ms",
)
TARGET = 0.15
# What the presets say, or the checkpoint does; with it the bytes of the KV cache.
PRECISIONS: Mapping[str, tuple[Precision | None, float]] = {
    "bf16": (None, 2.0),
    "mxfp4": (None, 2.0),
    "fp8_block": (Precision.of_layers("fp8_block"), 2.0),
    "nvfp4": (Precision(attention="bf16", mlp="nvfp4", experts="nvfp4"), 1.0),
}
SMALL_FITTED = ("h100-sxm", "b200")


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a step of the model with weights in ``precision``, as ``backend`` runs it."""

    step: Step
    precision: str
    backend: str

    @property
    def group(self) -> str:
        """What it is averaged with: in 16 bit the rows of its GPU, but for small prefills."""
        step = self.step
        if load_model(step.model).experts:
            where = step.gpu if self.precision == "bf16" else self.precision
            return f"{where}, mixture, {step.phase}"
        where = f"{step.gpu}, " if step.phase == "decode" else ""
        return f"{where}small dense, {step.phase}"

    @property
    def fitted(self) -> bool:
        """Whether a constant was fitted to it."""
        step = self.step
        if step.model == "qwen3-30b-a3b":
            return (step.phase, step.tensor_parallel, self.backend) == ("prefill", 1, "vllm")
        small = step.model == "qwen3-0.6b" and step.phase == "decode"
        return small and step.gpu in SMALL_FITTED


def read_table(path: Path) -> list[Row]:
    """The rows of the table. Raises AbsentError or ScenarioError."""
    rows = []
    for line, row in enumerate(read_rows(path, COLUMNS), start=2):
        where = f"{path.name}, line {line}"
        step = Step(
            row["model"],
            row["gpu"],
            whole(row, "tensor_parallel", where),
            one_of(row, "phase", where, ("decode", "prefill")),
            whole(row, "batch", where),
            whole(row, "context", where),
            number(row, "latency_ms", where, 1e-9),
        )
        precision = one_of(row, "precision", where, list(PRECISIONS))
        rows.append(Row(step, precision, row["backend"]))
    return rows


@cache
def _cost(name: str, precision: str, gpu: str, tensor_parallel: int) -> RooflineCost:
    model, board = load_model(name), load_gpu(gpu)
    formats, kv_bytes = PRECISIONS[precision]
    if formats is not None:
        model = replace(model, precision=formats, kv_bytes_per_element=kv_bytes)
    if gpu == SHARED:
        board = replace(board, interconnect_shared=True)
    return RooflineCost(model, board, tensor_parallel, host_s=0.0, host_per_rollout_s=0.0)


@cache
def _drawn(name: str, precision: str, gpu: str, tensor_parallel: int) -> tuple[CostModel, ...]:
    return drawn(_cost(name, precision, gpu, tensor_parallel))


def judge(rows: list[Row]) -> list[Case]:
    """Cases in the order of the rows."""
    cases = []
    for row in rows:
        step = row.step
        key = (step.model, row.precision, step.gpu, step.tensor_parallel)
        cost, work = _cost(*key), step.work
        milliseconds = 1e3 * cost.iteration_s(work)
        ends = interval(milliseconds, _drawn(*key), cost, partial(iteration_s, work=work))
        cases.append(
            Case(
                row.group,
                f"{step.model}, {step.gpu}, tp {step.tensor_parallel}, {row.backend}, "
                f"{step.batch} x {step.context}",
                "ms",
                step.latency_ms,
                milliseconds,
                "calibrated" if row.fitted else "held out",
                *ends,
            )
        )
    return cases


def source(_data: Path) -> Source:
    """Held-out rows by GPU, precision, kind and phase. Raises AbsentError or ScenarioError."""
    cases = judge(read_table(PUBLISHED / FILE))
    held = [case for case in cases if case.role == "held out"]
    checks = mape_checks(held, TARGET, "held-out rows, ")
    return Source(
        "kernel_mixtures",
        "Kernel tables: mixtures and small dense models",
        "aiconfigurator 0.12.0, predicted from measured kernels: Qwen3-30B-A3B, Qwen3-0.6B and "
        "1.7B in 16 bit, gpt-oss-120b in MXFP4 and DeepSeek-V3.1 in NVFP4 (vLLM 0.24), "
        "Qwen3-235B-A22B in fp8 (SGLang and TensorRT-LLM); decode at batch 1 to 64 and 1,024 and "
        "8,192 tokens, prefill of 1 to 4 prompts of 512 to 16,384",
        calibrated="the efficiency of grouped products, on Qwen3-30B-A3B's prefill by one GPU (and "
        "on Mixtral's throughput); the least that products take, on Qwen3-0.6B's decoding on H100 "
        "and B200",
        held_out="all else",
        assumed=(
            "no host overhead: the tables are kernels alone",
            "vLLM's tables of fp8 in blocks are left out: their dense products are ten times as "
            "slow as those in 16 bit",
        ),
        cases=tuple(cases),
        checks=tuple(checks),
        misses=(
            "A batch of 16 reaches fewer experts of 128 than a skew of 1 says: decoding is "
            "forecast 10 to 40 % too slow there, and within 10 % at 64 but on Blackwell, whose "
            "grouped products read faster than its dense ones.",
            "Prefills of small models: 512 tokens are forecast up to 60 % too fast, for norms and "
            "activations are not counted beside products and attention.",
            "One rollout on L40S or RTX PRO 6000: the tables read its experts faster than memory "
            "can, for they stay in the GPU's cache between repeats.",
            "MXFP4's prefill: on Hopper and GDDR boards 20 to 60 % too slow, on Blackwell 10 to "
            "25 % too fast (and 60 % at 512 tokens); the engines' kernels differ by GPU.",
            "NVFP4, DeepSeek-V3.1 on eight GPUs: prefill 20 to 40 % too fast, slices of experts "
            "reach less of the fp4 peak; decoding at 16 or more x 8,192 tokens 15 to 45 % too "
            "fast, latent attention reads its cache more slowly there.",
            "TensorRT-LLM's prefill in fp8 blocks takes up to twice as long as SGLang's, which is "
            "met within 7 to 15 % on H100 and H200.",
        ),
        listed=False,
    )
