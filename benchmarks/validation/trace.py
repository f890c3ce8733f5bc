"""A real vLLM run whose requests arrive over time, on one RTX PRO 6000 (LLMServingSim's bench)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.validation.files import PUBLISHED, number, read_rows, whole
from benchmarks.validation.serving import Request, Served, serve
from benchmarks.validation.verdict import Case, Check, Role, Source
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.costs import RooflineCost
from rollcast.simulator.costs.engine.hosts import Engine
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.errors import ScenarioError

FILE = "vllm_requests_rtx_pro_6000.csv"
COLUMNS = ("prompt_tokens", "new_tokens", "queued_s", "first_token_s", "last_token_s")
TARGET = 0.05
MAX_SEQS, MAX_BATCHED_TOKENS = 128, 2048  # of the run, in the engine_kwargs that its authors keep
# The board is named in the repository's own record of the same benchmark.
BOARD = "rtx-pro-6000-server"
ENGINE: Engine = "vllm-0.19"


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


def read_trace(path: Path) -> tuple[list[Request], list[Served]]:
    """Requests of a run and when each was served. Raises AbsentError or ScenarioError."""
    requests, served = [], []
    for line, row in enumerate(read_rows(path, COLUMNS), start=2):
        where = f"{path.name}, line {line}"
        arrival_s = number(row, "queued_s", where)
        requests.append(
            Request(whole(row, "prompt_tokens", where), whole(row, "new_tokens", where), arrival_s)
        )
        first_s = number(row, "first_token_s", where, arrival_s)
        served.append(Served(first_s, number(row, "last_token_s", where, first_s)))
    return requests, served


def forecast(requests: Sequence[Request], engine: Engine) -> list[Served]:
    """When the presets would have served each request, the host the engine's."""
    cost = RooflineCost(load_model("llama-3.1-8b"), load_gpu(BOARD), engine=engine)
    return serve(requests, EngineSpec(MAX_SEQS, MAX_BATCHED_TOKENS, cost.kv_pool_tokens), cost)


def by_arrival(requests: Sequence[Request]) -> tuple[list[int], list[int]]:
    """Indices of the half of the requests that arrived first, and of the others."""
    order = sorted(range(len(requests)), key=lambda i: requests[i].arrival_s)
    return order[: len(order) // 2], order[len(order) // 2 :]


def source(data: Path) -> Source:
    """The trace against presets, the host named or the default. Raises AbsentError."""
    requests, served = read_trace(data / FILE)
    measured = summarise(requests, served)
    _check_known(measured)
    seen, unseen = by_arrival(requests)
    guess = forecast(requests, ENGINE)
    cases, checks = [], []
    parts: tuple[tuple[str, list[int], Role], ...] = (
        ("first 150 requests", seen, "calibrated"),
        ("later 150 requests", unseen, "held out"),
    )
    for part, indices, role in parts:
        some = [requests[i] for i in indices]
        known = summarise(some, [served[i] for i in indices])
        summary = summarise(some, [guess[i] for i in indices])
        figures = (
            ("makespan", "s", known.makespan_s, summary.makespan_s),
            ("mean latency", "s", known.mean_latency_s, summary.mean_latency_s),
            (
                "mean time per output token",
                "ms",
                1e3 * known.mean_tpot_s,
                1e3 * summary.mean_tpot_s,
            ),
        )
        for name, unit, right, meaning in figures:
            case = Case(f"engine {ENGINE}, {part}", name, unit, right, meaning, role)
            cases.append(case)
            if role == "held out":
                label = f"RTX PRO 6000 Server Edition, {case.group}: {name}"
                checks.append(Check(label, case.error, TARGET, signed=True))
    return Source(
        "trace",
        "vLLM requests that arrive over time, one RTX PRO 6000",
        "casys-kaist/LLMServingSim, bench/examples/RTXPRO6000/Llama-3.1-8B: vLLM 0.19, 300 "
        "ShareGPT requests at 10/s, bf16",
        calibrated=f"host_s and host_per_rollout_s of {ENGINE}, on the time per token of each of "
        "the first 150 requests. The board's efficiencies on kernel tables of the same board "
        "(aiconfigurator 0.12.0), not on this run",
        held_out="the 150 requests that arrived later",
        assumed=(
            f"max_seqs {MAX_SEQS} and max_batched_tokens {MAX_BATCHED_TOKENS} are the run's own",
            "the board is the Server Edition (1.597e12 bytes/s), which the record of the same "
            "benchmark under vLLM 0.28 names; that run took 65.7 s, this one 65.9 s",
            "both halves are of one run, so the later requests wait behind the first",
        ),
        cases=tuple(cases),
        checks=tuple(checks),
    )


def _check_known(measured: Summary) -> None:
    """The file must give the figures known of it: a truncated copy is not judged."""
    for line, row in enumerate(
        read_rows(PUBLISHED / "trace.csv", ("quantity", "seconds", "source")), start=2
    ):
        known = number(row, "seconds", f"trace.csv, line {line}")
        value = getattr(measured, row["quantity"])
        if abs(value / known - 1) > 1e-3:
            raise ScenarioError(
                FILE, f"gives {row['quantity']} {value:.4g}, not the {known:.4g} known of it"
            )
