"""The trainer in processes of its own, one a rank: a call an update, which returns the weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rollcast.engine.actors.handles import ByHandles
from rollcast.engine.actors.machine import machine_name, pin, versions
from rollcast.engine.actors.transport import ActorLostError
from rollcast.engine.actors.weights import ByStore, Channel, InPlace
from rollcast.engine.actors.wire import ByWire
from rollcast.engine.edges import Beat, SampledGroup, SavedFile, Trainer, TrainerSave, TrainMetrics
from rollcast.engine.errors import EngineError, RankLostError, sentence


@dataclass(frozen=True, slots=True)
class TrainerReady:
    """The trainer has started."""

    context_tokens: int | None
    machine: str
    versions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """What one call trains on: an update, or a part of one whose gradients are kept unless
    ``final``. sample: sequences to compute the new weights' log-probabilities of."""

    groups: tuple[SampledGroup, ...]
    shared_prefix: bool
    version: int
    mask_before_version: int | None
    final: bool
    sample: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Updated:
    """The result of a call; times of the actor's clock. error: why the trainer refused, in which
    case there are no metrics."""

    start_s: float
    end_s: float
    metrics: TrainMetrics | None
    log_probs: list[list[float]]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Rank:
    """One of a trainer's processes: its number, from 0, of so many."""

    number: int = 0
    count: int = 1


class RankStart(Protocol):
    """Makes a trainer of several ranks, each in its own process."""

    def meet(self) -> Any:
        """Rank 0's meeting point; its ``place`` is its address for the others."""
        ...

    def join(self, rank: Rank, place: Any) -> Trainer:
        """One rank, once all have joined. Raises RankLostError where one does not."""
        ...


class TrainerActor:
    """start: makes the trainer; a `RankStart` for several ranks. cores: its process is pinned to
    them, if any. channel: how weights leave rank 0. timer: its clock, seconds. All ranks are called
    alike. Every method raises ActorLostError where another rank is lost."""

    def __init__(
        self,
        start: Callable[[], Trainer] | RankStart,
        cores: tuple[int, ...] = (),
        channel: Channel | None = None,
        rank: Rank | None = None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._start: Any = start
        self._timer = timer
        self._cores = cores
        self._rank = rank or Rank()
        self._channel = channel or ByStore()
        if isinstance(self._channel, ByHandles):
            self._channel.first = self._rank.number == 0
        self._trainer: Trainer | None = None
        self._meeting: Any = None

    def meet(self) -> Any:
        """Rank 0's address for the others, asked for before they begin."""
        self._meeting = self._start.meet()
        return self._meeting.place

    def begin(self, place: Any = None) -> TrainerReady:
        """Starts it, in the thread of its updates. Raises EngineError where that fails."""
        if self._cores:
            pin(self._cores)
        alone = self._rank.count == 1
        try:
            self._trainer = self._start() if alone else self._start.join(self._rank, place)
        except RankLostError as error:
            raise ActorLostError(str(error)) from None
        except Exception as error:
            raise EngineError(f"the trainer cannot start: {sentence(error)}") from None
        return TrainerReady(self._trainer.context_tokens, machine_name(), versions())

    def step(self, part: Part) -> tuple[Updated, Any]:
        """Trains on one `Part`; returns the result and, after a final part, the new weights."""
        trainer, start_s = self._mine, self._timer()
        if isinstance(self._channel, ByHandles):
            self._channel.change()
        try:
            with _others_there():
                metrics = trainer.step(
                    part.groups,
                    shared_prefix=part.shared_prefix,
                    version=part.version,
                    mask_before_version=part.mask_before_version,
                    final=part.final,
                )
        except (RuntimeError, ValueError) as error:  # out of memory, or a token beyond the model's
            return Updated(start_s, self._timer(), None, [], sentence(error)), None
        end_s = self._timer()
        if not part.final:
            return Updated(start_s, end_s, metrics, []), None
        here = isinstance(self._channel, InPlace)  # then they are asked for when they are needed
        log_probs = self.log_probs(part.sample) if part.sample and not here else []
        return Updated(start_s, end_s, metrics, log_probs), self.weights()

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `engine.edges.Trainer.log_probs`."""
        with _others_there():
            return self._mine.log_probs(sequences)

    def weights(self) -> Any:
        """The weights, of rank 0. All ranks gather them; for `engine.actors.handles`, not yet."""
        each = isinstance(self._channel, ByHandles)
        with _others_there():
            weights = self._mine.weights(each=True) if each else self._mine.weights()
        packed = self._channel.pack(weights) if each or self._rank.number == 0 else None
        return packed if self._rank.number == 0 else None

    def wire(self, method: str, *arguments: Any) -> Any:
        """Calls the channel of weights that go from device to device (`engine.actors.wire`,
        `engine.actors.handles`)."""
        assert isinstance(self._channel, ByWire | ByHandles)
        with _others_there():
            return getattr(self._channel, method)(*arguments)

    def save(self, folder: Path) -> Mapping[str, Any]:
        """See `engine.edges.Trainer.save`."""
        with _others_there():
            return self._mine.save(folder)

    def saved(self, wait_s: float) -> Mapping[str, SavedFile] | None:
        """See `engine.edges.Trainer.saved`."""
        with _others_there():
            return self._mine.saved(wait_s)

    def load(self, save: TrainerSave) -> None:
        """See `engine.edges.Trainer.load`."""
        with _others_there():
            self._mine.load(save)

    def export(self, folder: Path, dtype: str) -> None:
        """See `engine.edges.Trainer.export`."""
        with _others_there():
            self._mine.export(folder, dtype)

    def pulse(self) -> Beat:
        """The speed probe."""
        with _others_there():
            return self._mine.pulse()

    def beat(self, pause_s: float) -> None:
        """A sign of life, after a pause."""
        time.sleep(pause_s)

    def clock(self) -> float:
        """This process's clock, seconds."""
        return time.perf_counter()

    @property
    def _mine(self) -> Trainer:
        if self._trainer is None:
            raise EngineError("the trainer has not started")
        return self._trainer


@contextmanager
def _others_there() -> Iterator[None]:
    """Without another rank this one is of no use: the driver loses both."""
    try:
        yield
    except RankLostError as error:
        raise ActorLostError(str(error)) from None
