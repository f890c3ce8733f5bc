"""Low-rank adapters of a real run's trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from rollcast.simulator.values import POSITIVE, AtLeast, Doc, Options

ALL_LINEAR = "all-linear"


@dataclass(frozen=True, slots=True)
class LoraConfig(Options):
    """LoRA (arXiv 2106.09685) by peft: the model's own weights stay as they are, and low-rank
    additions to them are trained."""

    FIELD = "engine.trainer.lora"

    rank: Annotated[int, AtLeast(1), Doc("rank of the additions", unit="rank")] = 32
    alpha: Annotated[
        float | None,
        POSITIVE,
        Doc("additions are multiplied by alpha / rank; null: twice the rank", unit="factor"),
    ] = None
    targets: Annotated[
        Any,
        Doc(
            "adapted layers: all-linear (linear layers but the output head; not the experts of a "
            "mixture), or a list of names such as [q_proj, v_proj]"
        ),
    ] = ALL_LINEAR

    @property
    def scale(self) -> float:
        """The additions' factor times the rank."""
        return 2.0 * self.rank if self.alpha is None else self.alpha

    def agree(self) -> None:
        """Targets are names."""
        given = self.targets
        if given == ALL_LINEAR:
            return
        if not isinstance(given, list) or not given or not all(type(n) is str for n in given):
            raise self.refuse(
                "targets", f"is {given!r}; it is {ALL_LINEAR} or a list of names of layers"
            )
