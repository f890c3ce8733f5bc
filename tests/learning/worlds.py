"""A small scenario with a law that says something of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rollcast.simulator.learning.data import prior, save
from rollcast.simulator.learning.law import Law
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
    )
    return replace(law, domain=domain)


def written(folder: Path) -> Path:
    """The file of a synchronous scenario, beside its law: from accuracy 0.3 to 0.6."""
    save(anywhere(prior()), folder / "law.json")
    path = folder / "scenario.yaml"
    text = TINY.replace("policy:\n  - april: {over_sampling: 2.0}\n", "")
    path.write_text(text + "learning: {file: law.json, accuracy: 0.3, target: 0.6}\n")
    return path
