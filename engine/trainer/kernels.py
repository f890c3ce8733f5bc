"""Attention kernels that return the log-sum-exp, by which two parts of one softmax can be computed
apart and merged.

PyTorch's public attention hides it, so the fast kernels call private operators. Each is used only
after it has agreed with `PlainKernel` on a small input, on the same device and in the same type.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

_aten = torch.ops.aten


class Scores(NamedTuple):
    """What is attended to: queries, keys and values, [batch, heads, tokens, head_dim] with the same
    number of heads. causal: query i sees keys up to i; needs as many keys as queries."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    causal: bool


class AttentionKernel(Protocol):
    """Softmax attention over one set of keys."""

    def forward(self, a: Scores) -> tuple[Tensor, Tensor]:
        """The output, like ``q``, and the log-sum-exp of each query's scores, [batch, heads,
        tokens] in at least float32."""
        ...

    def backward(
        self, a: Scores, grad: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of ``q``, ``k`` and ``v``. ``out`` and ``lse`` may be those of a softmax over
        more keys than these: the probabilities are ``exp(scores - lse)``."""
        ...


class PlainKernel:
    """Matrix products in any type on any device. max_scores: computed at a time."""

    def __init__(self, max_scores: int = 1 << 25) -> None:
        self.max_scores = max_scores

    def _chunks(self, a: Scores) -> list[slice]:
        batch, heads, queries, _ = a.q.shape
        rows = max(1, self.max_scores // max(1, batch * heads * a.k.shape[2]))
        return [slice(i, min(i + rows, queries)) for i in range(0, queries, rows)]

    def _scores(self, a: Scores, rows: slice) -> Tensor:
        scores = (_wide(a.q[:, :, rows]) @ _wide(a.k).transpose(-1, -2)) * a.scale
        if a.causal:
            query = torch.arange(rows.start, rows.stop, device=a.q.device)
            key = torch.arange(a.k.shape[2], device=a.q.device)
            scores = scores.masked_fill(key[None, :] > query[:, None], -inf)
        return scores

    def forward(self, a: Scores) -> tuple[Tensor, Tensor]:
        """See `AttentionKernel`."""
        out, lse = torch.empty_like(a.q), _wide(a.q.new_empty(a.q.shape[:3]))
        for rows in self._chunks(a):
            scores = self._scores(a, rows)
            lse[:, :, rows] = scores.logsumexp(-1)
            probabilities = (scores - lse[:, :, rows, None]).exp()
            out[:, :, rows] = (probabilities @ _wide(a.v)).to(out.dtype)
        return out, lse

    def backward(
        self, a: Scores, grad: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `AttentionKernel`; FlashAttention-2's equations (arXiv 2307.08691)."""
        dq = torch.empty_like(a.q)
        dk, dv = torch.zeros_like(_wide(a.k)), torch.zeros_like(_wide(a.v))
        for rows in self._chunks(a):
            probabilities = (self._scores(a, rows) - lse[:, :, rows, None]).exp()
            g = _wide(grad[:, :, rows])
            dv += probabilities.transpose(-1, -2) @ g
            delta = (g * _wide(out[:, :, rows])).sum(-1, keepdim=True)
            ds = probabilities * (g @ _wide(a.v).transpose(-1, -2) - delta) * a.scale
            dq[:, :, rows] = (ds @ _wide(a.k)).to(dq.dtype)
            dk += ds.transpose(-1, -2) @ _wide(a.q[:, :, rows])
        return dq, dk.to(a.k.dtype), dv.to(a.v.dtype)


class CpuFlashKernel:
    """PyTorch's flash attention for CPUs."""

    def forward(self, a: Scores) -> tuple[Tensor, Tensor]:
        """See `AttentionKernel`."""
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
            a.q, a.k, a.v, 0.0, a.causal, scale=a.scale
        )
        return out, lse

    def backward(
        self, a: Scores, grad: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `AttentionKernel`."""
        dq, dk, dv = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, a.q, a.k, a.v, out, lse, 0.0, a.causal, scale=a.scale
        )
        return dq, dk, dv


class CudaFlashKernel:
    """FlashAttention-2 as PyTorch ships it: float16 and bfloat16 on CUDA."""

    def forward(self, a: Scores) -> tuple[Tensor, Tensor]:
        """See `AttentionKernel`."""
        result = _aten._scaled_dot_product_flash_attention(
            a.q, a.k, a.v, 0.0, a.causal, scale=a.scale
        )
        return result[0], result[1]

    def backward(
        self, a: Scores, grad: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `AttentionKernel`."""
        saved = (grad, a.q, a.k, a.v, out, lse.contiguous())
        lengths = (None, None, a.q.shape[2], a.k.shape[2])
        seed = torch.zeros(2, dtype=torch.uint64, device=a.q.device)  # unread: no dropout
        dq, dk, dv = _aten._scaled_dot_product_flash_attention_backward(
            *saved, *lengths, 0.0, a.causal, seed, seed[0], scale=a.scale
        )
        return dq, dk, dv


class CudaEfficientKernel:
    """The memory-efficient kernel: float32 on CUDA. Its log-sum-exp is padded to 32 queries."""

    def forward(self, a: Scores) -> tuple[Tensor, Tensor]:
        """See `AttentionKernel`."""
        result = _aten._scaled_dot_product_efficient_attention(
            a.q, a.k, a.v, None, True, 0.0, a.causal, scale=a.scale
        )
        return result[0], result[1][..., : a.q.shape[2]]

    def backward(
        self, a: Scores, grad: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `AttentionKernel`."""
        lse = functional.pad(lse, (0, -a.q.shape[2] % 32), value=inf).contiguous()
        saved = (grad, a.q, a.k, a.v, None, out, lse)
        seed = torch.zeros((), dtype=torch.int64, device=a.q.device)  # unread: no dropout
        wanted = [True, True, True, False]
        dq, dk, dv, _ = _aten._scaled_dot_product_efficient_attention_backward(
            *saved, seed, seed, 0.0, wanted, a.causal, scale=a.scale
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
    """Whether ``kernel`` agrees with `PlainKernel` on a small input, also where output and
    log-sum-exp belong to a larger softmax."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    plain, tolerance = PlainKernel(), _TOLERANCE.get(dtype, 5e-2)
    try:
        with torch.no_grad():
            for queries, keys, causal in ((37, 37, True), (70, 21, False)):
                q, k, v = (draw(2, 2, n, head_dim) for n in (queries, keys, keys))
                a = Scores(q, k, v, head_dim**-0.5, causal)
                out, lse = kernel.forward(a)
                expected, expected_lse = plain.forward(a)
                grad, merged = draw(2, 2, queries, head_dim), expected_lse + 0.5
                given = (a, grad, 0.5 * expected, merged)
                pairs = [(out, expected), (lse, expected_lse)]
                pairs += zip(kernel.backward(*given), plain.backward(*given), strict=True)
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
