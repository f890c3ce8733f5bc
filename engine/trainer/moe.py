"""The load-balancing loss of mixture-of-experts models over a whole batch.

Switch Transformer's auxiliary loss (arXiv 2101.03961, equations 4 to 6) in Hugging Face's form:
``experts * sum_e f_e P_e``, with f_e the routed choices of expert e and P_e its summed router
probability, over (layers x tokens). f_e has no gradient. Counted beforehand for the whole batch, it
makes the loss linear in P_e, which splits exactly over microbatches; a group's prefix counts once
for each rollout (logical counting, arXiv 2606.01143). Each sequence counts its prompt and its
response without the last token, trained or masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RouterSums:
    """Sums over layers and tokens. probabilities: [experts], perhaps with a graph. counts: choices
    of each expert, [experts], float64. rows: layers x tokens."""

    probabilities: Tensor
    counts: Tensor
    rows: int


@dataclass(frozen=True, slots=True)
class Router:
    """A model's routers, by its configuration."""

    experts: int
    top_k: int
    coefficient: float

    @classmethod
    def of(cls, config: Any, coefficient: float | None) -> Router | None:
        """A model's routers; None where there are none or their loss does not count.
        ``coefficient`` None: the model's own, if it asks for its router logits (Hugging Face's
        condition), else 0."""
        experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
        if not experts:
            return None
        if coefficient is None:
            wanted = getattr(config, "output_router_logits", False)
            coefficient = float(getattr(config, "router_aux_loss_coef", 0.0)) if wanted else 0.0
        if coefficient == 0:
            return None
        return cls(int(experts), int(config.num_experts_per_tok), coefficient)

    def sums(self, router_logits: Sequence[Tensor], valid: Tensor | None) -> RouterSums:
        """Sums each layer's logits, [tokens, experts], over the ``valid`` tokens."""
        probabilities: list[Tensor] = []
        counts: list[Tensor] = []
        rows = 0
        for logits in router_logits:
            logits = logits.reshape(-1, self.experts)
            if valid is not None:
                logits = logits[valid]
            dtype = logits.dtype if logits.dtype == torch.float64 else torch.float32
            routed = logits.softmax(-1, dtype=dtype)
            chosen = routed.detach().topk(self.top_k, dim=-1).indices.flatten()
            probabilities.append(routed.sum(0))
            counts.append(torch.bincount(chosen, minlength=self.experts))
            rows += logits.shape[0]
        return RouterSums(
            torch.stack(probabilities).sum(0), torch.stack(counts).sum(0).double(), rows
        )


class RouterBalance:
    """The batch's auxiliary loss: count all microbatches first, then take each one's share."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self._counts: Tensor | None = None
        self._rows = 0

    def count(self, sums: RouterSums, times: int = 1) -> None:
        """Adds a microbatch to the counts, ``times`` times."""
        counts = sums.counts * times
        self._counts = counts if self._counts is None else self._counts + counts
        self._rows += sums.rows * times

    def counted(self) -> tuple[list[float], int]:
        """The counts as plain numbers: choices of each expert, and rows."""
        return ([] if self._counts is None else self._counts.tolist(), self._rows)

    def count_all(self, counted: Sequence[tuple[list[float], int]], device: torch.device) -> None:
        """Replaces the counts by the sum of these, one of each rank."""
        tensors = [torch.tensor(counts, dtype=torch.float64) for counts, _ in counted if counts]
        self._counts = torch.stack(tensors).sum(0).to(device) if tensors else None
        self._rows = sum(rows for _, rows in counted)

    def loss(self, sums: RouterSums, times: int = 1) -> Tensor:
        """A microbatch's share of the batch's weighted loss, with gradient."""
        if self._counts is None:
            raise RuntimeError("the batch must be counted before its loss is asked for")
        fractions = (self._counts / self._rows).to(sums.probabilities.dtype)
        mean = (fractions * sums.probabilities).sum() / self._rows
        return self.router.coefficient * self.router.experts * times * mean
