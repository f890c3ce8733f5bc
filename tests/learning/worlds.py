"""A small scenario with a law that says something of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from rollcast.simulator.learning.data import prior, save
from rollcast.simulator.learning.law import Law, LengthLaw
from tests.scenarios import TINY


def anywhere(law: Law, reached: float = 0.95) -> Law:
    """The law as if it had been fitted to runs of any size."""
    wide = (0.0, 1e9)
    domain = replace(
        law.domain,
        start=(0.0, 1.0),
        reached=reached,
        rollouts=wide,
        group_size=wide,
        kept=wide,
        age=wide,
        minibatches=wide,
        learning_rate=wide,
        lag=None,
    )
    return replace(law, domain=domain)


def as_fast_as_ours(law: Law) -> Law:
    """The law with the speed of small models on small tasks, known to a factor of two."""
    covariance = np.array(law.covariance)
    covariance[0], covariance[:, 0] = 0.0, 0.0
    covariance[0, 0] = 0.5
    parameters = {**law.parameters, "log_speed": -1.8}
    return replace(law, parameters=parameters, covariance=tuple(map(tuple, covariance.tolist())))


LONGER = LengthLaw(
    right_slope=0.5,
    wrong_slope=0.2,
    ratio=1.4,
    right_slope_error=0.05,
    wrong_slope_error=0.05,
    ratio_error=0.1,
    spread=0.1,
)
"""Answers grow as accuracy does, and wrong ones are longer."""


def written(folder: Path) -> Path:
    """The file of a synchronous scenario, beside its law, which knows no lengths, and one that does
    (longer.json): from accuracy 0.3 to 0.6."""
    law = as_fast_as_ours(anywhere(prior()))
    save(replace(law, lengths=None), folder / "law.json")
    save(replace(law, lengths=LONGER), folder / "longer.json")
    path = folder / "scenario.yaml"
    text = TINY.replace("policy:\n  - april: {over_sampling: 2.0}\n", "")
    path.write_text(text + "learning: {file: law.json, accuracy: 0.3, target: 0.6}\n")
    return path
