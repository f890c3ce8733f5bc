"""A real world in a time of its own: what an iteration and an environment take is said, and passes
at once, so that a real run happens exactly when a simulated one does."""

from collections.abc import Hashable
from typing import Any

from rollcast.engine.environments.threads import Job

TICKS = 1024
"""Of a second: seconds that are whole numbers of them add up without rounding."""


class VirtualClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def timer(self) -> float:
        return self.now_s


class TimedEngine:
    """An engine each of whose iterations takes ``iteration_s`` on a clock."""

    def __init__(self, engine: Any, clock: VirtualClock, iteration_s: float) -> None:
        self._engine, self._clock, self._iteration_s = engine, clock, iteration_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> Any:
        responses = self._engine.step()
        self._clock.now_s += self._iteration_s
        return responses


class TimedTrainer:
    """A trainer each of whose updates takes ``train_s`` on a clock."""

    def __init__(self, trainer: Any, clock: VirtualClock, train_s: float) -> None:
        self._trainer, self._clock, self._train_s = trainer, clock, train_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def step(self, *groups: Any, **options: Any) -> Any:
        metrics = self._trainer.step(*groups, **options)
        self._clock.now_s += self._train_s
        return metrics


class Inline:
    """Does jobs when they are given, in no time; waiting moves the clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._done: list[tuple[Any, Any]] = []

    def timer(self) -> float:
        return 0.0

    def start(self, ticket: Hashable, job: Job) -> None:
        self._done.append((ticket, job()))

    def ended(self) -> list[tuple[Any, Any]]:
        done, self._done = self._done, []
        return done

    def wait(self, seconds: float) -> None:
        assert seconds < 1e6, "the world waits for nothing"
        self._clock.now_s += seconds
