"""A real vLLM run whose requests arrive over time, on one RTX PRO 6000 (LLMServingSim's bench)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.validation.case import Case, Check, Role
from benchmarks.validation.files import PUBLISHED, column, read_table
from benchmarks.validation.serving import Request, Served, serve
from benchmarks.validation.suite import Judged
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.costs import RooflineCost
from rollcast.simulator.costs.engine.hosts import Engine
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.errors import ScenarioError

TARGET = 0.05
MAX_SEQS, MAX_BATCHED_TOKENS = 128, 2048  # of the run, in the engine_kwargs that its authors keep
# The board is named in the repository's own record of the same benchmark.
BOARD = "rtx-pro-6000-server"
ENGINE: Engine = "vllm-0.19"


@dataclass(frozen=True, slots=True)
class Row:
    """A request, and when it was served."""

    prompt_tokens: int
    new_tokens: int
    queued_s: float = column(least=0.0)
    first_token_s: float = column(least=0.0)
    last_token_s: float = column(least=0.0)

    @property
    def request(self) -> Request:
        return Request(self.prompt_tokens, self.new_tokens, self.queued_s)

    @property
    def served(self) -> Served:
        return Served(self.first_token_s, self.last_token_s)


@dataclass(frozen=True, slots=True)
class _Known:
    """A figure of the run that its authors give."""

    quantity: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a served trace: last token, mean of last token less arrival, mean time per output token
    after the first. Seconds."""

    makespan_s: float
    mean_latency_s: float
    mean_tpot_s: float


def summarise(requests: Sequence[Request], served: Sequence[Served]) -> Summary:
    """The three figures of a trace. Raises ScenarioError where no request has two tokens."""
    pairs = list(zip(requests, served, strict=True))
    gaps = [(s.end_s - s.first_token_s) / (r.new_tokens - 1) for r, s in pairs if r.new_tokens > 1]
    if not gaps:
        raise ScenarioError("requests", "none has a second token")
    return Summary(
        max(s.end_s for s in served),
        sum(s.end_s - r.arrival_s for r, s in pairs) / len(pairs),
        sum(gaps) / len(gaps),
    )


def read(path: Path) -> list[Row]:
    """Requests in the order of the file. Raises AbsentError or ScenarioError, also where the run is
    another than the one whose figures are known."""
    rows = read_table(path, Row)
    for line, row in enumerate(rows, start=2):
        if row.first_token_s < row.queued_s:
            raise ScenarioError(f"{path.name}, line {line}, first_token_s", "is before queued_s")
        if row.last_token_s < row.first_token_s:
            raise ScenarioError(f"{path.name}, line {line}, last_token_s", "is before the first")
    measured = summarise([row.request for row in rows], [row.served for row in rows])
    for known in read_table(PUBLISHED / "trace.csv", _Known):
        value = getattr(measured, known.quantity)
        if abs(value / known.seconds - 1) > 1e-3:
            problem = f"gives {known.quantity} {value:.4g}, not the {known.seconds:.4g} known of it"
            raise ScenarioError(path.name, problem)
    return rows


def forecast(requests: Sequence[Request], engine: Engine = ENGINE) -> list[Served]:
    """When the presets would have served each request, the host the engine's."""
    cost = RooflineCost(load_model("llama-3.1-8b"), load_gpu(BOARD), engine=engine)
    return serve(requests, EngineSpec(MAX_SEQS, MAX_BATCHED_TOKENS, cost.kv_pool_tokens), cost)


def judge(rows: Sequence[Row]) -> Judged:
    """Three figures of the requests that arrived first, and of the others."""
    requests = [row.request for row in rows]
    guess = forecast(requests)
    order = sorted(range(len(rows)), key=lambda i: requests[i].arrival_s)
    halves: tuple[tuple[str, list[int], Role], ...] = (
        ("first 150 requests", order[: len(order) // 2], "calibrated"),
        ("later 150 requests", order[len(order) // 2 :], "held out"),
    )
    cases = []
    for part, indices, role in halves:
        some = [requests[i] for i in indices]
        known = summarise(some, [rows[i].served for i in indices])
        found = summarise(some, [guess[i] for i in indices])
        for name, unit, scale, key in (
            ("makespan", "s", 1, "makespan_s"),
            ("mean latency", "s", 1, "mean_latency_s"),
            ("mean time per output token", "ms", 1e3, "mean_tpot_s"),
        ):
            measured, expected = (scale * getattr(summary, key) for summary in (known, found))
            cases.append(Case(f"engine {ENGINE}, {part}", name, unit, measured, expected, role))
    checks = [
        Check(f"RTX PRO 6000 Server Edition, {case.full_name}", case.error, TARGET, signed=True)
        for case in cases
        if case.role == "held out"
    ]
    return Judged(cases, checks)
