"""What a replica and a trainer that work at the same time cost each other, measured on both.

Two processes on one machine share its memory, its caches, and the cores that the driver needs. A
run in which one waits for the other says nothing of that. So the same rollouts are sampled again
and again, and the same batch is trained on again and again: each alone, and both at once. As the
replica never gets the new weights, its responses are the same each time, and so are its iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np

from engine.edges import Beat
from engine.log import EngineLog
from simulator.errors import RunError
from simulator.rollout import Rollout
from simulator.world import Ended, TrainBatch, Trained, TrainGroup, World

ROUNDS = 10


class Measured(World, Protocol):
    """A world of actors, as far as it is asked here."""

    log: EngineLog

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way."""
        ...

    def pulse(self) -> Beat:
        """The machine's pulse on the trainer's device."""
        ...

    def keep_only(self, groups: Collection[int]) -> None:
        """Forgets the tokens of every other group."""
        ...


@dataclass(frozen=True, slots=True)
class Beside:
    """One round. iterations: of the replica, of those alone that have one beside the update with
    the same work; what these took, alone and beside it. update_*_s: the update, alone and beside
    the replica. pulse_*: the machine's pulse, with the replica idle and beside it."""

    iterations: int
    iterations_alone_s: float
    iterations_beside_s: float
    update_alone_s: float
    update_beside_s: float
    pulse_alone: Beat
    pulse_beside: Beat

    def to_plain(self) -> dict[str, Any]:
        """As a probe's file holds it."""
        return asdict(self)


def measure(
    world: Measured,
    groups: int,
    group_size: int,
    rounds: int = ROUNDS,
    on_round: Callable[[], None] | None = None,
) -> list[Beside]:
    """Rounds of one replica and a trainer with a batch of so many groups.

    on_round: called after each. Raises RunError for a world of several replicas, or of one whose
    rollouts share their devices with the trainer.
    """
    if world.shape.replicas != 1 or world.shape.colocated:
        raise RunError("one replica and a trainer on devices of their own are measured")
    bench = _Bench(world, groups, group_size)
    bench.warm_up()
    found = []
    for _ in range(rounds):
        found.append(bench.round())
        if on_round is not None:
            on_round()
    return found


class _Bench:
    """Does the same work again and again: rollouts of groups that are never trained on, and updates
    on a batch whose rollouts are there already."""

    def __init__(self, world: Measured, groups: int, group_size: int) -> None:
        self._world, self._groups, self._size = world, groups, group_size
        self._steps = count()
        self._batch: tuple[TrainGroup, ...] = ()
        self._seconds: list[float] = []  # of the update that ended last

    def warm_up(self) -> None:
        """Samples what is trained on, and does everything once."""
        rollouts = self._submit(0)
        stays = self._until_idle()
        for rollout in rollouts:
            rollout.add(stays[rollout.key])
        by_group = [rollouts[at : at + self._size] for at in range(0, len(rollouts), self._size)]
        # Made-up rewards, as those of an untrained model may all be equal and teach nothing.
        rewards = tuple(float(place % 2) for place in range(self._size))
        self._batch = tuple(TrainGroup(each[0].group, tuple(each), rewards) for each in by_group)
        self.round()

    def round(self) -> Beside:
        """Each alone, then both."""
        alone = self._alone()
        self._train()
        self._until_idle()
        update_alone_s, pulse_alone = self._seconds[-1], self._world.pulse()
        waves, start_s, end_s = self._both()
        beside_s = alone_s = 0.0
        iterations = 0
        for starts in waves:
            for place, seconds in enumerate(np.diff(starts)):
                if start_s <= starts[place] and starts[place + 1] <= end_s and place < len(alone):
                    iterations += 1
                    beside_s += float(seconds)
                    alone_s += float(alone[place])
        return Beside(
            iterations, alone_s, beside_s, update_alone_s, self._seconds[-1],
            pulse_alone, self._pulse_beside(),
        )  # fmt: skip

    def _alone(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        first = len(self._world.log.iterations)
        self._sample()
        self._until_idle()
        return np.diff(self._world.log.iterations["start_s"][first:])

    def _both(self) -> tuple[list[np.ndarray[Any, np.dtype[np.float64]]], float, float]:
        """The starts of the iterations of each wave of rollouts beside an update, and when that
        began and ended."""
        world, firsts = self._world, [len(self._world.log.iterations)]
        self._train()
        self._sample()
        flying, span = self._groups * self._size, None
        while flying or span is None:
            for event in world.wait():
                if isinstance(event, Ended):
                    flying -= 1
                elif isinstance(event, Trained):
                    span = self._trained(event)
            if not flying and span is None:
                firsts.append(len(world.log.iterations))
                self._sample()
                flying = self._groups * self._size
        starts = world.log.iterations["start_s"]
        ends = [*firsts[1:], len(starts)]
        waves = [starts[first:end] for first, end in zip(firsts, ends, strict=True)]
        return waves, *span

    def _pulse_beside(self) -> Beat:
        self._sample()
        beat = self._world.pulse()
        self._until_idle()
        return beat

    def _sample(self) -> list[Rollout]:
        """Starts the rollouts that are never trained on, from nothing."""
        self._world.keep_only(range(self._groups))
        return self._submit(self._groups)

    def _submit(self, first: int) -> list[Rollout]:
        rollouts = [
            Rollout(group, index, prompt=group)
            for group in range(first, first + self._groups)
            for index in range(self._size)
        ]
        self._world.submit(rollouts)
        return rollouts

    def _train(self) -> None:
        self._world.train(TrainBatch(next(self._steps), self._batch), "dense")

    def _until_idle(self) -> dict[Any, Any]:
        """Waits for all that is under way; the stays that ended."""
        stays = {}
        while not self._world.quiet:
            for event in self._world.wait():
                if isinstance(event, Ended):
                    stays[event.stay.key] = event.stay
                elif isinstance(event, Trained):
                    self._trained(event)
        return stays

    def _trained(self, event: Trained) -> tuple[float, float]:
        start_s, end_s = event.phases[0].start_s, event.phases[-1].end_s
        self._seconds.append(end_s - start_s)
        return start_s, end_s
