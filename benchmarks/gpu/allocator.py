"""How much more memory PyTorch's allocator needs than is allocated at the peak: updates whose
microbatches differ in size, in less and less memory."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.models import build, tidy
from benchmarks.gpu.updates import plain_pass, training

SHARES = (1.0, 1.005, 1.01, 1.02, 1.03, 1.045, 1.07, 1.1, 1.15, 1.22, 1.35)
"""Limits that are tried, as multiples of the peak of what is allocated."""
STEPS, MICROBATCHES = 3, 8


def allocator(case: Case, device: torch.device) -> dict[str, Any]:
    """Bytes at the peak without a limit, and the least of `SHARES` in which the same updates run,
    found by halving."""
    model = build(case, device)
    found: dict[str, Any] = {"shapes": shapes(case)}
    with training(case, model), _expandable(case.expandable):
        found |= {f"free {name}": value for name, value in _tried(case, model, device).items()}
        peak = found["free allocated_bytes"]
        low, high = -1, len(SHARES)  # known to fail, to run
        while high - low > 1 and device.type == "cuda":
            middle = (low + high) // 2
            with _limited(peak * SHARES[middle], device):
                told = _tried(case, model, device)
            if told:
                high = middle
                found |= told
            else:
                low = middle
    found["runs_in"] = SHARES[high] if high < len(SHARES) else None
    found["fails_in"] = SHARES[low] if low >= 0 else None
    return found


def shapes(case: Case) -> list[list[tuple[int, int]]]:
    """(Rows, tokens of each) of every microbatch of every step; the first one of the last step is
    the largest that there is."""
    draw, steps = random.Random(0), []
    longest = case.prompt + case.response
    rows = max(1, case.microbatch // longest)
    count = min(MICROBATCHES, max(1, case.rollouts * case.groups // rows))
    for step in range(STEPS):
        if case.varied == "tokens":
            sizes = [(1, round(case.microbatch * draw.uniform(0.7, 1.0))) for _ in range(count)]
            largest = (1, case.microbatch)
        else:
            widths = [max(_length(case, draw) for _ in range(rows)) for _ in range(count)]
            if case.varied == "steps":
                widths = [max(widths)] * count
            sizes, largest = [(rows, case.prompt + width) for width in widths], (rows, longest)
        if step == STEPS - 1:
            sizes[0] = largest
            if case.varied == "steps":
                sizes = [largest] * count
        steps.append(sizes)
    return steps


def _length(case: Case, draw: random.Random) -> int:
    """Of one response: log-normal, cut at the longest."""
    return min(case.response, max(1, round(draw.lognormvariate(math.log(case.response / 3), 0.7))))


def _tried(case: Case, model: Any, device: torch.device) -> dict[str, Any]:
    """What the updates took; nothing where they ran out of memory."""
    optimizer, drawn = None, torch.Generator().manual_seed(0)
    cuda = device.type == "cuda"
    try:
        tidy(device)
        before = torch.cuda.memory_stats(device).get("num_alloc_retries", 0) if cuda else 0
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
        for sizes in shapes(case):
            for rows, width in sizes:
                ids = torch.randint(0, case.spec.vocab, (rows, width), generator=drawn)
                advantages = torch.ones(rows, device=device)
                plain_pass(case, model, ids.to(device), advantages)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        told = torch.cuda.memory_stats(device) if cuda else {}
        return {
            "allocated_bytes": told.get("allocated_bytes.all.peak", 0),
            "reserved_bytes": told.get("reserved_bytes.all.peak", 0),
            "retries": told.get("num_alloc_retries", 0) - before,
        }
    except torch.OutOfMemoryError:
        return {}
    finally:
        del optimizer
        model.zero_grad(set_to_none=True)
        tidy(device)


@contextmanager
def _limited(size: float, device: torch.device) -> Iterator[None]:
    """PyTorch may reserve so many bytes of the current GPU within, and no more."""
    share = size / torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def _expandable(on: bool) -> Iterator[None]:
    """Whether segments that are made within may grow."""
    _set_expandable(on)
    try:
        yield
    finally:
        _set_expandable(False)


def _set_expandable(on: bool) -> None:
    if torch.cuda.is_available():
        torch.cuda.memory._set_allocator_settings(f"expandable_segments:{on}")
