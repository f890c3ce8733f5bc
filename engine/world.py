"""The real world: replicas sample, a trainer trains, the loop sees a `simulator.core.world.World`.

Replicas and trainer are actors behind a transport: in processes of their own, where rollout and
training overlap (`engine.actors.on_ray`), or in this one, where they take turns
(`engine.actors.local`). Replicas in other processes iterate by themselves. The loop learns of a
result only when `EngineWorld.wait` or `EngineWorld.abort` returns it, so that its decisions follow
from what was returned to it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from rollcast.engine.actors.fleet import Fleet, Loss, Replica
from rollcast.engine.actors.messages import Abort, Aborted, Loaded, Notice, Ready, Slept
from rollcast.engine.actors.sleep import Sleepers
from rollcast.engine.actors.trainer import Part, Updated
from rollcast.engine.actors.transport import ActorLostError, Transport
from rollcast.engine.actors.updates import Updates, Weights
from rollcast.engine.actors.weights import unpack
from rollcast.engine.edges import Limits
from rollcast.engine.environments.threads import Runner, Threads
from rollcast.engine.flights import Flight
from rollcast.engine.frontend import Finished, Iterated
from rollcast.engine.log import EngineLog, Failure, Fault
from rollcast.engine.responses import Tokens
from rollcast.engine.rollouts import Rollouts
from rollcast.engine.samples import Sampler
from rollcast.engine.sessions import TurnRules
from rollcast.engine.speed_probe import SpeedProbe
from rollcast.engine.tasks.base import Prompt, Task
from rollcast.engine.weight_syncs import WeightSyncs
from rollcast.engine.world_clock import WorldClock
from rollcast.engine.world_parts import Evaluated, Recipes, WorldState, phases, split
from rollcast.simulator.core.plan import Layout, Placement
from rollcast.simulator.core.rollout import CUT, FAILED, Key, Rollout, Segment
from rollcast.simulator.core.world import ClusterShape, Ended, Event, Synced, TrainBatch, Trained
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop.recorded import UnderWay

_LOOK_S = 1e-3  # between two looks at the environments, at least


class EngineWorld:
    """A `simulator.core.world.World` of replicas and a trainer, actors of a transport.

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
    read_s = -math.inf  # the driver reads responses as they end

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
        self._mail: list[tuple[float, Flight | Event]] = []  # not handed out yet, by instant
        self._stopping: dict[int, tuple[Replica, set[Key]]] = {}  # aborts under way, by token
        self._tokens = count(1)
        self._clock = WorldClock(self._timer)
        self._parts = 0  # groups that the trainer has of the batch under way
        self.after_news: Callable[[], None] | None = None
        self.after_close: Callable[[], None] = lambda: None
        self.model_folder: Path | None = None
        self.sampler: Sampler | None = None
        self.make_runner: Callable[[], Runner] = Threads  # of environments beside the loop's
        self._apart = False  # what is under way is not the loop's
        self._updates = Updates(transport, recipes.trainer, recipes.channel, heartbeat_s)
        self._probe = SpeedProbe(self._updates, self._clock, transport.processes)
        self._sleeps = recipes.sleeps
        self._sleepers = Sleepers(self._updates, self._timer)
        if recipes.shares_devices:  # an engine measures free memory when it starts
            self._updates.require_started()
        self._fleet = Fleet(transport, recipes.replicas, heartbeat_s)
        self._rollouts = Rollouts(
            task, seed, self._fleet, routing, self._clock, lambda: self._syncs.version
        )
        self._flights = self._rollouts.flights
        workers, apart = shape.gpus_per_replica, transport.processes
        self._syncs = WeightSyncs(self._fleet, self._updates, workers, self._timer, apart)
        self._require_started()
        environments = None
        if turns is not None:
            rules = turns(self._fleet.limits)
            environments = rules.spec.slots
            self._rollouts.take_turns(rules, self._failed, runner or Threads())
        self.shape = replace(
            shape,
            slots=shape.replicas * self._fleet.limits.max_seqs,
            environment_slots=environments or 0,
        )
        self._clock.set()

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
        """Wall-clock seconds of the run, without interruptions and the speed probe at rest."""
        return self._clock.now_s

    def clock_stopped(self) -> AbstractContextManager[None]:
        """Stops the clock within, if nothing is under way."""
        return self._clock.stopped(self.quiet)

    @property
    def task(self) -> Task:
        """Prompts and rewards."""
        return self._rollouts.responses.task

    def tokens(self, rollout: Rollout) -> Tokens:
        """The tokens of a rollout that is neither in flight nor trained. Raises KeyError."""
        return self._rollouts.responses.tokens[rollout.key]

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way."""
        flying = self._rollouts.any_flying
        return not (flying or self._training or self._syncs.busy or self._mail)

    @property
    def _training(self) -> bool:
        """Whether an update, or a part of one, is under way."""
        return self._sleepers.busy or self._updates.busy

    # Rollouts

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Sends rollouts to their replicas."""
        self._rollouts.submit(rollouts, placement)

    def oracle_tokens(self, rollout: Rollout) -> None:
        """None: nobody knows."""
        return None

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """Stops rollouts and waits for their results: a replica answers between two iterations."""
        flights = self._flights.by_key
        wanted = sorted(self._rollouts.flying if keys is None else keys)
        self._rollouts.require(wanted)
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
        return [self._rollouts.stopped(key, for_good) for key in wanted]

    def sample_apart(self, prompts: Mapping[int, Prompt], rollouts: int) -> Evaluated:
        """Samples rollouts of prompts, by groups of negative numbers, and waits for their rewards;
        the loop never learns of them. Where nothing else is under way, the clock stands still, and
        iterations are not logged. Else the others' turns wait for their environments meanwhile."""
        asked = [Rollout(group, n, prompt=0) for group in prompts for n in range(rollouts)]
        waiting = {rollout.key for rollout in asked}
        ended: list[Segment] = []
        responses = self._rollouts.responses
        with self.clock_stopped(), self._rollouts_apart():
            responses.lay_out(prompts)
            self.submit(asked)
            while waiting:
                mine, self._mail = split(self._mail, waiting)
                news = [self._rollouts.hand_out(flight) for flight in mine]
                settled = self._rollouts.settle()
                news += [event.segment for event in settled if isinstance(event, Ended)]
                ended += [segment for segment in news if segment.finished]
                waiting -= {segment.key for segment in news if segment.finished}
                if waiting and not news:
                    self._await_more(math.inf)
            rewards = [float(segment.reward or 0.0) for segment in ended]
        tokens = [len(responses.tokens[segment.key].ids) for segment in ended]
        failed = responses.forget(prompts)
        failed += sum(segment.ending in FAILED for segment in ended)
        cut = sum(segment.ending in CUT for segment in ended)
        return Evaluated(self._syncs.version, rewards, tokens, cut, failed)

    @contextmanager
    def _rollouts_apart(self) -> Iterator[None]:
        self._apart = self.quiet
        try:
            with self._rollouts.apart(self.make_runner):
                yield
        finally:
            self._apart = False

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
            self.log.samples.extend(self.sampler.of(batch, self._rollouts.responses))
        self._parts = 0 if part.final else self._parts + len(part.groups)
        self._sleepers.make_room(part, self._fleet.live if self._sleeps else ())

    def _part(self, batch: TrainBatch, layout: Layout) -> Part:
        longest = self._fleet.limits.max_model_len - 1  # the check samples one token more
        responses = self._rollouts.responses
        sample = responses.sample(batch, longest) if batch.final else []
        groups = (responses.sampled(group) for group in batch.groups)
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
        self._probe.trainer_idles()

    def _require_free(self, what: str) -> None:
        busy = "an update" if self._training else "a sync" if self._syncs.busy else None
        if busy is not None:
            raise RunError(f"{what} asked for while {busy} is under way")
        if self.shape.colocated and self._rollouts.any_flying:
            raise RunError(f"{what} asked for while rollouts are in flight")

    # What happens

    def wait(self, until_s: float | None = None) -> list[Event]:
        """The events of the earliest known instant; waits for one where there is none."""
        if self.quiet:
            raise RunError("the loop waits, but no rollout, update or sync is under way")
        while not self._mail:
            if events := self._rollouts.settle():
                return sorted(events, key=_order)
            left_s = math.inf if until_s is None else until_s - self.now_s
            if left_s <= 0:
                return []
            self._await_more(left_s)
        instant = min(at_s for at_s, _ in self._mail)
        items = [item for at_s, item in self._mail if at_s == instant]
        self._mail = [(at_s, item) for at_s, item in self._mail if at_s != instant]
        left = [item for item in items if isinstance(item, Flight)]
        ended = [Ended(self._rollouts.hand_out(flight)) for flight in left]
        others = [item for item in items if not isinstance(item, Flight)]
        others.sort(key=lambda event: isinstance(event, Synced))
        return [*sorted([*ended, *self._rollouts.settle()], key=_order), *others]

    def _await_more(self, left_s: float) -> None:
        """Until something may have happened, or for so long."""
        sessions = self._rollouts.sessions
        if sessions is not None:
            if self._only_environments_work:
                sessions.wait(left_s)
                return
            left_s = min(left_s, max(sessions.next_s, _LOOK_S))
        self._receive(min(left_s, 1.0))

    @property
    def _only_environments_work(self) -> bool:
        """Whether there is nothing else to wait for; in one process only."""
        flying = self._rollouts.any_flying
        return not self._transport.processes and flying and not self._flights.by_key

    def _receive(self, timeout_s: float) -> None:
        """Handles the actors' messages, waiting at most ``timeout_s`` for them."""
        ready = self._transport.wait([*self._fleet.polls, *self._updates.refs], timeout_s)
        for home, notice in self._fleet.receive(ready):
            self._notice(home, notice)
        news = self._updates.receive(ready)
        self._probe.note(self.log)
        if isinstance(news, str):
            self._lose_trainer(news)
        elif news is not None:
            self._updated(*news)
        if self.after_news is not None:
            self.after_news()

    def _notice(self, home: Replica, notice: Notice | Loss) -> None:
        if isinstance(notice, Iterated):
            if notice.measured is not None and not self._apart:
                start_s = notice.start_s - home.zero_s - self._clock.zero_s
                self.log.iterations.add(notice.version, start_s, notice.measured, home.number)
            self._finished(home, notice.finished, mail=True)
        elif isinstance(notice, Aborted):
            self._finished(home, notice.finished, mail=False)
            del self._stopping[notice.token]
        elif isinstance(notice, Slept):
            self._sleepers.sleeps(home, notice)
        elif isinstance(notice, Loaded):
            self._synced(self._syncs.loaded(home, notice, self.log, self._clock.zero_s))
        elif isinstance(notice, Ready):
            self._syncs.welcome(home)
            self._flights.place_waiting()
        elif isinstance(notice, Loss):
            self._lose(home, notice.cause)

    def _updated(self, part: Part, updated: Updated) -> None:
        assert updated.metrics is not None
        zero_s = self._updates.zero_s + self._clock.zero_s
        start_s, end_s = updated.start_s - zero_s, updated.end_s - zero_s
        if part.final:
            self.log.updates.append((part.version, updated.metrics))
        switch = self._sleepers.switch(self._clock.zero_s)
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
        self._synced(self._syncs.lost(home, self._clock.zero_s))
        self._sleepers.lost(home)
        self._flights.place_again(lost)

    def _fault(self, actor: str, cause: str, rollouts: int, began: float) -> None:
        self.log.faults.append(Fault(began - self._clock.zero_s, actor, cause, rollouts))

    # Between two steps

    def take_pulse(self, step: int) -> None:
        """Runs the speed probe if nothing is under way and it is not too early for it."""
        self._probe.between_steps(self.quiet, self.log)

    def keep_only(self, groups: Collection[int]) -> None:
        """Forgets prompts and tokens of every other group: they are trained, or dropped."""
        self._rollouts.keep_only(set(groups))
        self.log.failures.extend(self._rollouts.responses.failures(self.now_s))

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
        serving, version = self._syncs.serving, self._syncs.version
        kept = self._rollouts.responses
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
        self._rollouts.responses.load(state.asked, state.tokens)
        ref = self._updates.weights()
        if state.weights is not None:
            ref = self._updates.published(state.weights)
        self._rollouts.forget_reported()
        self._syncs.serve(Weights(state.version, ref, [], []))
        self.log = log
        self._clock.set(state.clock_s)

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
        if self._rollouts.sessions is not None:
            self._rollouts.sessions.close()
        try:
            self._fleet.close()
        finally:
            self._transport.close()
            self.after_close()


def _order(event: Event) -> tuple[bool, Key]:
    """Ends of turns first, each kind by key."""
    assert isinstance(event, Ended)
    return event.segment.ending != "turn", event.segment.key
