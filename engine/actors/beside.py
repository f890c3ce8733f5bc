"""How much slower a replica and a trainer are while the other works.

The same rollouts are sampled and the same batch is trained on again and again: each alone, and both
at once. The replica never gets new weights, so its responses and its iterations stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np

from rollcast.engine.log import EngineLog
from rollcast.simulator.core.rollout import Rollout
from rollcast.simulator.core.world import Ended, TrainBatch, Trained, TrainGroup, World
from rollcast.simulator.errors import RunError

ROUNDS = 10
Seconds = np.ndarray[Any, np.dtype[np.float64]]


class Measured(World, Protocol):
    """A world of actors, as far as it is asked here."""

    log: EngineLog

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way."""
        ...

    def keep_only(self, groups: Collection[int]) -> None:
        """Forgets the tokens of every other group."""
        ...


@dataclass(frozen=True, slots=True)
class Beside:
    """One round. iterations: of the replica beside the update, those that have one alone with the
    same work; iterations_*_s: what these took, alone and beside it. update_*_s: the update, alone
    and beside the replica."""

    iterations: int
    iterations_alone_s: float
    iterations_beside_s: float
    update_alone_s: float
    update_beside_s: float


def measure(
    world: Measured,
    groups: int,
    group_size: int,
    rounds: int = ROUNDS,
    on_round: Callable[[], None] | None = None,
) -> list[Beside]:
    """Rounds of the first replica and the trainer with a batch of so many groups.

    on_round: called after each. Raises RunError for a world whose rollouts share their devices with
    the trainer, or whose groups do not keep to a replica.
    """
    if world.shape.colocated:
        raise RunError("a replica and a trainer on devices of their own are measured")
    bench = _Bench(world, groups, group_size)
    bench.warm_up()
    measured = []
    for _ in range(rounds):
        measured.append(bench.round())
        if on_round is not None:
            on_round()
    return measured


class _Bench:
    """Repeats the same work: rollouts of groups that are never trained on, all on the first
    replica, and updates on a batch whose rollouts are there already."""

    def __init__(self, world: Measured, groups: int, group_size: int) -> None:
        self._world, self._groups, self._size = world, groups, group_size
        self._steps = count()
        self._home: list[int] = []  # groups of the first replica, never trained on
        self._batch: tuple[TrainGroup, ...] = ()
        self._seconds: list[float] = []  # of each update

    def warm_up(self) -> None:
        """Samples what is trained on, finds the first replica's groups, and does a round."""
        rollouts = self._submit(range(self._groups))
        segments = self._until_idle()
        for rollout in rollouts:
            rollout.add(segments[rollout.key])
        by_group = [rollouts[at : at + self._size] for at in range(0, len(rollouts), self._size)]
        # Made-up rewards, as those of an untrained model may all be equal and teach nothing.
        rewards = tuple(float(place % 2) for place in range(self._size))
        self._batch = tuple(TrainGroup(group[0].group, tuple(group), rewards) for group in by_group)
        wanted = range(self._groups, self._groups * (1 + self._world.shape.replicas))
        homes: dict[int, set[int]] = {}
        self._sample(wanted)
        for segment in self._until_idle().values():
            homes.setdefault(segment.group, set()).add(segment.replica)
        self._home = [group for group in wanted if homes[group] == {0}]
        if not self._home or any(len(replicas) > 1 for replicas in homes.values()):
            raise RunError("each group must keep to a replica, as with routing group_affinity")
        self.round()

    def round(self) -> Beside:
        """Each alone, then both."""
        first = len(self._world.log.iterations)
        self._sample(self._home)
        self._until_idle()
        alone = np.diff(self._starts(first))
        self._train()
        self._until_idle()
        update_alone_s = self._seconds[-1]
        compared = _compared(alone, *self._beside_update())
        return Beside(*compared, update_alone_s, self._seconds[-1])

    def _starts(self, first: int, last: int | None = None) -> Seconds:
        """Of the logged iterations from one on."""
        starts: Seconds = self._world.log.iterations["start_s"][first:last]
        return starts

    def _beside_update(self) -> tuple[list[Seconds], float, float]:
        """The starts of the iterations in each wave of rollouts beside an update, and when that
        began and ended."""
        world, firsts = self._world, [len(self._world.log.iterations)]
        self._train()
        self._sample(self._home)
        flying, span = len(self._home) * self._size, None
        while flying or span is None:
            for event in world.wait():
                if isinstance(event, Ended):
                    flying -= 1
                elif isinstance(event, Trained):
                    span = self._trained(event)
            if not flying and span is None:
                firsts.append(len(world.log.iterations))
                self._sample(self._home)
                flying = len(self._home) * self._size
        waves = [
            self._starts(first, end) for first, end in zip(firsts, [*firsts[1:], None], strict=True)
        ]
        return waves, *span

    def _sample(self, groups: Collection[int]) -> None:
        """Starts rollouts that are never trained on, from nothing."""
        self._world.keep_only(range(self._groups))
        self._submit(groups)

    def _submit(self, groups: Collection[int]) -> list[Rollout]:
        rollouts = [
            Rollout(group, index, prompt=group) for group in groups for index in range(self._size)
        ]
        self._world.submit(rollouts)
        return rollouts

    def _train(self) -> None:
        self._world.train(TrainBatch(next(self._steps), self._batch), "dense")

    def _until_idle(self) -> dict[Any, Any]:
        """Waits for all that is under way; the segments that ended."""
        segments = {}
        while not self._world.quiet:
            for event in self._world.wait():
                if isinstance(event, Ended):
                    segments[event.segment.key] = event.segment
                elif isinstance(event, Trained):
                    self._trained(event)
        return segments

    def _trained(self, event: Trained) -> tuple[float, float]:
        start_s, end_s = event.phases[0].start_s, event.phases[-1].end_s
        self._seconds.append(end_s - start_s)
        return start_s, end_s


def _compared(
    alone: Seconds, waves: Sequence[Seconds], start_s: float, end_s: float
) -> tuple[int, float, float]:
    """Of the iterations between two instants those that have one alone with the same work: their
    number, seconds alone, and seconds taken. alone: seconds by place in a wave. waves: starts of
    the iterations of each."""
    there_s = alone_s = 0.0
    iterations = 0
    for starts in waves:
        for place, seconds in enumerate(np.diff(starts)):
            if start_s <= starts[place] and starts[place + 1] <= end_s and place < len(alone):
                iterations += 1
                there_s += float(seconds)
                alone_s += float(alone[place])
    return iterations, alone_s, there_s
