"""Messages between the driver and a replica's actor.

Commands are carried out between two iterations, in order. Notices come back in one ordered stream,
with the answers to commands. Times are of the actor's clock, ``time.perf_counter``.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from rollcast.engine.edges import EngineIteration, Limits, Response
from rollcast.engine.frontend import Finished, Iterated, Order
from rollcast.simulator.core.rollout import Key
from rollcast.simulator.costs.base import Iteration

# Commands


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue these, all before the next iteration."""

    orders: tuple[Order, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop those of these that are in flight; answered by `Aborted`."""

    token: int
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Free the device's memory until there is work; answered by `Slept`."""

    token: int


@dataclass(frozen=True, slots=True)
class Load:
    """Load these weights; answered by `Loaded`. sample: sequences to check the weights on, if the
    engine is idle."""

    token: int
    weights: Any
    version: int
    sample: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the trainer at this place."""

    where: Any


@dataclass(frozen=True, slots=True)
class End:
    """Shut the engine down."""


Command = Submit | Abort | Sleep | Load | Connect | End

# Notices


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine has started. versions: of packages that must be the same everywhere."""

    limits: Limits
    log_prob_tolerance: float
    machine: str
    versions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Aborted:
    """Results of the aborted rollouts that were in flight."""

    token: int
    finished: tuple[Finished, ...]


@dataclass(frozen=True, slots=True)
class Slept:
    """The engine sleeps."""

    token: int
    end_s: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """The weights are loaded. log_probs: the engine's of the sample; None where it was not idle.
    woke: it slept before, and was awake at ``start_s``. loaded_s: before the log-probabilities were
    computed."""

    token: int
    woke: bool
    start_s: float
    loaded_s: float
    end_s: float
    log_probs: list[list[float]] | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine has failed. theirs: the command was wrong, and another engine would fail too."""

    message: str
    theirs: bool = False


Notice = Ready | Iterated | Aborted | Slept | Loaded | Failed


@dataclass(frozen=True, slots=True)
class Report:
    """The notices since the last report. working_s: of the engine's current action; 0 for none."""

    notices: tuple[Notice, ...]
    working_s: float


def _by_fields(kind: type) -> Callable[[Any], tuple[type, tuple[Any, ...]]]:
    get = attrgetter(*(field.name for field in fields(kind)))
    return lambda message: (kind, get(message))


# Frozen classes with slots look their fields up by name, each time, on both sides of a wire. These
# are the ones of which an iteration or a rollout has one.
for _kind in (Iterated, EngineIteration, Iteration, Finished, Response, Order, Report):
    copyreg.pickle(_kind, _by_fields(_kind))
