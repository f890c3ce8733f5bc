"""One engine and what is in flight on it, each rollout booked as the engine's iterations treat it.

A desk stands beside its engine: in the process of `engine.world.EngineWorld`, or in a replica's own
(`engine.actors.replica`). What reaches it and what it hands out may cross between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.common import CommonTokens
from engine.edges import Engine, EngineIteration, OnWire, Response
from simulator.rollout import Key, Shared

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Order:
    """A rollout that an engine is to sample, from nothing or from the tokens that it has.

    prompt, ids: token ids; log_probs: one for each of ``ids``. max_new_tokens: of the whole
    response, those included. seed: of its random stream.
    """

    key: Key
    attempt: int
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    max_new_tokens: int
    seed: int

    @property
    def name(self) -> str:
        """What the engine calls it."""
        return request_name(self.key)


@dataclass(frozen=True, slots=True)
class Landed:
    """A rollout that has left an engine, by itself or stopped: its response, and the figures of
    `simulator.rollout.Stay`, times by the desk's clock."""

    key: Key
    response: Response
    start_s: float
    end_s: float
    prefill_tokens: int
    recomputed_tokens: int
    preemptions: int
    shared: Shared


@dataclass(frozen=True, slots=True)
class Turn:
    """One iteration of an engine: the version that it sampled with, when it began by the desk's
    clock, and what it did."""

    version: int
    start_s: float
    measured: EngineIteration


@dataclass(slots=True)
class _Flight:
    order: Order
    start_s: float | None = None
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0


class Desk:
    """clock: what it stamps with, in seconds. stays: whether a rollout is in flight still when this
    has come of it; such are handed out first. Its methods raise EngineError as the engine's do."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float],
        stays: Callable[[Key, Response], bool] = lambda key, response: False,
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._stays = stays
        self._flights: dict[str, _Flight] = {}
        self._common = CommonTokens()
        self._asleep = False

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return bool(self._flights)

    def has(self, key: Key) -> bool:
        """Whether a rollout is in flight on the engine."""
        return request_name(key) in self._flights

    def submit(self, order: Order) -> None:
        """Queues a rollout; the next iteration sees it."""
        self.engine.submit(
            order.name,
            order.prompt,
            order.ids,
            order.log_probs,
            max_new_tokens=order.max_new_tokens,
            seed=order.seed,
        )
        self._flights[order.name] = _Flight(order)

    def abort(self, keys: Collection[Key]) -> list[Landed]:
        """Stops rollouts between two iterations; by key."""
        return self._land(self.engine.abort([request_name(key) for key in keys]))

    def iterate(self) -> tuple[Turn | None, list[Landed]]:
        """One iteration: what it did (None where there was nothing to do), and what it finished, by
        key."""
        start_s = self._clock()
        responses = self.engine.step()
        measured = self.engine.last_iteration
        turn = None
        if measured is not None:
            turn = Turn(self.engine.version, start_s, measured)
            self._book(measured, start_s)
        return turn, self._land(responses)

    def load(self, weights: Mapping[str, Tensor] | OnWire, version: int) -> None:
        """Replaces the engine's weights, and forgets what it had cached under the old ones. What
        is in flight goes on with the keys and values that it has."""
        self.engine.load_weights(weights, version, keep_keys=True)
        self._common = CommonTokens()

    def sleep(self) -> bool:
        """Has an idle engine give its device's memory to others; whether it was awake."""
        if self._asleep:
            return False
        self.engine.sleep()
        self._asleep = True
        return True

    def wake(self) -> bool:
        """The way back; whether it slept. Before anything is submitted or loaded."""
        if not self._asleep:
            return False
        self.engine.wake()
        self._asleep = False
        return True

    def _land(self, responses: Iterable[Response]) -> list[Landed]:
        end_s = self._clock()
        left = [(self._flights.pop(response.request_id), response) for response in responses]
        left.sort(key=lambda pair: self._place(pair[0].order.key, pair[1]))
        return [self._landed(flight, response, end_s) for flight, response in left]

    def _place(self, key: Key, response: Response) -> tuple[bool, Key]:
        return not self._stays(key, response), key

    def _landed(self, flight: _Flight, response: Response, end_s: float) -> Landed:
        order = flight.order
        shared = self._common.add(order.key, order.attempt, (*order.prompt, *response.token_ids))
        return Landed(
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
        """Books what an iteration did to each rollout."""
        for name in measured.admitted:
            self._flights[name].start_s = start_s
        for name in measured.preempted:
            self._flights[name].preemptions += 1
        for name, tokens in measured.prefilled:
            flight = self._flights[name]
            flight.prefill_tokens += tokens
            if flight.preemptions:
                flight.recomputed_tokens += tokens


def request_name(key: Key) -> str:
    """What an engine calls a rollout."""
    return f"{key[0]}/{key[1]}"
