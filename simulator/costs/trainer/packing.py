"""Sequences of an update as the microbatches that a trainer computes: packed, padded or alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray


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


class Works(NamedTuple):
    """The counts of many sequences: columns of shape (sequences,), named as in `Work`."""

    tokens: NDArray[np.int64]
    head_tokens: NDArray[np.int64]
    pairs: NDArray[np.float64]
    near_pairs: NDArray[np.float64]
    padding: NDArray[np.int64]

    @classmethod
    def dense(
        cls, prompts: NDArray[np.int64], responses: NDArray[np.int64], window: int = 0
    ) -> Works:
        """Rollouts on their own: P + S tokens, (P + S)^2 / 2 pairs each."""
        tokens = prompts + responses
        near = np.zeros(len(tokens))
        if window:
            seen = np.minimum(tokens, window)
            near = seen * seen / 2 + window * (tokens - seen)
        return cls(tokens, responses, tokens * tokens / 2, near, np.zeros_like(tokens))

    def take(self, rows: NDArray[np.int64]) -> Works:
        """Those at the given places, in that order."""
        return Works._make(column[rows] for column in self)

    def apart(self) -> list[Work]:
        """Each on its own."""
        return [Work(*row) for row in zip(*(column.tolist() for column in self), strict=True)]

    def summed(self, cuts: Sequence[int]) -> list[Work]:
        """The sums of those from each cut to the next; halves of whole numbers, which are exact in
        any order. cuts: ascending, without the end."""
        if not cuts:
            return []
        return Works._make(np.add.reduceat(column, cuts) for column in self).apart()


def prefix_work(prompt_tokens: int, window: int = 0) -> Work:
    """Phases A and C of a group: P tokens, P^2 / 2 pairs, no logits."""
    near = near_pairs(0, prompt_tokens, window) if window else 0.0
    return Work(prompt_tokens, 0, prompt_tokens * prompt_tokens / 2, near)


def suffix_work(prompt_tokens: int, response_tokens: int, window: int = 0) -> Work:
    """Phase B of a rollout: S tokens, P S + S^2 / 2 pairs."""
    pairs = response_tokens * (prompt_tokens + response_tokens / 2)
    near = near_pairs(prompt_tokens, response_tokens, window) if window else 0.0
    return Work(response_tokens, response_tokens, pairs, near)


def pack(sequences: Works, budget_tokens: int, most_rows: int = 0) -> list[Work]:
    """Sequences merged in order into microbatches of at most ``budget_tokens``, and of at most
    ``most_rows`` (0 for any); a longer sequence is a microbatch of its own."""
    ends = np.cumsum(sequences.tokens).tolist()
    cuts: list[int] = []
    first, before = 0, 0
    while first < len(ends):
        cuts.append(first)
        most = first + most_rows if most_rows else len(ends)
        last = bisect_right(ends, before + budget_tokens, first, min(most, len(ends)))
        first = max(last, first + 1)
        before = ends[first - 1]
    return sequences.summed(cuts)


def pack_even(sequences: Works, budget_tokens: int) -> list[Work]:
    """Sequences merged into microbatches of at most ``budget_tokens``, each into the first that has
    room (first fit decreasing), and padded to the longest of them, as a pipeline of one static
    shape takes them; a longer sequence is a microbatch of its own. Padding has logits, too."""
    tokens = sequences.tokens.tolist()
    bins: list[list[int]] = []
    rooms: list[int] = []
    for place in sorted(range(len(tokens)), key=tokens.__getitem__, reverse=True):
        own = tokens[place]
        at = next((at for at, room in enumerate(rooms) if own <= room), len(bins))
        if at == len(bins):
            bins.append([])
            rooms.append(budget_tokens)
        bins[at].append(place)
        rooms[at] -= own
    cuts = np.cumsum([0, *map(len, bins[:-1])]).tolist() if bins else []
    packed = sequences.take(np.array([*chain.from_iterable(bins)], np.int64)).summed(cuts)
    longest = max((work.tokens for work in packed), default=0)
    return [
        work._replace(tokens=longest, padding=work.padding + longest - work.tokens)
        for work in packed
    ]


def pad(
    sequences: Works,
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
    prompts = (sequences.tokens - sequences.head_tokens).tolist()
    for own, after in zip(prompts, sequences.head_tokens.tolist(), strict=True):
        wider = max(prompt, own), max(response, after)
        if rows and (rows == most_rows or (rows + 1) * sum(wider) > budget_tokens):
            microbatches.append(_rectangle(rows, prompt, response, window))
            rows, prompt, response = 0, *least
            wider = max(prompt, own), max(response, after)
        rows, (prompt, response) = rows + 1, wider
    if rows:
        microbatches.append(_rectangle(rows, prompt, response, window))
    return microbatches


def _rectangle(rows: int, prompt: int, response: int, window: int) -> Work:
    width = prompt + response
    near = rows * near_pairs(0, width, window) if window else 0.0
    return Work(rows * width, rows * response, rows * width * width / 2, near)
