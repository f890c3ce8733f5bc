"""What the loop needs of a cluster, simulated or real: seven verbs, none of which blocks but wait.

The order at one instant is the same in every world: first everything that happens at that instant
happens; then `World.wait` returns it, and the loop may submit, abort, train or sync; only then do
the replicas begin their next iteration. So what is aborted at an instant at which a replica stands
between two iterations loses nothing and gains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simulator.plan import Layout
from simulator.rollout import Rollout


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """Which GPUs a world holds: replicas x gpus_per_replica for rollouts and trainer_gpus for the
    trainer; the same ones where they are colocated."""

    replicas: int
    gpus_per_replica: int
    trainer_gpus: int
    colocated: bool

    @property
    def gpus(self) -> int:
        """GPUs held while the run lasts."""
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
    """What one update trains on. Tokens made by versions before ``mask_before_version`` are masked
    in the loss; None masks nothing."""

    step: int
    groups: tuple[TrainGroup, ...]
    mask_before_version: int | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """An interval of trainer, sync or switch work: ``kind`` is ``train``, ``log_prob``,
    ``forward``, ``backward``, ``gradient_exchange``, ``optimizer``, ``sync`` or ``switch``."""

    kind: str
    start_s: float
    end_s: float
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout came to its end; its fields say how."""

    rollout: Rollout


@dataclass(frozen=True, slots=True)
class Trained:
    """The update of ``step`` is done."""

    step: int
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Synced:
    """Every replica has the new weights and an empty prefix cache."""

    phases: tuple[Phase, ...]


Event = Finished | Trained | Synced


class World(Protocol):
    """A cluster. `simulator.cluster.simulated.SimulatedCluster` is one."""

    name: str
    shape: ClusterShape

    @property
    def now_s(self) -> float:
        """This world's own clock."""
        ...

    def submit(self, rollouts: Sequence[Rollout]) -> None:
        """Starts rollouts, or resumes them from the ``new_tokens`` already there. Sets
        ``prompt_tokens`` of new ones. Queued in the order given."""
        ...

    def abort(self, rollouts: Sequence[Rollout] | None = None) -> list[Rollout]:
        """Stops these (all in flight if None) at their replica's next iteration boundary.

        Returns them as they are there, by (group, index); one whose last token falls into that
        iteration is ``finished``. No event follows for any of them."""
        ...

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Starts an update; `Trained` follows. On shared GPUs it begins when the replicas are
        idle."""
        ...

    def sync_weights(self) -> None:
        """Starts to bring the weights to the replicas; `Synced` follows. Empties the prefix
        caches."""
        ...

    def wait(self, until_s: float | None = None) -> list[Event]:
        """The events of the next instant at which there are any, in order of (kind, group, index);
        none if ``until_s`` comes first. Raises RunError where nothing is under way."""
        ...
