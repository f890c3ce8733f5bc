"""Blocks of transformers' paged KV cache, handed out by vLLM's rules.

transformers registers a block's contents once it is computed and evicts all cached blocks together.
vLLM registers them when they are scheduled, so that siblings of one iteration share, and evicts one
block at a time, the one freed longest ago and of a rollout its last one first. This follows vLLM,
as `simulator.cluster.kv` does, on transformers' own tables and storage. A model with sliding
windows has no prefix cache there, nor here.
"""

from __future__ import annotations

from typing import Any

from transformers.generation.continuous_batching.cache_allocators.cache_allocator import (
    compute_block_hash,
)


class Blocks:
    """cache: transformers' ``PagedAttentionCache``. caching: whether prompts are shared."""

    def __init__(self, cache: Any, caching: bool) -> None:
        self._cache = cache
        allocators = list(cache.cache_allocators.values())
        self._first = allocators[0]
        self._single = len(allocators) == 1
        self.caching = caching and bool(cache.use_prefix_sharing) and self._single
        self.total: int = self.free
        self._hashes: dict[str, list[int]] = {}  # of a running rollout's full blocks
        self._apart: set[str] = set()  # have keys of older weights

    @property
    def free(self) -> int:
        """Blocks that no rollout holds, cached ones included; with sliding windows, sectors."""
        pool, first = self._cache.pool, self._first
        if not self._single:
            pool.try_to_free_sectors()
            return int(pool.num_free_sectors)
        fresh = pool.num_free_sectors * first.blocks_per_sector + pool.count_free_blocks(
            first.index
        )
        return int(fresh) + len(first.ledger.cached_blocks)

    def admit(self, state: Any) -> int | None:
        """Holds the cached blocks that a waiting rollout's tokens begin with, and returns their
        tokens; None, without effect, where its tokens do not all fit."""
        tokens, size = state.initial_tokens, self._first.tokens_per_page
        if not self._single:
            self._cache.pool.try_to_free_sectors()
            fits = self._cache.can_store_request_tokens(state, len(tokens), dry_run=True)
            return 0 if fits else None
        found = self._first.match_prefix_blocks(tokens) if self.caching else []
        cached = self._first.ledger.cached_blocks
        idle = sum(block in cached for block in found)
        if -(-len(tokens) // size) - len(found) + idle > self.free:
            return None
        if found:
            self._first.acquire_prefix_blocks(state.request_id, len(found) * size, found)
            known = self._first.ledger.block_to_hash
            self._hashes[state.request_id] = [known[block] for block in found]
        return int(len(found) * size)

    def store(self, state: Any, tokens: int) -> bool:
        """Takes the blocks of a rollout's next tokens and registers those that they fill; False,
        without effect but for evictions, where there are too few."""
        while not self._cache.can_store_request_tokens(state, tokens):
            if not self._evict():
                return False
        if self.caching and state.request_id not in self._apart:
            self._register(state, state.position_offset + tokens)
        return True

    def release(self, request_id: str) -> None:
        """Frees a rollout's blocks, the last one first."""
        for allocator in self._cache.cache_allocators.values():
            blocks = allocator.block_table.pop(request_id, [])
            done = [block for block in reversed(blocks) if allocator.ledger.release(block)]
            allocator.pool.free_blocks(allocator.index, done)
        self._hashes.pop(request_id, None)
        self._apart.discard(request_id)

    def forget(self) -> None:
        """Empties the prefix cache: rollouts keep their blocks, which nobody finds any more."""
        for allocator in self._cache.cache_allocators.values():
            ledger = allocator.ledger
            idle = list(ledger.cached_blocks)
            for table in (ledger.cached_blocks, ledger.hash_to_block, ledger.block_to_hash):
                table.clear()
            allocator.pool.free_blocks(allocator.index, idle)
            self._apart.update(allocator.block_table)
        self._hashes.clear()

    def _evict(self) -> bool:
        ledger = self._first.ledger
        block = next(iter(ledger.cached_blocks), None)
        if block is None:
            return False
        del ledger.cached_blocks[block]
        del ledger.hash_to_block[ledger.block_to_hash.pop(block)]
        self._first.pool.free_blocks(self._first.index, [block])
        return True

    def _register(self, state: Any, computed: int) -> None:
        size, table = self._first.tokens_per_page, self._first.block_table[state.request_id]
        hashes = self._hashes.setdefault(state.request_id, [])
        if len(hashes) >= computed // size:
            return
        tokens = [*state.initial_tokens, *state.generated_tokens]
        for block in range(len(hashes), computed // size):
            parent = hashes[-1] if hashes else None
            hashes.append(compute_block_hash(parent, tokens[block * size : (block + 1) * size]))
            self._first.ledger.register_new_hash(table[block], hashes[-1])  # the first one stays
