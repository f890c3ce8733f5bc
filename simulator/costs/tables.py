"""Costs interpolated from tables of measured kernels (the optional package aiconfigurator)."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from rollcast.simulator.costs.base import AdjustedCost, Curve, Extremes, Iteration, Piece
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import read_presets
from rollcast.simulator.costs.roofline.cost import RooflineCost
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values.chance import Chance

BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CONTEXTS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
PREFILLS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SLOPE_CHUNK, SLOPE_PREFIX = 2048, 8192  # where the cost of a query-key pair is read off


class LatencyProvider(Protocol):
    """Latencies of one replica, in milliseconds, from wherever they were measured."""

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        """One decode iteration of ``batch`` rollouts of ``context_tokens`` each."""
        ...

    def prefill_ms(self, batch: int, tokens: int, prefix_tokens: int) -> float:
        """One prefill of ``batch`` x ``tokens`` tokens on top of ``prefix_tokens`` computed ones
        each."""
        ...


class AIConfigurator:
    """:class:`LatencyProvider` over ``aiconfigurator`` (Apache-2.0; measured 0.12.0).

    Raises ScenarioError(``cost.tables``) where the package is not installed, or has no table for
    the model, system or backend.
    """

    def __init__(self, repository: str, system: str, backend: str, tensor_parallel: int) -> None:
        try:
            from aiconfigurator_core.sdk.engine import EngineHandle
        except ImportError:
            raise ScenarioError(
                "cost.tables",
                "needs the package aiconfigurator; pip install 'rollcast[tables]', or use roofline",
            ) from None
        logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
        try:
            self._engine = EngineHandle.compile(
                repository, system, backend, tp_size=tensor_parallel
            )
        except Exception as error:  # the package raises whatever its parts raise
            raise ScenarioError(
                "cost.tables",
                f"aiconfigurator has no table for {repository} on {system} with {backend} and "
                f"tensor_parallel {tensor_parallel} ({error})",
            ) from None

    def decode_ms(self, batch: int, context_tokens: int) -> float:
        """One decode iteration (asked for as the first of two output tokens)."""
        return float(self._engine.predict_decode_latency(batch, context_tokens, 2))

    def prefill_ms(self, batch: int, tokens: int, prefix_tokens: int) -> float:
        """One prefill; the package counts the prefix in the input length."""
        return float(
            self._engine.predict_prefill_latency(batch, tokens + prefix_tokens, prefix_tokens)
        )


def aiconfigurator_provider(
    model: Model, gpu: Gpu, tensor_parallel: int, backend: str = "vllm"
) -> AIConfigurator:
    """The tables of a preset model on a preset GPU.

    Raises ScenarioError(``cost.tables``) where either has none, or the package is missing.
    """
    names = read_presets("tables.yaml")
    for what, name, known in (
        ("GPU", gpu.name, names["systems"]),
        ("model", model.name, names["repositories"]),
    ):
        if name not in known:
            raise ScenarioError(
                "cost.tables", f"no tables for {what} {name}; tables exist for {', '.join(known)}"
            )
    repository, system = names["repositories"][model.name], names["systems"][gpu.name]
    return AIConfigurator(repository, system, backend, tensor_parallel)


def _interpolate(x: float, xs: Sequence[int], ys: Sequence[float]) -> float:
    """Piecewise-linear through (xs, ys); constant below the first, the last slope beyond the last
    but one."""
    if x <= xs[0]:
        return ys[0]
    i = min(bisect_left(xs, x), len(xs) - 1)
    share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
    return ys[i - 1] + share * (ys[i] - ys[i - 1])


@dataclass(frozen=True)
class TablesCost(AdjustedCost):
    """Prices iterations from a :class:`LatencyProvider`, all else from a :class:`RooflineCost`.

    Decode is interpolated linearly in batch and, at equal context per rollout, piecewise-linearly
    in context. A prefill chunk costs what the table says of its tokens without a prefix, with
    attention set right for its pairs, at the cost of a pair that two prefixes differ by; decoding
    rollouts in the same iteration join the chunk's tokens and add their attention. ``host_s`` and
    ``host_per_rollout_s`` of the roofline come beside them: tables hold kernels only.
    """

    inner: RooflineCost
    provider: LatencyProvider
    batches: tuple[int, ...] = BATCHES
    contexts: tuple[int, ...] = CONTEXTS
    _curves: dict[tuple[int, bool], Curve] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _rows: dict[int, list[float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for name, grid in (("batches", self.batches), ("contexts", self.contexts)):
            if len(grid) < 2 or grid[0] < 1 or list(grid) != sorted(set(grid)):
                raise ScenarioError(
                    f"cost.tables.{name}", "give two or more whole numbers from 1 that rise"
                )
        if self.inner.pipeline_parallel > 1:
            raise ScenarioError(
                "cluster.pipeline_parallel", "tables price one stage; give 1, or cost: roofline"
            )
        if self.inner.speculative is not None:
            raise ScenarioError(
                "cost.tables.roofline.speculative",
                "tables price one token a rollout and iteration; leave it out, or cost: roofline",
            )

    def _row(self, batch: int) -> list[float]:
        """Seconds over ``contexts`` at a batch of the grid, made to never fall with context."""
        row = self._rows.get(batch)
        if row is None:
            row, floor = [], 0.0
            for context in self.contexts:
                floor = max(floor, self.provider.decode_ms(batch, context) / 1e3)
                row.append(floor)
            self._rows[batch] = row
        return row

    def _decode_row(self, rollouts: int) -> list[float]:
        """Seconds over ``contexts`` at any batch."""
        i = min(max(bisect_left(self.batches, rollouts), 1), len(self.batches) - 1)
        low, high = self.batches[i - 1], self.batches[i]
        share = (rollouts - low) / (high - low)
        return [a + share * (b - a) for a, b in zip(self._row(low), self._row(high), strict=True)]

    def decode_curve(self, rollouts: int) -> Curve:
        """Piecewise-linear in the context, with a knot at each context of the grid."""
        return self._curve(rollouts, True)

    def _curve(self, rollouts: int, hosted: bool) -> Curve:
        """Of the tables' kernels, or with the host beside them."""
        curve = self._curves.get((rollouts, hosted))
        if curve is None:
            pieces = self._kernels(rollouts)
            if hosted:
                pieces = self.inner.host_in_loop.pieces(pieces, rollouts)
            curve = self._curves[rollouts, hosted] = Curve(pieces)
        return curve

    def _kernels(self, rollouts: int) -> list[Piece]:
        """The tables' seconds over the context."""
        row = self._decode_row(rollouts)
        knots = [rollouts * context for context in self.contexts]
        slopes = [
            (b - a) / (y - x) for a, b, x, y in zip(row, row[1:], knots, knots[1:], strict=False)
        ]
        rest = zip(knots, row, [*slopes, slopes[-1]], strict=True)
        return [(0, row[0], 0.0), *rest]

    @cached_property
    def _pair_s(self) -> float:
        """Seconds of one query-key pair of prefill attention."""
        far = self.provider.prefill_ms(1, SLOPE_CHUNK, SLOPE_PREFIX)
        near = self.provider.prefill_ms(1, SLOPE_CHUNK, 0)
        return max(0.0, far - near) / 1e3 / (SLOPE_CHUNK * SLOPE_PREFIX)

    @cached_property
    def _prefill_row(self) -> list[float]:
        """Seconds over ``PREFILLS`` of a prefill without its attention pairs."""
        row = []
        floor = 0.0
        for n in PREFILLS:
            pairs_s = self._pair_s * n * (n + 1) / 2
            floor = max(floor, self.provider.prefill_ms(1, n, 0) / 1e3 - pairs_s)
            row.append(floor)
        return row

    def mixed_iteration_s(self, work: Iteration) -> float:
        """Seconds of an iteration that prefills."""
        decoding = work.rollouts - work.prefill_rollouts
        seconds = _interpolate(work.prefill_tokens + decoding, PREFILLS, self._prefill_row)
        seconds += self._pair_s * work.prefill_pairs
        if decoding:
            curve = self._curve(decoding, False)
            context = work.context_tokens - work.prefill_context_tokens
            seconds += curve.seconds(context) - curve.seconds(0)
        return self.inner.host_in_loop.seconds(seconds, work.rollouts)

    def drawn(self, chance: Chance) -> TablesCost:
        """Itself: tables do not say how sure they are."""
        return self

    def warnings(self, extremes: Extremes) -> list[str]:
        """Ranges of the grid that the run left."""
        limits = (
            (extremes.rollouts, self.batches[-1], "rollouts running on a replica"),
            (extremes.rollout_tokens, self.contexts[-1], "tokens in a rollout"),
            (extremes.prefill_tokens, PREFILLS[-1], "tokens prefilled in an iteration"),
        )
        return [
            f"{reached:,} {what}: the tables were read up to {limit:,}"
            for reached, limit, what in limits
            if reached > limit
        ]
