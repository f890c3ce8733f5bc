"""DeepSeek-R1 in fp8 on eight H200: time per output token of a closed loop of requests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.validation import draws
from benchmarks.validation.files import column, read_table
from benchmarks.validation.fitting import halves
from benchmarks.validation.verdict import Case, Role, Source, mape_checks
from rollcast.simulator.costs import CostModel, RooflineCost
from rollcast.simulator.costs.engine.hosts import Engine
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model

FILE = "serving_points_deepseek_r1_h200.csv"
TARGET = 0.20
FRAMEWORKS = {"sglang": "SGLang", "trt": "TensorRT-LLM"}
ENGINES: dict[str, Engine] = {"sglang": "sglang", "trt": "tensorrt-llm"}
FITTED = "sglang"  # to whose points its host was, every second


@dataclass(frozen=True, slots=True)
class Point:
    """One row of the file."""

    framework: str = column(valid=("sglang", "trt"))
    tensor_parallel: int = column()
    expert_parallel: int = column()
    data_parallel_attention: bool = column("dp_attention", {"True": True, "False": False})
    input_tokens: int = column()
    output_tokens: int = column()
    concurrency: int = column()
    token_ms: float = column("time_per_output_token_ms")


@cache
def _cost(engine: Engine, tensor_parallel: int, whole: bool, apart: bool) -> RooflineCost:
    return RooflineCost(
        load_model("deepseek-r1"),
        load_gpu("h200-sxm"),
        tensor_parallel,
        engine=engine,
        expert_parallel=whole,
        data_parallel_attention=apart,
    )


def cost_of(point: Point) -> RooflineCost:
    """The costs of the deployment."""
    return _cost(
        ENGINES[point.framework],
        point.tensor_parallel,
        point.expert_parallel > 1,
        point.data_parallel_attention,
    )


def token_s(point: Point, cost: CostModel) -> float:
    """Seconds between two tokens of a request."""
    return draws.token_s(cost, point.concurrency, point.input_tokens, point.output_tokens)


def case_of(point: Point, role: Role) -> Case:
    """The point and its forecast, milliseconds."""
    cost = cost_of(point)
    milliseconds = 1e3 * token_s(point, cost)
    ends = draws.interval(milliseconds, draws.drawn(cost), cost, lambda c: token_s(point, c))
    name = (
        f"ep {point.expert_parallel}, {point.input_tokens} + {point.output_tokens}, "
        f"{point.concurrency} at a time"
    )
    return Case(FRAMEWORKS[point.framework], name, "ms", point.token_ms, milliseconds, role, *ends)


def _shape(point: Point) -> tuple[int, int, int, int]:
    """By which points are sorted, and every second one taken."""
    return (point.expert_parallel, point.input_tokens, point.output_tokens, point.concurrency)


def source(data: Path) -> Source:
    """All points, and the checks of those that no host was fitted to. Raises AbsentError."""
    points = read_table(data / FILE, Point)
    mine = sorted((p for p in points if p.framework == FITTED), key=_shape)
    fitted = [mine[i] for i in halves(len(mine))[0]]
    cases = [case_of(p, "calibrated" if p in fitted else "held out") for p in points]
    held = [case for case in cases if case.role == "held out"]
    return Source(
        "serving_points",
        "DeepSeek-R1 (fp8) on eight H200: time per output token",
        "InferenceX results of SemiAnalysis; 4 to 64 requests at a time, 1,024 to 8,192 tokens in "
        "and out, October 2025 to May 2026",
        calibrated="SGLang's host, on the first, third, ... of its points by shape and requests; "
        "TensorRT-LLM's on another table (v0.15)",
        held_out="the other points",
        assumed=("weights in blocks of 128 x 128, KV cache in 16 bit, no second token predicted",),
        cases=tuple(cases),
        checks=tuple(mape_checks(held, TARGET)),
        misses=(
            "TensorRT-LLM of November 2025 takes 2 to 3 ms longer at four requests than the "
            "forecast, and 4 ms longer than SGLang of May 2026, which the forecast meets.",
        ),
        listed=False,
    )
