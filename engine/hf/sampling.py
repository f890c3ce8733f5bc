"""One token of each rollout, by a random number of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

_BITS = 53


def uniform(seed: int, tokens: int) -> float:
    """A number in [0, 1) for what follows ``tokens`` tokens of a rollout; the same wherever and
    beside whatever it is drawn."""
    digest = hashlib.blake2b(f"{seed} {tokens}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> (64 - _BITS)) / (1 << _BITS)


def draw(scores: Tensor, numbers: Sequence[float], greedy: bool) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probabilities, [rows] each, of processed scores [rows, vocabulary],
    float32: by inversion of the cumulative distribution, in the order of the token ids."""
    log_probs = scores.log_softmax(-1)
    if greedy:
        chosen = scores.argmax(-1)
    else:
        summed = log_probs.exp().cumsum(-1)
        wanted = torch.tensor(numbers, dtype=summed.dtype, device=summed.device)
        wanted = wanted[:, None] * summed[:, -1:]
        # Right: the first token whose sum is above the number, which is never an impossible one.
        chosen = torch.searchsorted(summed, wanted, right=True)[:, 0]
        last = (summed < summed[:, -1:]).sum(-1)  # where a product was rounded up to the whole sum
        chosen = torch.minimum(chosen, last)
    return chosen, log_probs.gather(1, chosen[:, None])[:, 0]
