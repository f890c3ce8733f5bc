"""Which mode a model is in: training, or evaluation (no dropout)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """The enclosed code finds the model in that mode; afterwards it is in the one it was in."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)
