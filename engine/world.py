"""The real world: engines sample, a trainer trains, and the loop cannot tell it from the simulated
one.

Replicas and trainer are actors behind a transport: in processes of their own, where rollout and
training take place at the same time (`engine.actors.on_ray`), or in this one, where they take turns
and the loop hears of each iteration before the next (`engine.actors.local`).

Replicas of other processes iterate by themselves, and what happens there is news by the time it
gets here. The loop sees none of it before a verb returns it: what a rollout became is taken in when
`EngineWorld.wait` or `EngineWorld.abort` hands it out, so that the loop's decisions follow from
what it was told alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from rollcast.engine.actors.fleet import Fleet, Loss, Recipe, Replica
from rollcast.engine.actors.local import LocalTransport
from rollcast.engine.actors.messages import (
    Abort,
    Aborted,
    Iterated,
    Loaded,
    Notice,
    Ready,
    Slept,
    Submit,
)
from rollcast.engine.actors.sleep import Sleepers
from rollcast.engine.actors.trainer import Part, Updated
from rollcast.engine.actors.transport import ActorLostError, Transport
from rollcast.engine.actors.updates import Updates, Weights
from rollcast.engine.actors.weights import ByStore, Channel, InPlace, unpack
from rollcast.engine.edges import Engine, Limits, Trainer, TrainerState, TrainMetrics
from rollcast.engine.environments.threads import Runner, Threads
from rollcast.engine.frontend import Finished, Order
from rollcast.engine.log import Arrival, EngineLog, Fault
from rollcast.engine.responses import Responses, Tokens
from rollcast.engine.sessions import Sessions, TurnRules
from rollcast.engine.sync_check import require_close
from rollcast.engine.tasks.base import Task
from rollcast.simulator.cluster.routing import ROUTINGS, Balance, Router
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop.recorded import UnderWay
from rollcast.simulator.plan import Layout, Placement
from rollcast.simulator.rollout import UNSHARED, Key, Rollout, Segment
from rollcast.simulator.world import (
    ClusterShape,
    Ended,
    Event,
    Phase,
    Synced,
    TrainBatch,
    Trained,
)

if TYPE_CHECKING:
    from torch import Tensor

SHAPE = ClusterShape(1, 1, 1, colocated=True)
"""Of a world in this process: one replica and the trainer, which take turns."""

PULSE_SHARE = 0.02
"""Of a run's time that its trainer takes the machine's pulse, at the most."""
_SHORT_PASSES = 5  # of a pulse
_LOOK_S = 1e-3  # environments are looked at no more often than that
_PHASES = ("log_prob", "forward", "backward", "gradient", "optimizer")


@dataclass(frozen=True, slots=True)
class Recipes:
    """How the actors are made. trainer: of each rank. channel: how weights leave the trainer; None
    is the object store. sleeps: whether the replicas give up their devices' memory while the
    trainer works."""

    replicas: Sequence[Recipe]
    trainer: Sequence[Recipe]
    channel: Channel | None = None
    sleeps: bool = False

    @property
    def shares_devices(self) -> bool:
        """Whether the trainer's GPUs are the replicas', too."""
        return any(recipe.need.sharing is not None for recipe in self.trainer)


@dataclass(frozen=True, slots=True)
class WorldState:
    """All that another world needs to go on from here, but for the log and what is in flight.

    clock_s: of this world's clock. version: of the replicas' weights; updates: that the trainer's
    have had. asked: the prompt's number by group. tokens: by (group, index). trainer: after those
    updates, without parts of the next one. weights: the replicas', where they are other ones.
    """

    clock_s: float
    version: int
    updates: int
    asked: Mapping[int, int]
    tokens: Mapping[Key, Tokens]
    trainer: TrainerState
    weights: Mapping[str, Tensor] | None = None


@dataclass(eq=False, slots=True)
class _InFlight:
    """A rollout that the loop thinks in flight. replica: where it is; None while there is none to
    take it. finished: what became of it, once that is known here."""

    rollout: Rollout
    order: Order
    placement: Placement
    replica: Replica | None = None
    finished: Finished | None = None
    zero_s: float = 0.0


@dataclass(slots=True)
class _Sync:
    token: int
    weights: Weights
    start_s: float
    waiting: set[int]
    done: int = 0
    woken_s: float = 0.0  # when the last one that slept was awake; 0 where none did
    end_s: float = 0.0


@dataclass(slots=True)
class _Mail:
    """Events that have not been handed out, by their instants."""

    ended: list[tuple[float, _InFlight]] = field(default_factory=list)
    others: list[tuple[float, Event]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ended or self.others)

    @property
    def first_s(self) -> float:
        """The earliest instant."""
        return min(at_s for at_s, _ in (*self.ended, *self.others))


class EngineWorld:
    """A `simulator.world.World` of replicas and a trainer, actors of a transport.

    shape: how many, and whether trainer and replicas take turns. task, seed: see
    `engine.responses.Responses`. routing: which replica a rollout goes to, by the simulator's own
    rules (`simulator.cluster.routing`). heartbeat_s: without a sign of life after which an actor is
    replaced. turns: of rollouts that have several, by the engines' limits; None where they have
    one. Their environments work here, beside the driver; runner: does what they have to do, None
    is threads.

    Raises EngineError where an actor cannot start or is lost again and again, or a reward function
    fails; RunError where the trainer refuses an update, or where a verb is called that the state of
    the world forbids.
    """

    name = "engine"

    def __init__(
        self,
        transport: Transport,
        recipes: Recipes,
        shape: ClusterShape,
        task: Task,
        seed: int,
        routing: str = "least_loaded",
        heartbeat_s: float = 60.0,
        turns: Callable[[Limits], TurnRules] | None = None,
        runner: Runner | None = None,
    ) -> None:
        self.shape = shape
        self.log = EngineLog()
        self._transport = transport
        self._timer = transport.timer
        self._responses = Responses(task, seed)
        self._mail = _Mail()
        self._in_flight: dict[Key, _InFlight] = {}
        self._homeless: list[Key] = []  # with no replica to take them
        self._stopping: dict[int, tuple[Replica, set[Key]]] = {}  # aborts under way, by token
        self._tokens = count(1)
        self._sync: _Sync | None = None
        self._serving: Weights | None = None  # what the replicas have; None is how they started
        self._zero = self._timer()
        self._reported: dict[tuple[int, int, int], int] = {}  # tokens, by version, group and index
        self._next_pulse_s = 0.0  # on this world's clock
        self._parts = 0  # groups of the parts of the batch that the trainer has had
        self._rests = False  # between two steps, as far as was seen
        self._updates = Updates(transport, recipes.trainer, recipes.channel, heartbeat_s)
        self._sleeps = recipes.sleeps
        self._sleepers = Sleepers(self._updates, self._timer)
        if recipes.shares_devices:  # an engine counts what others hold of its memory as it starts
            self._updates.require_started()
        self._fleet = Fleet(transport, recipes.replicas, heartbeat_s)
        self._require_started()
        self._router: Router = ROUTINGS[routing](self._fleet.replicas)
        self._balance = Balance(shape.replicas)
        self._sessions, environments = None, None
        if turns is not None:
            rules = turns(self._fleet.limits)
            environments = rules.spec.slots
            now, failed = lambda: self.now_s, lambda failure: self.log.failures.append(failure)
            self._sessions = Sessions(rules, self._responses, now, failed, runner or Threads())
        self.shape = replace(
            shape,
            slots=shape.replicas * self._fleet.limits.max_seqs,
            environment_slots=environments or 0,
        )
        self._zero = self._timer()

    def _require_started(self) -> None:
        self._updates.require_started()
        while len(self._fleet.live) < len(self._fleet.replicas):
            self._receive(1.0)

    # The clock

    @property
    def now_s(self) -> float:
        """Wall-clock seconds since the run began; interruptions and saving at rest left out."""
        return self._timer() - self._zero

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """The enclosed code takes no time of the run, where nothing is under way that does."""
        began, quiet = self._timer(), self.quiet
        try:
            yield
        finally:
            if quiet:
                self._zero += self._timer() - began

    def tokens(self, rollout: Rollout) -> Tokens:
        """What a rollout that is neither in flight nor trained is made of. Raises KeyError."""
        return self._responses.tokens[rollout.key]

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way."""
        return not (self._flying or self._training or self._sync or self._mail)

    @property
    def _training(self) -> bool:
        """Whether an update, or a part of one, is under way."""
        return self._sleepers.busy or self._updates.busy

    @property
    def _flying(self) -> bool:
        """Whether any rollout is in flight."""
        return bool(self._in_flight or (self._sessions is not None and self._sessions.flying))

    # Rollouts

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Sends rollouts to their replicas, each of which sees all of its own at once."""
        fresh = []
        if self._sessions is not None:
            self._sessions.catch_up()
        for rollout in rollouts:
            if rollout.key in self._in_flight or self._away(rollout.key):
                raise RunError(f"{rollout} is already in flight")
            if self._sessions is None:
                fresh.append(self._fly(rollout, self._responses.order(rollout), placement))
                continue
            session = self._sessions.open(rollout, placement)
            if self._sessions.next_stage(session) == "model":
                fresh.append(self._fly(rollout, self._sessions.order(session), placement))
        self._place(fresh)

    def _fly(self, rollout: Rollout, order: Order, placement: Placement) -> _InFlight:
        flight = self._in_flight[rollout.key] = _InFlight(rollout, order, placement)
        return flight

    def _away(self, key: Key) -> bool:
        """Whether a rollout is in flight away from the replicas."""
        away = self._sessions is not None and self._sessions.flies(key)
        return away and key not in self._in_flight

    def _place(self, flights: Iterable[_InFlight]) -> None:
        """Sends rollouts to replicas that live; where none does, they wait for one."""
        replicas = self._fleet.replicas
        queues: list[list[_InFlight]] = [[] for _ in replicas]
        live = self._fleet.live
        for flight in flights:
            if not live:
                self._homeless.append(flight.rollout.key)
                continue
            if flight.placement == "balanced":
                number = self._balance.home(flight.rollout)
            else:
                number = self._router.route(flight.rollout, queues)
            if not replicas[number].live:
                number = min(live, key=lambda one: one.load + len(queues[one.number])).number
            queues[number].append(flight)
        for home, queue in zip(replicas, queues, strict=True):
            if queue:
                for flight in queue:
                    flight.replica = home
                    home.flying.add(flight.rollout.key)
                home.post(Submit(tuple(flight.order for flight in queue)))

    def oracle_tokens(self, rollout: Rollout) -> None:
        """Nobody knows here."""
        return None

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """Stops rollouts wherever they are, and waits for what each became: a replica answers
        between two iterations."""
        flying = set(self._in_flight)
        if self._sessions is not None:
            flying |= self._sessions.flying
        wanted = sorted(flying if keys is None else keys)
        for key in wanted:
            if key not in flying:
                raise RunError(f"rollout {key} is not in flight and cannot be aborted")
        by_replica: dict[int, list[Key]] = {}
        for key in wanted:
            flight = self._in_flight.get(key)
            if flight is not None and flight.finished is None and flight.replica is not None:
                by_replica.setdefault(flight.replica.number, []).append(key)
        for number, there in by_replica.items():
            home, token = self._fleet.replicas[number], next(self._tokens)
            self._stopping[token] = home, set(there)
            home.post(Abort(token, tuple(there)))
        while self._stopping:
            self._receive(1.0)
        gone = set(wanted)
        self._mail.ended = [(at, f) for at, f in self._mail.ended if f.rollout.key not in gone]
        self._homeless = [key for key in self._homeless if key not in gone]
        return [self._stopped(key, for_good) for key in wanted]

    def _stopped(self, key: Key, for_good: bool) -> Segment:
        """The segment of a rollout that was aborted, and has left where it was."""
        if key in self._in_flight:
            return self._hand_out(self._in_flight[key], for_good, aborted=True)
        assert self._sessions is not None
        self._balance.left(key)
        return self._sessions.stop(key, for_good)

    def _hand_out(
        self, flight: _InFlight, for_good: bool = False, aborted: bool = False
    ) -> Segment:
        """The segment of a rollout that the loop is told of now. for_good: of one that was aborted,
        whether it is never submitted again."""
        rollout, sessions = flight.rollout, self._sessions
        del self._in_flight[rollout.key]
        number = 0 if flight.replica is None else flight.replica.number
        zero_s = flight.zero_s + self._zero
        if sessions is None:
            if flight.finished is None:
                segment = self._responses.never_ran(rollout, number, self.now_s)
            else:
                segment = self._responses.finish(rollout, flight.finished, number, zero_s)
        elif flight.finished is None:
            segment = sessions.stop(rollout.key, for_good, number)
        else:
            segment = sessions.left_engine(flight.finished, number, zero_s, for_good)
            if aborted and segment.ending == "turn":  # it was over just before
                sessions.suspend(sessions[rollout.key], for_good)
                segment = segment._replace(ending="aborted")
        if segment.ending != "turn":
            self._balance.left(rollout.key)
        return segment if flight.finished is None else self._shared_with_reported(segment)

    def _settle(self) -> list[Event]:
        """Goes on with what has happened away from the replicas; the rollouts that came to their
        end there."""
        if self._sessions is None:
            return []
        take_turns, ended = self._sessions.settle()
        self._place(
            self._fly(session.rollout, self._sessions.order(session), session.placement)
            for session in take_turns
        )
        for segment in ended:
            self._balance.left(segment.key)
        return [Ended(segment) for segment in ended]

    def _shared_with_reported(self, segment: Segment) -> Segment:
        """The segment with what its tokens have in common with one of its version of which the loop
        was told before; a replica compares with whatever ended there before it."""
        version = (
            segment.tokens_by_version[0].version if segment.tokens_by_version else self._version
        )
        shared = segment.shared
        if self._reported.get((version, shared.group, shared.index), 0) < shared.tokens:
            segment = segment._replace(shared=UNSHARED)
        ids = self._responses.tokens[segment.key].ids
        self._reported[version, segment.group, segment.index] = segment.prompt_tokens + len(ids)
        return segment

    @property
    def _version(self) -> int:
        """Of the replicas' weights."""
        return 0 if self._serving is None else self._serving.version

    def _finished(self, home: Replica, finished: Iterable[Finished], mail: bool) -> None:
        """Notes what left a replica; ``mail``: as an event to come."""
        for one in finished:
            home.flying.discard(one.key)
            home.losses = 0
            flight = self._in_flight[one.key]
            flight.finished, flight.zero_s = one, home.zero_s
            if mail:
                self._mail.ended.append((one.end_s - home.zero_s, flight))

    # Updates

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Sends an update, or a part of one, to the trainer."""
        self._require_free("train")
        part = self._part(batch, layout)
        if batch.groups and part.final and not (part.groups or self._parts):
            raise RunError(
                f"no rollout of step {batch.step} has a token: their environments failed"
            )
        self._parts = 0 if part.final else self._parts + len(part.groups)
        self._sleepers.make_room(part, self._fleet.live if self._sleeps else ())

    def _part(self, batch: TrainBatch, layout: Layout) -> Part:
        longest = self._fleet.limits.max_model_len - 1  # the check samples one token more
        sample = self._responses.sample(batch, longest) if batch.final else []
        groups = (self._responses.sampled(group) for group in batch.groups)
        return Part(
            tuple(group for group in groups if group.rollouts),
            layout == "shared_prefix",
            batch.step,
            batch.mask_before_version,
            batch.final,
            tuple(tuple(tokens) for tokens in sample),
        )

    def sync_weights(self) -> None:
        """Sends the newest weights to every replica, which takes them in between two iterations and
        goes on with what is in flight."""
        self._require_free("sync")
        weights = self._updates.latest
        if weights is None:
            raise RunError("a sync was asked for before the first update")
        live = {home.number for home in self._fleet.live}
        self._sync = _Sync(next(self._tokens), weights, self._timer(), live)
        self._serving = weights
        for home in self._fleet.live:
            self._load(home, self._sync.token)
        overlaps = self._transport.processes and not self._rests
        if overlaps and self.now_s >= self._next_pulse_s:
            self._updates.ask_for_pulse()  # the trainer has nothing else to do just now

    def _load(self, home: Replica, token: int) -> None:
        weights = self._serving
        if weights is not None:
            home.actor.call("load", token, weights.ref, weights.version, weights.sample)
            if self._updates.wired:
                self._updates.send(home.number, weights.ref)

    def _require_free(self, what: str) -> None:
        busy = "an update" if self._training else "a sync" if self._sync else None
        if busy is not None:
            raise RunError(f"{what} asked for while {busy} is under way")
        if self.shape.colocated and self._flying:
            raise RunError(f"{what} asked for while rollouts are in flight")

    # What happens

    def wait(self, until_s: float | None = None) -> list[Event]:
        """The events of the earliest instant that is known of; waits for one where none is."""
        if self.quiet:
            raise RunError("the loop waits, but no rollout, update or sync is under way")
        while not self._mail:
            if events := self._settle():
                return sorted(events, key=_order)
            left_s = math.inf if until_s is None else until_s - self.now_s
            if left_s <= 0:
                return []
            if self._sessions is not None:
                if self._only_environments_work:
                    self._sessions.wait(left_s)
                    continue
                left_s = min(left_s, max(self._sessions.next_s, _LOOK_S))
            self._receive(min(left_s, 1.0))
        instant = self._mail.first_s
        ended = [flight for at_s, flight in self._mail.ended if at_s == instant]
        others = [event for at_s, event in self._mail.others if at_s == instant]
        self._mail.ended = [pair for pair in self._mail.ended if pair[0] != instant]
        self._mail.others = [pair for pair in self._mail.others if pair[0] != instant]
        others.sort(key=lambda event: isinstance(event, Synced))
        events = [*(Ended(self._hand_out(flight)) for flight in ended), *self._settle()]
        return [*sorted(events, key=_order), *others]

    @property
    def _only_environments_work(self) -> bool:
        """Whether there is nothing to wait for but environments; not known of other processes."""
        return not self._transport.processes and self._flying and not self._in_flight

    def _receive(self, timeout_s: float) -> None:
        """Takes in what the actors have to say, waiting for it for at most ``timeout_s``."""
        ready = self._transport.wait([*self._fleet.polls, *self._updates.refs], timeout_s)
        for home, notice in self._fleet.receive(ready):
            self._notice(home, notice)
        news = self._updates.receive(ready)
        self._note_pulses()
        if isinstance(news, str):
            self._lose_trainer(news)
        elif news is not None:
            self._updated(*news)

    def _note_pulses(self) -> None:
        """Logs the machine's pulse, and when it may be taken again: how long it takes is known
        then."""
        for beat in self._updates.pulses:
            self.log.pulses.append((self._updates.version, beat))
            took_s = beat.long_s + _SHORT_PASSES * beat.short_s
            self._next_pulse_s = self.now_s + took_s / PULSE_SHARE
        self._updates.pulses.clear()

    def _notice(self, home: Replica, notice: Notice | Loss) -> None:
        if isinstance(notice, Iterated):
            if notice.iteration is not None:
                done = notice.iteration
                start_s = done.start_s - home.zero_s - self._zero
                self.log.iterations.add(done.version, start_s, done.measured, home.number)
            self._finished(home, notice.finished, mail=True)
        elif isinstance(notice, Aborted):
            self._finished(home, notice.finished, mail=False)
            del self._stopping[notice.token]
        elif isinstance(notice, Slept):
            self._sleepers.sleeps(home, notice)
        elif isinstance(notice, Loaded):
            self._has_weights(home, notice)
        elif isinstance(notice, Ready):
            self._welcome(home)
        elif isinstance(notice, Loss):
            self._lose(home, notice.cause)

    def _updated(self, part: Part, updated: Updated) -> None:
        assert updated.metrics is not None
        zero_s = self._updates.zero_s + self._zero
        start_s, end_s = updated.start_s - zero_s, updated.end_s - zero_s
        if part.final:
            self.log.updates.append((part.version, updated.metrics))
        switch = self._sleepers.switch(self._zero)
        event = Trained(part.version, (*switch, *phases(updated.metrics, start_s, end_s)))
        self._mail.others.append((updated.end_s - self._updates.zero_s, event))

    def _has_weights(self, home: Replica, loaded: Loaded) -> None:
        sync = self._sync
        if sync is None or loaded.token != sync.token:
            return
        end_s, trainers = loaded.end_s, sync.weights.log_probs
        if self._transport.processes:
            ours = (at_s - home.zero_s for at_s in (loaded.start_s, loaded.loaded_s, end_s))
            times = (at_s - self._zero for at_s in (sync.start_s, *ours))
            self.log.arrivals.append(Arrival(sync.weights.version, home.number, *times))
        elif loaded.log_probs is not None:
            trainers, end_s = self._updates.log_probs(sync.weights.sample), self._timer()
        if loaded.log_probs is not None:
            difference = require_close(loaded.log_probs, trainers, self._fleet.tolerance)
            self.log.sync_differences.append(difference)
            self.log.sync_check_s.append(end_s - loaded.loaded_s)
        sync.waiting.discard(home.number)
        sync.done += 1
        if loaded.woke:
            sync.woken_s = max(sync.woken_s, loaded.start_s - home.zero_s)
        sync.end_s = max(sync.end_s, end_s - home.zero_s)
        self._end_sync()

    def _end_sync(self) -> None:
        sync = self._sync
        if sync is None or sync.waiting or not sync.done:
            return
        self._sync = None
        self._router.new_weights()
        loads_s = sync.start_s - self._zero
        switch = []
        if sync.woken_s:
            switch = [Phase("switch", loads_s, sync.woken_s - self._zero)]
            loads_s = sync.woken_s - self._zero
        phase = Phase("sync", loads_s, sync.end_s - self._zero)
        self._mail.others.append((sync.end_s, Synced((*switch, phase))))

    # Losing a replica, and going on

    def _lose_trainer(self, cause: str, at_fault: bool = True) -> None:
        """Replaces the trainer, which then finds out by itself where this one was."""
        began = self._timer()
        stuck = [home for home in self._fleet.live if self._updates.sending_to(home.number)]
        self._updates.replace(cause, at_fault)
        self._fault("trainer", cause, 0, began)
        for home in stuck:
            self._lose(home, "the trainer was lost that sent it weights")
        for home in self._fleet.live:
            self._connect(home)

    def _connect(self, home: Replica) -> None:
        """Has a replica and the trainer meet, where weights go by wire."""
        if self._updates.wired:
            where = self._updates.connect(home.number, self.shape.gpus_per_replica)
            home.actor.call("connect", where)

    def _lose(self, home: Replica, cause: str) -> None:
        """Replaces a replica. What was in flight there begins again from the tokens that are known
        here: those that it had when it was submitted."""
        began = self._timer()
        lost = self._fleet.replace(home, cause)
        if self._updates.sending_to(home.number):  # it would wait there for ever
            cause = f"its weights were on their way to replica {home.number}"
            self._lose_trainer(cause, at_fault=False)
        self._fault(f"replica {home.number}", cause, len(lost), began)
        for token in [t for t, (there, _) in self._stopping.items() if there is home]:
            _, keys = self._stopping.pop(token)
            lost -= keys  # they were to stop anyhow, and have nothing to show
        if self._sync is not None:
            self._sync.waiting.discard(home.number)
            self._end_sync()
        self._sleepers.lost(home)
        flights = [self._in_flight[key] for key in sorted(lost)]
        for flight in flights:
            flight.replica = None
        self._place(flights)

    def _welcome(self, home: Replica) -> None:
        """A replica has started: it gets the weights that the others have, then what waits."""
        self._connect(home)
        if self._serving is not None:
            token = 0
            if self._sync is not None:
                token = self._sync.token
                self._sync.waiting.add(home.number)
            self._load(home, token)
        waiting, self._homeless = self._homeless, []
        self._place(self._in_flight[key] for key in waiting)

    def _fault(self, actor: str, cause: str, rollouts: int, began: float) -> None:
        self.log.faults.append(Fault(began - self._zero, actor, cause, rollouts))

    # Between two steps

    def take_pulse(self, step: int) -> None:
        """Logs the machine's pulse where nothing is under way, not more often than its time allows.
        Where something always is, it is taken while new weights are on their way: then the trainer
        is idle, whatever the policy, but replicas are not."""
        self._rests = self.quiet
        early = self._transport.processes and self.now_s < self._next_pulse_s
        if not self._rests or early:
            return
        try:
            self._updates.pulses.append(self._updates.pulse())
        except ActorLostError:
            return  # the next update says so
        self._note_pulses()

    def keep_only(self, groups: Collection[int]) -> None:
        """Forgets prompts and tokens of every other group: they are trained, or dropped."""
        kept = set(groups)
        if self._sessions is not None:
            self._sessions.keep_only(kept)
        self._responses.keep_only(kept)
        self._reported = {
            key: tokens
            for key, tokens in self._reported.items()
            if key[1] in kept or key[0] == self._version
        }

    # Saving and going on

    def state(self) -> WorldState:
        """Where it stands, as far as the loop has been told. Raises ActorLostError where the
        trainer is lost just then."""
        if not self._transport.processes:
            if not self.quiet:
                raise RunError("a run can only be saved between two steps")
            if self._version != self._updates.version:
                raise RunError("a run can only be saved once its newest weights are in the engine")
        serving, kept, version = self._serving, self._responses, self._version
        weights = None
        if serving is not None and version != self._updates.version:
            weights = unpack(self._updates.tensors(serving.ref))
        tokens = {key: replace(tokens) for key, tokens in kept.tokens.items()}
        return WorldState(
            self.now_s,
            version,
            self._updates.version,
            dict(kept.asked),
            tokens,
            self._updates.state(),
            weights,
        )

    def load_state(self, state: WorldState, log: EngineLog) -> None:
        """Goes on from a `state` and its log; `go_on` then has what was under way be under way
        again. Raises ValueError for the state of another trainer."""
        self._updates.load_state(state.trainer, state.updates)
        self._responses.load(state.asked, state.tokens)
        ref = self._updates.weights()
        if state.weights is not None:
            ref = self._transport.put(ByStore().pack(state.weights))
        self._serving = Weights(state.version, ref, [], [])
        self._reported = {}
        for home in self._fleet.live:
            self._load(home, 0)
        self.log = log
        self._zero = self._timer() - state.clock_s

    def go_on(self, under_way: UnderWay) -> None:
        """Restarts what was under way."""
        for rollout, placement in under_way.rollouts:
            self.submit([rollout], placement)
        if under_way.update is not None:
            self.train(*under_way.update)
        if under_way.sync:
            self.sync_weights()

    def close(self) -> None:
        """Ends the actors, and whatever environments there are."""
        if self._sessions is not None:
            self._sessions.close()
        try:
            self._fleet.close()
        finally:
            self._transport.close()


def in_process(
    replica: Engine,
    trainer: Trainer,
    task: Task,
    seed: int,
    *,
    turns: TurnRules | None = None,
    runner: Runner | None = None,
    timer: Callable[[], float] = time.perf_counter,
    sleeps: bool = False,
) -> EngineWorld:
    """The world of one engine and one trainer in this process. timer: its clock, seconds. sleeps:
    whether the engine gives up its memory while the trainer works."""
    recipes = Recipes([Recipe(lambda: replica)], [Recipe(lambda: trainer)], InPlace(), sleeps)
    rules = None if turns is None else lambda limits: turns
    transport = LocalTransport(timer)
    return EngineWorld(transport, recipes, SHAPE, task, seed, turns=rules, runner=runner)


def _order(event: Event) -> tuple[bool, Key]:
    """Ends of turns first, each kind by key."""
    assert isinstance(event, Ended)
    return event.segment.ending != "turn", event.segment.key


def phases(metrics: TrainMetrics, start_s: float, end_s: float) -> tuple[Phase, ...]:
    """What an update was made of, one after another; what is left of it (batching, bookkeeping) is
    ``train``."""
    made_of, at_s = [], start_s
    for name in _PHASES:
        seconds = getattr(metrics, f"{name}_s")
        made_of.append(Phase(name, at_s, at_s + seconds, metrics.computed_tokens))
        at_s += seconds
    made_of.append(Phase("train", at_s, max(end_s, at_s), 0))
    return tuple(phase for phase in made_of if phase.end_s > phase.start_s)
