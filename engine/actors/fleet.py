"""The driver's view of the replicas: rollouts in flight, messages, and replacement.

A replica is lost when its process ends, its engine fails, or it gives no sign of life for too long.
Another one replaces it under the same number; the world places its rollouts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollcast.engine.actors.machine import machine_name, versions
from rollcast.engine.actors.messages import Command, End, Failed, Notice, Ready, Report
from rollcast.engine.actors.replica import ReplicaActor
from rollcast.engine.actors.transport import Actor, ActorLostError, Need, Ref, Transport
from rollcast.engine.edges import Limits
from rollcast.engine.errors import EngineError
from rollcast.simulator.core.rollout import Key

MOST_LOSSES = 3
"""Times in a row that a replica, or the trainer, may be lost without having achieved anything."""

START_S = 1800.0
"""That an actor may take to start: a model may have to be fetched, and kernels compiled."""

POLL_S = 1.0
END_S = 5.0
_PINGS = 20


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an actor is made, here or elsewhere. start: makes its engine or trainer there."""

    start: Callable[[], Any]
    need: Need = field(default_factory=Need)


@dataclass(eq=False, slots=True)
class Replica:
    """One replica. live: its engine has started. flying: keys in flight. zero_s: its clock at the
    driver's 0. losses: in a row, without a finished rollout. signed_s: its last sign of life, by
    the driver's clock."""

    number: int
    actor: Actor
    poll: Ref
    signed_s: float
    live: bool = False
    flying: set[Key] = field(default_factory=set)
    zero_s: float = 0.0
    losses: int = 0

    @property
    def load(self) -> int:
        """Rollouts in flight there."""
        return len(self.flying)

    def post(self, *commands: Command) -> None:
        """Sends commands, which are carried out before its next iteration."""
        self.actor.call("post", *commands)


@dataclass(frozen=True, slots=True)
class Loss:
    """A lost replica, and why."""

    replica: Replica
    cause: str


class Fleet:
    """recipes: of each replica. heartbeat_s: silence after which a replica is lost. Raises
    EngineError where an engine cannot start at all."""

    def __init__(
        self, transport: Transport, recipes: Sequence[Recipe], heartbeat_s: float = 60.0
    ) -> None:
        self._transport = transport
        self._recipes = recipes
        self._heartbeat_s = heartbeat_s
        self._poll_s = min(POLL_S, heartbeat_s / 4)
        self._limits: Limits | None = None
        self.tolerance = 0.0
        self.replicas = [self._start(number) for number in range(len(recipes))]

    @property
    def limits(self) -> Limits:
        """Of every engine. Raises EngineError before one has started."""
        if self._limits is None:
            raise EngineError("no engine has started")
        return self._limits

    @property
    def live(self) -> list[Replica]:
        """Replicas whose engine has started."""
        return [replica for replica in self.replicas if replica.live]

    @property
    def polls(self) -> list[Ref]:
        """References to wait for."""
        return [replica.poll for replica in self.replicas]

    def receive(self, ready: Sequence[Ref]) -> Iterator[tuple[Replica, Notice | Loss]]:
        """The notices in these, in each replica's order, then the losses; a lost replica is to be
        replaced before the next item is asked for."""
        there = set(ready)
        for replica in self.replicas:
            if replica.poll not in there:
                continue
            try:
                report: Report = self._transport.get(replica.poll)
            except ActorLostError as error:
                yield replica, Loss(replica, str(error))
                continue
            self._signed(replica, report)
            for notice in report.notices:
                if isinstance(notice, Failed):
                    if notice.theirs and (replica.live or not replica.losses):
                        raise EngineError(notice.message)
                    yield replica, Loss(replica, notice.message)
                    break
                if isinstance(notice, Ready):
                    self._begin(replica, notice)
                yield replica, notice
            else:
                replica.poll = replica.actor.call("poll", self._poll_s, lane="watch")
        if not self._transport.processes:
            return
        now_s = time.perf_counter()
        for replica in self.replicas:
            patience_s = self._heartbeat_s if replica.live else max(START_S, self._heartbeat_s)
            if now_s - replica.signed_s > patience_s:
                yield replica, Loss(replica, f"no sign of life for {patience_s:g} s")

    def replace(self, lost: Replica, cause: str) -> set[Key]:
        """Ends a replica and starts another in its place; returns the keys in flight there. Raises
        EngineError after too many losses in a row."""
        self._transport.kill(lost.actor)
        if lost.losses + 1 > MOST_LOSSES:
            raise EngineError(
                f"replica {lost.number} was lost {lost.losses + 1} times in a row: {cause}"
            )
        anew = self._start(lost.number)
        lost.actor, lost.poll, lost.live = anew.actor, anew.poll, False
        lost.signed_s, lost.losses = anew.signed_s, lost.losses + 1
        flying, lost.flying = lost.flying, set()
        return flying

    def close(self) -> None:
        """Lets the engines end by themselves, for `END_S` at most."""
        ends = [replica.actor.call("finish", END_S, lane="watch") for replica in self.live]
        for replica in self.live:
            replica.post(End())
        deadline = time.perf_counter() + END_S
        while ends and time.perf_counter() < deadline:
            done = set(self._transport.wait(ends, deadline - time.perf_counter()))
            ends = [end for end in ends if end not in done]

    def _start(self, number: int) -> Replica:
        recipe = self._recipes[number]
        actor = self._transport.start(
            ReplicaActor, (recipe.start, recipe.need.cores), recipe.need, f"replica {number}"
        )
        poll = actor.call("poll", self._poll_s, lane="watch")
        return Replica(number, actor, poll, time.perf_counter())

    def _signed(self, replica: Replica, report: Report) -> None:
        """Notes a sign of life: of the process, not of a stuck engine."""
        replica.signed_s = time.perf_counter() - report.working_s

    def _begin(self, replica: Replica, ready: Ready) -> None:
        if ready.versions != versions():
            raise EngineError(
                f"replica {replica.number} has other versions than this process: "
                f"{_listed(ready.versions)} and not {_listed(versions())}"
            )
        replica.live, self._limits = True, ready.limits
        self.tolerance = ready.log_prob_tolerance
        replica.zero_s = 0.0
        if ready.machine != machine_name():
            replica.zero_s = clock_offset(self._transport, replica.actor)


def clock_offset(transport: Transport, actor: Actor) -> float:
    """An actor's clock at the driver's 0, seconds: from the fastest call, good to half its time."""
    best = (float("inf"), 0.0)
    for _ in range(_PINGS):
        sent_s = time.perf_counter()
        theirs_s: float = transport.get(actor.call("clock", lane="watch"))
        took_s = time.perf_counter() - sent_s
        best = min(best, (took_s, theirs_s - sent_s - took_s / 2))
    return best[1]


def _listed(packages: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages) or "none"
