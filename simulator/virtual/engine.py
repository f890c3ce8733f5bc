"""One simulated engine as its callers see it: requests, and the orders of RL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any, Literal, Protocol

from rollcast.simulator.cluster.replica import Replica
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.rollout import Segment
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.virtual.ask import Answer, Ask, EngineError
from rollcast.simulator.virtual.journal import Journal
from rollcast.simulator.virtual.kernel import Kernel
from rollcast.simulator.virtual.prompts import AnyPrompt
from rollcast.simulator.virtual.record import Record
from rollcast.simulator.virtual.waits import Outbox, Pending

PauseMode = Literal["abort", "wait", "keep", "retract", "in_place"]
STREAM_EVERY_S = 0.5


class Home(Protocol):
    """The fleet that an engine is of (`simulator.virtual.fleet.Fleet`)."""

    scenario: Scenario
    kernel: Kernel
    cluster: SimulatedCluster
    outbox: Outbox
    journal: Journal
    record: Record

    @property
    def updates(self) -> int: ...  # noqa: D102

    def ask(  # noqa: D102
        self,
        prompt: AnyPrompt,
        max_tokens: int | None = None,
        *,
        replica: int | None = None,
        request_id: str | None = None,
    ) -> Ask: ...

    def abort(self, asks: Collection[Ask]) -> list[Ask]: ...  # noqa: D102

    def retract(self, asks: Collection[Ask]) -> list[Ask]: ...  # noqa: D102

    def fail(self, ask: Ask, error: EngineError) -> None: ...  # noqa: D102

    def pending(self, waits: str) -> Pending: ...  # noqa: D102

    def pending_on(self, replica: int) -> list[Ask]: ...  # noqa: D102

    def hold_or_send(self, ask: Ask) -> None: ...  # noqa: D102

    def after(self, seconds: float, waits: str) -> Pending: ...  # noqa: D102

    def handed(self, answer: Answer) -> None: ...  # noqa: D102


class Engine:
    """A replica. dead: it refuses everything. asks: its requests; held: those that wait outside
    for its resume. paused, sleeping: as ordered. label: of its weights, as whoever updated them
    called them. Counters are since the run began."""

    def __init__(self, fleet: Home, replica: Replica) -> None:
        self._fleet, self.replica = fleet, replica
        self.number = replica.number
        self.dead = self.paused = self.sleeping = False
        self.asks: dict[Ask, None] = {}
        self.held: dict[Ask, None] = {}
        self.label: str | None = None
        self._frozen: set[str] = set()
        self.answered = self.prompt_tokens = self.new_tokens = 0
        self.preemptions = self.cached_tokens = 0

    @property
    def load(self) -> int:
        """Requests running, waiting or held."""
        return self.replica.load + len(self.held)

    @property
    def holds(self) -> bool:
        """Whether new requests wait outside."""
        return self.paused or self.sleeping

    @property
    def version(self) -> int:
        """Of its weights."""
        return self.replica.version

    def count(self, ask: Ask, segment: Segment) -> None:
        """Counts a segment of a request."""
        self.answered += 1
        self.prompt_tokens += ask.prompt_tokens
        self.new_tokens += segment.new_tokens
        self.preemptions += segment.preemptions
        self.cached_tokens += max(ask.prompt_tokens - segment.prefill_tokens, 0)

    # Requests

    async def generate(
        self, prompt: AnyPrompt, max_tokens: int | None = None, *, request_id: str | None = None
    ) -> Answer:
        """Samples a response. A caller that is cancelled aborts it. Raises EngineError."""
        ask = self._fleet.ask(prompt, max_tokens, replica=self.number, request_id=request_id)
        return await handed(self._fleet, ask)

    async def stream(self, ask: Ask, every_s: float = STREAM_EVERY_S) -> AsyncIterator[int]:
        """How many tokens a request has, each time that it has more, looked at every so many
        virtual seconds; its end is awaited by ``ask.pending``."""
        seen = 0
        while not ask.pending.done:
            waiting = asyncio.ensure_future(_ended(ask.pending))
            done, _ = await asyncio.wait([waiting], timeout=every_s)
            if not done:
                waiting.cancel()
            if ask.pending.done:
                return
            made = self.made_by_now(ask)
            if made > seen:
                seen = made
                yield made

    def made_by_now(self, ask: Ask) -> int:
        """Tokens that a request has now."""
        request = self._fleet.cluster.request(ask.key)
        if request is None:
            return ask.made
        return self.replica.known_now(request) - ask.prompt_tokens

    def abort(self, request_ids: Collection[str] | None = None) -> list[Ask]:
        """Aborts requests by name (None: all), which get what they have; returns them."""
        asks = [*self.asks, *self.held, *self._fleet.pending_on(self.number)]
        chosen = [a for a in asks if request_ids is None or a.request_id in request_ids]
        if chosen:
            self._fleet.journal.add("abort", self.number, requests=len(chosen))
        return self._fleet.abort(chosen)

    # Orders of RL

    async def pause(self, mode: PauseMode = "abort") -> None:
        """Stops: new requests wait for `resume`. Those in flight are answered with what they have
        (``abort``), run to their ends first (``wait``), stay where they are and go on (``keep``,
        ``in_place``), or lose their keys and values and go on later (``retract``)."""
        self._alive()
        self.paused = True
        self._fleet.journal.add("pause", self.number, mode=mode)
        if mode == "abort":
            for ask in self.abort():
                if not ask.pending.done:
                    await _ended(ask.pending)
        elif mode == "wait":
            for ask in list(self.asks):
                await _ended(ask.pending)
        elif mode == "retract":
            self.held = {**dict.fromkeys(self._fleet.retract(list(self.asks))), **self.held}
        self.freeze("pause")
        await self._boundary()

    async def resume(self) -> None:
        """Goes on after `pause`."""
        self._alive()
        self.paused = False
        self._fleet.journal.add("resume", self.number)
        self.thaw("pause")
        self._release()

    def _release(self) -> None:
        if self.holds:
            return
        held, self.held = self.held, {}
        for ask in held:
            self._fleet.hold_or_send(ask)

    async def sleep(self, level: int = 1) -> None:
        """Gives its memory to the trainer; takes the scenario's switch to training. Raises
        EngineError while requests run."""
        self._alive()
        if self.asks:
            raise EngineError(f"{len(self.asks)} requests are in flight; abort or pause first", 400)
        self.sleeping = True
        self._fleet.journal.add("sleep", self.number, level=level)
        self.replica.flush()
        await self._fleet.after(self._fleet.scenario.cost.switch_to_train_s, "an engine's sleep")

    async def wake_up(self) -> None:
        """Takes its memory back; takes the scenario's switch to rollouts."""
        self._alive()
        await self._fleet.after(self._fleet.scenario.cost.switch_to_rollout_s, "an engine's waking")
        self.sleeping = False
        self._fleet.journal.add("wake", self.number)
        self._release()

    async def update_weights(self, version: int | None = None, label: str | None = None) -> int:
        """Takes new weights, of this version (None: the trainer's), which lasts as long as the
        scenario's sync; the engine stands meanwhile. Requests in flight go on with their keys and
        values. Returns the version."""
        self._alive()
        self.freeze("update")
        await self._boundary()
        await self._fleet.after(self._fleet.scenario.cost.sync_s, "new weights")
        new = self._fleet.updates if version is None else version
        self.replica.new_weights(new)
        self.label = label
        self.thaw("update")
        self._fleet.journal.add("weights", self.number, version=new)
        return new

    def flush_cache(self) -> bool:
        """Empties the prefix cache, if nothing is in flight; whether it did."""
        self._alive()
        if self.asks:
            return False
        self.replica.flush()
        return True

    def freeze(self, why: str) -> None:
        """Makes it stand from its next boundary on, until each reason has gone."""
        if not self._frozen:
            self.replica.pause()
        self._frozen.add(why)

    def thaw(self, why: str) -> None:
        """A reason to stand has gone."""
        self._frozen.discard(why)
        if not self._frozen:
            self.replica.resume()

    def freeze_again(self) -> None:
        """After a sync of all weights, which sets every replica going."""
        if self._frozen:
            self.replica.pause()

    async def _boundary(self) -> None:
        """Waits for the end of the iteration under way."""
        kernel = self._fleet.kernel
        if (idle_at := self.replica.idle_at) > kernel.now:
            pending = self._fleet.pending("an engine's iteration")

            def over() -> None:
                pending.set()
                self._fleet.outbox.flush()

            kernel.call_at(idle_at, over)
            await pending

    def _alive(self) -> None:
        if self.dead:
            raise EngineError(f"replica {self.number} is dead", 503)


async def answer_of(fleet: Home, ask: Ask) -> Answer:
    """Awaits an answer; a caller that is cancelled aborts the request."""
    try:
        answer: Answer = await ask.pending
        return answer
    except asyncio.CancelledError:
        fleet.abort([ask])
        raise


async def handed(fleet: Home, ask: Ask) -> Answer:
    """As `answer_of`, for code that keeps the answer until it is trained on."""
    answer = await answer_of(fleet, ask)
    fleet.handed(answer)
    return answer


async def _ended(pending: Pending) -> Any:
    """Awaits the end of a request, whatever it was."""
    try:
        return await pending
    except EngineError:
        return None
