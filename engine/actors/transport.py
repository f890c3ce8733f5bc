"""What carries between the driver and its actors: the seam between the world and Ray.

An actor is an object of a plain class in a process of its own. It has lanes: calls of ``work``
run one after another in the order in which they were made, and beside them those of ``watch``,
and those of ``wire``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, Protocol

Lane = Literal["work", "watch", "wire"]
Ref = Any
"""What a call will return, or what was put; it may be an argument of another call, which then
begins once it is there and gets the value. Hashable."""


class ActorLostError(Exception):
    """The process of an actor has ended, or cannot be reached any more."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Of the GPUs that several actors use, those that one of them sees. place: tells such GPUs
    apart, which are of one machine. devices: counted from 0 there."""

    place: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """What an actor takes of a machine: CPUs and GPUs (all of one machine), cores that it is pinned
    to (of the driver's machine; none for any), and environment variables. sharing: its GPUs, where
    others use them too; ``gpus`` is how many they are."""

    cpus: int = 1
    gpus: int = 0
    cores: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    sharing: Sharing | None = None


def places(needs: Sequence[Need]) -> list[Need]:
    """What these actors take all together: of each that shares nothing its own need, after one for
    each place that is shared, by its number, with the CPUs of all that are there."""
    shared = sorted(
        ((need.sharing, need.cpus) for need in needs if need.sharing is not None),
        key=lambda pair: pair[0].place,
    )
    together = []
    for number, there in groupby(shared, key=lambda pair: pair[0].place):
        members = list(there)
        devices = {device for sharing, _ in members for device in sharing.devices}
        cpus = sum(cpus for _, cpus in members)
        together.append(Need(cpus, len(devices), sharing=Sharing(number, tuple(sorted(devices)))))
    return [*together, *(need for need in needs if need.sharing is None)]


def without_place(needs: Sequence[Need], machines: Sequence[tuple[float, float]]) -> Need | None:
    """An actor that finds no machine when all are there at once; None where each does. machines:
    GPUs and CPUs of each. The largest choose first, and take the first machine with room."""
    free = [list(machine) for machine in machines]
    for need in sorted(needs, key=lambda one: (-one.gpus, -one.cpus)):
        for machine in free:
            if need.gpus <= machine[0] and need.cpus <= machine[1]:
                machine[0] -= need.gpus
                machine[1] -= need.cpus
                break
        else:
            return need
    return None


class Actor(Protocol):
    """A started actor, by which it is called."""

    def call(self, method: str, *arguments: Any, lane: Lane = "work", results: int = 1) -> Any:
        """Calls a method without waiting for it: a `Ref`, or as many as ``results`` in a list.
        Never raises: what goes wrong is raised by `Transport.get`."""
        ...


class Transport(Protocol):
    """Starts actors, and waits for what they return.

    processes: whether actors work by themselves, in processes that can be lost; else they work
    while somebody waits here. timer: the driver's clock, in seconds from any moment on.
    """

    processes: bool

    @property
    def timer(self) -> Callable[[], float]:
        """The driver's clock."""
        ...

    def start(self, kind: type, arguments: Sequence[Any], need: Need, name: str) -> Actor:
        """An actor of class ``kind``; returns before it is there."""
        ...

    def wait(self, refs: Sequence[Ref], timeout_s: float) -> list[Ref]:
        """Those that are there, or have failed; none where that takes longer."""
        ...

    def get(self, ref: Ref) -> Any:
        """Its value. Raises ActorLostError, or what the method raised."""
        ...

    def put(self, value: Any) -> Ref:
        """A value that many calls may have for an argument."""
        ...

    def kill(self, actor: Actor) -> None:
        """Ends an actor at once, whatever it does; one that has ended already is left alone."""
        ...

    def close(self) -> None:
        """Ends all actors, and what this transport started for them."""
        ...
