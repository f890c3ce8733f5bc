"""What actors that work at the same time cost each other, measured on a replica and a trainer, and
on the other replicas where there are some.

Processes on one machine share its memory, its caches, and the cores that the driver needs. A run in
which one waits for the other says nothing of that. So the same rollouts are sampled again and
again, and the same batch is trained on again and again: each alone, and both at once. As the
replica never gets the new weights, its responses are the same each time, and so are its iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np

from rollcast.engine.edges import Beat
from rollcast.engine.log import EngineLog
from rollcast.simulator.errors import RunError
from rollcast.simulator.rollout import Rollout
from rollcast.simulator.world import Ended, TrainBatch, Trained, TrainGroup, World

ROUNDS = 10
Seconds = np.ndarray[Any, np.dtype[np.float64]]


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
class Among:
    """One round of several replicas. replicas: that worked at once. iterations: of the first one,
    while all did; what these took then, and what the same ones took alone. all_*: the same while
    the trainer worked as well, and what its update took."""

    replicas: int
    iterations: int
    iterations_alone_s: float
    iterations_among_s: float
    all_iterations: int
    all_iterations_alone_s: float
    all_iterations_s: float
    all_update_s: float


@dataclass(frozen=True, slots=True)
class Beside:
    """One round. iterations: of the replica, of those alone that have one beside the update with
    the same work; what these took, alone and beside it. update_*_s: the update, alone and beside
    the replica. pulse_*: the machine's pulse, with the replica idle and beside it. among: None of
    one replica."""

    iterations: int
    iterations_alone_s: float
    iterations_beside_s: float
    update_alone_s: float
    update_beside_s: float
    pulse_alone: Beat
    pulse_beside: Beat
    among: Among | None = None

    def to_plain(self) -> dict[str, Any]:
        """As a probe's file holds it."""
        plain = asdict(self)
        if self.among is None:
            del plain["among"]
        return plain


def measure(
    world: Measured,
    groups: int,
    group_size: int,
    rounds: int = ROUNDS,
    on_round: Callable[[], None] | None = None,
) -> list[Beside]:
    """Rounds of a replica and a trainer with a batch of so many groups, and of that replica and the
    others, each with as many.

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
    """Does the same work again and again: rollouts of groups that are never trained on, and updates
    on a batch whose rollouts are there already. All that has to do with a replica, but for what is
    trained on, is the first one's; the others work where they are to cost it something."""

    def __init__(self, world: Measured, groups: int, group_size: int) -> None:
        self._world, self._groups, self._size = world, groups, group_size
        self._steps = count()
        self._homes: list[list[int]] = []  # groups of each replica, never trained on
        self._batch: tuple[TrainGroup, ...] = ()
        self._seconds: list[float] = []  # of the update that ended last

    def warm_up(self) -> None:
        """Samples what is trained on, finds out whose groups are whose, and does everything
        once."""
        rollouts = self._submit(range(self._groups))
        segments = self._until_idle()
        for rollout in rollouts:
            rollout.add(segments[rollout.key])
        by_group = [rollouts[at : at + self._size] for at in range(0, len(rollouts), self._size)]
        # Made-up rewards, as those of an untrained model may all be equal and teach nothing.
        rewards = tuple(float(place % 2) for place in range(self._size))
        self._batch = tuple(TrainGroup(group[0].group, tuple(group), rewards) for group in by_group)
        replicas = self._world.shape.replicas
        wanted = range(self._groups, self._groups * (1 + replicas))
        homes: dict[int, set[int]] = {}
        self._sample(wanted)
        for segment in self._until_idle().values():
            homes.setdefault(segment.group, set()).add(segment.replica)
        self._homes = [
            [group for group in wanted if homes[group] == {number}] for number in range(replicas)
        ]
        if not all(self._homes) or sum(map(len, self._homes)) < len(wanted):
            raise RunError("each group must keep to a replica, as with routing group_affinity")
        self.round()

    def round(self) -> Beside:
        """Each alone, then both."""
        alone = self._alone()
        self._train()
        self._until_idle()
        update_alone_s, pulse_alone = self._seconds[-1], self._world.pulse()
        beside = _compared(alone, *self._beside_update(self._homes[:1]))
        return Beside(
            *beside,
            update_alone_s,
            self._seconds[-1],
            pulse_alone,
            self._pulse_beside(),
            self._among(),
        )

    def _alone(self) -> Seconds:
        first = len(self._world.log.iterations)
        self._sample(self._homes[0])
        self._until_idle()
        return np.diff(self._starts(first))

    def _among(self) -> Among | None:
        """The first replica while all of them work, and while the trainer does as well; alone right
        before, as a machine changes."""
        replicas = len(self._homes)
        if replicas == 1:
            return None
        alone, first = self._alone(), len(self._world.log.iterations)
        self._sample([group for groups in self._homes for group in groups])
        self._until_idle()
        starts = [self._starts(first, replica=number) for number in range(replicas)]
        start_s, end_s = max(one[0] for one in starts), min(one[-1] for one in starts)
        among = _compared(alone, starts[:1], start_s, end_s)
        with_all = _compared(alone, *self._beside_update(self._homes))
        return Among(replicas, *among, *with_all, self._seconds[-1])

    def _starts(self, first: int, last: int | None = None, replica: int = 0) -> Seconds:
        """Of the iterations of a replica, among those from one on."""
        log = self._world.log.iterations
        starts: Seconds = log["start_s"][first:last][log["replica"][first:last] == replica]
        return starts

    def _beside_update(self, homes: Sequence[Sequence[int]]) -> tuple[list[Seconds], float, float]:
        """The starts of the first replica's iterations in each wave of its rollouts beside an
        update, and when that began and ended. homes: the groups of each replica that works, for as
        long as the update takes."""
        world, firsts = self._world, [len(self._world.log.iterations)]
        number_of = {group: number for number, groups in enumerate(homes) for group in groups}
        self._train()
        self._sample([*number_of])
        flying, span = [len(groups) * self._size for groups in homes], None
        while any(flying) or span is None:
            for event in world.wait():
                if isinstance(event, Ended):
                    flying[number_of[event.segment.group]] -= 1
                elif isinstance(event, Trained):
                    span = self._trained(event)
            for number in [place for place, left in enumerate(flying) if not left]:
                if span is not None:
                    break
                if number == 0:
                    firsts.append(len(world.log.iterations))
                self._sample(homes[number], beside=[g for g in number_of if g not in homes[number]])
                flying[number] = len(homes[number]) * self._size
        ends = [*firsts[1:], None]
        waves = [self._starts(first, end) for first, end in zip(firsts, ends, strict=True)]
        return waves, *span

    def _pulse_beside(self) -> Beat:
        self._sample(self._homes[0])
        beat = self._world.pulse()
        self._until_idle()
        return beat

    def _sample(self, groups: Collection[int], beside: Collection[int] = ()) -> list[Rollout]:
        """Starts rollouts that are never trained on, from nothing. beside: groups in flight."""
        self._world.keep_only([*range(self._groups), *beside])
        return self._submit(groups)

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
    """Of the iterations between two instants those that have one alone with the same work: how
    many, what these took alone, and what they took. alone: seconds by their place in a wave.
    waves: when the iterations of each began."""
    there_s = alone_s = 0.0
    iterations = 0
    for starts in waves:
        for place, seconds in enumerate(np.diff(starts)):
            if start_s <= starts[place] and starts[place + 1] <= end_s and place < len(alone):
                iterations += 1
                there_s += float(seconds)
                alone_s += float(alone[place])
    return iterations, alone_s, there_s
