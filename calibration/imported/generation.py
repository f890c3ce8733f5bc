"""How long a batch of rollouts takes to generate: the cluster's own arithmetic without its events.

All rollouts of a step are handed out at once, as in synchronous training. Between two events of a
replica (a response ends, another takes its slot) the batch is constant, and the cost model's curve
gives the time of any number of iterations in closed form. What the simulated cluster does beside
that (preemption, prefill beside decoding) is left out: of use where thousands of steps are priced.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.costs.base import CostModel, Iteration
from simulator.costs.clock import to_seconds


@dataclass(frozen=True, slots=True)
class Engines:
    """The replicas: how many side by side, and the limits of each."""

    replicas: int
    max_seqs: int
    max_batched_tokens: int
    kv_tokens: int | None
    prefix_caching: bool


def generation_s(
    cost: CostModel, engines: Engines, prompt_tokens: int, groups: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """Seconds of decoding and of prefill until the last response is there.

    groups: lengths of each prompt's responses, in order of launch.
    """
    shares: list[list[int]] = [[] for _ in range(engines.replicas)]
    owners: list[set[int]] = [set() for _ in range(engines.replicas)]
    at = 0
    for number, group in enumerate(groups):
        for tokens in group:
            shares[at % engines.replicas].append(tokens)
            owners[at % engines.replicas].add(number)
            at += 1
    best = (0.0, 0.0)
    for share, own in zip(shares, owners, strict=True):
        if not share:
            continue
        asked = len(own) if engines.prefix_caching else len(share)
        found = (_decode_s(cost, engines, prompt_tokens, share),
                 _prefill_s(cost, engines, prompt_tokens, asked))  # fmt: skip
        best = max(best, found, key=sum)
    return best


def _slots(engines: Engines, prompt_tokens: int, share: Sequence[int]) -> int:
    if engines.kv_tokens is None:
        return engines.max_seqs
    each = prompt_tokens + float(np.mean(share)) / 2 + 1
    return max(min(engines.max_seqs, int(engines.kv_tokens / each)), 1)


def _decode_s(cost: CostModel, engines: Engines, prompt_tokens: int, share: Sequence[int]) -> float:
    slots = _slots(engines, prompt_tokens, share)
    running = sorted(share[:slots])
    waiting = iter(share[slots:])
    heapq.heapify(running)
    done = ticks = 0
    context = prompt_tokens * len(running)
    while running:
        count, until = len(running), running[0]
        if until > done:
            ticks += cost.decode_curve(count).total_ticks(context + count, count, until - done)
            context += count * (until - done)
            done = until
        while running and running[0] == done:
            heapq.heappop(running)
            ended = next(waiting, None)
            # what ends leaves with its context: of a mix of ages, the mean one's
            context -= context // count
            count -= 1
            if ended is not None:
                heapq.heappush(running, done + ended)
                context += prompt_tokens
                count += 1
    return to_seconds(ticks)


def _prefill_s(cost: CostModel, engines: Engines, prompt_tokens: int, prompts: int) -> float:
    """Of ``prompts`` prompts, in iterations as full as they may be."""
    left, seconds = prompts, 0.0
    most = max(min(engines.max_batched_tokens // max(prompt_tokens, 1), engines.max_seqs), 1)
    whole = left // most
    for count, times in ((most, whole), (left - whole * most, 1)):
        if count and times:
            tokens = count * prompt_tokens
            pairs = count * prompt_tokens * (prompt_tokens + 1) // 2
            work = Iteration(count, tokens, tokens, pairs, count, tokens)
            seconds += times * cost.mixed_iteration_s(work)
    return seconds
