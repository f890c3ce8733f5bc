"""DeepSeek-R1 in fp8 on eight H200: time per output token of a closed loop of requests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from benchmarks.validation.case import Case, alternating
from benchmarks.validation.draws import interval, token_s
from benchmarks.validation.files import column
from benchmarks.validation.suite import Judged
from rollcast.simulator.costs import CostModel, RooflineCost
from rollcast.simulator.costs.engine.hosts import Engine
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model

ENGINES: dict[str, Engine] = {"sglang": "sglang", "trt": "tensorrt-llm"}
TITLES = {"sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM"}
FITTED = "sglang"  # to whose points its host was, every second


@dataclass(frozen=True, slots=True)
class Row:
    """A point: so many requests at a time."""

    engine: Engine = column("framework", ENGINES)
    tensor_parallel: int = column()
    expert_parallel: int = column()
    data_parallel_attention: bool = column("dp_attention", {"True": True, "False": False})
    input_tokens: int = column()
    output_tokens: int = column()
    concurrency: int = column()
    token_ms: float = column("time_per_output_token_ms")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """By which points are sorted, and every second one is fitted to."""
        return self.expert_parallel, self.input_tokens, self.output_tokens, self.concurrency


@cache
def _cost(engine: Engine, gpus: int, whole: bool, apart: bool) -> RooflineCost:
    model, gpu = load_model("deepseek-r1"), load_gpu("h200-sxm")
    return RooflineCost(
        model, gpu, gpus, engine=engine, expert_parallel=whole, data_parallel_attention=apart
    )


def cost_of(row: Row) -> RooflineCost:
    whole = row.expert_parallel > 1
    return _cost(row.engine, row.tensor_parallel, whole, row.data_parallel_attention)


def row_s(row: Row, cost: CostModel) -> float:
    """Seconds between two tokens of a request."""
    return token_s(cost, row.concurrency, row.input_tokens, row.output_tokens)


def cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Cases in the order of the rows."""
    mine = sorted((row for row in rows if row.engine == FITTED), key=lambda row: row.shape)
    roles = dict(zip(mine, alternating(mine, lambda row: FITTED), strict=True))
    for row in rows:
        cost = cost_of(row)
        milliseconds = 1e3 * row_s(row, cost)
        low, high = interval(milliseconds, cost, lambda other, row=row: row_s(row, other))  # type: ignore[misc]
        name = (
            f"ep {row.expert_parallel}, {row.input_tokens} + {row.output_tokens}, "
            f"{row.concurrency} at a time"
        )
        role = roles.get(row, "held out")
        yield Case(TITLES[row.engine], name, "ms", row.token_ms, milliseconds, role, low, high)


def judge(rows: Sequence[Row]) -> Judged:
    return Judged(list(cases(rows)))
