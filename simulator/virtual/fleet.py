"""The simulated engines and trainer of a scenario, on the virtual clock.

One fleet a run. Its engines are the replicas of `simulator.cluster`, moved on by the kernel
whenever all threads wait; requests of one instant reach them together, before they begin their next
iteration.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal

from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Layout
from rollcast.simulator.core.rollout import Rollout, Segment
from rollcast.simulator.core.spans import Run
from rollcast.simulator.core.world import Ended, Event, TrainBatch, Trained, TrainGroup
from rollcast.simulator.costs.clock import to_seconds, to_ticks
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.virtual.ask import Answer, Ask, EngineError, Finish
from rollcast.simulator.virtual.asked import FIRST_ASKED, AskedWorkload, Directed
from rollcast.simulator.virtual.clock import Clock, current
from rollcast.simulator.virtual.engine import Engine
from rollcast.simulator.virtual.errors import NoAnswerError, VirtualError
from rollcast.simulator.virtual.faults import Fault, plant
from rollcast.simulator.virtual.journal import Journal
from rollcast.simulator.virtual.prompts import AnyPrompt, Prompts, Replies
from rollcast.simulator.virtual.record import Record
from rollcast.simulator.virtual.report import caller
from rollcast.simulator.virtual.waits import Outbox, Pending
from rollcast.simulator.workload.base import GroupDraw

Groups = Iterable[Answer | Sequence[Answer]]


def _forgotten(given: Any) -> str:
    return " (is its await forgotten?)" if inspect.isawaitable(given) else ""


class Fleet:
    """Engines and trainer.

    scenario: hardware, costs, lengths, rewards. clock: of the run; the one under way by default.
    replies: lengths and rewards in place of the scenario's. count_sent: whether a prompt is as long
    as what is sent, and not as the scenario says. faults: what goes wrong when. error_share: of
    requests that fail as they would be answered, drawn from ``seed``. routing: of requests to no
    engine in particular, in place of the scenario's. units: whether the journal says of each
    rollout that it was dispatched, and trained, failed or evicted (aborted); else its user does.

    engines: one for each replica. journal: what happened. record: the same in rollcast's tables.
    Raises ScenarioError where the scenario does not fit its GPUs, VirtualError without a clock.
    """

    def __init__(
        self,
        scenario: Scenario,
        clock: Clock | None = None,
        *,
        replies: Replies | None = None,
        count_sent: bool = False,
        faults: Collection[Fault] = (),
        error_share: float = 0.0,
        routing: str | None = None,
        units: bool = True,
        seed: int = 0,
    ) -> None:
        found = clock or current()
        if found is None:
            raise VirtualError("a fleet needs a clock: make it inside of `with virtual.clock()`")
        scenario.check_memory()
        self.scenario, self.clock, self.kernel = scenario, found, found.kernel
        self._workload = AskedWorkload(scenario.workload)
        self.router = Directed(routing or scenario.routing)
        self.cluster = SimulatedCluster(
            scenario.shape,
            scenario.engine,
            scenario.cost,
            self._workload,
            self.router,
            scenario.environment,
        )
        self.outbox = Outbox()
        self.journal = Journal(lambda: self.now)
        self.record = Record(self.cluster.shape, scenario.plan)
        self.prompts = Prompts(
            scenario.workload, scenario.plan.batch.group_size, replies, count_sent
        )
        self.engines = [Engine(self, replica) for replica in self.cluster.replicas]
        self.flying: dict[tuple[int, int], Ask] = {}
        self._asks = 0
        self._pending: dict[Ask, None] = {}
        self._groups: dict[tuple[int, int], int] = {}
        self._units = units
        self._evicted: set[str] = set()
        self._error_share, self._random = error_share, random.Random(seed)
        self._training: tuple[TrainBatch, Pending] | None = None
        self._syncing: Pending | None = None
        self.guest: Callable[[Sequence[Event]], None] | None = None  # rollcast's own loop
        if self.kernel.now:
            self.cluster.advance(self.kernel.now)
        found.attach(self)
        plant(self, self.engines, faults)

    @property
    def now(self) -> int:
        """The tick of the run: the engines', while they are ahead of who waits for them."""
        return max(self.kernel.now, self.cluster.ticks)

    @property
    def now_s(self) -> float:
        """Virtual seconds since the run began."""
        return to_seconds(self.now)

    @property
    def updates(self) -> int:
        """Updates that the trainer has made: the version of its weights."""
        return self.cluster.updates

    # Requests

    def pending(self, waits: str) -> Pending:
        """An event of the fleet."""
        return Pending(self.kernel, self.outbox, waits)

    def ask(
        self,
        prompt: AnyPrompt,
        max_tokens: int | None = None,
        *,
        replica: int | None = None,
        request_id: str | None = None,
    ) -> Ask:
        """Sends a request to an engine, or to the one that the router chooses. Its ``pending`` is
        awaited or waited for; it gives an `Answer` or raises EngineError."""
        prompts = self.prompts
        conversation = prompts.find(prompt)
        reply = prompts.reply(conversation)
        tokens = reply.new_tokens if max_tokens is None else min(reply.new_tokens, max_tokens)
        self._asks += 1
        size = self.scenario.plan.batch.group_size
        number, (visit, index) = conversation.number, divmod(conversation.place, size)
        group = self._groups.setdefault((number, visit), len(self._groups))
        ask = Ask(
            (FIRST_ASKED + conversation.serial, 0),
            prompt,
            prompts,
            conversation,
            Rollout(group, index, prompt=number, visit=visit, turn=conversation.turn),
            reply,
            max(tokens, 1),
            request_id or f"request-{self._asks}",
            self.kernel.now,
            self.pending("an engine's answer"),
        )
        conversation.busy = True
        if self._refuses(ask, replica):
            self.outbox.flush()
            return ask
        ask.placed = -1 if replica is None else replica
        if reply.arrives_s > 0:
            self.kernel.call_at(self.kernel.now + to_ticks(reply.arrives_s), self._arrival(ask))
        else:
            self._pending[ask] = None
        return ask

    def _arrival(self, ask: Ask) -> Callable[[], None]:
        def arrives() -> None:
            if not ask.pending.done:
                self._pending[ask] = None

        return arrives

    def _refuses(self, ask: Ask, replica: int | None) -> bool:
        """Fails a request that can never be answered."""
        engine = self.scenario.engine
        blocks = -(-(ask.prompt_tokens + ask.tokens) // engine.block_tokens)
        if blocks > engine.kv_blocks:
            self.fail(
                ask,
                EngineError(
                    f"a context of {ask.prompt_tokens + ask.tokens} tokens is longer than the KV "
                    f"pool of {engine.kv_tokens} tokens",
                    400,
                ),
            )
            return True
        if replica is not None and self.engines[replica].dead:
            self.fail(ask, EngineError(f"replica {replica} is dead", 503))
            return True
        return False

    def pending_on(self, replica: int) -> list[Ask]:
        """Requests of this instant to an engine."""
        return [ask for ask in self._pending if ask.placed == replica]

    def hold_or_send(self, ask: Ask) -> None:
        """Sends a request that an engine held."""
        self._pending[ask] = None

    def _send_pending(self) -> None:
        """Hands the requests of this instant to their engines."""
        pending, self._pending = self._pending, {}
        now_s = self.now_s
        loads = [engine.replica.load + len(engine.held) for engine in self.engines]
        rollouts = []
        for ask in pending:
            number = ask.placed if ask.placed >= 0 else self._route(ask, loads)
            engine = self.engines[number]
            ask.placed = number
            if engine.dead:
                self.fail(ask, EngineError(f"replica {number} is dead", 503))
                continue
            loads[number] += 1
            if engine.holds:
                engine.held[ask] = None
                continue
            rollouts.append(self._rollout(ask, now_s))
            first = not ask.started
            ask.version = self.cluster.replicas[number].version
            self.flying[ask.key] = ask
            engine.asks[ask] = None
            if self._units and (ask.unit in self._evicted or (first and not ask.turn)):
                self._evicted.discard(ask.unit)
                self.journal.dispatched(ask.unit, ask.version)
        if rollouts:
            self.cluster.submit(rollouts)

    def _route(self, ask: Ask, loads: Sequence[int]) -> int:
        number = self.router.inner.route(ask.shown, loads)
        if not self.engines[number].dead:
            return number
        alive = [engine for engine in self.engines if not engine.dead] or self.engines
        return min(alive, key=lambda engine: loads[engine.number]).number

    def _rollout(self, ask: Ask, now_s: float) -> Rollout:
        conversation, key = ask.conversation, ask.key
        before = ask.prompt_tokens - conversation.prompt_tokens
        rollout = Rollout(
            *key, prompt=conversation.number, new_tokens=before + ask.made, submitted_s=now_s
        )
        self._workload.asked[key[0]] = GroupDraw(
            conversation.prompt_tokens, (before + ask.tokens,), (0.0,)
        )
        self.router.where[key] = ask.placed
        ask.rollout = rollout
        if ask.start_s < 0:
            ask.shown.submitted_s = now_s
        return rollout

    def abort(self, asks: Collection[Ask]) -> list[Ask]:
        """Stops requests at their engines' next boundaries, where they are answered with what they
        have; returns those that were in flight."""
        stopped = self.stop(asks)
        self._leave(stopped)
        waiting = [ask for ask in asks if not ask.pending.done and not ask.leaving]
        for ask in waiting:
            self._pending.pop(ask, None)
            if ask.placed >= 0:
                self.engines[ask.placed].held.pop(ask, None)
            self._answer(ask, "abort")
        self.outbox.flush()
        return [*stopped, *waiting]

    def retract(self, asks: Collection[Ask]) -> list[Ask]:
        """Takes requests off their engines at the next boundaries; returns those that have tokens
        left to sample. The others are answered."""
        stopped = self.stop(asks)
        self._leave([ask for ask in stopped if ask.made >= ask.tokens])
        return [ask for ask in stopped if not ask.leaving]

    def _leave(self, asks: Collection[Ask]) -> None:
        for ask in asks:
            ask.leaving = True
            self.kernel.call_at(self.cluster.replicas[ask.placed].idle_at, self._leaver(ask))

    def _leaver(self, ask: Ask) -> Callable[[], None]:
        def left() -> None:
            self._answer(ask, "abort" if ask.made < ask.tokens else self._finish(ask))
            self.outbox.flush()

        return left

    def stop(self, asks: Collection[Ask]) -> list[Ask]:
        """Takes requests off their engines and keeps what they have; returns those found."""
        there = [ask for ask in asks if ask.key in self.flying and not ask.leaving]
        if there:
            segments = {
                segment.key: segment for segment in self.cluster.abort([a.key for a in there])
            }
            for ask in there:
                self._take(ask, segments[ask.key])
                self.cluster.forget(ask.key)
        return there

    def fail(self, ask: Ask, error: EngineError) -> None:
        """Answers a request with an error."""
        self.stop([ask])
        self._pending.pop(ask, None)
        self._close(ask)
        self.record.drop(ask.shown)
        self.journal.add("error", ask.request_id, replica=ask.placed, status=error.status)
        if self._units and ask.placed >= 0 and ask.started:
            self.journal.failed(ask.unit)
        ask.pending.set(error=error)

    def discard(self, answers: Iterable[Answer], why: str = "discarded") -> None:
        """Notes that answers are given up on purpose: nobody will train on them."""
        for answer in answers:
            self.record.drop(answer.ask.shown)
            if self._units and answer.ask.unit not in self._evicted:
                self._evicted.add(answer.ask.unit)
                self.journal.evicted(answer.ask.unit, why)

    def _take(self, ask: Ask, segment: Segment) -> None:
        """Takes in a segment of a request."""
        self.flying.pop(ask.key, None)
        self.engines[ask.placed].asks.pop(ask, None)
        for part in segment.tokens_by_version:
            ask.parts.append(part)
        ask.preemptions += segment.preemptions
        if ask.start_s < 0:
            ask.start_s = segment.start_s
            ask.prefilled = segment.prefill_tokens
        self.engines[ask.placed].count(ask, segment)
        shown = ask.shown
        done = ask.made >= ask.tokens
        told = Segment(
            shown.group,
            shown.index,
            segment.attempt,
            segment.replica,
            ask.prompt_tokens,
            segment.tokens_by_version,
            self._finish(ask) if done else "aborted",
            segment.start_s,
            segment.end_s,
            segment.prefill_tokens,
            segment.recomputed_tokens,
            segment.preemptions,
            ask.reply.reward if done else segment.reward,
            segment.shared,
            ask.turn,
            segment.observation_tokens,
            segment.calls,
        )
        self.record.segment(shown, told, ask.version)

    def _finish(self, ask: Ask) -> Literal["stop", "length"]:
        cut = ask.tokens < ask.reply.new_tokens or ask.tokens >= self._workload.max_new_tokens
        return "length" if cut else "stop"

    def _close(self, ask: Ask) -> None:
        conversation = ask.conversation
        conversation.busy = False
        conversation.context = ask.prompt_tokens + ask.made
        conversation.turn = ask.turn + 1
        self._workload.asked.pop(ask.key[0], None)
        self.router.where.pop(ask.key, None)

    def _answer(self, ask: Ask, finish: Finish) -> None:
        if ask.pending.done:
            return
        if self._error_share and self._random.random() < self._error_share:
            self.fail(ask, EngineError("the engine failed this request", 500))
            return
        self._close(ask)
        shown, now_s = ask.shown, self.now_s
        answer = Answer(
            ask.request_id,
            ask.placed,
            shown.group,
            shown.index,
            ask.prompt_tokens,
            ask.made,
            tuple(ask.parts),
            finish,
            ask.reply.reward,
            to_seconds(ask.asked),
            ask.start_s if ask.start_s >= 0 else now_s,
            now_s,
            max(ask.prompt_tokens - ask.prefilled, 0) if ask.start_s >= 0 else 0,
            ask.preemptions,
            ask.reply.more,
            ask.reply.environment_s,
            ask.told(),
        )
        if self._units and ask.started:
            if finish == "abort":
                self._evicted.add(ask.unit)
                self.journal.evicted(ask.unit, "aborted")
            else:
                self.journal.add("answered", ask.unit, tokens=answer.new_tokens)
        ask.pending.set(answer)

    def handed(self, answer: Answer) -> None:
        """Sees to it that the journal knows where an answer that the code under test was given is
        let go of. One of several turns may be, once the next is asked."""
        if self._units and answer.finish != "abort" and not (answer.turns_left or answer.ask.turn):
            self.journal.watch(answer, answer.ask.unit)

    # Trainer and weights

    def train(self, groups: Groups, *, layout: Layout = "dense", final: bool = True) -> Pending:
        """Begins an update on answers, grouped or not; its end gives the trainer's version. Raises
        RunError while another one, or a sync, is under way, and on GPUs that engines use."""
        batch = TrainBatch(self.record.step, tuple(self._train_groups(groups)), final=final)
        self.cluster.train(batch, layout)
        self.record.training(batch, self.now_s)
        pending = self.pending("the trainer")
        self._training = batch, pending
        self.journal.add("train", batch.step, rollouts=sum(len(g.rollouts) for g in batch.groups))
        if self._units:
            for group in batch.groups:
                for rollout in group.rollouts:
                    oldest = rollout.tokens_by_version[0].version if rollout.new_tokens else 0
                    self.journal.trained(f"{rollout.group}.{rollout.index}", batch.step, oldest)
        return pending

    def _train_groups(self, groups: Groups) -> Iterable[TrainGroup]:
        for number, group in enumerate(groups):
            answers = [group] if isinstance(group, Answer) else list(group)
            for answer in answers:
                if not isinstance(answer, Answer):
                    raise NoAnswerError(
                        f"the trainer was given {answer!r} where an answer of an engine is "
                        f"needed{_forgotten(answer)}; at {caller()}"
                    )
            rollouts = tuple(answer.ask.shown for answer in answers)
            if not rollouts:
                raise NoAnswerError(f"the trainer was given an empty group; at {caller()}")
            for rollout, answer in zip(rollouts, answers, strict=True):
                rollout.reward = answer.reward
            rewards = tuple(answer.reward for answer in answers)
            yield TrainGroup(rollouts[0].group if rollouts else number, rollouts, rewards)

    def sync(self) -> Pending:
        """Begins to bring the trainer's weights to all engines at once; its end gives the version.
        Raises RunError as `train`."""
        self.cluster.sync_weights()
        self._syncing = self.pending("the weight sync")
        self.journal.add("sync", self.updates)
        return self._syncing

    # As a source of the kernel

    def advance(self, until: int | None) -> int | None:
        """Goes on to the next instant with events."""
        if self._pending:
            self._send_pending()
        events = self.cluster.advance(until)
        if events is None:
            self.outbox.flush()
            return None
        ours: list[Event] = []
        for event in events:
            if isinstance(event, Ended):
                ask = self.flying.get(event.segment.key)
                if ask is None:
                    ours.append(event)
                else:
                    self._take(ask, event.segment)
                    self._answer(ask, self._finish(ask))
            elif isinstance(event, Trained) and self._training is not None:
                (batch, pending), self._training = self._training, None
                self.record.trained(event.phases, batch.final, self._at(self.cluster.ticks))
                pending.set(self.updates)
            elif not isinstance(event, Trained) and self._syncing is not None:
                pending, self._syncing = self._syncing, None
                self.record.synced(event.phases, self._at(self.cluster.ticks))
                for engine in self.engines:
                    engine.freeze_again()
                pending.set(self.updates)
            else:
                ours.append(event)
        if ours and self.guest is not None:
            self.guest(ours)
        self.outbox.flush()
        return self.cluster.ticks

    def peek(self) -> int | None:
        """The tick at which an engine or the trainer has something to do next."""
        return self.kernel.now if self._pending else self.cluster.peek()

    @staticmethod
    def _at(tick: int) -> float:
        return to_seconds(tick)

    def after(self, seconds: float, waits: str) -> Pending:
        """An event so many virtual seconds from now."""
        pending = self.pending(waits)

        def over() -> None:
            pending.set()
            self.outbox.flush()

        self.kernel.call_at(self.kernel.now + to_ticks(seconds), over)
        return pending

    def show(self) -> Run:
        """The run for a picture. One that has not ended: with the tokens of the requests in flight,
        and the step under way as its last; nothing can be asked afterwards."""
        if not self.record.closed:
            self.stop([*self.flying.values()])
            self.record.cut(self.now_s)
        run = self.record.run
        run.end_s = max(run.end_s, self.now_s)
        return run

    def close(self) -> Run:
        """The run so far, in rollcast's tables (`simulator.core.spans.Run`)."""
        self.journal.close()
        return self.record.close(self.now_s)
