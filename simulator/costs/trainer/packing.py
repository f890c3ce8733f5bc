"""Sequences of an update as the microbatches that a trainer computes: packed, padded or alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

Batching = Literal["packed", "padded", "padded_to_batch", "padded_to_cap", "one_sequence"]


def pads(batching: Batching | None) -> bool:
    """Whether microbatches are rectangles."""
    return batching is not None and batching.startswith("padded")


def prefix_pass_tokens(microbatch_tokens: int, given: int | None) -> int:
    """Tokens of shared prefixes that our trainer computes together at most: as ``given``, or half
    of a microbatch."""
    return max(1, microbatch_tokens // 2) if given is None else given


Row = TypeVar("Row")


def padded_rows(
    rows: Sequence[Row], width: Callable[[Row], int], budget_tokens: int
) -> list[list[Row]]:
    """As our own trainer makes microbatches of at most ``budget_tokens``, padding included: the
    longest rows first. A longer row gets its own."""
    batches: list[list[Row]] = []
    room = 0
    for row in sorted(rows, key=width, reverse=True):
        if not batches or len(batches[-1]) >= room:
            batches.append([])
            room = max(1, budget_tokens // max(width(row), 1))
        batches[-1].append(row)
    return batches


class Work(NamedTuple):
    """Counts of a sequence or microbatch: tokens, positions in the LM head, query-key pairs,
    pairs within a window (0 where no layer has one), and positions whose logits are padding."""

    tokens: int
    head_tokens: int
    pairs: float
    near_pairs: float = 0.0
    padding: int = 0


def near_pairs(before: int, tokens: int, window: int) -> float:
    """Pairs of ``tokens`` queries after ``before`` others, each with the last ``window`` tokens."""

    def up_to(at: int) -> float:
        return at * at / 2 if at <= window else window * at - window * window / 2

    return up_to(before + tokens) - up_to(before)


def dense_work(prompt_tokens: int, response_tokens: int, window: int = 0) -> Work:
    """A rollout on its own: P + S tokens, (P + S)^2 / 2 pairs."""
    tokens = prompt_tokens + response_tokens
    near = near_pairs(0, tokens, window) if window else 0.0
    return Work(tokens, response_tokens, tokens * tokens / 2, near)


def prefix_work(prompt_tokens: int, window: int = 0) -> Work:
    """Phases A and C of a group: P tokens, P^2 / 2 pairs, no logits."""
    near = near_pairs(0, prompt_tokens, window) if window else 0.0
    return Work(prompt_tokens, 0, prompt_tokens * prompt_tokens / 2, near)


def suffix_work(prompt_tokens: int, response_tokens: int, window: int = 0) -> Work:
    """Phase B of a rollout: S tokens, P S + S^2 / 2 pairs."""
    pairs = response_tokens * (prompt_tokens + response_tokens / 2)
    near = near_pairs(prompt_tokens, response_tokens, window) if window else 0.0
    return Work(response_tokens, response_tokens, pairs, near)


def pack(sequences: Iterable[Work], budget_tokens: int, most_rows: int = 0) -> list[Work]:
    """Sequences merged in order into microbatches of at most ``budget_tokens``, and of at most
    ``most_rows`` (0 for any); a longer sequence is a microbatch of its own."""
    microbatches: list[Work] = []
    rows, tokens, head, pairs, near, padding = 0, 0, 0, 0.0, 0.0, 0
    for more, more_head, more_pairs, more_near, more_padding in sequences:
        if tokens and (tokens + more > budget_tokens or rows == most_rows > 0):
            microbatches.append(Work(tokens, head, pairs, near, padding))
            rows, tokens, head, pairs, near = 1, more, more_head, more_pairs, more_near
            padding = more_padding
            continue
        rows += 1
        tokens += more
        head += more_head
        pairs += more_pairs
        near += more_near
        padding += more_padding
    if tokens:
        microbatches.append(Work(tokens, head, pairs, near, padding))
    return microbatches


def pad(
    sequences: Sequence[Work],
    budget_tokens: int,
    most_rows: int,
    least: tuple[int, int] = (0, 0),
    window: int = 0,
) -> list[Work]:
    """Sequences in order as rows of one width: the microbatch's longest prompt and response, at
    least ``least`` of each. It has at most ``most_rows`` rows, and ``budget_tokens`` tokens with
    padding unless one row has more. Padding is computed like any token.
    """
    microbatches: list[Work] = []
    rows, prompt, response = 0, *least
    for work in sequences:
        wider = max(prompt, work.tokens - work.head_tokens), max(response, work.head_tokens)
        if rows and (rows == most_rows or (rows + 1) * sum(wider) > budget_tokens):
            microbatches.append(_rectangle(rows, prompt, response, window))
            rows, prompt, response = 0, *least
            wider = max(prompt, work.tokens - work.head_tokens), max(response, work.head_tokens)
        rows, (prompt, response) = rows + 1, wider
    if rows:
        microbatches.append(_rectangle(rows, prompt, response, window))
    return microbatches


def _rectangle(rows: int, prompt: int, response: int, window: int) -> Work:
    width = prompt + response
    near = rows * near_pairs(0, width, window) if window else 0.0
    return Work(rows * width, rows * response, rows * width * width / 2, near)
