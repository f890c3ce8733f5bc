"""The simulated world: replicas, trainer and weight sync, SimPy processes on one integer clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import simpy

from rollcast.simulator.cluster.draws import Draws
from rollcast.simulator.cluster.machine import Machine
from rollcast.simulator.cluster.replica import EngineSpec, Replica, check_pool
from rollcast.simulator.cluster.request import Request
from rollcast.simulator.cluster.routing import ROUTINGS, Balance, Queues, Router
from rollcast.simulator.cluster.streamed import Streamed
from rollcast.simulator.core.plan import Layout, Placement
from rollcast.simulator.core.rollout import GOES_ON, Key, Rollout, Segment
from rollcast.simulator.core.world import (
    ClusterShape,
    Ended,
    Event,
    Phase,
    Synced,
    TrainBatch,
    Trained,
)
from rollcast.simulator.costs.actors import ActorCosts
from rollcast.simulator.costs.base import CostModel, Extremes, TrainLoad
from rollcast.simulator.costs.clock import to_seconds, to_ticks
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.workload.base import Workload, longest_context
from rollcast.simulator.workload.slots import UNLIMITED, EnvironmentSpec

if TYPE_CHECKING:
    from rollcast.simulator.cluster.sessions import Session, Sessions

MOST_AT_ONCE = 100_000
"""Rounds of iterations that replicas may begin without the clock's moving on."""


class SimulatedCluster:
    """A `simulator.core.world.World` that costs no GPU.

    shape: the GPUs. engine: limits of each replica. cost: prices everything. workload: lengths and
    rewards. routing: of `simulator.cluster.routing`, or its name. environment:
    slots of environments and judges.
    Raises ScenarioError where a rollout could never fit into the KV pool, and where an iteration
    takes no time.
    """

    name = "simulated"

    def __init__(
        self,
        shape: ClusterShape,
        engine: EngineSpec,
        cost: CostModel,
        workload: Workload,
        routing: str | Router = "least_loaded",
        environment: EnvironmentSpec = UNLIMITED,
    ) -> None:
        self.shape = replace(
            shape,
            slots=shape.replicas * engine.max_seqs,
            environment_slots=environment.slots or 0,
            reward_slots=environment.reward_slots or 0,
        )
        self.extremes = Extremes()
        self._cost = cost
        self._workload = workload
        prompt_tokens = workload.max_prompt_tokens
        check_pool(engine, prompt_tokens, longest_context(workload) - prompt_tokens)
        if cost.decode_curve(1).ticks(1) == 0:
            raise ScenarioError("cost", "an iteration takes no time; give it a cost")
        self._env = simpy.Environment(initial_time=0)
        self._mail: list[Event] = []
        self._ready: list[Callable[[], None]] = []  # replicas that begin once the instant is over
        self._instant, self._begun = -1, 0  # rounds of iterations at one instant
        self._replicas = [
            Replica(
                self._env, i, engine, cost, self.extremes, self._segment_ended, self._instant_over
            )
            for i in range(shape.replicas)
        ]
        self._actors = None if shape.colocated else cost.actors
        self._machine: Machine | None = None
        self._opened = -1  # the tick of the last order to train: the next step is opened after it
        self._opening = 0  # the tick at which the generation of a step begins
        if self._actors is not None:
            self._machine = Machine(self._env, self._actors, self._replicas)
        self._read = 0  # the tick before which the driver has not read a step's responses
        self._router = ROUTINGS[routing]() if isinstance(routing, str) else routing
        self._balance = Balance(shape.replicas)
        self._stream = Streamed(cost)
        self._requests: dict[Key, tuple[Replica, Request]] = {}
        self._leaving: dict[Key, int] = {}  # aborted, and the tick at which it has left
        # Submitted while they were leaving, and those they are to be queued with.
        self._late: dict[Key, tuple[list[Rollout], Rollout]] = {}
        self._arrivals: list[tuple[list[Rollout], Placement]] = []  # of them, at this instant
        self._draws = Draws(workload, engine.block_tokens)
        self._sessions: Sessions | None = None  # once a rollout has turns
        self._environment = environment
        self._updates = 0  # that the trainer has made
        self._version = 0  # of the weights that the replicas have
        self._updating: Literal["train", "sync"] | None = None

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return to_seconds(self._now)

    @property
    def replicas(self) -> Sequence[Replica]:
        """The engines, for who gives them orders of their own."""
        return self._replicas

    @property
    def ticks(self) -> int:
        """The clock in `simulator.costs.clock` ticks."""
        return self._now

    def request(self, key: Key) -> Request | None:
        """A rollout on a replica, or on its way there."""
        found = self._requests.get(key)
        return None if found is None else found[1]

    def forget(self, key: Key) -> None:
        """A rollout that was stopped comes back as another one, if at all."""
        self._draws.of.pop(key, None)

    @property
    def updates(self) -> int:
        """Updates that the trainer has made."""
        return self._updates

    @property
    def _now(self) -> int:
        return self._env.now  # type: ignore[return-value]  # simpy: int | float

    @property
    def read_s(self) -> float:
        """When the driver can have read the responses of the step that began last."""
        return to_seconds(self._read)

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Queues rollouts for their replicas' next boundary. One that is still leaving a replica is
        queued when it has left."""
        self._draws.draw(rollouts, self._version)
        sessions = self._sessions
        requests, late = self._requests, self._late
        for rollout in rollouts:
            key = rollout.key
            flying = key in requests or key in late
            if flying or (sessions is not None and sessions.flies(key)):
                raise RunError(f"{rollout} is already in flight")
        now = self._now
        open_s = 0.0
        if self._opening == now:
            begun = sum(rollout.new_tokens == 0 for rollout in rollouts)
            open_s = self._cost.opening_s(begun)
            at_once = min(len(rollouts), self.shape.slots)
            self._read = now + to_ticks(open_s + self._cost.reading_s(len(rollouts), at_once))
        if self._actors is not None and self._opened == now:
            open_s += self._actors.open_s
        if open_s:
            held = [*rollouts]
            self._late |= {rollout.key: (held, rollout) for rollout in held}
            left = [self._leaving.get(rollout.key, now) for rollout in held]
            ready = max(now + to_ticks(open_s), *left)
            self._env.process(self._queue_later(ready, held, placement))
            return
        self._leaving = {key: tick for key, tick in self._leaving.items() if tick > now}
        if not self._leaving:
            self._queue(rollouts, placement)
            return
        later: dict[int, list[Rollout]] = {}
        for rollout in rollouts:
            if rollout.key in self._leaving:
                later.setdefault(self._leaving[rollout.key], []).append(rollout)
                late[rollout.key] = (later[self._leaving[rollout.key]], rollout)
        self._queue([r for r in rollouts if r.key not in self._leaving], placement)
        for tick, waiting in later.items():
            self._env.process(self._queue_later(tick, waiting, placement))

    def _queue_later(
        self, tick: int, rollouts: list[Rollout], placement: Placement
    ) -> Generator[Any]:
        yield self._env.timeout(tick - self._now)
        self._arrivals.append((rollouts, placement))

    def _arrive(self, rollouts: list[Rollout], placement: Placement) -> None:
        """Queues those that have left, but for any that was stopped or submitted once more."""
        there = [r for r in rollouts if self._late.get(r.key, (None,))[0] is rollouts]
        for rollout in there:
            del self._late[rollout.key]
        self._queue(there, placement)

    def _queue(self, rollouts: Sequence[Rollout], placement: Placement) -> None:
        queues = Queues[Request](self._replicas)
        cap = self._workload.max_new_tokens
        draws = self._draws
        for rollout in rollouts:
            key = rollout.key
            _, prompt_tokens, total_tokens, reward, leading, sharing, trajectory = draws.of[key]
            if trajectory is not None:
                session = self._all_sessions.open(rollout, prompt_tokens, reward, trajectory)
                session.balanced = placement == "balanced"
                if self._all_sessions.next_stage(session) == "model":
                    self._take_turn(session, queues)
                continue
            if total_tokens <= rollout.new_tokens:
                raise RunError(f"{rollout} has no tokens left of {total_tokens} to sample")
            if placement == "balanced":
                number = self._balance.place(rollout)
            else:
                number = self._router.route(rollout, queues.loads)
            version = self._replicas[number].version
            if sharing is not None:
                leading = draws.shared(sharing, rollout, version)
            request = Request(
                rollout,
                prompt_tokens,
                prompt_tokens + rollout.new_tokens,
                prompt_tokens + total_tokens,
                rollout.allowance,
                "length" if total_tokens >= cap else "stop",
                reward,
                version,
                leading,
            )
            queues.add(number, request)
            self._requests[key] = (self._replicas[number], request)
            self.extremes.rollout_tokens = max(self.extremes.rollout_tokens, request.target)
        self._flush(queues)

    def _flush(self, queues: Queues[Request]) -> None:
        for replica, queue in zip(self._replicas, queues.by_replica, strict=True):
            if queue:
                replica.submit(queue)

    # Rollouts with turns

    @property
    def _all_sessions(self) -> Sessions:
        if self._sessions is None:
            from rollcast.simulator.cluster.sessions import Sessions

            self._sessions = Sessions(self._environment, self._env)
        return self._sessions

    def _take_turn(self, session: Session, queues: Queues[Request]) -> None:
        rollout, version = session.rollout, self._version
        drawn, ending = self._draws.of[rollout.key], session.turn_ending
        leading = drawn.leading
        if drawn.sharing is not None:
            leading = self._draws.shared(drawn.sharing, rollout, version)
        request = Request(
            rollout,
            drawn.prompt_tokens,
            session.known,
            session.known + session.turn_end - session.sampled,
            session.tokens_left,
            ending,
            None if ending in ("turn", "budget") else drawn.reward,
            version,
            leading,
            session,
        )
        if session.balanced:
            number = self._balance.home(rollout)
        else:
            number = self._router.route(rollout, queues.loads)
        queues.add(number, request)
        self._requests[rollout.key] = (self._replicas[number], request)
        self.extremes.rollout_tokens = max(self.extremes.rollout_tokens, request.target)

    def _settle_sessions(self, sessions: Sessions) -> bool:
        """Does one round of sessions at this instant; whether there is anything left."""
        news = sessions.round()
        if news:
            queues: Queues[Request] | None = None
            for session in news:
                if session.stage == "end":
                    segment = session.nothing(session.trajectory.ending, self._now)
                    self._settle(segment)
                    sessions.finished(session)
                    self._mail.append(Ended(segment))
                elif sessions.next_stage(session) == "model":
                    queues = queues or Queues(self._replicas)
                    self._take_turn(session, queues)
            if queues is not None:
                self._flush(queues)
        return sessions.give_slots() or news is not None

    def oracle_tokens(self, rollout: Rollout) -> int:
        """The length of its response."""
        self._draws.draw([rollout], self._version)
        return self._draws.of[rollout.key].new_tokens

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """Stops rollouts at their replicas' next boundaries; what is away from them, at once."""
        by_replica: dict[Replica, list[Request]] = {}
        segments = []
        sessions = self._sessions
        if keys is None:
            away = set() if sessions is None else sessions.flying
            keys = away.union(self._requests, self._late)
        for key in sorted(keys):
            if key in self._late:
                segments.append(self._never_queued(self._late.pop(key)[1]))
                continue
            if key not in self._requests:
                if sessions is None or not sessions.flies(key):
                    raise RunError(f"rollout {key} is not in flight and cannot be aborted")
                session = sessions[key]
                sessions.suspend(session, for_good)
                segments.append(session.nothing("aborted", self._now))
                continue
            replica, request = self._requests.pop(key)
            by_replica.setdefault(replica, []).append(request)
        for replica, requests in by_replica.items():
            stopped = [
                segment
                if request.session is None
                else self._stopped(request.session, segment, for_good)
                for request, segment in zip(requests, replica.abort(requests), strict=True)
            ]
            segments += stopped
            if replica.idle_at > self._now:
                now_s = self.now_s
                leaving = (segment.key for segment in stopped if segment.end_s > now_s)
                self._leaving |= dict.fromkeys(leaving, replica.idle_at)
        for segment in segments:
            self._settle(segment)
        return sorted(segments, key=lambda segment: segment[:2])

    def _stopped(self, session: Session, segment: Segment, for_good: bool) -> Segment:
        """The segment of a rollout with turns that was stopped on a replica."""
        self._left(session, segment, for_good)
        return segment._replace(ending="aborted") if segment.ending == "turn" else segment

    def _left(self, session: Session, segment: Segment, for_good: bool = False) -> None:
        """A rollout with turns has left a replica, and is in flight no more."""
        session.sampled_in(segment)
        if segment.finished:
            self._all_sessions.finished(session)
        else:
            self._all_sessions.suspend(session, for_good)

    def _never_queued(self, rollout: Rollout) -> Segment:
        """The segment of a rollout that was stopped while it was still leaving a replica."""
        prompt_tokens = self._draws.of[rollout.key].prompt_tokens
        key, now_s = (rollout.group, rollout.index, rollout.attempt), self.now_s
        segment = Segment(*key, 0, prompt_tokens, (), "aborted", now_s, now_s)
        session = None if self._sessions is None else self._sessions.of(rollout)
        return segment if session is None else session.with_calls(segment)

    def _segment_ended(self, segment: Segment) -> None:
        session = self._requests.pop(segment[:2])[1].session
        if session is None:
            self._settle(segment)
        elif segment.ending == "turn":
            session.sampled_in(segment)
            self._all_sessions.turned(session)
        else:
            self._left(session, segment)
            self._settle(segment)
        self._mail.append(Ended(segment))

    def _settle(self, segment: Segment) -> None:
        """Forgets what need not be known any more."""
        key = segment[:2]
        if segment.ending not in GOES_ON:
            del self._draws.of[key]
        self._balance.left(key)

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Starts an update; on shared GPUs it begins once the replicas are idle."""
        trained = list(batch.groups)
        if self._cost.in_prompt_order:
            trained.sort(key=lambda group: group.group)
        groups = [
            (g.rollouts[0].prompt_tokens, [r.new_tokens + r.observation_tokens for r in g.rollouts])
            for g in trained
        ]
        equal = [len(set(g.baseline_rewards)) == 1 for g in trained]
        load = TrainLoad(groups, layout == "shared_prefix", equal)
        self.extremes.train_tokens = max(self.extremes.train_tokens, load.tokens)
        self.extremes.shared_prefix |= load.shared_prefix
        start, report_s = self._claim("train"), 0.0
        if self._actors is not None:
            start += to_ticks(self._actors.to_trainer_s)
            self._opened = self._now
            report_s = self._actors.from_trainer_s if batch.final else 0.0
        if not self.shape.colocated:
            self._opening = self._now
        phases_s = self._stream.part(load, batch.final)
        steps = [(name, seconds, load.tokens) for name, seconds in phases_s]
        if self.shape.colocated:
            steps.insert(0, ("switch", self._cost.switch_to_train_s, 0))

        def done(phases: tuple[Phase, ...]) -> Trained:
            self._updates += batch.final
            return Trained(batch.step, phases)

        self._env.process(self._work(start, steps, done, report_s))

    def sync_weights(self) -> None:
        """Starts the sync, once every replica stands between two iterations."""
        start = self._claim("sync")
        if self._actors is not None:
            self._env.process(self._send(self._actors))
            return
        for replica in self._replicas:
            replica.pause()
        start = max(start, *(replica.idle_at for replica in self._replicas))
        steps = [("sync", self._cost.sync_s, 0)]
        if self.shape.colocated:
            steps.append(("switch", self._cost.switch_to_rollout_s, 0))
        self._env.process(self._work(start, steps, self._new_weights))

    def _send(self, actors: ActorCosts) -> Generator[Any]:
        """Sends weights to replicas in processes of their own, which pause only to load them."""
        env, began = self._env, self._now
        yield env.timeout(to_ticks(max(self._cost.sync_s - actors.load_s - actors.check_s, 0.0)))
        for replica in self._replicas:
            replica.pause()
        yield env.timeout(max(replica.idle_at for replica in self._replicas) - self._now)
        idle = not any(replica.busy for replica in self._replicas)
        yield env.timeout(to_ticks(actors.load_s + (actors.check_s if idle else 0.0)))
        self._updating = None
        span = Phase("sync", to_seconds(began), to_seconds(self._now))
        self._mail.append(self._new_weights((span,) if self._now > began else ()))

    def _claim(self, what: Literal["train", "sync"]) -> int:
        """The earliest tick of an update or sync, by the GPUs that it shares with replicas. Raises
        RunError while one is under way."""
        if self._updating is not None:
            raise RunError(f"{what} asked for while {self._updating} is under way")
        busy = bool(self._late) or any(replica.busy for replica in self._replicas)
        busy |= self._sessions is not None and bool(self._sessions.flying)
        if self.shape.colocated and busy:
            raise RunError(f"{what} asked for while rollouts are in flight on the GPUs it needs")
        self._updating = what
        if not self.shape.colocated:
            return self._now
        return max(self._now, *(replica.idle_at for replica in self._replicas))

    def _new_weights(self, phases: tuple[Phase, ...]) -> Event:
        self._version = self._updates
        if self.shape.colocated:
            self._opening = self._now
        self._router.new_weights()
        for replica in self._replicas:
            replica.new_weights(self._version)
            replica.resume()
        return Synced(phases)

    def _work(
        self, start: int, steps: list[tuple[str, float, int]], done: Any, report_s: float = 0.0
    ) -> Generator[Any]:
        """The parts of an update or sync, in turn; the loop is told ``report_s`` after the end."""
        yield self._env.timeout(start - self._now)
        phases = []
        for kind, seconds, tokens in steps:
            begin = self._now
            if self._machine is None or kind == "sync":
                yield self._env.timeout(to_ticks(seconds))
            else:
                yield from self._machine.update(to_ticks(seconds))
            if self._now > begin:
                phases.append(Phase(kind, to_seconds(begin), to_seconds(self._now), tokens))
        if report_s:
            yield self._env.timeout(to_ticks(report_s))
        self._updating = None
        self._mail.append(done(tuple(phases)))

    def wait(self, until_s: float | None = None) -> list[Event]:
        """Runs to the next instant with events. Replicas iterate only once an instant is over."""
        events = self.advance(None if until_s is None else to_ticks(until_s))
        if events is None:
            raise RunError("the loop waits, but no rollout, update or sync is under way")
        return events

    def advance(self, until: int | None) -> list[Event] | None:
        """As `wait`, in ticks; None where nothing is under way, so that nothing will happen."""
        env, sessions = self._env, self._sessions
        peek, step = env.peek, env.step
        while True:
            while peek() == env.now:
                step()
            if self._arrivals:  # whatever else ends at this instant ends first
                arrivals, self._arrivals = self._arrivals, []
                for rollouts, placement in arrivals:
                    self._arrive(rollouts, placement)
                continue
            if sessions is not None and sessions.stirs and self._settle_sessions(sessions):
                continue
            if self._mail:
                mail, self._mail = self._mail, []
                return sorted(mail, key=_order) if len(mail) > 1 else mail
            if self._machine is not None and self._machine.settle():
                continue
            if until is not None and self._now >= until:
                return []
            if self._ready:
                if env.now == self._instant:
                    self._count_round()
                else:
                    self._instant, self._begun = self._now, 0
                ready, self._ready = self._ready, []
                for begin in ready:
                    begin()
                continue
            following = peek()
            if until is not None and following > until:
                env.timeout(until - self._now)
                step()  # `env.run` would leave an event at this instant, as if more were due
                return []
            if following == float("inf"):
                return None
            step()

    def peek(self) -> int | None:
        """The tick at which anything happens next; None where nothing does."""
        if self._ready or self._mail or self._arrivals:
            return self._now
        following = self._env.peek()
        return None if following == float("inf") else int(following)

    def _count_round(self) -> None:
        """Raises RunError where replicas iterate on and on while the clock stands still."""
        self._begun += 1
        if self._begun > MOST_AT_ONCE:
            raise RunError(
                f"the replicas have started {MOST_AT_ONCE} iterations at the same moment, "
                "because they admit and preempt the same rollouts again and again: "
                "engine.kv_tokens is too small"
            )

    def _instant_over(self, begin: Callable[[], None]) -> None:
        self._ready.append(begin)


def _order(event: Event) -> tuple[int, int, int]:
    if isinstance(event, Ended):
        return (0 if event.segment.ending == "turn" else 1), *event.segment.key
    return (2 if isinstance(event, Trained) else 3), 0, 0
