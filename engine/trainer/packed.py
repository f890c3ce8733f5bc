"""Attention over sequences packed one after another into a single row, each of which attends to
itself alone: without padding, and without a mask.

Registered with transformers' AttentionInterface. On GPUs in a 16-bit type it is torch's varlen
kernel (FlashAttention, `torch.nn.attention.varlen`); elsewhere each sequence's scores are computed
apart. Positions begin anew with each sequence.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rollcast.engine.errors import UnsupportedModelError

NAME = "rollcast_packed"
"""The name under which transformers knows :func:`packed_attention`."""
_SOFTMAX = {"full_attention", "sliding_attention"}


class Segments:
    """Sequences in one row. ids, positions: [1, tokens]. bounds: where each begins, and the end of
    the last, [sequences + 1], int32. No dataclass, which FSDP would rebuild."""

    def __init__(self, sequences: Sequence[Sequence[int]], device: torch.device) -> None:
        self.lengths = [len(tokens) for tokens in sequences]
        flat = [token for tokens in sequences for token in tokens]
        self.ids = torch.tensor([flat], device=device)
        places = [torch.arange(length) for length in self.lengths]
        self.positions = torch.cat(places)[None].to(device)
        ends = torch.tensor([0, *self.lengths]).cumsum(0)
        self.starts: list[int] = ends[:-1].tolist()
        self.bounds = ends.to(device, torch.int32)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    rollcast_segments: Segments | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function: query [1, heads, tokens, head_dim], key and value likewise with the
    key-value heads; returns [1, tokens, heads, head_dim]."""
    given = {"a mask": attention_mask is not None, "dropout": bool(dropout)}
    wrong = [name for name, there in given.items() if there]
    wrong += [n for n in ("softcap", "position_bias", "s_aux") if kwargs.get(n) is not None]
    if wrong or rollcast_segments is None:
        raise UnsupportedModelError(
            f"rows of packed sequences do not cover {type(module).__name__}, whose attention "
            f"has {wrong[0] if wrong else 'no argument for them'}: make engine.trainer.packing "
            "never",
            "engine.trainer.packing",
        )
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if has_kernel(query.device, query.dtype):
        return _varlen(query, key, value, scale, sliding_window, rollcast_segments), None
    parts = []
    for start, length in zip(rollcast_segments.starts, rollcast_segments.lengths, strict=True):
        q, k, v = (x[:, :, start : start + length] for x in (query, key, value))
        mask = None
        if sliding_window is not None and sliding_window < length:
            ahead = torch.arange(length, device=q.device)
            back = ahead[:, None] - ahead[None, :]
            mask = ((back >= 0) & (back < sliding_window))[None, None]
        out, _ = sdpa_attention_forward(
            module, q, k, v, mask, scaling=scale, is_causal=mask is None
        )
        parts.append(out)
    return torch.cat(parts, dim=1), None


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's varlen kernel takes tensors of that kind."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None, where: Segments
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    longest = max(where.lengths)
    out = varlen_attn(
        q,
        k,
        v,
        where.bounds,
        where.bounds,
        longest,
        longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        **({"enable_gqa": q.shape[1] != k.shape[1]} if _asks_for_gqa() else {}),
    )
    found: Tensor = out[None]
    return found


@cache
def _asks_for_gqa() -> bool:
    """Whether the kernel wants to be told of fewer key-value heads; torch 2.11's takes them anyhow
    and has no such argument."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def packable(model: Any) -> bool:
    """Whether every layer attends by a softmax: a recurrence would run into the next sequence."""
    text = model.config.get_text_config()
    return set(getattr(text, "layer_types", None) or _SOFTMAX) <= _SOFTMAX


@contextmanager
def engaged(model: Any) -> Iterator[None]:
    """The model's attention is :func:`packed_attention` within; backwards run within too."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


AttentionInterface.register(NAME, packed_attention)
