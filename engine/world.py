"""The real world in one process: an engine samples, a trainer trains, and the loop cannot tell it
from the simulated one.

One replica and the trainer share this process, so nothing overlaps: the verbs note what is asked,
and `EngineWorld.wait` does it, one engine iteration, update or sync at a time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from engine.clock import WallClock
from engine.desk import Desk, Landed
from engine.edges import Engine, Trainer, TrainerState, TrainMetrics
from engine.environments.threads import Runner, Threads
from engine.errors import sentence
from engine.log import EngineLog
from engine.responses import Responses, Tokens
from engine.sessions import Sessions, TurnRules
from engine.sync_check import check_sync
from engine.tasks.base import Task
from simulator.errors import RunError
from simulator.plan import Layout, Placement
from simulator.rollout import Key, Rollout, Stay
from simulator.world import ClusterShape, Ended, Event, Phase, Synced, TrainBatch, Trained

SHAPE = ClusterShape(1, 1, 1, colocated=True)
"""One replica and the trainer, which take turns."""

_PHASES = ("log_prob", "forward", "backward", "gradient", "optimizer")


@dataclass(frozen=True, slots=True)
class WorldState:
    """All that another world needs to go on from here, but for the log.

    clock_s: of this world's clock. version: of the weights, the engine's and the trainer's alike.
    asked: the prompt's number by group. tokens: by (group, index).
    """

    clock_s: float
    version: int
    asked: Mapping[int, int]
    tokens: Mapping[Key, Tokens]
    trainer: TrainerState


class Clock(Protocol):
    """What a world goes by, seconds."""

    @property
    def now_s(self) -> float:
        """What it shows."""
        ...

    def set(self, now_s: float) -> None:
        """Has it show ``now_s`` from here on."""
        ...

    def stopped(self) -> AbstractContextManager[None]:
        """The enclosed code takes no time."""
        ...


class EngineWorld:
    """A `simulator.world.World` of one engine and one trainer.

    task: prompts and rewards. seed: see `engine.responses.Responses`. clock: what it goes by; None
    is the wall's. turns: of rollouts that have several; None where they have one. runner: does what
    their environments have to do; None is threads. sleeps: whether the engine gives up its memory
    while the trainer works.

    Raises EngineError where the engine or a reward function fails, RunError where the trainer does
    or where a verb is called that the state of the world forbids.
    """

    name = "engine"

    def __init__(
        self,
        replica: Engine,
        trainer: Trainer,
        task: Task,
        seed: int,
        clock: Clock | None = None,
        turns: TurnRules | None = None,
        runner: Runner | None = None,
        *,
        sleeps: bool = False,
    ) -> None:
        self.log = EngineLog()
        self._clock: Clock = WallClock() if clock is None else clock
        self._replica = replica
        self._trainer = trainer
        self._responses = Responses(task, seed)
        self._sessions = None
        if turns is not None:
            now, failed = lambda: self.now_s, lambda failure: self.log.failures.append(failure)
            self._sessions = Sessions(turns, self._responses, now, failed, runner or Threads())
        environments = None if turns is None else turns.spec.slots
        self.shape = shape_of(replica.limits.max_seqs, environments)
        stays = {} if self._sessions is None else {"stays": self._sessions.ends_turn}
        self._desk = Desk(replica, lambda: self.now_s, **stays)
        self._flying: dict[Key, Rollout] = {}
        self._update: tuple[TrainBatch, Layout] | None = None
        self._sync_asked = False
        self._updates = 0
        self._sample: list[list[int]] = []
        self._sleeps = sleeps

    @property
    def now_s(self) -> float:
        """Wall-clock seconds since the run began; interruptions and saving left out."""
        return self._clock.now_s

    def clock_stopped(self) -> AbstractContextManager[None]:
        """The enclosed code takes no time of the run."""
        return self._clock.stopped()

    def tokens(self, rollout: Rollout) -> Tokens:
        """What a rollout that is neither in flight nor trained is made of. Raises KeyError."""
        return self._responses.tokens[rollout.key]

    # Rollouts

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Queues rollouts in the engine, of which there is one; the next iteration sees them. One
        whose environment is to answer first waits for that."""
        self._wake()
        if self._sessions is not None:
            self._sessions.catch_up()
        for rollout in rollouts:
            if rollout.key in self._flying:
                raise RunError(f"{rollout} is already in flight")
            self._flying[rollout.key] = rollout
            if self._sessions is None:
                self._desk.submit(self._responses.order(rollout))
                continue
            session = self._sessions.open(rollout)
            if self._sessions.next_leg(session) == "model":
                self._desk.submit(self._sessions.order(session))

    def foresee(self, rollout: Rollout) -> None:
        """Nobody knows here."""
        return None

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Stay]:
        """Stops rollouts where they are: this world always stands between two iterations."""
        wanted = [*self._flying] if keys is None else [*keys]
        for key in wanted:
            if key not in self._flying:
                raise RunError(f"rollout {key} is not in flight and cannot be aborted")
        computed = [key for key in wanted if self._desk.has(key)]
        stays = self._land(self._desk.abort(computed), for_good)
        if self._sessions is not None:
            for key in sorted({*wanted}.difference(computed)):
                del self._flying[key]
                stays.append(self._sessions.stop(key, for_good))
        return sorted(stays, key=lambda stay: stay.key)

    def _land(self, landed: Sequence[Landed], for_good: bool = False) -> list[Stay]:
        stays = []
        for one in landed:
            if self._sessions is None:
                stay = self._responses.land(self._flying[one.key], one, 0)
            else:
                stay = self._sessions.landed(one, 0, for_good=for_good)
            if stay.ending != "turn":
                del self._flying[one.key]
            stays.append(stay)
        return stays

    def _iterate(self) -> list[Event]:
        """One engine iteration, and the rewards of what it finished."""
        turn, landed = self._desk.iterate()
        if turn is not None:
            self.log.iterations.add(turn.version, turn.start_s, turn.measured)
        return [Ended(stay) for stay in self._land(landed)]

    def _settle(self) -> list[Event]:
        """Goes on with what has happened away from the engine; the rollouts that came to their end
        there."""
        if self._sessions is None:
            return []
        take_turns, ended = self._sessions.settle()
        for session in take_turns:
            self._desk.submit(self._sessions.order(session))
        for stay in ended:
            del self._flying[stay.key]
        return [Ended(stay) for stay in ended]

    # Updates

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Notes an update; the next wait does it."""
        self._require_idle("train")
        self._update = batch, layout

    def sync_weights(self) -> None:
        """Notes a weight sync; the next wait does it."""
        self._require_idle("sync")
        self._sync_asked = True

    def _require_idle(self, what: str) -> None:
        busy = "an update" if self._update else "a sync" if self._sync_asked else None
        if busy is not None:
            raise RunError(f"{what} asked for while {busy} is under way")
        if self._flying:
            raise RunError(f"{what} asked for while rollouts are in flight")

    def wait(self, until_s: float | None = None) -> list[Event]:
        """Does what was asked, or iterates until a rollout finishes or ``until_s`` passes."""
        if self._update is not None:
            (batch, layout), self._update = self._update, None
            return [self._train(batch, layout)]
        if self._sync_asked:
            self._sync_asked = False
            return [self._sync()]
        if not self._flying:
            raise RunError("the loop waits, but no rollout, update or sync is under way")
        while True:
            events = self._settle()
            if not events and self._desk.busy and (until_s is None or self.now_s < until_s):
                events = self._iterate()
                events += self._settle()
            if events:
                return sorted(events, key=_order)
            if until_s is not None and self.now_s >= until_s:
                return []
            if self._sessions is not None and not self._desk.busy:
                left_s = math.inf if until_s is None else until_s - self.now_s
                self._sessions.wait(left_s)

    def _train(self, batch: TrainBatch, layout: Layout) -> Event:
        switch = self._fall_asleep()
        start_s = self.now_s
        groups = [self._responses.sampled(group) for group in batch.groups]
        groups = [group for group in groups if group.rollouts]
        if not groups:
            raise RunError(
                f"no rollout of step {batch.step} has a token: their environments failed"
            )
        try:
            metrics = self._trainer.step(
                groups,
                shared_prefix=layout == "shared_prefix",
                version=batch.step,
                mask_before_version=batch.mask_before_version,
            )
        except (RuntimeError, ValueError) as error:  # out of memory, or a token beyond the model's
            raise RunError(f"the update of step {batch.step} failed: {sentence(error)}") from error
        self._updates = batch.step + 1
        self.log.updates.append((batch.step, metrics))
        longest = self._replica.limits.max_model_len - 1  # the check samples one token more
        self._sample = self._responses.sample(batch, longest)
        return Trained(batch.step, (*switch, *phases(metrics, start_s, self.now_s)))

    def _fall_asleep(self) -> tuple[Phase, ...]:
        """Has the engine make room for the trainer; what that took."""
        start_s = self.now_s
        if not self._sleeps or not self._desk.sleep():
            return ()
        return (Phase("switch", start_s, self.now_s),)

    def _wake(self) -> tuple[Phase, ...]:
        """The way back."""
        start_s = self.now_s
        if not self._desk.wake():
            return ()
        return (Phase("switch", start_s, self.now_s),)

    def _sync(self) -> Event:
        switch = self._wake()
        start_s = self.now_s
        self._desk.load(self._trainer.weights(), self._updates)
        loaded_s = self.now_s
        if self._sample:
            difference = check_sync(self._replica, self._trainer, self._sample)
            self.log.sync_differences.append(difference)
            self.log.sync_check_s.append(self.now_s - loaded_s)
        return Synced((*switch, Phase("sync", start_s, self.now_s)))

    def close(self) -> None:
        """Ends the engine, and whatever environments there are."""
        if self._sessions is not None:
            self._sessions.close()
        self._replica.shutdown()

    # Between two steps

    def take_pulse(self, step: int) -> None:
        """Logs the machine's pulse after ``step`` steps; the clock should be stopped."""
        self.log.pulses.append((step, self._trainer.pulse()))

    def keep_only(self, groups: Collection[int]) -> None:
        """Forgets prompts and tokens of every other group: they are trained, or dropped."""
        if self._sessions is not None:
            self._sessions.keep_only(groups)
        self._responses.keep_only(groups)

    def state(self) -> WorldState:
        """Where it stands, between two steps and with the trainer's weights in the engine. Prompts
        are left out: the task makes them again."""
        if self._flying or self._update or self._sync_asked:
            raise RunError("a run can only be saved between two steps")
        if self._updates != self._replica.version:
            raise RunError("a run can only be saved once its newest weights are in the engine")
        kept = self._responses
        return WorldState(self.now_s, self._updates, kept.asked, kept.tokens, self._trainer.state())

    def load_state(self, state: WorldState, log: EngineLog) -> None:
        """Goes on from a `state`, weights in the engine included, and from its log. Raises
        ValueError for the state of another trainer."""
        self._trainer.load_state(state.trainer)
        self._responses.load(state.asked, state.tokens)
        self._updates = state.version
        self._replica.load_weights(self._trainer.weights(), state.version)
        self.log = log
        self._clock.set(state.clock_s)


def shape_of(max_seqs: int, environments: int | None = None) -> ClusterShape:
    """The shape of a world whose engine takes ``max_seqs`` rollouts at once, with so many slots for
    environments (None: no limit)."""
    return replace(SHAPE, slots=max_seqs, environment_slots=environments or 0)


def _order(event: Event) -> tuple[bool, Key]:
    """Ends of turns first, each kind by key."""
    assert isinstance(event, Ended)
    return event.stay.ending != "turn", event.stay.key


def phases(metrics: TrainMetrics, start_s: float, end_s: float) -> tuple[Phase, ...]:
    """What an update was made of, one after another; what is left of it (batching, bookkeeping) is
    ``train``."""
    found, at_s = [], start_s
    for name in _PHASES:
        seconds = getattr(metrics, f"{name}_s")
        found.append(Phase(name, at_s, at_s + seconds, metrics.computed_tokens))
        at_s += seconds
    found.append(Phase("train", at_s, max(end_s, at_s), 0))
    return tuple(phase for phase in found if phase.end_s > phase.start_s)
