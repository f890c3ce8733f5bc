"""PyTorch's allocator of GPU memory in a model: large blocks of c10/cuda/CUDACachingAllocator.cpp.

The smallest free block that is large enough is split; where there is none, a segment is reserved;
where the limit leaves none, segments without a block in use are given back first.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections.abc import Sequence

MIB = 2**20
SMALL, LARGE, ROUNDED = MIB, 20 * MIB, 2 * MIB
"""A rest that is not split off; the segment of a block below ten MiB; of which multiples others."""


class OutOfMemoryError(Exception):
    """No segment is left to give back."""


class Block:
    """A part of a segment, between its neighbours there."""

    def __init__(self, size: int, before: Block | None = None, after: Block | None = None) -> None:
        self.size, self.before, self.after, self.used = size, before, after, False


class CachingAllocator:
    """Of ``limit`` bytes. peak: the most that was allocated since it was last set."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.allocated = self.reserved = self.peak = 0
        self._free: list[tuple[int, int, Block]] = []

    def take(self, size: float) -> Block:
        """A block. Raises OutOfMemoryError where the limit leaves none."""
        wanted = -(-int(size) // 512) * 512
        at = bisect_left(self._free, (wanted, -1))
        block = self._free.pop(at)[2] if at < len(self._free) else self._segment(wanted)
        if block.size - wanted > SMALL:
            rest = Block(block.size - wanted, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.size, block.after = wanted, rest
            self._put(rest)
        block.used = True
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block

    def give(self, *blocks: Block) -> None:
        """Back to its segment, with its free neighbours one block."""
        for block in blocks:
            block.used = False
            self.allocated -= block.size
            first, last = block, block.after
            if block.before is not None and not block.before.used:
                first = block.before
                self._drop(first)
                first.size += block.size
            if last is not None and not last.used:
                self._drop(last)
                first.size, last = first.size + last.size, last.after
            first.after = last
            if last is not None:
                last.before = first
            self._put(first)

    def _put(self, block: Block) -> None:
        insort(self._free, (block.size, id(block), block))

    def _drop(self, block: Block) -> None:
        del self._free[bisect_left(self._free, (block.size, id(block)))]

    def _segment(self, wanted: int) -> Block:
        size = LARGE if wanted < LARGE // 2 else -(-wanted // ROUNDED) * ROUNDED
        if self.reserved + size > self.limit:
            whole = [one for one in self._free if one[2].before is one[2].after is None]
            self.reserved -= sum(size for size, _, _ in whole)
            self._free = [one for one in self._free if one not in whole]
            if self.reserved + size > self.limit:
                raise OutOfMemoryError
        self.reserved += size
        return Block(size)


def left_by_sharding(units: Sequence[Sequence[int]], gpus: int) -> int:
    """Bytes that are reserved and in use by nobody when FSDP1 has shared ``units`` of weights in
    fp32 among ``gpus`` GPUs, one after the other: it moves each weight, makes one tensor of all,
    and keeps a copy of its part."""
    allocator = CachingAllocator(math.inf)
    for weights in units:
        moved = [allocator.take(4 * weight) for weight in weights]
        flat = allocator.take(4 * sum(weights))
        allocator.give(*moved)
        allocator.take(4 * sum(weights) / gpus)
        allocator.give(flat)
    return allocator.reserved - allocator.allocated


def sharded_updates(
    limit: float, layers: int, weights: int, gpus: int, widths: Sequence[int]
) -> tuple[int, int]:
    """(Bytes at the peak of updates, of their optimiser's steps) of layers of ``weights`` that
    ``gpus`` GPUs share in fp32, checkpointed, in microbatches of different sizes, whose layers
    keep ``widths`` bytes a token. The step copies all of a GPU's part (torch's foreach)."""
    allocator, draw = CachingAllocator(limit), random.Random(0)
    take, give, shard = allocator.take, allocator.give, 4 * weights // gpus
    _, moments = [take(shard) for _ in range(layers)], None
    update = step = 0
    for _ in range(3):
        gradients: dict[int, Block] = {}
        for _ in range(4):
            tokens = draw.randint(200, 2000)
            inputs = []
            for _ in range(layers):
                inputs.append(take(tokens * widths[0]))
                gathered = take(2 * weights)
                give(*[take(tokens * width) for width in widths], gathered)
            logits = take(6e5 * tokens)
            graded = take(3e5 * tokens)
            give(logits, graded)
            for layer in reversed(range(layers)):
                gathered = take(2 * weights)
                made = [take(tokens * width) for width in (*widths, *widths)]
                whole = [take(2 * weights), take(4 * weights)]
                mine = take(shard)
                give(*made, *whole, gathered, inputs[layer])
                if gradients.setdefault(layer, mine) is not mine:
                    give(mine)
        update, allocator.peak = max(update, allocator.peak), allocator.allocated
        moments = moments or [take(shard) for _ in range(2 * layers)]
        give(*[take(shard) for _ in range(layers)])
        step, allocator.peak = max(step, allocator.peak), allocator.allocated
        give(*gradients.values())
    return update, step
