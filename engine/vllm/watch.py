"""What vLLM's scheduler decides: noted when it decides, handed out when the iteration has run.

With asynchronous scheduling vLLM decides on an iteration while the one before is still running, so
that there are up to two between a decision and its outputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rollcast.engine.edges import EngineIteration
from rollcast.engine.in_flight import InFlight
from rollcast.engine.work_meter import WorkMeter
from rollcast.simulator.costs.base import Iteration


@dataclass(frozen=True, slots=True)
class _Decided:
    """An iteration that was scheduled. Requests by vLLM's own ids; ran: all of them."""

    work: Iteration
    waiting: int
    kv_blocks: int
    ran: Collection[str]
    preempted: Collection[str]
    admitted: Collection[str]
    prefilled: Mapping[str, int]


class Watch:
    """core: vLLM's ``EngineCore``. by_internal: the rollouts in flight by vLLM's ids. swept: those
    that gave up their KV blocks for new weights, and not for room. ended: the last iteration that
    ran, ``seconds`` left at 0; None where no rollout in flight was part of it."""

    def __init__(
        self, core: Any, by_internal: Mapping[str, InFlight], meter: WorkMeter, kv_blocks: int
    ) -> None:
        self.swept: set[str] = set()
        self.ended: EngineIteration | None = None
        self._core, self._by_internal, self._meter = core, by_internal, meter
        self._blocks = core.scheduler.kv_cache_manager.block_pool
        self._kv_blocks = kv_blocks
        self._under_way: deque[_Decided] = deque()  # decided, and not run to its end
        schedule, update = core.scheduler.schedule, core.scheduler.update_from_output

        def scheduled(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._under_way.append(self._decided(output))
            return output

        def updated(*args: Any, **kwargs: Any) -> Any:
            self.ended = self._iteration(self._under_way.popleft())  # vLLM keeps their order
            return update(*args, **kwargs)

        core.scheduler.schedule, core.scheduler.update_from_output = scheduled, updated

    @property
    def under_way(self) -> bool:
        """Whether an iteration was scheduled that has not run to its end."""
        return bool(self._under_way)

    @contextmanager
    def nothing_new(self) -> Iterator[None]:
        """Lets vLLM's steps end what is under way, and schedule nothing."""
        scheduler = self._core.scheduler
        scheduler.has_requests = lambda: False
        try:
            yield
        finally:
            del scheduler.has_requests

    def _decided(self, output: Any) -> _Decided:
        preempted = set(output.preempted_req_ids or ())
        self._meter.leaves(preempted)
        new = [request.req_id for request in output.scheduled_new_reqs]
        self._meter.starts_prefill(new)
        self._meter.starts_prefill(output.scheduled_cached_reqs.resumed_req_ids)
        scheduler = self._core.scheduler
        requests = scheduler.requests
        work, prefilled = self._meter.count(
            (name, tokens, request.num_computed_tokens, request.num_tokens)  # tokens included
            for name, tokens in output.num_scheduled_tokens.items()
            for request in (requests[name],)
        )
        waiting = scheduler.get_request_counts()[1]
        used = self._kv_blocks - self._blocks.get_num_free_blocks()
        thrown_out, self.swept = preempted - self.swept, self.swept - preempted
        ran = output.num_scheduled_tokens.keys()
        return _Decided(work, waiting, used, ran, thrown_out, new, prefilled)

    def _iteration(self, decided: _Decided) -> EngineIteration | None:
        """Of those that are still in flight: the others ended, or were aborted, meanwhile."""
        if decided.ran and self._by_internal.keys().isdisjoint(decided.ran):
            return None
        admitted = [live for live in self._live(decided.admitted) if not live.admitted]
        for live in admitted:
            live.admitted = True
        prefilled = [
            (self._by_internal[name].request_id, tokens)
            for name, tokens in decided.prefilled.items()
            if name in self._by_internal
        ]
        return EngineIteration(
            decided.work,
            decided.waiting,
            decided.kv_blocks,
            tuple(live.request_id for live in self._live(decided.preempted)),
            tuple(live.request_id for live in admitted),
            tuple(prefilled),
            seconds=0.0,
        )

    def _live(self, internal_ids: Iterable[str]) -> Iterator[InFlight]:
        return filter(None, map(self._by_internal.get, internal_ids))
