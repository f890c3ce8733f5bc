"""How the log-probabilities that tokens were sampled with differ from the trainer's."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_PER_DECADE, _LEAST, _MOST = 20, -7, 2
EDGES = 10.0 ** (np.arange((_MOST - _LEAST) * _PER_DECADE + 1) / _PER_DECADE + _LEAST)
"""Of the histogram of absolute differences, nats: a factor of 1.12 apart."""
SIZE = 3 + len(EDGES) + 1


def compared(trainer: Tensor, sampled: Tensor, trained: Tensor) -> Tensor:
    """Sums over trained tokens, [SIZE], float64: of the absolute difference, of r - 1 - log r with
    r the trainer's over the sampled probability (Schulman, joschu.net/blog/kl-approx.html), of
    minus the trainer's log-probability; then the histogram. All given: [tokens]; trained is 1 or
    0."""
    trained = trained.double()
    log_ratio = torch.where(trained > 0, trainer.double() - sampled.double(), 0.0)
    size = log_ratio.abs()
    divergence = torch.expm1(log_ratio) - log_ratio
    sums = torch.stack(
        [(size * trained).sum(), (divergence * trained).sum(), -(trainer.double() * trained).sum()]
    )
    edges = torch.tensor(EDGES, device=size.device)
    counts = torch.zeros(len(EDGES) + 1, dtype=torch.float64, device=size.device)
    counts.scatter_add_(0, torch.bucketize(size, edges), trained)
    return torch.cat([sums, counts])


def figures(sums: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Mean and 99th percentile of the difference, divergence and entropy; 0 of no token. The
    percentile is the upper edge of its bin; 0 where all of them are below the first."""
    counts = sums[3:]
    tokens = counts.sum()
    if not tokens:
        return 0.0, 0.0, 0.0, 0.0
    place = int(np.searchsorted(np.cumsum(counts), 0.99 * tokens))
    p99 = 0.0 if place == 0 else float(EDGES[min(place, len(EDGES) - 1)])
    mean, divergence, entropy = (float(value) for value in sums[:3] / tokens)
    return mean, p99, divergence, entropy
