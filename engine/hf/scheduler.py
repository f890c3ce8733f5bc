"""A scheduler of transformers' continuous batching that decides as vLLM's does.

transformers' own ones admit by a margin of free cache and put preempted rollouts at the end. This
one follows vLLM: rollouts that run go first, in order of admission; where blocks run short the one
admitted last gives up its own and waits at the head; without that, waiting ones are admitted in
order while all their tokens fit.
"""

from __future__ import annotations

from typing import Any

from transformers.generation.continuous_batching.requests import FutureRequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import Scheduler

from rollcast.engine.hf.blocks import Blocks


class InOrder(Scheduler):  # type: ignore[misc]
    """max_seqs: rollouts at once. After each pass ``admitted`` and ``preempted`` name the rollouts
    that it admitted, for the first time or again, and preempted."""

    def __init__(self, cache: Any, blocks: Blocks, max_seqs: int) -> None:
        self.blocks = blocks
        self.admitted: list[str] = []
        self.preempted: list[str] = []
        super().__init__(cache, 0.0, max_seqs)

    def schedule_batch(
        self, token_budget: int, cache_budget: int
    ) -> tuple[list[FutureRequestState], bool, int, int]:
        """The rollouts of the next iteration; no keys to be read by transformers' own attention."""
        self.admitted, self.preempted = [], []
        batch: list[FutureRequestState] = []
        left = self._run(batch, token_budget)
        if not self.preempted:
            left = self._admit(batch, left)
        return batch, False, token_budget - left, 0

    def _run(self, batch: list[FutureRequestState], left: int) -> int:
        """Schedules rollouts that run; returns the tokens left."""
        active = self.active_requests
        for state in list(active.values()):
            if left == 0 or state.request_id not in active:
                break
            decodes = state.status == RequestStatus.DECODING
            asked = state.tokens_to_process if decodes else state.remaining_prefill_tokens
            tokens = min(len(asked), left)
            while not self.blocks.store(state, tokens):
                last = next(reversed(active.values()))
                self.preempt(last)
                if last is state:
                    return left
            left -= self._schedule(batch, state, asked, tokens)
        return left

    def _admit(self, batch: list[FutureRequestState], left: int) -> int:
        """Admits waiting rollouts; returns the tokens left."""
        order = self.waiting_requests_order
        while left > 0 and order and len(self.active_requests) < self.max_requests_per_batch:
            state = self.waiting_requests[order[0]]
            hits = self.blocks.admit(state)
            if hits is None:
                break
            del self.waiting_requests[order.popleft()]
            self.admitted.append(state.request_id)
            state.position_offset = hits
            asked = state.initial_tokens[hits:]
            tokens = min(len(asked), left)
            if not self.blocks.store(state, tokens):
                raise RuntimeError("blocks that were there are gone")
            left -= self._schedule(batch, state, asked, tokens)
        return left

    def _schedule(
        self, batch: list[FutureRequestState], state: Any, asked: list[int], tokens: int
    ) -> int:
        if state.status != RequestStatus.DECODING:
            state.remaining_prefill_tokens = asked
        self._schedule_request(state, asked, tokens, set())
        batch.append(FutureRequestState(state, not state.remaining_prefill_tokens, {}, tokens))
        return tokens

    def preempt(self, state: Any) -> None:
        """Takes a running rollout's blocks; it waits at the head, to be computed again."""
        name = state.request_id
        del self.active_requests[name]
        self.blocks.release(name)
        self.waiting_requests[name] = state.create_equivalent_initial_request()
        self.waiting_requests_order.appendleft(name)
        self.preempted.append(name)

    def finish_request(self, request_id: str) -> None:
        """Frees a rollout that has ended."""
        self.blocks.release(request_id)
        self.active_requests.pop(request_id, None)

    def drop(self, request_id: str) -> Any:
        """Takes a rollout out, running or waiting; returns its state."""
        state = self.state(request_id)
        if self.waiting_requests.pop(request_id, None) is not None:
            self.waiting_requests_order.remove(request_id)
        self.finish_request(request_id)
        return state

    def state(self, request_id: str) -> Any:
        """The state of a rollout, running or waiting."""
        return self.active_requests.get(request_id) or self.waiting_requests[request_id]
