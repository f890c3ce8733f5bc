"""The course of the learning rate over optimiser updates, as the trainer sets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.values import AtLeast, Doc, Options, read

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RateSchedule(Options):
    """Keys of ``engine.trainer`` that say how the learning rate rises and falls."""

    FIELD = "engine.trainer"

    warmup_updates: Annotated[
        int,
        AtLeast(0),
        Doc("optimiser updates over which the learning rate rises from 0", unit="updates"),
    ] = 0
    schedule: Annotated[
        Literal["constant", "linear", "cosine"],
        Doc("course of the learning rate after the warm-up: constant, or down to 0"),
    ] = "constant"
    schedule_updates: Annotated[
        int | None,
        AtLeast(1),
        Doc(
            "optimiser updates after which a falling learning rate is 0, warm-up included; null: "
            "those of the run",
            unit="updates",
        ),
    ] = None

    @property
    def open_ended(self) -> bool:
        """Whether the rate falls, and only the length of the run says when it is 0."""
        return self.schedule != "constant" and self.schedule_updates is None

    def rate_factor(self, updates: Any) -> Any:
        """What the learning rate is multiplied by after so many optimiser updates, a number or an
        array; an open-ended schedule does not fall."""
        done, factor = np.asarray(updates), np.asarray(1.0)
        if self.schedule_updates is not None and self.schedule != "constant":
            falling = max(1, self.schedule_updates - self.warmup_updates)
            left = np.clip(1 - (done - self.warmup_updates) / falling, 0.0, 1.0)
            factor = left if self.schedule == "linear" else (1 - np.cos(np.pi * left)) / 2
        rising = (done + 1) / max(self.warmup_updates, 1)
        return np.where(done < self.warmup_updates, rising, factor)[()]

    def rates(self, updates: NDArray[np.int64], minibatches: int) -> FloatArray:
        """The same of updates numbered from 0, of so many optimiser updates each: their means, in
        the shape of ``updates``."""
        parts = updates[..., None] * minibatches + np.arange(minibatches)
        return np.asarray(self.rate_factor(parts).mean(axis=-1))


CONSTANT = RateSchedule()


def schedule_of(trainer: Mapping[str, Any] | None) -> RateSchedule:
    """The schedule in the options of ``engine.trainer``. Raises ScenarioError."""
    names = {field.name for field in fields(RateSchedule)}
    given = {key: value for key, value in (trainer or {}).items() if key in names}
    return read(RateSchedule, given, RateSchedule.FIELD)
