"""What a real run measures beyond the loop's spans: iterations, updates and weight syncs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.edges import Beat, EngineIteration, TrainMetrics
from simulator.results.schema import ITERATIONS

_COLUMNS = ITERATIONS.typecodes


class Iterations:
    """The table of the engine's iterations, one row each, in order.

    Columns: `simulator.results.schema.ITERATIONS`; those of the work are as
    `simulator.costs.base.Iteration` counts it.
    """

    columns = tuple(_COLUMNS)

    def __init__(self) -> None:
        self._data: dict[str, array[Any]] = {n: array(code) for n, code in _COLUMNS.items()}

    def __len__(self) -> int:
        return len(self._data["version"])

    def __getitem__(self, column: str) -> NDArray[Any]:
        """A column as a numpy array (a copy)."""
        return np.array(self._data[column])

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows, as tuples in the order of ``columns``."""
        return zip(*self._data.values(), strict=True)

    def add(self, version: int, start_s: float, measured: EngineIteration) -> None:
        """Appends an iteration."""
        work = measured.work
        row = (
            version,
            start_s,
            measured.seconds,
            work.rollouts,
            work.context_tokens,
            work.prefill_tokens,
            work.prefill_pairs,
            work.prefill_rollouts,
            work.prefill_context_tokens,
            measured.waiting,
            measured.kv_blocks,
            measured.preemptions,
        )
        for column, value in zip(self._data.values(), row, strict=True):
            column.append(value)


@dataclass(slots=True)
class EngineLog:
    """iterations: the engine's. updates: ``(step, what the trainer reports)``. sync_differences:
    the largest difference between the engine's and the trainer's log-probabilities after each
    weight sync; sync_check_s: what finding it cost. pulses: ``(steps done, the machine's pulse)``,
    outside the run's clock."""

    iterations: Iterations = field(default_factory=Iterations)
    updates: list[tuple[int, TrainMetrics]] = field(default_factory=list)
    sync_differences: list[float] = field(default_factory=list)
    sync_check_s: list[float] = field(default_factory=list)
    pulses: list[tuple[int, Beat]] = field(default_factory=list)
