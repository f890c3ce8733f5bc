"""Times of environments and judges: like lengths, with effects of prompt, rollout and call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from rollcast.simulator.values import SHARE, Above, Between, Doc, Options, nearest
from rollcast.simulator.workload.length_specs import SPREAD, Family
from rollcast.simulator.workload.lengths import FAMILIES, FloatArray, NormalEffect
from rollcast.simulator.workload.turn_presets import turn_presets

LARGEST_S = 1e6
_LOG = "standard deviation of the log"
SECONDS = Between(0, LARGEST_S)
_MEDIAN = Doc("median time for an average prompt and rollout")
_SD = Doc("spread of the log time between the calls of a rollout", unit=_LOG)
_BETWEEN = Doc("spread of the log time between prompts", unit=_LOG)
_WITHIN = Doc("spread of the log time between the rollouts of a prompt", unit=_LOG)


@dataclass(frozen=True, slots=True)
class SecondsModel:
    """Seconds: log-normal effects of prompt and rollout, times one of ``family`` with median 1 per
    call. hang: share of calls that never end."""

    family: str
    median_s: float
    sd: float = 0.0
    between_sd: float = 0.0
    within_sd: float = 0.0
    hang: float = 0.0

    def draw(
        self, prompt_z: float, rollout_z: FloatArray, u: FloatArray, hang_u: FloatArray
    ) -> FloatArray:
        """Seconds, in the shape of ``u`` and ``hang_u``; infinite for a call that never ends."""
        if self.median_s <= 0:
            seconds = np.zeros_like(u)
        else:
            effect = FAMILIES[self.family](self.sd) if self.sd > 0 else NormalEffect(0.0)
            log = math.log(self.median_s) + self.between_sd * prompt_z
            with np.errstate(over="ignore"):
                seconds = np.exp(log + self.within_sd * rollout_z + effect.ppf(u))
            seconds = np.minimum(seconds, LARGEST_S)
        return np.where(hang_u < self.hang, np.inf, seconds)


@dataclass(frozen=True, slots=True)
class DrawnSeconds(Options):
    """Seconds drawn from one family."""

    FIELD = "environment.turn_s"

    family: Annotated[Family, Doc("distribution of the time over calls")]
    median_s: Annotated[float, Above(0, LARGEST_S), _MEDIAN]
    sd: Annotated[float, SPREAD, _SD]
    between_sd: Annotated[float, SPREAD, _BETWEEN] = 0.0
    within_sd: Annotated[float, SPREAD, _WITHIN] = 0.0
    hang: Annotated[float, SHARE, Doc("share of calls that never return", unit="share")] = 0.0

    def model(self) -> SecondsModel:
        """As they are drawn."""
        return SecondsModel(
            self.family, self.median_s, self.sd, self.between_sd, self.within_sd, self.hang
        )


@dataclass(frozen=True, slots=True)
class OfTurnPreset(Options):
    """What is as in a preset of turns."""

    preset: Annotated[str, Doc("name of a preset of turns (rollcast presets turns)")]

    def agree(self) -> None:
        """The preset is one."""
        if self.preset not in turn_presets():
            hint = nearest(self.preset, turn_presets())
            raise self.refuse("preset", f"unknown preset {self.preset!r}; {hint}")


@dataclass(frozen=True, slots=True)
class PresetSeconds(OfTurnPreset):
    """Seconds of a preset, times a factor."""

    FIELD = "environment.turn_s"

    times: Annotated[float, Above(0, 1e6), Doc("factor on the preset's times", unit="times")] = 1.0

    def model(self) -> SecondsModel:
        """As they are drawn."""
        given = turn_presets()[self.preset].turn_s
        return SecondsModel(**{**given, "median_s": given["median_s"] * self.times})


Seconds = Annotated[float, SECONDS] | DrawnSeconds
TurnSeconds = Annotated[float, SECONDS] | PresetSeconds | DrawnSeconds


def seconds_model(given: float | DrawnSeconds | PresetSeconds) -> SecondsModel:
    """What a number, or a distribution, of seconds means."""
    if isinstance(given, DrawnSeconds | PresetSeconds):
        return given.model()
    return SecondsModel("lognormal", float(given))
