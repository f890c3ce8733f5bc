"""The real world: replicas sample, a trainer trains, and the loop sees a `simulator.world.World`.

Replicas and trainer are actors behind a transport: in processes of their own, where rollout and
training overlap (`engine.actors.on_ray`), or in this one, where they take turns
(`engine.actors.local`). Replicas in other processes iterate by themselves. The loop learns of a
result only when `EngineWorld.wait` or `EngineWorld.abort` returns it, so that its decisions follow
from what was returned to it alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from rollcast.engine.actors.fleet import Fleet, Loss, Recipe, Replica
from rollcast.engine.actors.local import LocalTransport
from rollcast.engine.actors.messages import Abort, Aborted, Loaded, Notice, Ready, Slept
from rollcast.engine.actors.sleep import Sleepers
from rollcast.engine.actors.trainer import Part, Updated
from rollcast.engine.actors.transport import ActorLostError, Transport
from rollcast.engine.actors.updates import Updates, Weights
from rollcast.engine.actors.weights import InPlace, unpack
from rollcast.engine.edges import Engine, Limits, Trainer, TrainerSave
from rollcast.engine.environments.threads import Runner, Threads
from rollcast.engine.flights import Flight, Flights
from rollcast.engine.frontend import Finished, Iterated
from rollcast.engine.log import EngineLog, Failure, Fault
from rollcast.engine.responses import Responses, Tokens
from rollcast.engine.samples import Sampler
from rollcast.engine.sessions import Sessions, TurnRules
from rollcast.engine.tasks.base import Prompt, Task
from rollcast.engine.weight_syncs import WeightSyncs
from rollcast.engine.world_parts import SHAPE, Evaluated, Recipes, WorldState, phases, split
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop.recorded import UnderWay
from rollcast.simulator.plan import Layout, Placement
from rollcast.simulator.rollout import CUT, FAILED, UNSHARED, Key, Rollout, Segment
from rollcast.simulator.world import ClusterShape, Ended, Event, Synced, TrainBatch, Trained

PULSE_SHARE = 0.02
"""Largest share of a run's time that its trainer spends on the speed probe."""
_SHORT_PASSES = 5  # of the speed probe
_LOOK_S = 1e-3  # between two looks at the environments, at least


class EngineWorld:
    """A `simulator.world.World` of replicas and a trainer, actors of a transport.

    shape: how many, and whether trainer and replicas take turns. task, seed: see
    `engine.responses.Responses`. routing: a rule of `simulator.cluster.routing`. heartbeat_s:
    silence after which an actor is replaced. turns: rules of rollouts with several turns, by the
    engines' limits; None: one turn. runner: runs the environments beside the driver; None: threads.
    after_news: called after the actors' messages were handled. after_close: called once they have
    ended. model_folder: what the trainer
    started from, if that is known here. sampler: takes samples of the batches for the log.

    Raises EngineError where an actor cannot start or is lost again and again, or all rewards
    fail; RunError where the trainer refuses an update, or a verb is not allowed now.
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
        self._mail: list[tuple[float, Flight | Event]] = []  # not handed out yet, by instant
        self._stopping: dict[int, tuple[Replica, set[Key]]] = {}  # aborts under way, by token
        self._tokens = count(1)
        self._zero = self._timer()
        self._reported: dict[tuple[int, int, int], int] = {}  # tokens, by version, group and index
        self._next_pulse_s = 0.0  # on this world's clock
        self._parts = 0  # groups that the trainer has of the batch under way
        self.after_news: Callable[[], None] | None = None
        self.after_close: Callable[[], None] = lambda: None
        self.model_folder: Path | None = None
        self.sampler: Sampler | None = None
        self.make_runner: Callable[[], Runner] = Threads  # of environments beside the loop's
        self._rests = False  # nothing was under way between the last two steps
        self._apart = False  # what is under way is not the loop's
        self._updates = Updates(transport, recipes.trainer, recipes.channel, heartbeat_s)
        self._sleeps = recipes.sleeps
        self._sleepers = Sleepers(self._updates, self._timer)
        if recipes.shares_devices:  # an engine measures free memory when it starts
            self._updates.require_started()
        self._fleet = Fleet(transport, recipes.replicas, heartbeat_s)
        self._flights = Flights(self._fleet, routing)
        workers, apart = shape.gpus_per_replica, transport.processes
        self._syncs = WeightSyncs(self._fleet, self._updates, workers, self._timer, apart)
        self._require_started()
        self._sessions, environments = None, None
        if turns is not None:
            rules = turns(self._fleet.limits)
            environments = rules.spec.slots
            self._sessions = Sessions(
                rules, self._responses, lambda: self.now_s, self._failed, runner or Threads()
            )
        self.shape = replace(
            shape,
            slots=shape.replicas * self._fleet.limits.max_seqs,
            environment_slots=environments or 0,
        )
        self._zero = self._timer()

    def _failed(self, failure: Failure) -> None:
        """Notes a failed call of an environment."""
        if failure.group >= 0:
            self.log.failures.append(failure)

    def _require_started(self) -> None:
        self._updates.require_started()
        while len(self._fleet.live) < len(self._fleet.replicas):
            self._receive(1.0)

    # The clock

    @property
    def now_s(self) -> float:
        """Wall-clock seconds since the run began, without interruptions and the speed probe at
        rest."""
        return self._timer() - self._zero

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """Stops the clock within, if nothing is under way."""
        began, quiet = self._timer(), self.quiet
        try:
            yield
        finally:
            if quiet:
                self._zero += self._timer() - began

    @property
    def task(self) -> Task:
        """Prompts and rewards."""
        return self._responses.task

    def tokens(self, rollout: Rollout) -> Tokens:
        """The tokens of a rollout that is neither in flight nor trained. Raises KeyError."""
        return self._responses.tokens[rollout.key]

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way."""
        return not (self._flying or self._training or self._syncs.busy or self._mail)

    @property
    def _training(self) -> bool:
        """Whether an update, or a part of one, is under way."""
        return self._sleepers.busy or self._updates.busy

    @property
    def _flying(self) -> bool:
        """Whether any rollout is in flight."""
        away = self._sessions is not None and self._sessions.flying
        return bool(self._flights.by_key or away)

    # Rollouts

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Sends rollouts to their replicas."""
        fresh = []
        if self._sessions is not None:
            self._sessions.catch_up()
        for rollout in rollouts:
            if rollout.key in self._flights.by_key or self._away(rollout.key):
                raise RunError(f"{rollout} is already in flight")
            if self._sessions is None:
                order = self._responses.order(rollout)
                fresh.append(self._flights.start(rollout, order, placement))
                continue
            session = self._sessions.open(rollout, placement)
            if self._sessions.next_stage(session) == "model":
                order = self._sessions.order(session)
                fresh.append(self._flights.start(rollout, order, placement))
        self._flights.place(fresh)

    def _away(self, key: Key) -> bool:
        """Whether a rollout is in flight, but not on a replica."""
        away = self._sessions is not None and self._sessions.flies(key)
        return away and key not in self._flights.by_key

    def oracle_tokens(self, rollout: Rollout) -> None:
        """None: nobody knows."""
        return None

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """Stops rollouts and waits for their results: a replica answers between two iterations."""
        flights = self._flights.by_key
        flying = set(flights)
        if self._sessions is not None:
            flying |= self._sessions.flying
        wanted = sorted(flying if keys is None else keys)
        for key in wanted:
            if key not in flying:
                raise RunError(f"rollout {key} is not in flight and cannot be aborted")
        by_replica: dict[int, list[Key]] = {}
        for key in wanted:
            flight = flights.get(key)
            if flight is not None and flight.finished is None and flight.replica is not None:
                by_replica.setdefault(flight.replica.number, []).append(key)
        for number, there in by_replica.items():
            home, token = self._fleet.replicas[number], next(self._tokens)
            self._stopping[token] = home, set(there)
            home.post(Abort(token, tuple(there)))
        while self._stopping:
            self._receive(1.0)
        gone = {flights[key] for key in wanted if key in flights}
        self._mail = [
            (at_s, item)
            for at_s, item in self._mail
            if not (isinstance(item, Flight) and item in gone)
        ]
        self._flights.stop_waiting(wanted)
        return [self._stopped(key, for_good) for key in wanted]

    def sample_apart(self, prompts: Mapping[int, Prompt], rollouts: int) -> Evaluated:
        """Samples rollouts of prompts, by groups of negative numbers, and waits for their rewards;
        the loop never learns of them. Where nothing else is under way, the clock stands still, and
        iterations are not logged. Else the others' turns wait for their environments meanwhile."""
        asked = [Rollout(group, n, prompt=0) for group in prompts for n in range(rollouts)]
        waiting = {rollout.key for rollout in asked}
        ended: list[Segment] = []
        with self.clock_stopped(), self._sessions_apart():
            self._responses.lay_out(prompts)
            self.submit(asked)
            while waiting:
                mine, self._mail = split(self._mail, waiting)
                news = [self._hand_out(flight) for flight in mine]
                news += [event.segment for event in self._settle() if isinstance(event, Ended)]
                ended += [segment for segment in news if segment.finished]
                waiting -= {segment.key for segment in news if segment.finished}
                if waiting and not news:
                    self._await_more(math.inf)
            rewards = [float(segment.reward or 0.0) for segment in ended]
        tokens = [len(self._responses.tokens[segment.key].ids) for segment in ended]
        failed = self._responses.forget(prompts)
        failed += sum(segment.ending in FAILED for segment in ended)
        cut = sum(segment.ending in CUT for segment in ended)
        return Evaluated(self._syncs.version, rewards, tokens, cut, failed)

    @contextmanager
    def _sessions_apart(self) -> Iterator[None]:
        """Within, rollouts of several turns are others than before, with environments and slots of
        their own."""
        others, self._apart = self._sessions, self.quiet
        if others is not None:
            self._sessions = others.twin(self.make_runner())
        try:
            yield
        finally:
            if self._sessions is not None:
                self._sessions.close()
            self._sessions, self._apart = others, False

    def _stopped(self, key: Key, for_good: bool) -> Segment:
        if key in self._flights.by_key:
            return self._hand_out(self._flights.by_key[key], for_good, aborted=True)
        assert self._sessions is not None
        self._flights.balance.left(key)
        return self._sessions.stop(key, for_good)

    def _hand_out(self, flight: Flight, for_good: bool = False, aborted: bool = False) -> Segment:
        """The segment of a rollout, for the loop. for_good: an aborted one is never submitted
        again."""
        rollout, sessions = flight.rollout, self._sessions
        del self._flights.by_key[rollout.key]
        number = 0 if flight.replica is None else flight.replica.number
        zero_s = flight.zero_s + self._zero
        if sessions is None:
            if flight.finished is None:
                segment = self._responses.nothing(rollout, number, self.now_s)
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
            self._flights.balance.left(rollout.key)
        return segment if flight.finished is None else self._shared_with_reported(segment)

    def _settle(self) -> list[Event]:
        """Continues rollouts whose environments answered; returns the ends of rollouts."""
        if self._sessions is None:
            return []
        take_turns, ended = self._sessions.settle()
        self._flights.place(
            self._flights.start(session.rollout, self._sessions.order(session), session.placement)
            for session in take_turns
        )
        for segment in ended:
            self._flights.balance.left(segment.key)
        return [Ended(segment) for segment in ended]

    def _shared_with_reported(self, segment: Segment) -> Segment:
        """The segment, its shared tokens kept only if the loop knows the other segment: a replica
        compares with all that ended there before."""
        if segment.group < 0:
            return segment
        parts = segment.tokens_by_version
        version = parts[0].version if parts else self._syncs.version
        shared = segment.shared
        if self._reported.get((version, shared.group, shared.index), 0) < shared.tokens:
            segment = segment._replace(shared=UNSHARED)
        ids = self._responses.tokens[segment.key].ids
        self._reported[version, segment.group, segment.index] = segment.prompt_tokens + len(ids)
        return segment

    def _finished(self, home: Replica, finished: Iterable[Finished], mail: bool) -> None:
        """Notes results of a replica; ``mail``: as events to come."""
        for one in finished:
            flight = self._flights.finish(home, one)
            if mail:
                self._mail.append((one.end_s - home.zero_s, flight))

    # Updates

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Sends an update, or a part of one, to the trainer."""
        self._require_free("train")
        part = self._part(batch, layout)
        if batch.groups and part.final and not (part.groups or self._parts):
            raise RunError(
                f"no rollout of step {batch.step} has a token: their environments failed"
            )
        if self.sampler is not None:
            self.log.samples.extend(self.sampler.of(batch, self._responses))
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
        """Sends the newest weights to every replica, which loads them between two iterations and
        continues its rollouts."""
        self._require_free("sync")
        self._syncs.start()
        overlaps = self._transport.processes and not self._rests
        if overlaps and self.now_s >= self._next_pulse_s:
            self._updates.ask_for_pulse()  # the trainer is idle

    def _require_free(self, what: str) -> None:
        busy = "an update" if self._training else "a sync" if self._syncs.busy else None
        if busy is not None:
            raise RunError(f"{what} asked for while {busy} is under way")
        if self.shape.colocated and self._flying:
            raise RunError(f"{what} asked for while rollouts are in flight")

    # What happens

    def wait(self, until_s: float | None = None) -> list[Event]:
        """The events of the earliest known instant; waits for one where there is none."""
        if self.quiet:
            raise RunError("the loop waits, but no rollout, update or sync is under way")
        while not self._mail:
            if events := self._settle():
                return sorted(events, key=_order)
            left_s = math.inf if until_s is None else until_s - self.now_s
            if left_s <= 0:
                return []
            self._await_more(left_s)
        instant = min(at_s for at_s, _ in self._mail)
        items = [item for at_s, item in self._mail if at_s == instant]
        self._mail = [(at_s, item) for at_s, item in self._mail if at_s != instant]
        ended = [Ended(self._hand_out(item)) for item in items if isinstance(item, Flight)]
        others = [item for item in items if not isinstance(item, Flight)]
        others.sort(key=lambda event: isinstance(event, Synced))
        return [*sorted([*ended, *self._settle()], key=_order), *others]

    def _await_more(self, left_s: float) -> None:
        """Until something may have happened, or for so long."""
        if self._sessions is not None:
            if self._only_environments_work:
                self._sessions.wait(left_s)
                return
            left_s = min(left_s, max(self._sessions.next_s, _LOOK_S))
        self._receive(min(left_s, 1.0))

    @property
    def _only_environments_work(self) -> bool:
        """Whether there is nothing else to wait for; in one process only."""
        return not self._transport.processes and self._flying and not self._flights.by_key

    def _receive(self, timeout_s: float) -> None:
        """Handles the actors' messages, waiting at most ``timeout_s`` for them."""
        ready = self._transport.wait([*self._fleet.polls, *self._updates.refs], timeout_s)
        for home, notice in self._fleet.receive(ready):
            self._notice(home, notice)
        news = self._updates.receive(ready)
        self._note_pulses()
        if isinstance(news, str):
            self._lose_trainer(news)
        elif news is not None:
            self._updated(*news)
        if self.after_news is not None:
            self.after_news()

    def _note_pulses(self) -> None:
        """Logs the speed probe, and decides by its duration when it may run again."""
        for beat in self._updates.pulses:
            self.log.pulses.append((self._updates.version, beat))
            took_s = beat.long_s + _SHORT_PASSES * beat.short_s
            self._next_pulse_s = self.now_s + took_s / PULSE_SHARE
        self._updates.pulses.clear()

    def _notice(self, home: Replica, notice: Notice | Loss) -> None:
        if isinstance(notice, Iterated):
            if notice.measured is not None and not self._apart:
                start_s = notice.start_s - home.zero_s - self._zero
                self.log.iterations.add(notice.version, start_s, notice.measured, home.number)
            self._finished(home, notice.finished, mail=True)
        elif isinstance(notice, Aborted):
            self._finished(home, notice.finished, mail=False)
            del self._stopping[notice.token]
        elif isinstance(notice, Slept):
            self._sleepers.sleeps(home, notice)
        elif isinstance(notice, Loaded):
            self._synced(self._syncs.loaded(home, notice, self.log, self._zero))
        elif isinstance(notice, Ready):
            self._syncs.welcome(home)
            self._flights.place_waiting()
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
        self._mail.append((updated.end_s - self._updates.zero_s, event))

    def _synced(self, ended: tuple[float, Synced] | None) -> None:
        if ended is not None:
            self._flights.router.new_weights()
            self._mail.append(ended)

    # Lost actors

    def _lose_trainer(self, cause: str, at_fault: bool = True) -> None:
        """Replaces the trainer, whose successor catches up by itself."""
        began = self._timer()
        stuck = [home for home in self._fleet.live if self._updates.sending_to(home.number)]
        self._updates.replace(cause, at_fault)
        self._fault("trainer", cause, 0, began)
        for home in stuck:
            self._lose(home, "the trainer was lost that sent it weights")
        for home in self._fleet.live:
            self._syncs.connect(home)

    def _lose(self, home: Replica, cause: str) -> None:
        """Replaces a replica. Its rollouts begin again from the tokens they were submitted with."""
        began = self._timer()
        lost = self._fleet.replace(home, cause)
        if self._updates.sending_to(home.number):  # it would wait there for ever
            cause = f"its weights were on their way to replica {home.number}"
            self._lose_trainer(cause, at_fault=False)
        self._fault(f"replica {home.number}", cause, len(lost), began)
        for token in [t for t, (there, _) in self._stopping.items() if there is home]:
            _, keys = self._stopping.pop(token)
            lost -= keys  # they were being aborted, and have no result
        self._synced(self._syncs.lost(home, self._zero))
        self._sleepers.lost(home)
        self._flights.place_again(lost)

    def _fault(self, actor: str, cause: str, rollouts: int, began: float) -> None:
        self.log.faults.append(Fault(began - self._zero, actor, cause, rollouts))

    # Between two steps

    def take_pulse(self, step: int) -> None:
        """Runs the speed probe if nothing is under way, within `PULSE_SHARE` of the time. Where
        something always is, `sync_weights` runs it, when at least the trainer is idle."""
        self._rests = self.quiet
        early = self._transport.processes and self.now_s < self._next_pulse_s
        if not self._rests or early:
            return
        try:
            self._updates.pulses.append(self._updates.pulse())
        except ActorLostError:
            return  # the next update reports it
        self._note_pulses()

    def keep_only(self, groups: Collection[int]) -> None:
        """Forgets prompts and tokens of every other group: they are trained, or dropped."""
        kept = set(groups)
        if self._sessions is not None:
            self._sessions.keep_only(kept)
        self._responses.keep_only(kept)
        self.log.failures.extend(self._responses.failures(self.now_s))
        self._reported = {
            key: tokens
            for key, tokens in self._reported.items()
            if key[1] in kept or key[0] == self._syncs.version
        }

    # Saving and going on

    @property
    def trained(self) -> int | None:
        """The number of updates that are done; None where the loop has not heard of the last."""
        unheard = any(isinstance(item, Trained) for _, item in self._mail)
        return None if unheard else self._updates.version

    @property
    def updates(self) -> Updates:
        """The trainer."""
        return self._updates

    def save_trainer(self, folder: Path) -> TrainerSave:
        """Has the trainer save its state and waits for it. Raises ActorLostError, or RunError where
        the disk refuses."""
        snapshot = self._updates.take_snapshot(folder)
        self._updates.finish_snapshot()
        if snapshot.save is None:
            raise RunError(snapshot.refused)
        return snapshot.save

    def export(self, folder: Path, dtype: str) -> None:
        """Writes the trained model as a Hugging Face folder with weights of that type; nothing is
        under way. Raises RunError where the disk refuses."""
        while True:
            try:
                self._updates.export(folder, dtype)
                return
            except ActorLostError as error:
                self._lose_trainer(str(error))

    def state(self) -> WorldState:
        """The state as the loop knows it, but for the trainer's. Raises ActorLostError where the
        trainer is lost that has the replicas' weights."""
        if not self._transport.processes:
            if not self.quiet:
                raise RunError("a run can only be saved between two steps")
            if self._syncs.version != self._updates.version:
                raise RunError("a run can only be saved once its newest weights are in the engine")
        serving, kept, version = self._syncs.serving, self._responses, self._syncs.version
        weights = None
        if serving is not None and version != self._updates.version:
            weights = unpack(self._updates.tensors(serving.ref))
        tokens = {key: replace(tokens) for key, tokens in kept.tokens.items()}
        return WorldState(
            self.now_s, version, self._updates.version, dict(kept.asked), tokens, None, weights
        )

    def load_state(self, state: WorldState, log: EngineLog) -> None:
        """Takes up a `state` and its log; `go_on` then restarts what was under way. Raises
        ValueError for the state of another trainer."""
        self._updates.load(state.trainer, state.updates)
        self._responses.load(state.asked, state.tokens)
        ref = self._updates.weights()
        if state.weights is not None:
            ref = self._updates.published(state.weights)
        self._reported = {}
        self._syncs.serve(Weights(state.version, ref, [], []))
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
        """Ends the actors and the environments."""
        if self._sessions is not None:
            self._sessions.close()
        try:
            self._fleet.close()
        finally:
            self._transport.close()
            self.after_close()


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
