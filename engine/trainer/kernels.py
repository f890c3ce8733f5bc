"""Attention kernels that tell the log-sum-exp, which is what lets two parts of one softmax be
computed apart and merged.

PyTorch's public attention hides it, so the fast kernels here call private operators. None is
trusted before it has agreed with :class:`PlainKernel` on a small input, on the device and in the
type at hand; otherwise the plain one takes its place.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

_aten = torch.ops.aten


class AttentionKernel(Protocol):
    """Softmax attention over one set of keys.

    Queries, keys and values are [batch, heads, tokens, head_dim] with the same number of heads.
    """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """The output, like ``q``, and the log-sum-exp of each query's scores, [batch, heads,
        tokens] in at least float32. ``causal`` needs as many keys as queries."""
        ...

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        scale: float,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of ``q``, ``k`` and ``v``, where ``out`` and ``lse`` may belong to a softmax
        over more keys than these: the probabilities are ``exp(scores - lse)``."""
        ...


class PlainKernel:
    """Matrix products in any type on any device, some queries at a time to bound the memory."""

    def __init__(self, max_scores: int = 1 << 25) -> None:
        self.max_scores = max_scores

    def _chunks(self, q: Tensor, k: Tensor) -> list[slice]:
        rows = max(1, self.max_scores // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
        return [slice(i, min(i + rows, q.shape[2])) for i in range(0, q.shape[2], rows)]

    def _scores(self, q: Tensor, k: Tensor, rows: slice, scale: float, causal: bool) -> Tensor:
        scores = (_wide(q[:, :, rows]) @ _wide(k).transpose(-1, -2)) * scale
        if causal:
            query = torch.arange(rows.start, rows.stop, device=q.device)
            key = torch.arange(k.shape[2], device=q.device)
            scores = scores.masked_fill(key[None, :] > query[:, None], -inf)
        return scores

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """See :class:`AttentionKernel`."""
        out, lse = torch.empty_like(q), _wide(q.new_empty(q.shape[:3]))
        for rows in self._chunks(q, k):
            scores = self._scores(q, k, rows, scale, causal)
            lse[:, :, rows] = scores.logsumexp(-1)
            probabilities = (scores - lse[:, :, rows, None]).exp()
            out[:, :, rows] = (probabilities @ _wide(v)).to(out.dtype)
        return out, lse

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        scale: float,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`AttentionKernel`; FlashAttention-2's equations (arXiv 2307.08691)."""
        dq = torch.empty_like(q)
        dk, dv = torch.zeros_like(_wide(k)), torch.zeros_like(_wide(v))
        for rows in self._chunks(q, k):
            scores = self._scores(q, k, rows, scale, causal)
            probabilities = (scores - lse[:, :, rows, None]).exp()
            g = _wide(grad[:, :, rows])
            dv += probabilities.transpose(-1, -2) @ g
            delta = (g * _wide(out[:, :, rows])).sum(-1, keepdim=True)
            ds = probabilities * (g @ _wide(v).transpose(-1, -2) - delta) * scale
            dq[:, :, rows] = (ds @ _wide(k)).to(dq.dtype)
            dk += ds.transpose(-1, -2) @ _wide(q[:, :, rows])
        return dq, dk.to(k.dtype), dv.to(v.dtype)


class CpuFlashKernel:
    """PyTorch's flash attention for CPUs."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """See :class:`AttentionKernel`."""
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, scale=scale
        )
        return out, lse

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        scale: float,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`AttentionKernel`."""
        dq, dk, dv = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal, scale=scale
        )
        return dq, dk, dv


class CudaFlashKernel:
    """FlashAttention-2 as PyTorch ships it: float16 and bfloat16 on CUDA."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """See :class:`AttentionKernel`."""
        result = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)
        return result[0], result[1]

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        scale: float,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`AttentionKernel`."""
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # unread: there is no dropout
        dq, dk, dv = _aten._scaled_dot_product_flash_attention_backward(
            grad,
            q,
            k,
            v,
            out,
            lse.contiguous(),
            None,
            None,
            q.shape[2],
            k.shape[2],
            0.0,
            causal,
            seed,
            seed[0],
            scale=scale,
        )
        return dq, dk, dv


class CudaEfficientKernel:
    """The memory-efficient kernel: float32 on CUDA. Its log-sum-exp is padded to 32 queries."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """See :class:`AttentionKernel`."""
        result = _aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, causal, scale=scale
        )
        return result[0], result[1][..., : q.shape[2]]

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        scale: float,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`AttentionKernel`."""
        lse = functional.pad(lse, (0, -q.shape[2] % 32), value=inf).contiguous()
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        dq, dk, dv, _ = _aten._scaled_dot_product_efficient_attention_backward(
            grad,
            q,
            k,
            v,
            None,
            out,
            lse,
            seed,
            seed,
            0.0,
            [True, True, True, False],
            causal,
            scale=scale,
        )
        return dq, dk, dv


def kernel_for(q: Tensor) -> AttentionKernel:
    """The fastest kernel that is right for tensors like ``q``."""
    return _chosen(q.device, q.dtype, q.shape[-1])


@lru_cache(maxsize=64)
def _chosen(device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionKernel:
    fast: AttentionKernel | None = None
    if device.type == "cpu":
        fast = CpuFlashKernel()
    elif device.type == "cuda" and dtype in (torch.float16, torch.bfloat16):
        fast = CudaFlashKernel()
    elif device.type == "cuda" and dtype == torch.float32:
        fast = CudaEfficientKernel()
    if fast is not None and agrees_with_plain(fast, device, dtype, head_dim):
        return fast
    return PlainKernel()


_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def agrees_with_plain(
    kernel: AttentionKernel, device: torch.device, dtype: torch.dtype, head_dim: int
) -> bool:
    """Whether ``kernel`` does what :class:`PlainKernel` does, on a small input: also where output
    and log-sum-exp belong to a larger softmax, which merging relies on."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    plain, tolerance = PlainKernel(), _TOLERANCE.get(dtype, 5e-2)
    try:
        with torch.no_grad():
            for queries, keys, causal in ((37, 37, True), (70, 21, False)):
                q, k, v = (draw(2, 2, n, head_dim) for n in (queries, keys, keys))
                scale = head_dim**-0.5
                out, lse = kernel.forward(q, k, v, scale, causal)
                expected, expected_lse = plain.forward(q, k, v, scale, causal)
                grad, merged = draw(2, 2, queries, head_dim), expected_lse + 0.5
                arguments = (grad, q, k, v, 0.5 * expected, merged, scale, causal)
                pairs = [(out, expected), (lse, expected_lse)]
                pairs += zip(kernel.backward(*arguments), plain.backward(*arguments), strict=True)
                for got, wanted in pairs:
                    if got.shape != wanted.shape:
                        return False
                    if not torch.allclose(_wide(got), _wide(wanted), tolerance, tolerance):
                        return False
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):
        return False  # this build or device has no such operator
    return True


def _wide(x: Tensor) -> Tensor:
    """``x`` in the type that softmax is computed in."""
    return x if x.dtype == torch.float64 else x.float()
