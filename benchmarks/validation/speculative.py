"""What speculative decoding gains: published times per token with it and without."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

from benchmarks.validation.files import PUBLISHED, number, one_of, read_rows, whole
from benchmarks.validation.verdict import Case, Role, Source, mape_checks
from rollcast.simulator.costs import RooflineCost
from rollcast.simulator.costs.engine.hosts import Engine
from rollcast.simulator.costs.engine.speculative_options import Method, Speculative
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model

FILE = "speculative.csv"
COLUMNS = (
    "source",
    "engine",
    "model",
    "gpu",
    "gpus",
    "method",
    "tokens",
    "tokens_per_step",
    "rollouts",
    "context_tokens",
    "plain_ms",
    "speculative_ms",
    "role",
)
TARGET = 0.15
EAGER = "vLLM issue 20780, eagle3"  # its drafts were not replayed from graphs


@dataclass(frozen=True, slots=True)
class Measured:
    """One row: milliseconds a token of each rollout, without and with ``said``."""

    source: str
    engine: Engine
    model: str
    gpu: str
    gpus: int
    said: Speculative
    rollouts: int
    context_tokens: int
    plain_ms: float
    speculative_ms: float
    role: Role

    @property
    def group(self) -> str:
        """What it is averaged with."""
        return f"{self.source}, {self.said.method}"


def read_table(path: Path) -> list[Measured]:
    """The rows of the file. Raises AbsentError or ScenarioError."""
    rows = []
    for line, row in enumerate(read_rows(path, COLUMNS), start=2):
        where = f"{path.name}, line {line}"
        options = Speculative(
            method=cast(Method, one_of(row, "method", where, get_args(Method))),
            tokens=whole(row, "tokens", where),
            tokens_per_step=number(row, "tokens_per_step", where, 1.0),
        )
        rows.append(
            Measured(
                row["source"],
                one_of(row, "engine", where, get_args(Engine)),
                row["model"],
                row["gpu"],
                whole(row, "gpus", where),
                options,
                whole(row, "rollouts", where),
                whole(row, "context_tokens", where),
                number(row, "plain_ms", where, 1e-9),
                number(row, "speculative_ms", where, 1e-9),
                cast(Role, one_of(row, "role", where, ("calibrated", "held out"))),
            )
        )
    return rows


def gain(row: Measured) -> float:
    """Forecast time of a token without speculation over that with it."""
    apart = row.gpus > 8  # the one deployment over nodes: attention apart, whole experts
    plain = RooflineCost(
        load_model(row.model),
        load_gpu(row.gpu),
        row.gpus,
        engine=row.engine,
        data_parallel_attention=apart,
        expert_parallel=apart,
    )
    with_it = replace(plain, speculative=row.said)
    seconds = [c.decode_curve(row.rollouts).seconds(row.context_tokens) for c in (plain, with_it)]
    return seconds[0] / seconds[1]


def source(_data: Path) -> Source:
    """Gains by source and method. Raises AbsentError or ScenarioError."""
    cases = [
        Case(
            row.group,
            f"{row.model}, {row.gpus} x {row.gpu}, {row.said.tokens} drafted, "
            f"{row.said.expected_tokens:g} gained, {row.rollouts} at a time",
            "times",
            row.plain_ms / row.speculative_ms,
            gain(row),
            row.role,
        )
        for row in read_table(PUBLISHED / FILE)
    ]
    held = [case for case in cases if case.role == "held out"]
    return Source(
        "speculative",
        "Speculative decoding: gain in time per token",
        "vLLM issue 20780 and pull request 16035 (Llama-3.1-8B on H100), Tencent AngelSlim (Qwen3 "
        "on H20, vLLM 0.11), lmsys.org of 2025-07-17 (DeepSeek-V3 on 16 H200 over two nodes, "
        "65,536 tokens of context, without overlapped scheduling)",
        calibrated="what drafting and verifying take beside kernels, on EAGLE with 2, 4 and 6 "
        "drafted tokens of vLLM issue 20780",
        held_out="all else; how much is accepted is given with each row",
        assumed=("contexts of 600 tokens where none is given",),
        cases=tuple(cases),
        checks=tuple(mape_checks(held, TARGET, "gain, ")),
        misses=(
            f"{EAGER}: its drafts were not yet replayed from captured graphs, and take 0.8 ms a "
            "token beside their kernels (set draft_host_s).",
        ),
    )
