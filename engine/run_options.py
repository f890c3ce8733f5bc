"""What a real run does beside sampling and training: saves, evaluation, curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rollcast.simulator.values import AtLeast, Between, Doc, Options

_COUNT = AtLeast(1)


@dataclass(frozen=True, slots=True)
class SaveOptions(Options):
    """How a run with ``--out`` is saved, so that ``--resume`` goes on with it, and what stays of
    its trainer at the end."""

    FIELD = "engine.save"

    every: Annotated[
        int,
        _COUNT,
        Doc(
            "updates between two saves; one that would begin while the one before is still "
            "being written is left out",
            unit="updates",
        ),
    ] = 1
    keep: Annotated[
        int, _COUNT, Doc("number of last saves that are kept while it runs", unit="saves")
    ] = 2
    samples: Annotated[
        int,
        AtLeast(0),
        Doc("rollouts of each batch whose text is written to samples.jsonl", unit="rollouts"),
    ] = 2
    final: Annotated[
        bool,
        Doc(
            "whether a finished run keeps its model (DIR/model, a Hugging Face folder) and its "
            "last save (DIR/checkpoint, to go on with more steps)"
        ),
    ] = True


@dataclass(frozen=True, slots=True)
class EvaluationOptions(Options):
    """How often held-out prompts are asked, and how many."""

    FIELD = "engine.evaluation"

    every: Annotated[
        int,
        _COUNT,
        Doc(
            "steps between two evaluations; the first is before the first step, and one more after "
            "the last step",
            unit="steps",
        ),
    ] = 10
    prompts: Annotated[
        int,
        Between(1, 100_000),
        Doc("held-out prompts of each evaluation, the same every time", unit="prompts"),
    ] = 64
    rollouts: Annotated[
        int, Between(1, 1024), Doc("rollouts of each of these prompts", unit="rollouts")
    ] = 1


@dataclass(frozen=True, slots=True)
class WandbOptions(Options):
    """A run of Weights & Biases, which gets the curves that TensorBoard gets."""

    FIELD = "engine.wandb"

    project: Annotated[str, Doc("name of the project")] = "rollcast"
    name: Annotated[str | None, Doc("name of the run; null: one that wandb makes up")] = None
    mode: Annotated[
        Literal["online", "offline"],
        Doc("online, or offline: into the folder wandb/, for wandb sync afterwards"),
    ] = "online"
