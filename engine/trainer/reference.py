"""The model that a run began with, from which the trained one's divergence is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from torch import Tensor
from transformers import PreTrainedModel

from rollcast.engine.options import TrainerConfig
from rollcast.engine.trainer.batch import Example
from rollcast.engine.trainer.clock import Clock
from rollcast.engine.trainer.passes import Passes, Work
from rollcast.engine.trainer.ranks import Ranks

Around = Callable[[], AbstractContextManager[None]]


class Reference:
    """Log-probabilities by dense passes, without gradient. around: what they happen within."""

    def __init__(self, passes: Passes, around: Around) -> None:
        self._passes, self._around = passes, around

    def log_probs(self, examples: Sequence[Example], clock: Clock) -> dict[Example, Tensor]:
        """Of each response token, by example; seconds count as ``log_prob``. A collective call."""
        work = Work(shared_prefix=False, clock=clock)
        with self._around():
            self._passes.observe(examples, work, keep=True)
        return work.old


def of_its_own(
    model: PreTrainedModel,
    config: TrainerConfig,
    ranks: Ranks | None = None,
    visits: str | None = None,
) -> Reference:
    """A model beside the trained one. ranks: among which it is sharded. visits: the device on which
    it is for its passes, and in host memory between them; None: it stays where it is."""
    model.requires_grad_(False)
    loss = replace(config.loss, kl_coefficient=None)
    plain = replace(config, loss=loss, checkpoint="none", router_aux_coefficient=0.0)
    passes = Passes(model, plain, ranks or Ranks())

    @contextmanager
    def visiting() -> Iterator[None]:
        if visits is not None:
            model.to(visits)
        try:
            yield
        finally:
            if visits is not None:
                model.to("cpu")

    return Reference(passes, visiting)
