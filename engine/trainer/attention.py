"""Attention from suffixes to one shared prefix, for Hugging Face models.

Registered with transformers' AttentionInterface. Phase A returns each layer's keys and values.
Phase B folds the queries of every suffix, and of every query head of a key-value head, onto the
single prefix: no copy of the prefix and no mask. Attention within the suffix is computed apart and
merged by log-sum-exp. The backward calls each kernel with the merged output and log-sum-exp, which
is exact (the idea of ring attention, arXiv 2310.01889).

The phase is an argument of the model's forward: a global would be wrong when activation
checkpointing recomputes a layer.
"""

from __future__ import annotations

from typing import Any

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
    """Phase A: each layer's keys and values, [1, kv_heads, tokens, head_dim], with their graph."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Keeps a layer's tensors; a recomputation of the layer changes nothing."""
        self.layers.setdefault(layer, (key, value))


class PrefixRead:
    """Phase B: each layer's keys and values as leaves, which accumulate gradients."""

    def __init__(self, layers: dict[int, tuple[Tensor, Tensor]]) -> None:
        self.layers = layers


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
        query, key, value, prefix_key, prefix_value, scale
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
    """Causal attention over each suffix and full attention to the prefix, as one softmax."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        prefix_key: Tensor,
        prefix_value: Tensor,
        scale: float,
    ) -> Tensor:
        kernel, kv_heads = kernel_for(query), key.shape[1]
        with torch.autocast(query.device.type, enabled=False):
            own = Scores(query, _repeat(key, query), _repeat(value, query), scale, True)
            suffix, own_lse = kernel.forward(own)
            to_prefix = Scores(_fold(query, kv_heads), prefix_key, prefix_value, scale, False)
            folded, folded_lse = kernel.forward(to_prefix)
            shared = _unfold(folded, query)
            shared_lse = _unfold(folded_lse[..., None], query)[..., 0]
            lse = torch.logaddexp(own_lse, shared_lse)
            share = torch.sigmoid(shared_lse - own_lse).to(query.dtype)[..., None]
            # [batch, tokens, heads, head_dim] in memory: the output projection keeps this very
            # tensor for its own backward.
            merged = torch.lerp(suffix, shared, share).transpose(1, 2).contiguous()
        ctx.save_for_backward(query, key, value, prefix_key, prefix_value, merged, lse)
        ctx.scale, ctx.kernel = scale, kernel  # type: ignore[attr-defined]
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
            to_prefix = Scores(_fold(query, kv_heads), prefix_key, prefix_value, scale, False)
            folded_lse = _fold(lse[..., None], kv_heads)[..., 0]
            dq_shared, dk_prefix, dv_prefix = kernel.backward(
                to_prefix, _fold(grad, kv_heads), _fold(out, kv_heads), folded_lse
            )
            dq = dq + _unfold(dq_shared, query)
        return dq, dk, dv, dk_prefix, dv_prefix, None


def _repeat(x: Tensor, query: Tensor) -> Tensor:
    """Key-value heads repeated for each query head."""
    return x.repeat_interleave(query.shape[1] // x.shape[1], dim=1)


def _fold(x: Tensor, kv_heads: int) -> Tensor:
    """[batch, heads, tokens, d] to [1, kv_heads, batch * heads / kv_heads * tokens, d]."""
    groups = torch.unflatten(x, 1, (kv_heads, -1)).transpose(0, 1)
    return groups.reshape(1, kv_heads, -1, x.shape[-1])


def _unfold(x: Tensor, query: Tensor) -> Tensor:
    """The inverse of :func:`_fold`, back to the batch, heads and tokens of ``query``."""
    batch, heads, tokens, _ = query.shape
    kv_heads = x.shape[1]
    groups = x.reshape(kv_heads, batch, heads // kv_heads, tokens, x.shape[-1])
    return groups.transpose(0, 1).reshape(batch, heads, tokens, x.shape[-1])


AttentionInterface.register(NAME, shared_prefix_attention)
