"""How long a batch of rollouts takes to generate: the cluster's own arithmetic without its events.

All rollouts of a step are handed out at once. Between two events of a replica the batch is
constant, and the cost model's curve gives the time of any number of iterations in closed form.
Preemption, and prefill beside decoding, are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from rollcast.simulator.costs.base import CostModel, Iteration
from rollcast.simulator.costs.clock import to_seconds


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
    best = (0.0, 0.0)
    for share, prompts in _shares(engines, groups):
        asked = prompts if engines.prefix_caching else len(share)
        seconds = (
            _decode_s(cost, engines, prompt_tokens, share),
            _prefill_s(cost, engines, prompt_tokens, asked),
        )
        best = max(best, seconds, key=sum)
    return best


def iterations_and_running(
    engines: Engines, prompt_tokens: int, groups: Sequence[Sequence[int]]
) -> tuple[int, int]:
    """Decoding iterations, and rollouts running in them summed, each of the busiest replica."""
    counted = [
        _decoded(engines, prompt_tokens, share, None)[:2] for share, _ in _shares(engines, groups)
    ]
    return max(counts[0] for counts in counted), max(counts[1] for counts in counted)


def _shares(engines: Engines, groups: Sequence[Sequence[int]]) -> list[tuple[list[int], int]]:
    """Lengths that each replica with any has, dealt in turn, and from how many prompts."""
    whole = [tokens for group in groups for tokens in group]
    owner = [number for number, group in enumerate(groups) for _ in group]
    count = min(engines.replicas, len(whole))
    return [
        (whole[i :: engines.replicas], len(set(owner[i :: engines.replicas]))) for i in range(count)
    ]


def _slots(engines: Engines, prompt_tokens: int, share: Sequence[int]) -> int:
    if engines.kv_tokens is None:
        return engines.max_seqs
    tokens_each = prompt_tokens + sum(share) / len(share) / 2 + 1
    return max(min(engines.max_seqs, int(engines.kv_tokens / tokens_each)), 1)


def _decode_s(cost: CostModel, engines: Engines, prompt_tokens: int, share: Sequence[int]) -> float:
    return to_seconds(_decoded(engines, prompt_tokens, share, cost)[2])


def _decoded(
    engines: Engines, prompt_tokens: int, share: Sequence[int], cost: CostModel | None
) -> tuple[int, int, int]:
    """Iterations, rollouts running in them summed, and ticks where there is a cost."""
    slots = _slots(engines, prompt_tokens, share)
    running = sorted(share[:slots])
    waiting = iter(share[slots:])
    heapq.heapify(running)
    done = ticks = summed = 0
    context = prompt_tokens * len(running)
    while running:
        count, until = len(running), running[0]
        if until > done:
            if cost is not None:
                curve = cost.decode_curve(count)
                ticks += curve.total_ticks(context + count, count, until - done)
            summed += count * (until - done)
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
    return done, summed, ticks


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
