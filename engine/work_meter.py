"""The work of a real engine's iterations, in the vocabulary of the cost models."""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.simulator.costs.base import Iteration


class WorkMeter:
    """Counts the work of iterations, and remembers which requests are still prefilling."""

    def __init__(self) -> None:
        self._prefilling: set[str] = set()

    def starts_prefill(self, ids: Iterable[str]) -> None:
        """These are computed from their first token on, for the first time or again."""
        self._prefilling.update(ids)

    def leaves(self, ids: Iterable[str]) -> None:
        """These have ended, or have lost their KV blocks."""
        self._prefilling.difference_update(ids)

    def count(
        self, scheduled: Iterable[tuple[str, int, int, int]]
    ) -> tuple[Iteration, dict[str, int]]:
        """The work of one iteration, and the tokens prefilled of each request that prefills.

        scheduled: per request its id, the tokens it computes, the tokens in the KV cache once it
            has, and the tokens it has in all (which is where its prefill ends).
        """
        rollouts = context = pairs = prefill_context = 0
        prefilled: dict[str, int] = {}
        for request_id, tokens, computed, known in scheduled:
            rollouts += 1
            context += computed
            if request_id in self._prefilling:
                prefilled[request_id] = tokens
                pairs += (computed - tokens) * tokens + tokens * (tokens + 1) // 2
                prefill_context += computed
                if computed >= known:
                    self._prefilling.discard(request_id)
        tokens = sum(prefilled.values())
        work = Iteration(rollouts, context, tokens, pairs, len(prefilled), prefill_context)
        return work, prefilled
