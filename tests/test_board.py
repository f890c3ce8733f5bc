"""A run's curves in a TensorBoard file: read back by the reader of other stacks' logs."""

import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorboardX", reason="TensorBoard's writer is not installed")

from rollcast.calibration.logs.formats.events import events, is_events
from rollcast.engine.board import Board, curves, write_board
from rollcast.engine.edges import EngineIteration, TrainMetrics
from rollcast.engine.log import EngineLog
from rollcast.engine.run_options import WandbOptions
from rollcast.engine.sinks import Wandb
from rollcast.simulator.core.spans import Run
from rollcast.simulator.costs.base import Iteration
from rollcast.simulator.results.metrics import accuracy
from rollcast.simulator.results.schema import BOARD
from rollcast.simulator.studies.simulate import load, simulate
from tests.refusals import refuses

ROOT = Path(__file__).parent.parent
STEPS = 4


def metrics(step: int) -> TrainMetrics:
    times = (0.0, 0.2, 0.4, 0.01, 0.02)
    return TrainMetrics(
        *times, 0.5 / (step + 1), 0.0, 1.5, 0.1, 1.01, 32, 900, 7, 1000, 24, 3, 2, None
    )


def ran(steps: int = STEPS) -> tuple[Run, EngineLog]:
    """A simulated run as a real one would leave it, two iterations a step."""
    run = simulate(load(ROOT / "examples" / "overlap.yaml", f"steps={steps}", "policy=[]")).run
    log = EngineLog()
    for record in run.steps:
        log.updates.append((record.step, metrics(record.step)))
        for part, waiting in ((0.1, 3), (0.3, 1)):
            work = Iteration(rollouts=8, context_tokens=100, prefill_tokens=0, prefill_pairs=0)
            measured = EngineIteration(work, waiting, 40, (), (), (), seconds=0.002)
            at_s = record.end_s - record.step_s + part * record.step_s
            log.iterations.add(record.step, at_s, measured)
    return run, log


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    path = folder / BOARD.name
    assert is_events(path.read_bytes()[:64])
    with path.open("rb") as file:
        for event in events(file):
            assert isinstance(event.value, float)
            found[event.tag].append((event.step, event.value))
    return found


def test_every_step_is_there_with_its_figures(tmp_path: Path) -> None:
    run, log = ran()
    write_board(tmp_path, run, log)
    found = read(tmp_path)
    assert all([step for step, _ in values] == list(range(STEPS)) for values in found.values())
    expected = {
        "seconds/step": [record.step_s for record in run.steps],
        "seconds/train": [record.train_s for record in run.steps],
        "reward/accuracy": accuracy(run).tolist(),
        "tokens/generated": [record.generated_tokens for record in run.steps],
        "tokens/per_s_per_gpu": [
            record.generated_tokens / record.step_s / run.shape.gpus for record in run.steps
        ],
        "tokens/per_s": [record.generated_tokens / record.step_s for record in run.steps],
        "train/loss": [0.5 / (step + 1) for step in range(STEPS)],
        "train/grad_norm": [1.5] * STEPS,
        "engine/iterations": [2.0] * STEPS,
        "engine/iteration_s": [0.002] * STEPS,
        "engine/waiting": [2.0] * STEPS,
    }
    for tag, values in expected.items():
        assert [value for _, value in found[tag]] == pytest.approx(values, rel=1e-6), tag


def test_steps_come_as_they_are_done_and_none_twice(tmp_path: Path) -> None:
    """A run that was killed begins the file again, with what it has done."""
    run, log = ran()
    steps = run.steps
    board = Board(tmp_path)
    for done in (1, 2):
        run.steps = steps[:done]
        board.catch_up(run, log)
        board.catch_up(run, log)
        assert [step for step, _ in read(tmp_path)["seconds/step"]] == list(range(done))
    resumed = Board(tmp_path)  # the first one was never closed
    for done in (3, 4):
        run.steps = steps[:done]
        resumed.catch_up(run, log)
    resumed.close()
    assert [step for step, _ in read(tmp_path)["seconds/step"]] == list(range(STEPS))
    board.close()


def test_what_a_step_had_none_of_is_left_out() -> None:
    run, log = ran(2)
    run.steps[1].mean_reward = math.nan
    log.updates.pop()
    first, second = curves(run, log)
    assert "train/loss" in first
    assert "train/loss" not in second
    assert "reward/trained" not in second
    assert curves(run, log, first=1) == [second]


def test_weights_and_biases_get_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.chdir(tmp_path)
    run, log = ran()
    ours = Wandb(WandbOptions(mode="offline"), "some-id", {"seed": 1})
    board = Board(tmp_path / "out", [ours])
    board.catch_up(run, log)
    board.close()
    library.teardown()  # its own process writes the rest
    (written,) = tmp_path.glob("wandb/offline-run-*/run-some-id.wandb")
    content = written.read_bytes()
    assert content.count(b"reward/accuracy") >= STEPS
    assert all(repr(value).encode() in content for value in accuracy(run).tolist())


def test_without_wandb_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with refuses("engine.wandb", "pip install wandb"):
        Wandb(WandbOptions(), "id", {})
