"""The speed probe of a run: the same small computation, timed between steps. A shared or throttled
machine changes speed over hours; a run's spans cannot tell that from costlier work, the probe
can."""

from __future__ import annotations

from random import Random

import torch

from rollcast.engine.edges import Beat
from rollcast.engine.trainer.clock import Clock
from rollcast.engine.trainer.mode import in_mode
from rollcast.engine.trainer.model import LogProbModel

SHORT_TOKENS, SHORT_REPEATS = 8, 4
LONG_TOKENS, ROW_TOKENS = 2048, 256


class Pulse:
    """Forward passes of a model on made-up tokens, with its current weights, without gradients or
    randomness. short: the mean of four passes of 8 tokens. long: rows of 256 tokens, or of the
    context, 2,048 in all."""

    def __init__(self, runner: LogProbModel) -> None:
        model = runner.model
        config = model.config.get_text_config()
        row = min(ROW_TOKENS, getattr(config, "max_position_embeddings", None) or ROW_TOKENS)
        rng = Random(0)
        self._model, self._runner = model, runner
        self._short = self._ids(rng, config.vocab_size, 1, min(SHORT_TOKENS, row))
        self._long = self._ids(rng, config.vocab_size, max(1, LONG_TOKENS // row), row)
        self._pass(self._long)  # the first pass of a shape pays for more than itself

    def take(self) -> Beat:
        """Times both."""
        short = [self._pass(self._short) for _ in range(1 + SHORT_REPEATS)][1:]
        return Beat(sum(short) / SHORT_REPEATS, self._pass(self._long))

    def _ids(self, rng: Random, vocabulary: int, rows: int, tokens: int) -> torch.Tensor:
        ids = [[rng.randrange(vocabulary) for _ in range(tokens)] for _ in range(rows)]
        return torch.tensor(ids, device=self._runner.device)

    def _pass(self, ids: torch.Tensor) -> float:
        clock = Clock(self._runner.device)
        with in_mode(self._model, training=False), clock("pass"):
            self._runner.logits(ids)
        return clock.seconds["pass"]
