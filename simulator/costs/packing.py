"""Sequences of an update as the microbatches that a trainer computes: packed, padded or alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Batching = Literal["packed", "padded", "padded_to_batch", "one_sequence"]


class Work(NamedTuple):
    """Counts of one sequence or microbatch: tokens computed, positions that reach the LM head, and
    query-key pairs of causal attention."""

    tokens: int
    head_tokens: int
    pairs: float


def dense_work(prompt_tokens: int, response_tokens: int) -> Work:
    """A rollout on its own: P + S tokens, (P + S)^2 / 2 pairs."""
    tokens = prompt_tokens + response_tokens
    return Work(tokens, response_tokens, tokens * tokens / 2)


def prefix_work(prompt_tokens: int) -> Work:
    """Phases A and C of a group: P tokens, P^2 / 2 pairs, no logits."""
    return Work(prompt_tokens, 0, prompt_tokens * prompt_tokens / 2)


def suffix_work(prompt_tokens: int, response_tokens: int) -> Work:
    """Phase B of a rollout: S tokens, P S + S^2 / 2 pairs."""
    pairs = response_tokens * (prompt_tokens + response_tokens / 2)
    return Work(response_tokens, response_tokens, pairs)


def pack(sequences: Iterable[Work], budget_tokens: int) -> list[Work]:
    """Sequences merged in order into microbatches of at most ``budget_tokens``; a longer sequence
    is a microbatch of its own."""
    microbatches: list[Work] = []
    tokens, head, pairs = 0, 0, 0.0
    for work in sequences:
        if tokens and tokens + work.tokens > budget_tokens:
            microbatches.append(Work(tokens, head, pairs))
            tokens, head, pairs = 0, 0, 0.0
        tokens, head, pairs = tokens + work.tokens, head + work.head_tokens, pairs + work.pairs
    if tokens:
        microbatches.append(Work(tokens, head, pairs))
    return microbatches


def pad(
    sequences: Sequence[Work],
    budget_tokens: int,
    most_rows: int,
    least: tuple[int, int] = (0, 0),
) -> list[Work]:
    """Sequences in order as rows of one width: the longest prompt and the longest response of the
    microbatch, ``least`` of each at least (the batch's, where rows are padded to that).

    A microbatch has ``most_rows`` rows at most, and ``budget_tokens`` tokens, padding included,
    unless one row has more. Padding is computed like any token: products, logits and attention.
    """
    microbatches: list[Work] = []
    rows, prompt, response = 0, *least
    for work in sequences:
        wider = max(prompt, work.tokens - work.head_tokens), max(response, work.head_tokens)
        if rows and (rows == most_rows or (rows + 1) * sum(wider) > budget_tokens):
            microbatches.append(_rectangle(rows, prompt, response))
            rows, prompt, response = 0, *least
            wider = max(prompt, work.tokens - work.head_tokens), max(response, work.head_tokens)
        rows, (prompt, response) = rows + 1, wider
    if rows:
        microbatches.append(_rectangle(rows, prompt, response))
    return microbatches


def _rectangle(rows: int, prompt: int, response: int) -> Work:
    width = prompt + response
    return Work(rows * width, rows * response, rows * width * width / 2)
