"""What the loop needs of a cluster, simulated or real: verbs, of which only wait blocks. A world
only reads rollouts.

At one instant, in every world: first everything happens that happens then; `World.wait` returns it,
and the loop may submit, abort, train or sync; only then do the replicas begin their next iteration.
So aborting at an instant at which a replica stands between two iterations loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rollcast.simulator.core.plan import Layout, Placement
from rollcast.simulator.core.rollout import Key, Rollout, Segment


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """A world's GPUs: replicas x gpus_per_replica for rollouts and trainer_gpus for the trainer,
    the same ones if colocated. slots: rollouts at once on all replicas; 0 if unknown. other_gpus:
    of reference, critic and reward models. environment_slots, reward_slots: environments and
    judgements at once; 0: no limit."""

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
    """A group of a batch: the selected rollouts, and the rewards of the advantages' baseline."""

    group: int
    rollouts: tuple[Rollout, ...]
    baseline_rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """An update's batch, or a part of it. Tokens of versions before ``mask_before_version`` are
    masked; None masks nothing. final: whether the optimiser steps after it."""

    step: int
    groups: tuple[TrainGroup, ...]
    mask_before_version: int | None = None
    final: bool = True


@dataclass(frozen=True, slots=True)
class Phase:
    """An interval of trainer, sync or switch work. kind: of those in `simulator.results.phases`."""

    kind: str
    start_s: float
    end_s: float
    tokens: int = 0


class Ended(NamedTuple):
    """A segment ended by itself: the response is whole or out of budget; or a turn is over
    (``ending`` is ``turn``) and the rollout stays in flight."""

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

    @property
    def read_s(self) -> float:
        """When the driver has read the responses of the step that began last, as far as they have
        ended, on this clock. -inf: it reads them as they end."""

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Starts rollouts, or resumes them from their ``new_tokens``, within ``allowance`` and
        ``turn_allowance``. placement: by the world's router, or to the replica with the fewest
        expected tokens. Raises RunError for one already in flight."""

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """Stops these (None: all) at their replica's next iteration boundary, at once if away from
        it. for_good: none is submitted again, and their environments are closed.

        Returns their segments by key; one whose last token falls into that iteration is finished.
        No event follows for them. Raises RunError for one that is not in flight.
        """

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Starts an update, or a part of it; `Trained` follows. On shared GPUs it begins when the
        replicas are idle."""

    def sync_weights(self) -> None:
        """Starts to bring the weights to the replicas; `Synced` follows, and later tokens are of
        the new version. A replica may go on before `Synced` once it has them.

        Empties the prefix caches. Rollouts in flight pause at their replica's next iteration
        boundary and go on with their keys and values.
        """

    def wait(self, until_s: float | None = None) -> list[Event]:
        """The events of the next instant with any, in order of (kind, group, index), ends of turns
        first; none if ``until_s`` comes first. Raises RunError where nothing is under way (a
        simulated world only without ``until_s``)."""

    def oracle_tokens(self, rollout: Rollout) -> int | None:
        """The length of a rollout's response if this world knows it beforehand, else None."""
