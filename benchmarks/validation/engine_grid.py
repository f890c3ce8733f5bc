"""Batches of equal requests on vLLM of mid-2024: LLM-Inference-Bench on H100, A100 and GH200."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks.validation.architectures import architecture
from benchmarks.validation.draws import drawn, interval, token_s
from benchmarks.validation.files import column, read_table
from benchmarks.validation.fitting import fit_relative, halves
from benchmarks.validation.serving import Request, serve
from benchmarks.validation.verdict import Case, Check, Source, grouped, mape, mape_checks
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.costs import CostModel, RooflineCost
from rollcast.simulator.costs.engine.hosts import Engine, engine_presets
from rollcast.simulator.costs.presets.gpus import Gpu, load_gpu

FILE = "engine_batch_latency.csv"
TARGET = 0.10
NAMED: Engine = "vllm-0.5"  # of the time; its host is the middle of the fits
NAMED_TARGET = 0.12
BOARDS = {"Nvidia H100 GPU": "H100", "Nvidia A100 GPU": "A100", "Nvidia GH200 GPU": "GH200"}
MAX_SEQS, MAX_BATCHED_TOKENS = 256, 8192
_FAR = 0.20
REASONS = {
    "H100, Mistral-7B-v0.1": "measured up to 1.7 times the time of Llama-3-8B, whose layers have "
    "the same widths, and not so on A100: perhaps the engine's handling of its attention window",
    "A100, Mixtral-8x7B-v0.1": "the 40 GB board seems to reach a larger share of its lower "
    "bandwidth than the 80 GB board, whose share is used (1 x A100 fits a host overhead of 0, "
    "which says the same)",
    "A100, Llama-2-70b-hf": "weights leave 1.7 GB a GPU for KV, so a small error of the pool "
    "decides how many requests run at once",
}


@cache
def board(name: str) -> Gpu:
    """The GPU behind a name of the table: the preset, or it with another memory's datasheet."""
    if name == "H100":
        return load_gpu("h100-sxm")
    if name == "A100":
        memory = {"memory_bytes": 42.9e9, "bandwidth_bytes_per_s": 1.555e12}
        return Gpu.from_mapping({"name": "a100-40gb", "preset": "a100-80gb", **memory})
    memory = {"memory_bytes": 96e9, "bandwidth_bytes_per_s": 4.0e12}
    return Gpu.from_mapping({"name": "gh200-96gb", "preset": "h100-sxm", **memory})


@dataclass(frozen=True, slots=True)
class Batch:
    """One row: ``batch`` requests of ``length`` prompt and as many new tokens, all at time 0."""

    gpu: str = column("hw", BOARDS)
    gpus: int = column("ngpu")
    model: str = column()
    length: int = column("io_len")
    batch: int = column()
    latency_s: float = column()

    @property
    def name(self) -> str:
        """The row in words."""
        short = self.model.rsplit("/", 1)[-1]
        return f"{short}, {self.gpus} GPU, {self.batch} x {self.length}+{self.length}"


def simulate_s(row: Batch, host_s: float, host_per_rollout_s: float) -> float:
    """Seconds until the last request of the batch is through one simulated replica."""
    cost = RooflineCost(
        architecture(row.model),
        board(row.gpu),
        row.gpus,
        host_s=host_s,
        host_per_rollout_s=host_per_rollout_s,
    )
    engine = EngineSpec(MAX_SEQS, MAX_BATCHED_TOKENS, cost.kv_pool_tokens, prefix_caching=False)
    requests = [Request(row.length, row.length)] * row.batch
    return max(served.end_s for served in serve(requests, engine, cost))


def fit_host(rows: list[Batch]) -> tuple[float, float]:
    """(host_s, host_per_rollout_s) of an engine, from rows of one kind of replica.

    All requests start at once, so which iterations run does not hang on how long they take: the
    latency is linear in both, and three simulations of a row give its coefficients exactly.
    """
    probe = (1e-3, 1e-5)
    fixed = np.array([simulate_s(row, 0.0, 0.0) for row in rows])
    columns = np.array(
        [
            [
                (simulate_s(row, probe[0], 0.0) - seconds) / probe[0],
                (simulate_s(row, 0.0, probe[1]) - seconds) / probe[1],
            ]
            for row, seconds in zip(rows, fixed, strict=True)
        ]
    )
    host = fit_relative(fixed, columns, np.array([row.latency_s for row in rows]))
    return float(host[0]), float(host[1])


def by_replica(grid: list[Batch]) -> dict[tuple[str, int], list[Batch]]:
    """The rows by GPU and number of GPUs."""
    kinds: dict[tuple[str, int], list[Batch]] = {}
    for row in grid:
        kinds.setdefault((row.gpu, row.gpus), []).append(row)
    return kinds


def judge(grid: list[Batch]) -> tuple[list[Case], dict[str, tuple[float, float]]]:
    """Cases of both halves, and the host overhead by GPU and number of GPUs."""
    cases, hosts = [], {}
    for (gpu, gpus), rows in by_replica(grid).items():
        seen, unseen = halves(len(rows))
        host = hosts[f"{gpus} x {gpu}"] = fit_host([rows[i] for i in seen])
        for indices, role in ((seen, "calibrated"), (unseen, "held out")):
            for row in (rows[i] for i in indices):
                guess = simulate_s(row, *host)
                cases.append(Case(gpu, row.name, "s", row.latency_s, guess, role))  # type: ignore[arg-type]
    return cases, hosts


@cache
def _named_cost(model: str, gpu: str, gpus: int) -> tuple[CostModel, tuple[CostModel, ...]]:
    """Costs with the host of the engine's preset, and the same drawn anew."""
    cost = RooflineCost(architecture(model), board(gpu), gpus, engine=NAMED)
    return cost, drawn(cost)


def named(grid: list[Batch]) -> list[Case]:
    """The held-out half with the host of the engine's preset, whatever the GPUs."""
    host = engine_presets()[NAMED]
    rows = [kind[i] for kind in by_replica(grid).values() for i in halves(len(kind))[1]]
    cases = []
    for row in rows:
        seconds = simulate_s(row, host.host_s, host.host_per_rollout_s)
        cost, draws = _named_cost(row.model, row.gpu, row.gpus)
        served = partial(token_s, running=row.batch, prompt=row.length, output=row.length)
        ends = interval(seconds, draws, cost, served)
        name = f"host of {NAMED}, {row.gpu}"
        cases.append(Case(name, row.name, "s", row.latency_s, seconds, "held out", *ends))
    return cases


def source(data: Path) -> Source:
    """Held-out half of the grid by GPU. Raises AbsentError."""
    grid = read_table(data / FILE, Batch)
    cases, hosts = judge(grid)
    held = [case for case in cases if case.role == "held out"]
    seen = [case for case in cases if case.role == "calibrated"]
    checks = mape_checks(held, TARGET, "held-out half, ")
    checks += mape_checks(named(grid), NAMED_TARGET, "held-out half, ")
    checks += [
        Check(f"calibration half, {gpu}", mape(members), None, len(members))
        for gpu, members in grouped(seen).items()
    ]
    misses = [f"{c.name}: {c.value:.1%}; {c.note}" for c in checks if c.met is False]
    misses += _far_off(held)
    spelt = "; ".join(f"{k}: {1e3 * a:.2f} ms and {1e6 * b:.0f} us" for k, (a, b) in hosts.items())
    return Source(
        "engine_grid",
        "Engine grid: batches of equal requests on vLLM of mid-2024",
        "argonne-lcf/LLM-Inference-Bench (arXiv 2411.00136), fp16, input = output = 128 to 1,024 "
        "tokens, batches of 1, 16 and 64, all requests at once",
        calibrated="host overhead of the engine (per iteration; per rollout and iteration) on the "
        f"first, third, ... row of each GPU and number of GPUs: {spelt}",
        held_out="the second, fourth, ... row; kernel efficiencies come from other data",
        assumed=(
            f"max_seqs {MAX_SEQS}, max_batched_tokens {MAX_BATCHED_TOKENS}, KV pool from 90 % of "
            "memory less weights and 2 GB",
            "A100 is the 40 GB board (1.555e12 bytes/s): the jump of Llama-2-7B from 256 to 512 "
            "tokens at batch 64 is its KV pool running full; kernel efficiencies are those of the "
            "80 GB board",
            "GH200 is the 96 GB board (4.0e12 bytes/s) with the H100's efficiencies",
        ),
        cases=tuple(cases),
        checks=tuple(checks),
        misses=tuple(misses),
        listed=False,
    )


def _far_off(cases: list[Case]) -> list[str]:
    """By GPU and model, the cases far off, and why as far as that is known."""
    far = [case for case in cases if abs(case.error) > _FAR]
    sentences = []
    for name, members in grouped(far, lambda c: f"{c.group}, {c.name.split(',')[0]}").items():
        low, high = min(c.error for c in members), max(c.error for c in members)
        reason = REASONS.get(name, "cause unknown")
        sentences.append(
            f"{name}: {len(members)} held-out rows more than {_FAR:.0%} off ({low:+.0%} to "
            f"{high:+.0%}); {reason}."
        )
    return sentences
