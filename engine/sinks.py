"""Where a run's curves go: one event a step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rollcast.engine.errors import sentence
from rollcast.engine.run_options import WandbOptions
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.schema import BOARD


class Sink(Protocol):
    """Takes the figures of one step after another."""

    def put(self, step: int, wall_s: float, figures: Mapping[str, float]) -> None:
        """A step's figures by tag, and when it ended, seconds since 1970."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


class TensorBoard:
    """A file of TFRecords, by the writer and the messages of tensorboardX, without TensorFlow. Its
    name says nothing of the machine, which the usual one would. Raises OSError where the disk
    refuses."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import RecordWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        self._event: Any = Event
        self._summary: Any = Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = RecordWriter(str(folder / BOARD.name))
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def put(self, step: int, wall_s: float, figures: Mapping[str, float]) -> None:
        """See `Sink`."""
        values = [
            self._summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()
        ]
        summary = self._summary(value=values)
        self._write(self._event(wall_time=wall_s, step=step, summary=summary))

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()


class Wandb:
    """A run of Weights & Biases. id: the same where a run goes on; steps that it has are left
    out. config: shown with it. Raises ScenarioError where it cannot begin."""

    def __init__(self, options: WandbOptions, id: str, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise ScenarioError(
                options.FIELD, "needs wandb, which is not installed: pip install wandb"
            ) from None
        try:
            self._run: Any = wandb.init(
                project=options.project,
                name=options.name,
                mode=options.mode,
                id=id,
                resume="allow",
                config=dict(config),
                settings=wandb.Settings(silent=True, console="off"),
            )
        except Exception as error:  # of its own kinds
            message = f"Weights & Biases does not begin: {sentence(error)}"
            raise ScenarioError(options.FIELD, message) from None

    def put(self, step: int, wall_s: float, figures: Mapping[str, float]) -> None:
        """See `Sink`."""
        if step >= self._run.step:
            self._run.log({**figures, "wall_s": wall_s}, step=step)

    def close(self) -> None:
        """Sends, or writes, what is left."""
        self._run.finish()
