"""The interface between the world and Ray: starts actors and carries calls.

An actor is an object in a process of its own. Its calls of lane ``work`` run one after another in
the order in which they were made; those of ``watch`` and of ``wire`` run beside them.
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
    """The GPUs that an actor sees of those that several share. place: tells such GPUs apart, on one
    machine. devices: numbered from 0 there."""

    place: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """What an actor takes of one machine. cores: of the driver's machine, to be pinned to; none for
    any. sharing: its GPUs, if others use them too; ``gpus`` is their number."""

    cpus: int = 1
    gpus: int = 0
    cores: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    sharing: Sharing | None = None


def places(needs: Sequence[Need]) -> list[Need]:
    """The places that these actors need: one for each shared set of GPUs, by its number, with the
    CPUs of all there; then one for each other actor."""
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
    """The need of an actor that finds no machine when all start at once; None if each finds one.
    machines: GPUs and CPUs. The largest first, each to the first machine with room."""
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
        """Calls a method without waiting: returns a `Ref`, or a list of ``results`` of them. Never
        raises; `Transport.get` does."""
        ...


class Transport(Protocol):
    """Starts actors, and waits for their results. processes: whether actors work by themselves, in
    processes that can be lost; else they work during `wait`."""

    processes: bool

    @property
    def timer(self) -> Callable[[], float]:
        """The driver's clock, in seconds from any moment on."""
        ...

    def start(self, kind: type, arguments: Sequence[Any], need: Need, name: str) -> Actor:
        """An actor of class ``kind``; returns before it has started."""
        ...

    def wait(self, refs: Sequence[Ref], timeout_s: float) -> list[Ref]:
        """References that are done, or have failed, within ``timeout_s``."""
        ...

    def get(self, ref: Ref) -> Any:
        """Its value. Raises ActorLostError, or what the method raised."""
        ...

    def put(self, value: Any) -> Ref:
        """A value to be the argument of many calls."""
        ...

    def kill(self, actor: Actor) -> None:
        """Ends an actor at once, if it has not ended."""
        ...

    def close(self) -> None:
        """Ends all actors, and what this transport started."""
        ...
