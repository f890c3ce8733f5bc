"""A run's curves: accuracy, losses, times, tokens and the engine's own. TensorBoard reads them;
Weights & Biases gets the same, where it is asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rollcast.engine.log import EngineLog, Iterations
from rollcast.engine.sinks import Sink, TensorBoard
from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.results.metrics import step_columns

_SECONDS = {
    "step": "step_s",
    "rollout": "rollout_s",
    "train": "train_s",
    "sync": "sync_s",
    "switch": "switch_s",
}
_TOKENS = ("generated", "trained", "masked", "dropped", "resumed")
_UPDATE = (
    "loss",
    "aux_loss",
    "grad_norm",
    "clip_fraction",
    "mean_ratio",
    "padding_tokens",
    "microbatches",
    "updates",
    "mismatch_mean",
    "mismatch_p99",
    "mismatch_kl",
    "entropy",
    "learning_rate",
    "tokens_per_s_per_rank",
    "reference_kl",
    "flop_per_s_per_rank",
    "mfu",
)


def curves(run: Run, log: EngineLog, first: int = 0) -> list[dict[str, float]]:
    """For each step from ``first`` on, its figures by tag; what a step had none of is left out.

    ``seconds/*``; ``tokens/*`` of responses, ``tokens/per_s`` over the step and per GPU;
    ``reward/*``; ``staleness/mean`` in versions; ``train/*`` as `engine.edges.TrainMetrics` has it;
    ``engine/*`` of the iterations that began between the end of the step before and its own: their
    number, their mean seconds, mean rollouts in one and left waiting, most KV blocks held,
    preemptions.
    """
    derived = {name: values.tolist() for name, values in step_columns(run).items()}
    updates = dict(log.updates)
    evaluated = {one.steps_done - 1: one.reward for one in log.evaluations}
    engine = _of_engine(log.iterations, run, first)
    result = []
    for record, iterations in zip(run.steps[first:], engine, strict=True):
        step = record.step
        figures = _of_step(record)
        if "tokens/per_s" in figures:
            figures["tokens/per_s_per_gpu"] = figures["tokens/per_s"] / run.shape.gpus
        figures["reward/accuracy"] = derived["accuracy"][step]
        figures["reward/evaluation"] = evaluated.get(step, math.nan)
        figures["staleness/mean"] = derived["mean_staleness"][step]
        figures["tokens/truncated_share"] = derived["truncated_share"][step]
        if step in updates:
            update = updates[step]
            told = {name: getattr(update, name) for name in _UPDATE}
            figures |= {f"train/{name}": value for name, value in told.items() if value is not None}
        figures |= iterations
        result.append({tag: float(v) for tag, v in figures.items() if math.isfinite(v)})
    return result


def _of_step(record: StepRecord) -> dict[str, float]:
    figures = {f"seconds/{tag}": getattr(record, name) for tag, name in _SECONDS.items()}
    figures |= {f"tokens/{name}": getattr(record, f"{name}_tokens") for name in _TOKENS}
    if record.step_s > 0:
        figures["tokens/per_s"] = record.generated_tokens / record.step_s
    figures["reward/trained"] = record.mean_reward
    return figures


def _of_engine(iterations: Iterations, run: Run, first: int) -> list[dict[str, float]]:
    ends = [record.end_s for record in run.steps]
    start_s = iterations["start_s"]
    step = np.searchsorted(ends, start_s, "left")  # begun when a step ended is the next one's
    columns = {
        name: iterations[name]
        for name in ("seconds", "rollouts", "waiting", "kv_blocks", "preemptions")
    }
    result: list[dict[str, float]] = []
    for number in range(first, len(ends)):
        mine = {name: values[step == number] for name, values in columns.items()}
        figures = {}
        if len(mine["seconds"]):
            figures = {
                "engine/iterations": float(len(mine["seconds"])),
                "engine/iteration_s": float(mine["seconds"].mean()),
                "engine/rollouts": float(mine["rollouts"].mean()),
                "engine/waiting": float(mine["waiting"].mean()),
                "engine/kv_blocks": float(mine["kv_blocks"].max()),
                "engine/preemptions": float(mine["preemptions"].sum()),
            }
        result.append(figures)
    return result


class Board:
    """The curves of a run, step by step, in an event file in ``folder``, and in the other sinks. A
    run that goes on from a save begins the file again, with the steps that it has done already.

    Raises OSError where the disk refuses.
    """

    def __init__(self, folder: Path, others: Sequence[Sink] = ()) -> None:
        self._sinks = [TensorBoard(folder), *others]
        self._written = 0
        self._zero_s: float | None = None  # the run's clock at 0, as the wall has it

    def catch_up(self, run: Run, log: EngineLog) -> None:
        """Writes the steps that are not there yet."""
        for record, figures in zip(
            run.steps[self._written :], curves(run, log, self._written), strict=True
        ):
            if self._zero_s is None:
                self._zero_s = time.time() - run.steps[-1].end_s
            for sink in self._sinks:
                sink.put(record.step, self._zero_s + record.end_s, figures)
        self._written = len(run.steps)

    def close(self) -> None:
        """Ends the file."""
        for sink in self._sinks:
            sink.close()


def write_board(folder: Path, run: Run, log: EngineLog) -> None:
    """All of a run's steps, in an event file in ``folder``."""
    board = Board(folder)
    try:
        board.catch_up(run, log)
    finally:
        board.close()
