"""What speculative decoding gains: published times per token with it and without."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.validation.case import Case, Role
from benchmarks.validation.files import column
from benchmarks.validation.suite import Judged
from rollcast.simulator.costs import RooflineCost
from rollcast.simulator.costs.engine.hosts import Engine
from rollcast.simulator.costs.engine.speculative_options import Method, Speculative
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model


@dataclass(frozen=True)
class Row:
    """Milliseconds a token of each rollout, without and with drafts of ``tokens``."""

    source: str = column()
    engine: Engine = column()
    model: str = column()
    gpu: str = column()
    gpus: int = column()
    method: Method = column()
    tokens: int = column()
    tokens_per_step: float = column(least=1.0)
    rollouts: int = column()
    context_tokens: int = column()
    plain_ms: float = column()
    speculative_ms: float = column()
    role: Role = column()
    draft_host_s: float | None = None

    @property
    def options(self) -> Speculative:
        base = Speculative(
            method=self.method, tokens=self.tokens, tokens_per_step=self.tokens_per_step
        )
        return base if self.draft_host_s is None else replace(base, draft_host_s=self.draft_host_s)


def gain(row: Row) -> float:
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
    drafting = replace(plain, speculative=row.options)
    seconds = [c.decode_curve(row.rollouts).seconds(row.context_tokens) for c in (plain, drafting)]
    return seconds[0] / seconds[1]


def case_of(row: Row) -> Case:
    name = (
        f"{row.model}, {row.gpus} x {row.gpu}, {row.tokens} drafted, "
        f"{row.options.expected_tokens:g} gained, {row.rollouts} at a time"
    )
    measured = row.plain_ms / row.speculative_ms
    return Case(f"{row.source}, {row.method}", name, "times", measured, gain(row), row.role)


def judge(rows: Sequence[Row]) -> Judged:
    return Judged([case_of(row) for row in rows])
