"""What a real world is made of, what is saved of it, and the phases of its updates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcast.engine.actors.fleet import Recipe
from rollcast.engine.actors.weights import Channel
from rollcast.engine.edges import TrainerSave, TrainMetrics
from rollcast.engine.flights import Flight
from rollcast.engine.responses import Tokens
from rollcast.simulator.core.rollout import Key
from rollcast.simulator.core.world import ClusterShape, Phase

if TYPE_CHECKING:
    from torch import Tensor

SHAPE = ClusterShape(1, 1, 1, colocated=True)
"""Of a world in this process: one replica and the trainer, which take turns."""

Mail = list[tuple[float, Any]]
"""Of a world: flights and events, each with its instant."""

_PHASES = ("log_prob", "forward", "backward", "gradient", "optimizer")


@dataclass(frozen=True, slots=True)
class Recipes:
    """How the actors are made. trainer: of each rank. channel: how weights leave the trainer; None
    is the object store. sleeps: whether the replicas free their devices' memory while the trainer
    works."""

    replicas: Sequence[Recipe]
    trainer: Sequence[Recipe]
    channel: Channel | None = None
    sleeps: bool = False

    @property
    def shares_devices(self) -> bool:
        """Whether the trainer uses the replicas' GPUs."""
        return any(recipe.need.sharing is not None for recipe in self.trainer)


@dataclass(frozen=True, slots=True)
class WorldState:
    """What another world needs to go on, but for the log and the rollouts in flight.

    clock_s: this world's clock. version: of the replicas' weights; updates: of the trainer's.
    asked: the prompt's number by group. tokens: by (group, index). trainer: its save after those
    updates, without parts of the next one; None before the first. weights: the replicas', where
    they are older.
    """

    clock_s: float
    version: int
    updates: int
    asked: Mapping[int, int]
    tokens: Mapping[Key, Tokens]
    trainer: TrainerSave | None = None
    weights: Mapping[str, Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Rollouts beside those of the loop: version of their weights, reward and response tokens of
    each, how many were cut at a cap, and how many failed rewards and environments."""

    version: int
    rewards: Sequence[float]
    tokens: Sequence[int]
    cut: int
    failed: int


def split(mail: Mail, keys: Collection[Key]) -> tuple[list[Flight], Mail]:
    """The flights of these keys in a world's mail, and the rest of it."""
    mine = [item for _, item in mail if isinstance(item, Flight) and item.rollout.key in keys]
    return mine, [(at_s, item) for at_s, item in mail if item not in mine]


def phases(metrics: TrainMetrics, start_s: float, end_s: float) -> tuple[Phase, ...]:
    """The phases of an update, one after another; the rest (batching, bookkeeping) is ``train``."""
    made_of, at_s = [], start_s
    for name in _PHASES:
        seconds = getattr(metrics, f"{name}_s")
        made_of.append(Phase(name, at_s, at_s + seconds, metrics.computed_tokens))
        at_s += seconds
    made_of.append(Phase("train", at_s, max(end_s, at_s), 0))
    return tuple(phase for phase in made_of if phase.end_s > phase.start_s)
