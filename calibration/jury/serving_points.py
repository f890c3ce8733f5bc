"""DeepSeek-R1 in fp8 on eight H200: time per output token of a closed loop of requests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from calibration.jury.files import number, one_of, read_rows, whole
from calibration.jury.fitting import halves
from calibration.jury.verdict import Case, Source, mape_checks
from simulator.costs import Iteration, RooflineCost
from simulator.costs.engines import Engine
from simulator.costs.hardware import load_gpu
from simulator.costs.models import load_model

FILE = "serving_points_deepseek_r1_h200.csv"
COLUMNS = (
    "framework",
    "tensor_parallel",
    "expert_parallel",
    "dp_attention",
    "input_tokens",
    "output_tokens",
    "concurrency",
    "time_per_output_token_ms",
)
TARGET = 0.20
FRAMEWORKS = {"sglang": "SGLang", "trt": "TensorRT-LLM"}
ENGINES: dict[str, Engine] = {"sglang": "sglang", "trt": "tensorrt-llm"}
FITTED = "sglang"  # to whose points its host was, every second


@dataclass(frozen=True, slots=True)
class Point:
    """One row of the file."""

    framework: str
    tensor_parallel: int
    expert_parallel: int
    data_parallel_attention: bool
    input_tokens: int
    output_tokens: int
    concurrency: int
    token_ms: float


def read_points(path: Path) -> list[Point]:
    """The rows of the file. Raises AbsentError or ScenarioError."""
    points = []
    for line, row in enumerate(read_rows(path, COLUMNS), start=2):
        where = f"{path.name}, line {line}"
        points.append(
            Point(
                one_of(row, "framework", where, list(FRAMEWORKS)),
                whole(row, "tensor_parallel", where),
                whole(row, "expert_parallel", where),
                one_of(row, "dp_attention", where, ("True", "False")) == "True",
                whole(row, "input_tokens", where),
                whole(row, "output_tokens", where),
                whole(row, "concurrency", where),
                number(row, "time_per_output_token_ms", where, 1e-9),
            )
        )
    return points


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


def token_s(point: Point) -> float:
    """Seconds between two tokens of a request: a decode iteration at half of the response, and its
    share of the prompts that the other requests compute meanwhile."""
    cost = _cost(
        ENGINES[point.framework],
        point.tensor_parallel,
        point.expert_parallel > 1,
        point.data_parallel_attention,
    )
    prompt, output, running = point.input_tokens, point.output_tokens, point.concurrency
    context = round(running * (prompt + output / 2))
    decode_s = cost.decode_curve(running).seconds(context)
    pairs = prompt * (prompt + 1) // 2
    with_prompt = Iteration(running, context, prompt, pairs, 1, prompt)
    prompt_s = cost.mixed_iteration_s(with_prompt) - decode_s
    return decode_s + prompt_s * (running - 1) / output


def _shape(point: Point) -> tuple[int, int, int, int]:
    """By which points are sorted, and every second one taken."""
    return (
        point.expert_parallel, point.input_tokens, point.output_tokens, point.concurrency
    )  # fmt: skip


def source(data: Path) -> Source:
    """All points, and the checks of those that no host was fitted to. Raises AbsentError."""
    points = read_points(data / FILE)
    mine = sorted((p for p in points if p.framework == FITTED), key=_shape)
    fitted = [mine[i] for i in halves(len(mine))[0]]
    cases = [
        Case(
            FRAMEWORKS[point.framework],
            f"ep {point.expert_parallel}, {point.input_tokens} + {point.output_tokens}, "
            f"{point.concurrency} at a time",
            "ms",
            point.token_ms,
            1e3 * token_s(point),
            "calibrated" if point in fitted else "held out",
        )
        for point in points
    ]
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
