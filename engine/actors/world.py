"""The real world of several processes: rollout and training at the same time, under the one loop.

Replicas iterate by themselves, and what happens there is news by the time it gets here. The loop
sees none of it before a verb returns it: what a rollout became is taken in when `ActorWorld.wait`
or `ActorWorld.abort` hands it out, so that the loop's decisions follow from what it was told alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from engine.actors.fleet import Fleet, Loss, Recipe, Replica
from engine.actors.messages import (
    Abort,
    Aborted,
    Iterated,
    Loaded,
    Notice,
    Ready,
    Slept,
    Submit,
)
from engine.actors.sleep import Sleepers
from engine.actors.trainer import Part, Updated
from engine.actors.transport import ActorLostError, Transport
from engine.actors.updates import Updates, Weights
from engine.actors.weights import ByStore, Channel, unpack
from engine.desk import Landed, Order
from engine.edges import Beat, Limits, TrainerState
from engine.environments.threads import Threads
from engine.log import Arrival, EngineLog, Fault
from engine.responses import Responses, Tokens
from engine.sessions import Sessions, TurnRules
from engine.sync_check import require_close
from engine.tasks.base import Task
from engine.world import phases
from simulator.cluster.routing import ROUTINGS, Balance, Router
from simulator.errors import RunError
from simulator.loop.recorded import UnderWay
from simulator.plan import Layout, Placement
from simulator.rollout import UNSHARED, Key, Rollout, Stay
from simulator.world import (
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


PULSE_SHARE = 0.02
"""Of a run's time that its trainer takes the machine's pulse, at the most."""
_SHORT_PASSES = 5  # of a pulse
_LOOK_S = 1e-3  # environments are looked at no more often than that


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
class ActorState:
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
    weights: Mapping[str, Tensor] | None


@dataclass(eq=False, slots=True)
class _Flight:
    """A rollout that the loop thinks in flight. replica: where it is; None while there is none to
    take it. landed: what became of it, once that is known here."""

    rollout: Rollout
    order: Order
    placement: Placement
    replica: Replica | None = None
    landed: Landed | None = None
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

    ended: list[tuple[float, _Flight]] = field(default_factory=list)
    others: list[tuple[float, Event]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ended or self.others)

    @property
    def first_s(self) -> float:
        """The earliest instant."""
        return min(at_s for at_s, _ in (*self.ended, *self.others))


class ActorWorld:
    """A `simulator.world.World` of replica actors and a trainer actor.

    shape: how many, and whether trainer and replicas take turns. task, seed: see
    `engine.responses.Responses`. routing: which replica a rollout goes to, by the simulator's own
    rules (`simulator.cluster.routing`). heartbeat_s: without a sign of life after which an actor is
    replaced. turns: of rollouts that have several, by the engines' limits; None where they have
    one. Their environments work here, beside the driver.

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
    ) -> None:
        self.shape = shape
        self.log = EngineLog()
        self._transport = transport
        self._responses = Responses(task, seed)
        self._mail = _Mail()
        self._flights: dict[Key, _Flight] = {}
        self._homeless: list[Key] = []  # with no replica to take them
        self._stopping: dict[int, tuple[Replica, set[Key]]] = {}  # aborts under way, by token
        self._tokens = count(1)
        self._sync: _Sync | None = None
        self._serving: Weights | None = None  # what the replicas have; None is how they started
        self._zero = time.perf_counter()
        self._told: dict[tuple[int, int, int], int] = {}  # tokens, by version, group and index
        self._next_pulse_s = 0.0  # on this world's clock
        self._rests = False  # between two steps, as far as was seen
        self._updates = Updates(transport, recipes.trainer, recipes.channel, heartbeat_s)
        self._sleeps = recipes.sleeps
        self._sleepers = Sleepers(self._updates)
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
            self._sessions = Sessions(rules, self._responses, now, failed, Threads())
        self.shape = replace(
            shape,
            slots=shape.replicas * self._fleet.limits.max_seqs,
            environment_slots=environments or 0,
        )
        self._zero = time.perf_counter()

    def _require_started(self) -> None:
        self._updates.require_started()
        while len(self._fleet.live) < len(self._fleet.replicas):
            self._receive(1.0)

    # The clock

    @property
    def now_s(self) -> float:
        """Wall-clock seconds since the run began; interruptions and saving at rest left out."""
        return time.perf_counter() - self._zero

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """The enclosed code takes no time of the run, where nothing is under way that does."""
        began, quiet = time.perf_counter(), self.quiet
        try:
            yield
        finally:
            if quiet:
                self._zero += time.perf_counter() - began

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
        return bool(self._flights or (self._sessions is not None and self._sessions.flying))

    # Rollouts

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Sends rollouts to their replicas, each of which sees all of its own at once."""
        fresh = []
        if self._sessions is not None:
            self._sessions.catch_up()
        for rollout in rollouts:
            if rollout.key in self._flights or self._away(rollout.key):
                raise RunError(f"{rollout} is already in flight")
            if self._sessions is None:
                fresh.append(self._fly(rollout, self._responses.order(rollout), placement))
                continue
            session = self._sessions.open(rollout, placement)
            if self._sessions.next_leg(session) == "model":
                fresh.append(self._fly(rollout, self._sessions.order(session), placement))
        self._place(fresh)

    def _fly(self, rollout: Rollout, order: Order, placement: Placement) -> _Flight:
        flight = self._flights[rollout.key] = _Flight(rollout, order, placement)
        return flight

    def _away(self, key: Key) -> bool:
        """Whether a rollout is in flight away from the replicas."""
        away = self._sessions is not None and self._sessions.flies(key)
        return away and key not in self._flights

    def _place(self, flights: Iterable[_Flight]) -> None:
        """Sends rollouts to replicas that live; where none does, they wait for one."""
        replicas = self._fleet.replicas
        queues: list[list[_Flight]] = [[] for _ in replicas]
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

    def foresee(self, rollout: Rollout) -> None:
        """Nobody knows here."""
        return None

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Stay]:
        """Stops rollouts wherever they are, and waits for what each became: a replica answers
        between two iterations."""
        flying = set(self._flights)
        if self._sessions is not None:
            flying |= self._sessions.flying
        wanted = sorted(flying if keys is None else keys)
        for key in wanted:
            if key not in flying:
                raise RunError(f"rollout {key} is not in flight and cannot be aborted")
        by_replica: dict[int, list[Key]] = {}
        for key in wanted:
            flight = self._flights.get(key)
            if flight is not None and flight.landed is None and flight.replica is not None:
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

    def _stopped(self, key: Key, for_good: bool) -> Stay:
        """The stay of a rollout that was aborted, and has left where it was."""
        if key in self._flights:
            return self._hand_out(self._flights[key], for_good, aborted=True)
        assert self._sessions is not None
        self._balance.left(key)
        return self._sessions.stop(key, for_good)

    def _hand_out(self, flight: _Flight, for_good: bool = False, aborted: bool = False) -> Stay:
        """The stay of a rollout that the loop is told of now. for_good: of one that was aborted,
        whether it is never submitted again."""
        rollout, sessions = flight.rollout, self._sessions
        del self._flights[rollout.key]
        number = 0 if flight.replica is None else flight.replica.number
        zero_s = flight.zero_s + self._zero
        if sessions is None:
            if flight.landed is None:
                stay = self._responses.never_ran(rollout, number, self.now_s)
            else:
                stay = self._responses.land(rollout, flight.landed, number, zero_s)
        elif flight.landed is None:
            stay = sessions.stop(rollout.key, for_good, number)
        else:
            stay = sessions.landed(flight.landed, number, zero_s, for_good)
            if aborted and stay.ending == "turn":  # it was over just before
                sessions.put_away(sessions[rollout.key], for_good)
                stay = stay._replace(ending="aborted")
        if stay.ending != "turn":
            self._balance.left(rollout.key)
        return stay if flight.landed is None else self._shared_with_told(stay)

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
        for stay in ended:
            self._balance.left(stay.key)
        return [Ended(stay) for stay in ended]

    def _shared_with_told(self, stay: Stay) -> Stay:
        """The stay with what its tokens have in common with one of its version of which the loop
        was told before; a replica compares with whatever ended there before it."""
        version = stay.segments[0].version if stay.segments else self._version
        shared = stay.shared
        if self._told.get((version, shared.group, shared.index), 0) < shared.tokens:
            stay = stay._replace(shared=UNSHARED)
        ids = self._responses.tokens[stay.key].ids
        self._told[version, stay.group, stay.index] = stay.prompt_tokens + len(ids)
        return stay

    @property
    def _version(self) -> int:
        """Of the replicas' weights."""
        return 0 if self._serving is None else self._serving.version

    def _landed(self, home: Replica, landed: Iterable[Landed], mail: bool) -> None:
        """Notes what left a replica; ``mail``: as an event to come."""
        for one in landed:
            home.flying.discard(one.key)
            home.losses = 0
            flight = self._flights[one.key]
            flight.landed, flight.zero_s = one, home.zero_s
            if mail:
                self._mail.ended.append((one.end_s - home.zero_s, flight))

    # Updates

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Sends an update, or a part of one, to the trainer."""
        self._require_free("train")
        part = self._part(batch, layout)
        self._sleepers.make_room(part, self._fleet.live if self._sleeps else ())

    def _part(self, batch: TrainBatch, layout: Layout) -> Part:
        longest = self._fleet.limits.max_model_len - 1  # the check samples one token more
        sample = self._responses.sample(batch, longest) if batch.final else []
        return Part(
            tuple(self._responses.sampled(group) for group in batch.groups),
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
        self._sync = _Sync(next(self._tokens), weights, time.perf_counter(), live)
        self._serving = weights
        for home in self._fleet.live:
            self._load(home, self._sync.token)
        if not self._rests and self.now_s >= self._next_pulse_s:
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
        while True:
            events = self._settle()
            if events:
                return events
            if self._mail:
                break
            left_s = 1.0 if until_s is None else min(1.0, until_s - self.now_s)
            if left_s <= 0:
                return []
            if self._sessions is not None:
                left_s = min(left_s, max(self._sessions.next_s, _LOOK_S))
            self._receive(left_s)
        instant = self._mail.first_s
        ended = [flight for at_s, flight in self._mail.ended if at_s == instant]
        others = [event for at_s, event in self._mail.others if at_s == instant]
        self._mail.ended = [pair for pair in self._mail.ended if pair[0] != instant]
        self._mail.others = [pair for pair in self._mail.others if pair[0] != instant]
        ended.sort(key=lambda flight: flight.rollout.key)
        others.sort(key=lambda event: isinstance(event, Synced))
        return [*(Ended(self._hand_out(flight)) for flight in ended), *others]

    def _receive(self, timeout_s: float) -> None:
        """Takes in what the actors have to say, waiting for it for at most ``timeout_s``."""
        ready = self._transport.wait([*self._fleet.polls, *self._updates.refs], timeout_s)
        for home, notice in self._fleet.receive(ready):
            self._notice(home, notice)
        told = self._updates.receive(ready)
        self._note_pulses()
        if isinstance(told, str):
            self._lose_trainer(told)
        elif told is not None:
            self._updated(*told)

    def pulse(self) -> Beat:
        """The machine's pulse just now; the trainer must be idle. Raises ActorLostError."""
        return self._updates.pulse()

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
            if notice.turn is not None:
                start_s = notice.turn.start_s - home.zero_s - self._zero
                self.log.iterations.add(
                    notice.turn.version, start_s, notice.turn.measured, home.number
                )
            self._landed(home, notice.landed, mail=True)
        elif isinstance(notice, Aborted):
            self._landed(home, notice.landed, mail=False)
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
        ours = (at_s - home.zero_s for at_s in (loaded.start_s, loaded.loaded_s, loaded.end_s))
        times = (at_s - self._zero for at_s in (sync.start_s, *ours))
        self.log.arrivals.append(Arrival(sync.weights.version, home.number, *times))
        if loaded.log_probs is not None:
            difference = require_close(
                loaded.log_probs, sync.weights.log_probs, self._fleet.tolerance
            )
            self.log.sync_differences.append(difference)
            self.log.sync_check_s.append(loaded.end_s - loaded.loaded_s)
        sync.waiting.discard(home.number)
        sync.done += 1
        if loaded.woke:
            sync.woken_s = max(sync.woken_s, loaded.start_s - home.zero_s)
        sync.end_s = max(sync.end_s, loaded.end_s - home.zero_s)
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

    def _lose_trainer(self, cause: str, own: bool = True) -> None:
        """Replaces the trainer, which then finds out by itself where this one was."""
        began = time.perf_counter()
        stuck = [home for home in self._fleet.live if self._updates.sending_to(home.number)]
        self._updates.replace(cause, own)
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
        began = time.perf_counter()
        lost = self._fleet.replace(home, cause)
        if self._updates.sending_to(home.number):  # it would wait there for ever
            cause = f"its weights were on their way to replica {home.number}"
            self._lose_trainer(cause, own=False)
        self._fault(f"replica {home.number}", cause, len(lost), began)
        for token in [t for t, (there, _) in self._stopping.items() if there is home]:
            _, keys = self._stopping.pop(token)
            lost -= keys  # they were to stop anyhow, and have nothing to show
        if self._sync is not None:
            self._sync.waiting.discard(home.number)
            self._end_sync()
        self._sleepers.lost(home)
        flights = [self._flights[key] for key in sorted(lost)]
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
        self._place(self._flights[key] for key in waiting)

    def _fault(self, actor: str, cause: str, rollouts: int, began: float) -> None:
        self.log.faults.append(Fault(began - self._zero, actor, cause, rollouts))

    # Between two steps

    def take_pulse(self, step: int) -> None:
        """Logs the machine's pulse where nothing is under way, not more often than its time allows.
        Where something always is, it is taken while new weights are on their way: then the trainer
        is idle, whatever the policy, but replicas are not."""
        self._rests = self.quiet
        if not self._rests or self.now_s < self._next_pulse_s:
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
        self._told = {
            key: tokens
            for key, tokens in self._told.items()
            if key[1] in kept or key[0] == self._version
        }

    # Saving and going on

    def state(self) -> ActorState:
        """Where it stands, as far as the loop has been told. Raises ActorLostError where the
        trainer is lost just then."""
        serving, kept, version = self._serving, self._responses, self._version
        weights = None
        if serving is not None and version != self._updates.version:
            weights = unpack(self._updates.tensors(serving.ref))
        tokens = {key: replace(tokens) for key, tokens in kept.tokens.items()}
        return ActorState(
            self.now_s,
            version,
            self._updates.version,
            dict(kept.asked),
            tokens,
            self._updates.state(),
            weights,
        )

    def load_state(self, state: ActorState, log: EngineLog) -> None:
        """Goes on from a `state` and its log; `go_on` then has what was under way be under way
        again. Raises ValueError for the state of another trainer."""
        self._updates.load_state(state.trainer, state.updates)
        self._responses.load(state.asked, state.tokens)
        ref = self._updates.weights()
        if state.weights is not None:
            ref = self._transport.put(ByStore().pack(state.weights))
        self._serving = Weights(state.version, ref, [], [])
        self._told = {}
        for home in self._fleet.live:
            self._load(home, 0)
        self.log = log
        self._zero = time.perf_counter() - state.clock_s

    def go_on(self, under_way: UnderWay) -> None:
        """Has all this be under way."""
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
