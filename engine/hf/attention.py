"""Attention over transformers' paged KV cache, without a mask over the whole batch.

transformers' own SDPA path masks all queries of an iteration against all keys of all rollouts,
which costs rollouts times context. Here each rollout's queries meet its own keys: rollouts that
decode together, padded to the longest; chunks of a prefill grouped by their shape. Registered with
transformers' AttentionInterface; the batch comes as an argument of the model's forward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rollcast.engine.errors import UnsupportedModelError

NAME = "rollcast_paged"
"""The name under which transformers knows `paged_attention`."""


@dataclass(frozen=True, slots=True)
class Span:
    """One rollout's part of an iteration: ``tokens`` queries behind ``past`` keys of the cache."""

    request_id: str
    past: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Reads:
    """Rows of one computation: queries [rows, tokens], places among the iteration's tokens; keys
    [rows * kv_heads * keys], places in the cache's rows of head_dim; allowed [rows, 1, tokens,
    keys]; slides: whether keys are read before this iteration's are written, which follow them."""

    queries: Tensor
    keys: Tensor
    allowed: Tensor
    slides: bool

    def of(self, cached: Tensor, fresh: Tensor, buffer: Buffer) -> Tensor:
        """Keys, or values, [rows, kv_heads, keys, head_dim]: of the cache and of this iteration,
        both [tokens, kv_heads, head_dim]. Contiguous, without which torch's kernel for CPUs takes
        nearly three times as long."""
        heads, width = cached.shape[1:]
        found = buffer.take(len(self.keys), cached)
        torch.index_select(cached.view(-1, width), 0, self.keys, out=found)
        found = found.view(len(self.queries), heads, -1, width)
        if not self.slides:
            return found
        return torch.cat((found, fresh[self.queries].transpose(1, 2)), 2)


class Buffer:
    """Memory used again and again: taken from the system anew for every layer, it would cost more
    than all arithmetic."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def take(self, rows: int, like: Tensor) -> Tensor:
        """[rows, width] of the type and device of ``like``, with any contents."""
        width = like.shape[-1]
        if self._memory is None or self._memory.numel() < rows * width:
            self._memory = like.new_empty(2 * rows * width)
        return self._memory[: rows * width].view(rows, width)


class PagedBatch:
    """An iteration's spans over a ``PagedAttentionCache``; None: a whole sequence without one."""

    def __init__(
        self,
        spans: Sequence[Span],
        cache: Any,
        device: torch.device,
        buffers: tuple[Buffer, Buffer],
    ) -> None:
        self.buffers = buffers  # of keys and of values
        self._cache, self._device = cache, device
        starts, at = [], 0
        for span in spans:
            starts.append(at)
            at += span.tokens
        groups: dict[tuple[int, int], list[tuple[int, Span]]] = defaultdict(list)
        for start, span in zip(starts, spans, strict=True):
            # Rollouts that decode are padded to the longest, which costs at most twice the keys.
            shape = (1, span.past.bit_length()) if span.tokens == 1 else (span.tokens, span.past)
            groups[shape].append((start, span))
        self._groups = list(groups.values())
        self._reads: dict[int, list[Reads]] = {}

    def reads(self, layer: int) -> tuple[Any, list[Reads]]:
        """The layer's allocator and its computations."""
        allocator = self._cache.layer_to_allocator[layer]
        if allocator.index not in self._reads:
            slide = getattr(allocator, "sliding_window", None)
            self._reads[allocator.index] = [
                self._full(allocator, group) if slide is None else self._slid(allocator, group)
                for group in self._groups
            ]
        return allocator, self._reads[allocator.index]

    def _tensor(self, rows: Any) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self._device)

    def _queries(self, group: Sequence[tuple[int, Span]]) -> Tensor:
        first = self._tensor([start for start, _ in group])
        return first[:, None] + torch.arange(group[0][1].tokens, device=self._device)

    def _by_head(self, allocator: Any, tokens: Tensor) -> Tensor:
        """Places of [rows, keys] tokens' heads, in the order of [rows, kv_heads, keys]."""
        heads = torch.arange(allocator.num_key_value_heads, device=self._device)
        return (tokens[:, None, :] * len(heads) + heads[:, None]).flatten()

    def _full(self, allocator: Any, group: Sequence[tuple[int, Span]]) -> Reads:
        """All keys are in the cache once those of this iteration are written."""
        size, tokens = allocator.tokens_per_page, group[0][1].tokens
        known = [span.past + span.tokens for _, span in group]
        blocks = -(-max(known) // size)
        tables = [allocator.block_table[span.request_id][:blocks] for _, span in group]
        padded = self._tensor([table + [table[0]] * (blocks - len(table)) for table in tables])
        within = torch.arange(size, device=self._device)
        found = (padded * allocator.block_physical_stride)[:, :, None] + within
        keys = self._by_head(allocator, found.flatten(1))
        place = torch.arange(blocks * size, device=self._device)
        last = self._tensor(known)[:, None, None, None] - tokens
        last = last + torch.arange(tokens, device=self._device)[:, None]
        return Reads(self._queries(group), keys, place <= last, slides=False)

    def _slid(self, allocator: Any, group: Sequence[tuple[int, Span]]) -> Reads:
        """Those of the cache may be overwritten by this iteration's, and are read before."""
        rows = [
            allocator.get_read_indices(span.request_id, span.past, span.tokens)[: -span.tokens]
            for _, span in group
        ]
        longest, tokens = max(map(len, rows)), group[0][1].tokens
        found = self._tensor([row + [0] * (longest - len(row)) for row in rows])
        keys = self._by_head(allocator, found.reshape(len(rows), longest))
        cached = self._tensor([len(row) for row in rows])[:, None]
        place = torch.arange(longest + tokens, device=self._device)
        # A key's position behind the first cached one; what only pads is behind all queries.
        position = torch.where(place < longest, place, place - longest + cached)
        position = torch.where((place < longest) & (place >= cached), 1 << 40, position)
        query = (cached + torch.arange(tokens, device=self._device))[:, None, :, None]
        keyed = position[:, None, None, :]
        window = allocator.sliding_window
        allowed = (keyed <= query) & (keyed > query - window)
        return Reads(self._queries(group), keys, allowed, slides=True)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    rollcast_batch: PagedBatch | None = None,
    write_index: Sequence[Tensor] = (),
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function: query [1, heads, tokens, head_dim], key and value likewise with the
    key-value heads; returns [1, tokens, heads, head_dim]. Without a batch, one whole sequence."""
    if attention_mask is not None or kwargs.get("position_bias") is not None:
        raise UnsupportedModelError(
            f"{type(module).__name__} adds a mask or a bias of its own to its attention, which the "
            "transformers engine does not support"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if rollcast_batch is None:
        tokens = torch.arange(query.shape[2], device=query.device)
        allowed = tokens <= tokens[:, None]
        if sliding_window is not None:
            allowed = allowed & (tokens > tokens[:, None] - sliding_window)
        out = _attend(query, key, value, allowed[None, None], scale, softcap, s_aux)
        return out.transpose(1, 2).contiguous(), None
    layer: int = module.layer_idx  # type: ignore[assignment,unused-ignore]
    allocator, reads = rollcast_batch.reads(layer)
    keys, values = allocator._kv_token_views[layer]
    queries, fresh, fresh_values = (x[0].transpose(0, 1) for x in (query, key, value))
    target = write_index[allocator.index]
    later = reads[0].slides
    if not later:
        keys.index_copy_(0, target, fresh)
        values.index_copy_(0, target, fresh_values)
    out = torch.empty_like(queries, memory_format=torch.contiguous_format)
    for read in reads:
        asked = queries[read.queries].transpose(1, 2)
        k = read.of(keys, fresh, rollcast_batch.buffers[0])
        v = read.of(values, fresh_values, rollcast_batch.buffers[1])
        made = _attend(asked, k, v, read.allowed, scale, softcap, s_aux)
        out[read.queries] = made.transpose(1, 2)
    if later:
        keys.index_copy_(0, target, fresh)
        values.index_copy_(0, target, fresh_values)
    return out[None], None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """[rows, heads, tokens, head_dim] over [rows, kv_heads, keys, head_dim]. The query heads of a
    key-value head are folded onto it, so that nothing is copied for them."""
    rows, heads, tokens, _ = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    folded = query.reshape(rows, kv_heads, groups * tokens, -1)
    if tokens > 1 and groups > 1:
        allowed = allowed.repeat(1, 1, groups, 1)
    if softcap is None and sinks is None:
        made = scaled_dot_product_attention(folded, key, value, attn_mask=allowed, scale=scale)
        return made.reshape(rows, heads, tokens, -1)
    scores = (folded @ key.transpose(2, 3)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~allowed, float("-inf"))
    if sinks is not None:  # of each query head
        sink = sinks.reshape(1, kv_heads, groups, 1).expand(rows, -1, -1, tokens)
        sink = sink.reshape(rows, kv_heads, groups * tokens, 1)
        scores = torch.cat((scores, sink), -1)
    shares = scores.softmax(-1, dtype=torch.float32).to(value.dtype)[..., : key.shape[2]]
    return (shares @ value).reshape(rows, heads, tokens, -1)


AttentionInterface.register(NAME, paged_attention)
