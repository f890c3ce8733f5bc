"""The trainer as the driver sees it: the update under way, the weights it left, and how to go on
without it when it is lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.actors.fleet import MOST_LOSSES, START_S, Recipe, clock_offset
from engine.actors.machine import machine_name, versions
from engine.actors.trainer import (
    PackedState,
    Part,
    TrainerActor,
    TrainerReady,
    Updated,
    pack_state,
    unpack_state,
)
from engine.actors.transport import Actor, ActorLostError, Ref, Transport
from engine.actors.weights import Channel
from engine.edges import Beat, TrainerState
from engine.errors import EngineError
from simulator.errors import RunError


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights that an update left: their version, where they are, and sequences with the trainer's
    log-probabilities of them, to hold an engine against."""

    version: int
    ref: Ref
    sample: Sequence[Sequence[int]]
    log_probs: list[list[float]]


@dataclass(slots=True)
class _Saved:
    """A state of the trainer (None is how it starts), and what it was given since."""

    ref: Ref | None
    since: list[Part] = field(default_factory=list)


class Updates:
    """One trainer actor. ``latest``: the weights after its last update, None before the first.

    When it is lost, another takes up the last state that is known, is given again what came after
    it, and ends with the same weights. Raises EngineError where it cannot start at all.
    """

    def __init__(
        self,
        transport: Transport,
        recipe: Recipe,
        channel: Channel | None = None,
        heartbeat_s: float = 60.0,
    ) -> None:
        self._transport = transport
        self._recipe = recipe
        self._channel = channel
        self._heartbeat_s = heartbeat_s
        self.latest: Weights | None = None
        self.zero_s = 0.0
        self._losses = 0
        self._states = [_Saved(None)]
        self._part: Part | None = None  # under way
        self._done: Ref = None
        self._weights: Ref = None
        self._beat: Ref = None
        self._asked_s = 0.0  # the beat, or the start
        self._pulse: Ref = None
        self.pulses: list[Beat] = []  # taken, and not yet fetched from here
        self._starting = True
        self._repairs: list[Ref] = []
        self._actor = self._start()

    # Starting

    def require_started(self) -> TrainerReady:
        """Waits until it has started. Raises EngineError where it has not, or with other versions
        than this process."""
        try:
            ready: TrainerReady = self._transport.get(self._ready)
        except ActorLostError as error:
            raise EngineError(f"the trainer was lost while it started: {error}") from None
        self._starting, self._repairs = False, []
        if ready.versions != versions():
            raise EngineError("the trainer has other versions of its packages than this process")
        self.zero_s = 0.0
        if ready.machine != machine_name():
            self.zero_s = clock_offset(self._transport, self._actor)
        return ready

    def _start(self) -> Actor:
        recipe = self._recipe
        arguments = (recipe.start, recipe.need.cores, self._channel)
        actor = self._transport.start(TrainerActor, arguments, recipe.need, "trainer")
        self._ready = actor.call("begin")
        self._repairs, self._starting, self._beat = [self._ready], True, None
        self._pulse = None
        self._asked_s = time.perf_counter()
        return actor

    # Updates

    @property
    def busy(self) -> bool:
        """Whether an update, or a part of one, is under way."""
        return self._part is not None

    @property
    def version(self) -> int:
        """Updates that its weights have had, as far as it has told."""
        return 0 if self.latest is None else self.latest.version

    @property
    def refs(self) -> list[Ref]:
        """What to wait for."""
        if self._starting:
            return [self._ready]
        if self._beat is None:
            self._beat, self._asked_s = self._actor.call("clock", lane="watch"), time.perf_counter()
        return [ref for ref in (self._done, self._beat, self._pulse) if ref is not None]

    def begin(self, part: Part) -> None:
        """Starts an update, or a part of one. What the trainer is before the first part is kept
        until its update is done."""
        if self._part is not None:
            raise RunError("an update asked for while another is under way")
        last = self._states[-1]
        if last.ref is None and not last.since:
            last.ref = self._actor.call("state")
        elif last.since and last.since[-1].final:
            self._states.append(_Saved(self._actor.call("state")))
        self._states[-1].since.append(part)
        self._issue(part)

    def _issue(self, part: Part) -> None:
        self._part = part
        self._done, self._weights = self._actor.call("step", part, results=2)

    def receive(self, ready: Sequence[Ref]) -> tuple[Part, Updated] | str | None:
        """What these bring: a part that is done, or why the trainer is lost. Raises RunError where
        it refused the part."""
        there = set(ready)
        try:
            if self._starting:
                if self._ready in there:
                    self._transport.get(self._ready)
                    self._starting = False
                elif time.perf_counter() - self._asked_s > max(START_S, self._heartbeat_s):
                    return f"did not start within {max(START_S, self._heartbeat_s):g} s"
                return None
            if self._pulse is not None and self._pulse in there:
                pulse, self._pulse = self._pulse, None
                self.pulses.append(self._transport.get(pulse))
            if self._part is not None and self._done in there:
                for repair in self._repairs:
                    self._transport.get(repair)
                self._repairs = []
                return self._finished(self._transport.get(self._done))
            if self._beat in there:
                self._transport.get(self._beat)
                self._beat = None
        except ActorLostError as error:
            return str(error)
        except ValueError as error:
            raise RunError(f"the trainer cannot go on from its own state: {error}") from None
        if self._beat is not None and time.perf_counter() - self._asked_s > self._heartbeat_s:
            return f"no sign of life for {self._heartbeat_s:g} s"
        return None

    def _finished(self, updated: Updated) -> tuple[Part, Updated]:
        assert self._part is not None
        part, self._part, self._done = self._part, None, None
        if updated.metrics is None:
            raise RunError(f"the update of step {part.version} failed: {updated.error}")
        if part.final:
            sample = [list(tokens) for tokens in part.sample]
            self.latest = Weights(part.version + 1, self._weights, sample, updated.log_probs)
            self._losses = 0
            self._states = self._states[-1:]  # older ones are of no use once this one is known
        return part, updated

    # Losing it, and going on

    def replace(self, cause: str) -> None:
        """Ends the trainer, starts another, and brings it to where this one was; what was under way
        is under way again. Raises EngineError where that was tried too often."""
        self._transport.kill(self._actor)
        self._losses += 1
        if self._losses > MOST_LOSSES:
            raise EngineError(f"the trainer was lost {self._losses} times in a row: {cause}")
        under_way, self._part, self._done = self._part, None, None
        self._actor = self._start()
        state = self._last_known()
        if state.ref is not None:
            self._repairs.append(self._actor.call("load_state", state.ref))
        for part in state.since:
            if part is not under_way:
                self._repairs.append(self._actor.call("step", part, results=2)[0])
        if under_way is not None:
            self._issue(under_way)

    def _last_known(self) -> _Saved:
        """The last state that was told; what came since the others comes after it."""
        while len(self._states) > 1 and not self._told(self._states[-1].ref):
            lost = self._states.pop()
            self._states[-1].since += lost.since
        last = self._states[-1]
        if not self._told(last.ref):  # the very first, which is how it starts
            last.ref = None
        return last

    def _told(self, ref: Ref | None) -> bool:
        if ref is None:
            return True
        try:
            self._transport.get(ref)
        except ActorLostError:
            return False
        return True

    # Between two steps

    def state(self) -> TrainerState:
        """What the trainer is after all the updates that it has told of, without any part of the
        next one. Raises ActorLostError where it is lost just then."""
        last = self._states[-1]
        if last.since and last.since[-1].final and self._part is None:
            self._states.append(_Saved(self._actor.call("state")))
            last = self._states[-1]
        ref = self._actor.call("state") if last.ref is None else last.ref
        packed: PackedState = self._transport.get(ref)
        return unpack_state(packed)

    def load_state(self, state: TrainerState, updates: int) -> None:
        """Goes on from a `state`, after that many updates. Raises ValueError for one of another
        model."""
        ref = self._transport.put(pack_state(state))
        self._transport.get(self._actor.call("load_state", ref))
        self._states = [_Saved(ref)]
        self.latest = Weights(updates, self.weights(), [], []) if updates else None

    def weights(self) -> Any:
        """The weights as they are; a `Ref`."""
        return self._actor.call("weights")

    def pulse(self) -> Beat:
        """How fast its device is just now; it must be idle. Raises ActorLostError."""
        beat: Beat = self._transport.get(self._actor.call("pulse"))
        return beat

    def ask_for_pulse(self) -> None:
        """Has the pulse taken before whatever the trainer is asked next; ``pulses`` has it then."""
        if self._pulse is None:
            self._pulse = self._actor.call("pulse")
