"""A scenario's ``learning``: by which law accuracy rises, from where, and up to where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import Above, Doc, Options, choice, read

_ACCURACY = Above(0, 1, below=True)


@dataclass(frozen=True, slots=True)
class LearningSection(Options):
    """How well the model learns, beside how long a step takes."""

    FIELD = "learning"

    prior: Annotated[
        bool,
        Doc(
            "whether progress follows the law that rollcast brings: policies as in runs of small "
            "models, speeds as far apart as those of public runs"
        ),
    ] = False
    file: Annotated[
        Path | None,
        Doc("law of progress of your own runs, a file written by rollcast calibrate --learning"),
    ] = None
    accuracy: Annotated[
        float | None,
        _ACCURACY,
        Doc(
            "accuracy before the first update; null: the success rate that workload.rewards states",
            unit="share",
        ),
    ] = None
    target: Annotated[
        float | None,
        _ACCURACY,
        Doc("accuracy to reach, for hours and cost up to it; null: none", unit="share"),
    ] = None
    learning_rate_factor: Annotated[
        float,
        Above(0, 1000),
        Doc("learning rate over the one that the law was fitted to", unit="times"),
    ] = 1.0
    lengths: Annotated[
        bool,
        Doc("whether response lengths drift as accuracy changes, as right and wrong ones differ"),
    ] = False

    @classmethod
    def from_text(cls, kind: str, field: str = FIELD) -> LearningSection:
        """``prior`` alone. Raises ScenarioError."""
        choice(kind, field, ("prior",))
        return read(cls, {"prior": True}, field)

    def agree(self) -> None:
        """One law, and a target above the start."""
        if self.prior == (self.file is not None):
            raise ScenarioError(
                self.FIELD, "must have exactly one of prior: true and file: of a fitted law"
            )
        if None not in (self.accuracy, self.target):
            check_target(self.accuracy, self.target)


def check_target(start: float | None, target: float | None) -> None:
    """Raises ScenarioError (``learning.target``) for a target that training starts from already."""
    if start is not None and target is not None and target <= start:
        raise ScenarioError(
            "learning.target",
            f"is {target:g}, and the accuracy at the start is {start:g} (learning.accuracy, or "
            "workload.rewards): give a higher target",
        )
