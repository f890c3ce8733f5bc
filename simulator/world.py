"""What the loop needs of a cluster, simulated or real: verbs, none of which blocks but wait.

A world reads rollouts and never changes one: what came of them it returns, as frozen segments.

The order at one instant is the same in every world: first everything that happens at that instant
happens; then `World.wait` returns it, and the loop may submit, abort, train or sync; only then do
the replicas begin their next iteration. So what is aborted at an instant at which a replica stands
between two iterations loses nothing and gains nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rollcast.simulator.plan import Layout, Placement
from rollcast.simulator.rollout import Key, Rollout, Segment


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """Which GPUs a world holds: replicas x gpus_per_replica for rollouts and trainer_gpus for the
    trainer; the same ones where they are colocated. slots: rollouts that its replicas run at once,
    all together; 0 where that is not known. other_gpus: of reference, critic and reward models.
    environment_slots, reward_slots: environments and judgements at once; 0 where there is no limit.
    """

    replicas: int
    gpus_per_replica: int
    trainer_gpus: int
    colocated: bool
    slots: int = 0
    other_gpus: int = 0
    environment_slots: int = 0
    reward_slots: int = 0

    @property
    def held_gpus(self) -> int:
        """All GPUs held while the run lasts."""
        return self.gpus + self.other_gpus

    @property
    def gpus(self) -> int:
        """Those of rollouts and the trainer."""
        rollout_gpus = self.replicas * self.gpus_per_replica
        if self.colocated:
            return max(rollout_gpus, self.trainer_gpus)
        return rollout_gpus + self.trainer_gpus


@dataclass(frozen=True, slots=True)
class TrainGroup:
    """One group of a batch: the rollouts selected, and the rewards whose mean and standard
    deviation give their advantages."""

    group: int
    rollouts: tuple[Rollout, ...]
    baseline_rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What one update trains on, or a part of it. Tokens made by versions before
    ``mask_before_version`` are masked in the loss; None masks nothing. final: whether the optimiser
    steps after it; the gradients of a part that is not are kept for the ones that follow."""

    step: int
    groups: tuple[TrainGroup, ...]
    mask_before_version: int | None = None
    final: bool = True


@dataclass(frozen=True, slots=True)
class Phase:
    """An interval of trainer, sync or switch work: ``kind`` is ``train``, ``log_prob``,
    ``forward``, ``backward``, ``gradient_exchange``, ``optimizer``, ``critic``, ``rest``, ``sync``
    or ``switch``.
    """

    kind: str
    start_s: float
    end_s: float
    tokens: int = 0


class Ended(NamedTuple):
    """A segment came to its end by itself: the response is whole, or has had what it was allowed;
    or one of its turns is over (``segment.ending`` is ``turn``), and it stays in flight."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class Trained:
    """The update of ``step`` is done, or a part of it (`TrainBatch.final`)."""

    step: int
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Synced:
    """Every replica has the new weights, and an empty prefix cache but for what is in flight."""

    phases: tuple[Phase, ...]


Event = Ended | Trained | Synced


class World(Protocol):
    """A cluster. `simulator.cluster.simulated.SimulatedCluster` is one."""

    name: str
    shape: ClusterShape

    @property
    def now_s(self) -> float:
        """This world's own clock."""

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Starts rollouts, or resumes them from the ``new_tokens`` already there, for as many
        tokens as their ``allowance``, and turns as their ``turn_allowance``. Queued in the order
        given; placement: which replica each goes to, by the world's own router, or to the one with
        the fewest expected tokens outstanding. Raises RunError for one that is in flight
        already."""

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """Stops these (all in flight if None) at their replica's next iteration boundary; at once
        where an environment, or a judge, has them. for_good: none of them is ever submitted again,
        and their environments are closed.

        Returns their segments as they end there, by key; one whose last token falls into that
        iteration is finished. No event follows for any of them. Raises RunError for one that is
        not in flight."""

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Starts an update, or a part of it; `Trained` follows. On shared GPUs it begins when the
        replicas are idle."""

    def sync_weights(self) -> None:
        """Starts to bring the weights of all updates so far to the replicas; `Synced` follows, and
        tokens sampled after it are of the new version. A replica that has them before the others
        may go on before `Synced` does.

        Empties the prefix caches. Rollouts in flight, where the trainer has GPUs of its own, pause
        at their replica's next iteration boundary and go on with the keys and values they have."""

    def wait(self, until_s: float | None = None) -> list[Event]:
        """The events of the next instant at which there are any, in order of (kind, group, index),
        ends of turns first; none if ``until_s`` comes first. Raises RunError where nothing is under
        way; a simulated world, whose clock can be moved on, only without ``until_s``."""

    def oracle_tokens(self, rollout: Rollout) -> int | None:
        """How many tokens the rollout's response will have, where this world knows it beforehand;
        None where it cannot. For policies that ask what perfect knowledge would be worth."""
