"""Attention from suffixes to shared prefixes, for Hugging Face models.

Registered with transformers' AttentionInterface. Phase A returns each layer's keys and values.
Phase B folds the queries of every suffix of a group, and of every query head of a key-value head,
onto its single prefix: no copy of a prefix and no mask. Attention within the suffix is computed
apart and merged by log-sum-exp. The backward calls each kernel with the merged output and
log-sum-exp, which is exact (the idea of ring attention, arXiv 2310.01889).

The phase is an argument of the model's forward: a global would be wrong when activation
checkpointing recomputes a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rollcast.engine.errors import UnsupportedModelError
from rollcast.engine.trainer.kernels import AttentionKernel, Scores, kernel_for

NAME = "rollcast_shared_prefix"
"""The name under which transformers knows :func:`shared_prefix_attention`."""


# Neither is a dataclass: those are rebuilt on their way into a layer by FSDP, which looks for
# tensors with gradients in them, and what a copy keeps is lost.


class PrefixCapture:
    """Phase A: each layer's keys and values, [prefixes, kv_heads, tokens, head_dim], with graph."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Keeps a layer's tensors; a recomputation of the layer changes nothing."""
        self.layers.setdefault(layer, (key, value))


class Block(NamedTuple):
    """Rows of suffixes that read ``prefixes`` of ``tokens`` each, equally many rows a prefix."""

    rows: slice
    prefixes: slice
    tokens: int


class PrefixRead:
    """Phase B: each layer's keys and values as leaves, which accumulate gradients. tokens: of each
    prefix. places: of each row the prefix that it reads, in ascending order."""

    def __init__(
        self, layers: dict[int, tuple[Tensor, Tensor]], tokens: Sequence[int], places: Sequence[int]
    ) -> None:
        self.layers = layers
        self.blocks = tuple(_blocks(tokens, places))


def _blocks(tokens: Sequence[int], places: Sequence[int]) -> Iterator[Block]:
    """As few as there can be: each is a call of a kernel."""
    groups = [(place, len([*rows])) for place, rows in groupby(places)]

    def alike(at: int) -> tuple[int, int, int]:
        place, rows = groups[at]
        return tokens[place], rows, place - at  # prefixes side by side are as far ahead

    row = 0
    for (size, rows, _), members in groupby(range(len(groups)), key=alike):
        some = [groups[at][0] for at in members]
        yield Block(slice(row, row + rows * len(some)), slice(some[0], some[-1] + 1), size)
        row += rows * len(some)


def shared_prefix_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    rollcast_prefix: PrefixCapture | PrefixRead | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function: query [batch, heads, tokens, head_dim], key and value likewise with
    the key-value heads; returns [batch, tokens, heads, head_dim]."""
    _refuse(module, attention_mask, dropout, kwargs)
    if rollcast_prefix is None:
        raise UnsupportedModelError(
            f"{type(module).__name__} does not hand the arguments of the model's forward to its "
            "attention function, so a shared prefix cannot be computed with it"
        )
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    layer: int = module.layer_idx  # type: ignore[assignment]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(rollcast_prefix, PrefixCapture):
        rollcast_prefix.keep(layer, key, value)
        out, _ = sdpa_attention_forward(
            module, query, key, value, None, scaling=scale, is_causal=True
        )
        return out, None
    prefix_key, prefix_value = rollcast_prefix.layers[layer]
    merged: Tensor = _MergedAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, prefix_key, prefix_value, scale, rollcast_prefix.blocks
    )
    return merged, None


def _refuse(
    module: nn.Module, attention_mask: Tensor | None, dropout: float, kwargs: dict[str, Any]
) -> None:
    """Raises UnsupportedModelError on what the merged softmax does not cover."""
    wrong = None
    if attention_mask is not None:
        wrong = "a mask"
    elif dropout:
        wrong = "dropout"
    else:
        for name in ("sliding_window", "softcap", "position_bias", "s_aux", "cache"):
            if kwargs.get(name) is not None:
                wrong = name
    if wrong:
        raise UnsupportedModelError(
            f"the shared-prefix layout does not cover attention with {wrong} "
            f"({type(module).__name__}); use the dense layout"
        )


class _MergedAttention(torch.autograd.Function):
    """Causal attention over each suffix and full attention to its prefix, as one softmax."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        prefix_key: Tensor,
        prefix_value: Tensor,
        scale: float,
        blocks: Sequence[Block],
    ) -> Tensor:
        kernel = kernel_for(query)
        with torch.autocast(query.device.type, enabled=False):
            own = Scores(query, _repeat(key, query), _repeat(value, query), scale, True)
            suffix, own_lse = kernel.forward(own)
            parts = []
            for block in blocks:
                rows = query[block.rows]
                to_prefix = _to_prefix(rows, prefix_key, prefix_value, scale, block)
                folded, folded_lse = kernel.forward(to_prefix)
                parts.append((_unfold(folded, rows), _unfold(folded_lse[..., None], rows)[..., 0]))
            shared, shared_lse = (_joined(column) for column in zip(*parts, strict=True))
            lse = torch.logaddexp(own_lse, shared_lse)
            share = torch.sigmoid(shared_lse - own_lse).to(query.dtype)[..., None]
            # [batch, tokens, heads, head_dim] in memory: the output projection keeps this very
            # tensor for its own backward.
            merged = torch.lerp(suffix, shared, share).transpose(1, 2).contiguous()
        ctx.save_for_backward(query, key, value, prefix_key, prefix_value, merged, lse)
        ctx.scale, ctx.kernel, ctx.blocks = scale, kernel, blocks  # type: ignore[attr-defined]
        return merged

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, prefix_key, prefix_value, merged, lse = ctx.saved_tensors
        scale, kv_heads = ctx.scale, key.shape[1]
        kernel: AttentionKernel = ctx.kernel
        grad, out = grads[0].transpose(1, 2), merged.transpose(1, 2)
        with torch.autocast(query.device.type, enabled=False):
            own = Scores(query, _repeat(key, query), _repeat(value, query), scale, True)
            dq, dk, dv = kernel.backward(own, grad, out, lse)
            dk, dv = (torch.unflatten(x, 1, (kv_heads, -1)).sum(2) for x in (dk, dv))
            dk_prefix, dv_prefix = torch.zeros_like(prefix_key), torch.zeros_like(prefix_value)
            parts = []
            for block in ctx.blocks:
                rows, prefixes = query[block.rows], block.prefixes
                to_prefix = _to_prefix(rows, prefix_key, prefix_value, scale, block)
                given = (x[block.rows] for x in (grad, out, lse[..., None]))
                folded = [_fold(x, to_prefix.k) for x in given]
                found = kernel.backward(to_prefix, folded[0], folded[1], folded[2][..., 0])
                parts.append(_unfold(found[0], rows))
                dk_prefix[prefixes, :, : block.tokens] = found[1]
                dv_prefix[prefixes, :, : block.tokens] = found[2]
            dq = dq + _joined(parts)
        return dq, dk, dv, dk_prefix, dv_prefix, None, None


def _to_prefix(rows: Tensor, key: Tensor, value: Tensor, scale: float, block: Block) -> Scores:
    """The scores of a block's rows against its prefixes, without their padding."""
    key, value = (x[block.prefixes, :, : block.tokens] for x in (key, value))
    return Scores(_fold(rows, key), key, value, scale, False)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts])


def _repeat(x: Tensor, query: Tensor) -> Tensor:
    """Key-value heads repeated for each query head."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], dim=1)


def _fold(x: Tensor, key: Tensor) -> Tensor:
    """[rows, heads, tokens, d] to [prefixes, kv_heads, rows * heads * tokens of each, d]."""
    prefixes, kv_heads = key.shape[:2]
    groups = x.unflatten(0, (prefixes, -1)).unflatten(2, (kv_heads, -1)).transpose(1, 2)
    return groups.reshape(prefixes, kv_heads, -1, x.shape[-1])


def _unfold(x: Tensor, query: Tensor) -> Tensor:
    """The inverse of :func:`_fold`, back to the rows, heads and tokens of ``query``."""
    rows, heads, tokens, _ = query.shape
    prefixes, kv_heads = x.shape[:2]
    shape = (rows // prefixes, heads // kv_heads, tokens, x.shape[-1])
    groups = x.reshape(prefixes, kv_heads, *shape).transpose(1, 2)
    return groups.reshape(rows, heads, tokens, x.shape[-1])


AttentionInterface.register(NAME, shared_prefix_attention)
