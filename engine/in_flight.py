"""What an adapter keeps of a rollout that its engine is working on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from rollcast.engine.edges import Response
from rollcast.engine.errors import EngineError


@dataclass(slots=True)
class InFlight:
    """A submitted rollout: what it was resumed from, and where each version's tokens begin."""

    request_id: str
    partial_token_ids: tuple[int, ...]
    partial_log_probs: tuple[float, ...]
    starts: list[tuple[int, int]]  # (version, tokens made before it)
    internal_id: str = ""
    admitted: bool = False

    def new_version(self, version: int, tokens: int) -> None:
        """Tokens after the first ``tokens`` belong to ``version``."""
        self.starts.append((version, tokens))

    def response(
        self, token_ids: Sequence[int], log_probs: Sequence[float], finish_reason: str | None
    ) -> Response:
        """The response with these new tokens. Raises EngineError when the two differ in length."""
        if len(token_ids) != len(log_probs):
            raise EngineError(
                f"The engine returned {len(token_ids)} tokens, but {len(log_probs)} "
                f"log-probabilities, for rollout {self.request_id}."
            )
        ends = [start for _, start in self.starts[1:]] + [len(token_ids)]
        return Response(
            self.request_id,
            self.partial_token_ids + tuple(token_ids),
            self.partial_log_probs + tuple(log_probs),
            finish_reason,
            tuple(
                (version, end - start)
                for (version, start), end in zip(self.starts, ends, strict=True)
                if end > start
            ),
        )


def stream_seed(seed: int, tokens: int) -> int:
    """A seed for what follows the first ``tokens`` tokens: ``seed`` itself for none.

    A resumed rollout that took up its old random stream would draw its new tokens with the noise
    that made its first ones.
    """
    if tokens == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{tokens}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
