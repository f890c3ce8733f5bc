"""A real vLLM run whose requests arrive over time, on one RTX PRO 6000 (LLMServingSim's bench)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from calibration.jury.files import PUBLISHED, number, read_rows, whole
from calibration.jury.serving import Request, Served, serve
from calibration.jury.verdict import Case, Check, Source
from simulator.cluster.replica import EngineSpec
from simulator.costs import RooflineCost
from simulator.costs.hardware import load_gpu
from simulator.costs.models import load_model
from simulator.errors import ScenarioError

FILE = "vllm_requests_rtx_pro_6000.csv"
COLUMNS = ("prompt_tokens", "new_tokens", "queued_s", "first_token_s", "last_token_s")
TARGET = 0.05
MAX_SEQS, MAX_BATCHED_TOKENS = 128, 2048  # of the run, in the engine_kwargs that its authors keep
EDITIONS = {"Workstation Edition": None, "Server Edition": 1.597e12}  # None: as in the preset


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


def forecast(requests: Sequence[Request], bandwidth_bytes_per_s: float | None = None) -> Summary:
    """The presets' forecast, the board's bandwidth given or as in the preset."""
    gpu = load_gpu("rtx-pro-6000")
    if bandwidth_bytes_per_s is not None:
        gpu = replace(gpu, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    cost = RooflineCost(load_model("llama-3.1-8b"), gpu)
    engine = EngineSpec(MAX_SEQS, MAX_BATCHED_TOKENS, cost.kv_pool_tokens)
    return summarise(requests, serve(requests, engine, cost))


def source(data: Path) -> Source:
    """The trace against the presets, for both editions of the board. Raises AbsentError."""
    requests, served = read_trace(data / FILE)
    measured = summarise(requests, served)
    _check_known(measured)
    cases, checks = [], []
    for edition, bandwidth in EDITIONS.items():
        predicted = forecast(requests, bandwidth)
        figures = (
            ("makespan", "s", measured.makespan_s, predicted.makespan_s),
            ("mean latency", "s", measured.mean_latency_s, predicted.mean_latency_s),
            (
                "mean time per output token",
                "ms",
                1e3 * measured.mean_tpot_s,
                1e3 * predicted.mean_tpot_s,
            ),
        )
        for name, unit, known, guess in figures:
            case = Case(f"{edition}", name, unit, known, guess)
            cases.append(case)
            checks.append(Check(f"RTX PRO 6000 {edition}: {name}", case.error, TARGET, signed=True))
    late = [check for check in checks if not check.met]
    misses = (
        (
            "With the Server Edition's bandwidth "
            f"{len(late)} of 3 figures are missed: the preset's efficiencies are those of the "
            "L40S, as no kernel of this board is tabulated, and host overhead is the default. "
            "A pass with the Workstation Edition's bandwidth is therefore no proof that either "
            "part is right.",
        )
        if late
        else ()
    )
    return Source(
        "trace",
        "vLLM requests that arrive over time, one RTX PRO 6000",
        "casys-kaist/LLMServingSim, bench/examples/RTXPRO6000/Llama-3.1-8B: vLLM 0.19, 300 "
        "ShareGPT requests at 10/s, bf16",
        calibrated="nothing",
        held_out="the whole run",
        assumed=(
            f"max_seqs {MAX_SEQS} and max_batched_tokens {MAX_BATCHED_TOKENS} are the run's own; "
            "host_s and host_per_rollout_s are the defaults of the roofline, efficiencies those of "
            "the preset (assumed, as the L40S)",
            "which edition of the board this run had is not published; a later run of the same "
            "benchmark (vLLM 0.28) names the Server Edition. Both are reported: 1.792e12 bytes/s "
            "(the preset) and 1.597e12",
        ),
        cases=tuple(cases),
        checks=tuple(checks),
        misses=misses,
    )


def _check_known(measured: Summary) -> None:
    """The file must give the figures known of it: a truncated copy is not judged."""
    for line, row in enumerate(
        read_rows(PUBLISHED / "trace.csv", ("quantity", "seconds", "source")), start=2
    ):
        known = number(row, "seconds", f"trace.csv, line {line}")
        found = getattr(measured, row["quantity"])
        if abs(found / known - 1) > 1e-3:
            raise ScenarioError(
                FILE, f"gives {row['quantity']} {found:.4g}, not the {known:.4g} known of it"
            )
