"""One engine and its rollouts in flight: books its iterations to each rollout. It stands beside its
engine, in a replica's process (`engine.actors.replica`) or the driver's (`engine.actors.local`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollcast.engine.common import CommonTokens
from rollcast.engine.edges import Engine, EngineIteration, OnWire, Response
from rollcast.simulator.core.rollout import Key, Shared

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Order:
    """A rollout to be sampled, from nothing or from the tokens that it has. ids, log_probs: of
    those tokens. max_new_tokens: of the whole response, those included. seed: of its random stream.
    turn_below_tokens: a response that stops with fewer tokens ends a turn, after which the rollout
    stays in flight; 0 for a single turn."""

    key: Key
    attempt: int
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    max_new_tokens: int
    seed: int
    turn_below_tokens: float = 0

    @property
    def name(self) -> str:
        """The engine's request id."""
        return request_name(self.key)

    def ends_turn(self, response: Response) -> bool:
        """Whether the rollout is still in flight after this response."""
        stopped = response.finish_reason not in (None, "length")
        return stopped and len(response.token_ids) < self.turn_below_tokens


NO_BUDGET = math.inf
"""``turn_below_tokens`` of a rollout whose turns have no budget."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout that has left an engine, finished or aborted: its response, and the figures of
    `simulator.core.rollout.Segment`, times by the front end's clock."""

    key: Key
    response: Response
    start_s: float
    end_s: float
    prefill_tokens: int
    recomputed_tokens: int
    preemptions: int
    shared: Shared


@dataclass(frozen=True, slots=True)
class Iterated:
    """One iteration: the version of the weights, when it began by the front end's clock, what it
    did (None without any work), and the rollouts that it finished: those that stay in flight after
    a turn first, each kind by key."""

    version: int
    start_s: float
    measured: EngineIteration | None
    finished: tuple[Finished, ...]


@dataclass(slots=True)
class _InFlight:
    order: Order
    start_s: float | None = None
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0


class EngineFrontend:
    """clock: seconds. Raises EngineError as the engine does."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self.engine = engine
        self._clock = clock
        self._in_flight: dict[str, _InFlight] = {}
        self._common = CommonTokens()
        self._asleep = False

    @property
    def busy(self) -> bool:
        """Whether any rollout is in flight."""
        return bool(self._in_flight)

    def submit(self, order: Order) -> None:
        """Queues a rollout before the next iteration."""
        self.engine.submit(
            order.name,
            order.prompt,
            order.ids,
            order.log_probs,
            max_new_tokens=order.max_new_tokens,
            seed=order.seed,
        )
        self._in_flight[order.name] = _InFlight(order)

    def abort(self, keys: Collection[Key]) -> list[Finished]:
        """Stops those of these rollouts that are in flight; by key."""
        names = [name for name in map(request_name, keys) if name in self._in_flight]
        return self._finish(self.engine.abort(names))

    def iterate(self) -> Iterated:
        """Runs one iteration."""
        return self._told(self._clock())

    def settle(self) -> Iterated | None:
        """The iteration that the engine has begun already, when it has ended; None without one."""
        start_s = self._clock()
        return self._told(start_s) if self.engine.settle() else None

    def _told(self, start_s: float) -> Iterated:
        responses = self.engine.step()
        measured = self.engine.last_iteration
        if measured is not None:
            self._book(measured, start_s)
        return Iterated(self.engine.version, start_s, measured, tuple(self._finish(responses)))

    def load(self, weights: Mapping[str, Tensor] | OnWire, version: int) -> None:
        """Replaces the weights and empties the cache; rollouts in flight keep keys and values."""
        self.engine.load_weights(weights, version, keep_keys=True)
        self._common = CommonTokens()

    def sleep(self) -> bool:
        """Frees an idle engine's memory; returns whether it was awake."""
        if self._asleep:
            return False
        self.engine.sleep()
        self._asleep = True
        return True

    def wake(self, weights_come: bool = False) -> bool:
        """Takes the memory back, before any submit or load; returns whether it slept."""
        if not self._asleep:
            return False
        self.engine.wake(weights_come)
        self._asleep = False
        return True

    def _finish(self, responses: Iterable[Response]) -> list[Finished]:
        end_s = self._clock()
        left = [(self._in_flight.pop(response.request_id), response) for response in responses]
        left.sort(key=lambda pair: (not pair[0].order.ends_turn(pair[1]), pair[0].order.key))
        return [self._finished(flight, response, end_s) for flight, response in left]

    def _finished(self, flight: _InFlight, response: Response, end_s: float) -> Finished:
        order = flight.order
        shared = self._common.add(order.key, order.attempt, (*order.prompt, *response.token_ids))
        return Finished(
            order.key,
            response,
            end_s if flight.start_s is None else flight.start_s,
            end_s,
            flight.prefill_tokens,
            flight.recomputed_tokens,
            flight.preemptions,
            shared,
        )

    def _book(self, measured: EngineIteration, start_s: float) -> None:
        for name in measured.admitted:
            self._in_flight[name].start_s = start_s
        for name in measured.preempted:
            self._in_flight[name].preemptions += 1
        for name, tokens in measured.prefilled:
            flight = self._in_flight[name]
            flight.prefill_tokens += tokens
            if flight.preemptions:
                flight.recomputed_tokens += tokens


def request_name(key: Key) -> str:
    """The engine's request id of a rollout."""
    return f"{key[0]}/{key[1]}"
