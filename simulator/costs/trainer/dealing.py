"""An update's sequences, dealt to the trainer's GPUs as microbatches.

A load that is priced again, as by each draw of an interval, is dealt once: it keeps what was made
of it under the settings that it depends on.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.costs.trainer.packing import (
    Batching,
    Work,
    dense_work,
    pack,
    pad,
    padded_rows,
    pads,
    prefix_pass_tokens,
    prefix_work,
    suffix_work,
)

Job = tuple[int, list[list[Work]]]
"""What stays on one GPU: its tokens, and its sequences by part, which share no microbatch."""


@dataclass(frozen=True, slots=True)
class Dealing:
    """Settings of a trainer. gpus: copies of the model that microbatches are dealt to. rows: of a
    microbatch, at most; 0 for any. window: the most tokens that a query attends to in layers
    that do not see all. padded_logits: the LM head runs on padding too. prompt, capped: tokens of a
    prompt in padded rows at least, and of a rollout that is padded to its caps; 0 where unknown.
    prefixes: tokens of shared prefixes in one pass; None for the trainer's default."""

    gpus: int
    batching: Batching
    balanced: bool
    rows: int
    window: int
    padded_logits: bool
    prompt: int = 0
    capped: int = 0
    prefixes: int | None = None

    @property
    def pads(self) -> bool:
        """Whether microbatches are rectangles."""
        return pads(self.batching)

    def longest(self, load: TrainLoad) -> tuple[int, int]:
        """Tokens of the longest sequence, with padding to the batch's, and of the longest prefix
        shared."""
        _, longest, prefix = self._jobs(load)
        return longest, prefix

    def microbatches(self, load: TrainLoad, budget_tokens: int) -> list[list[Work]]:
        """Of each GPU; not to be changed. Rollouts (whole groups, with a shared prefix) go to the
        GPU with the fewest tokens, longest first (Graham's longest processing time rule), or where
        they are not ``balanced`` to the GPUs in turn."""
        key = self, budget_tokens
        if key not in load.kept:
            load.kept[key] = self._dealt(load, budget_tokens)
        return load.kept[key]  # type: ignore[no-any-return]

    def _jobs(self, load: TrainLoad) -> tuple[list[Job], int, int]:
        if self not in load.kept:
            load.kept[self] = self._made(load)
        return load.kept[self]  # type: ignore[no-any-return]

    def _made(self, load: TrainLoad) -> tuple[list[Job], int, int]:
        jobs: list[Job] = []
        longest, prefix, window = 1, 0, self.window
        widest = sum(self._widest(load)) if load.rollouts else 0
        for prompt, responses in load.groups:
            if not responses:
                continue
            if load.shared_prefix:
                suffixes = [suffix_work(prompt, s, window) for s in responses]
                parts = [[prefix_work(prompt, window)], suffixes] if prompt else [suffixes]
                jobs.append((sum(w.tokens for p in parts for w in p), parts))
                longest, prefix = max(longest, *responses), max(prefix, prompt)
            else:
                for response in responses:
                    work = dense_work(prompt, response, window)
                    if self.padded_logits:
                        work = work._replace(padding=widest - response)
                    jobs.append((work.tokens, [[work]]))
                    longest = max(longest, work.tokens)
        return jobs, max(longest, widest) if self.pads else longest, prefix

    def _widest(self, load: TrainLoad) -> tuple[int, int]:
        """The longest prompt and the longest response of a batch, as rows are padded."""
        taught = [(prompt, max(responses)) for prompt, responses in load.groups if responses]
        prompt, response = max(p for p, _ in taught), max(r for _, r in taught)
        if self.batching == "padded_to_cap":
            response = max(response, self.capped - prompt)
        return max(self.prompt, prompt), response

    def _dealt(self, load: TrainLoad, budget_tokens: int) -> list[list[Work]]:
        jobs, _, _ = self._jobs(load)
        sizes = [tokens for tokens, _ in jobs]
        heap = [(0, gpu) for gpu in range(min(self.gpus, max(1, len(jobs))))]
        if self.balanced:
            order = sorted(range(len(jobs)), key=sizes.__getitem__, reverse=True)
            assigned: list[list[int]] = [[] for _ in heap]
            for job in order:
                held, gpu = heapq.heappop(heap)
                assigned[gpu].append(job)
                heapq.heappush(heap, (held + sizes[job], gpu))
        else:
            assigned = [list(range(gpu, len(jobs), len(heap))) for _, gpu in heap]
        if self.batching != "packed":
            assigned = [sorted(mine) for mine in assigned]  # no stack sorts them by length
        if load.shared_prefix and self.batching == "packed":
            taught = [group for group in load.groups if group[1]]
            return [self._shared([taught[job] for job in mine], budget_tokens) for mine in assigned]
        rows = [
            [work for job in mine for part in jobs[job][1] for work in part] for mine in assigned
        ]
        if self.batching == "one_sequence":
            return rows
        if self.pads:
            least = (self.prompt, 0) if self.batching == "padded" else self._widest(load)
            return [
                pad(mine, budget_tokens, self.rows or len(mine), least, self.window)
                for mine in rows
            ]
        return [pack(mine, budget_tokens, self.rows) for mine in rows]

    def _shared(
        self, groups: Sequence[tuple[int, Sequence[int]]], budget_tokens: int
    ) -> list[Work]:
        """Microbatches of groups with a shared prefix, as our own trainer makes them: of several
        prefixes as rows of one width, then of all that follows these, the longest rows first."""
        room = prefix_pass_tokens(budget_tokens, self.prefixes)
        microbatches: list[Work] = []
        for beside in padded_rows(groups, itemgetter(0), room):
            width = beside[0][0]
            if width:
                microbatches.append(_rows([(width, 0)] * len(beside), width, self.window))
            rows = [(response, prompt) for prompt, responses in beside for response in responses]
            for batch in padded_rows(rows, itemgetter(0), budget_tokens):
                microbatches.append(_rows(batch, batch[0][0], self.window, head=True))
        return microbatches


def _rows(rows: Sequence[tuple[int, int]], width: int, window: int, head: bool = False) -> Work:
    """Rows of one width, each of so many tokens after so many others."""
    computed = [suffix_work(before, width, window) for _, before in rows]
    return Work(
        width * len(rows),
        sum(own for own, _ in rows) if head else 0,
        math.fsum(work.pairs for work in computed),
        math.fsum(work.near_pairs for work in computed),
    )


def shares(load: TrainLoad, count: int) -> list[TrainLoad]:
    """The part of the groups that each of ``count`` optimiser steps trains on, where it has any."""
    key = "shares", count
    if key not in load.kept:
        parts = [TrainLoad(load.groups[i::count], load.shared_prefix) for i in range(count)]
        load.kept[key] = [part for part in parts if part.rollouts]
    return load.kept[key]  # type: ignore[no-any-return]
