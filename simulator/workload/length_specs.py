"""``workload.lengths`` of a scenario: inline parameters, a preset, or a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rollcast.simulator.values import SHARE, Above, Between, Doc, Options, nearest, take
from rollcast.simulator.values.yaml_file import read_yaml
from rollcast.simulator.workload.lengths import (
    LARGEST_CAP,
    RUNAWAY_CORRELATION,
    Component,
    LengthModel,
)

if TYPE_CHECKING:
    from rollcast.simulator.values.chance import Chance

FIELD = "workload.lengths"
PRESETS_FILE = Path(__file__).parent / "presets" / "lengths.yaml"

# Beyond this a log-scale effect spans more than any response can.
LARGEST_SD = 5.0
SPREAD = Between(0, LARGEST_SD)
MEDIAN = Above(0, LARGEST_CAP)
DRIFT = Between(-1, 1)

Family = Literal["gamma", "lognormal", "weibull"]
_LOG = "standard deviation of the log"
_FAMILY = Doc("distribution of lengths within a prompt")
_MEDIAN = Doc("median length of a prompt of mean difficulty", unit="tokens")
_BETWEEN = Doc("spread of the log length between prompts", unit=_LOG)
_WITHIN = Doc("spread of the log length within a prompt", unit=_LOG)
_RUNAWAY = Doc("share of rollouts that do not stop by themselves and run to the cap", unit="share")
CORRELATION = Between(0, 1, below=True)
RUNAWAY_CORRELATION_DOC = Doc(
    "correlation of runaway within a prompt: 0, independent; near 1, all responses "
    "of some prompts run to the cap and none of the others",
    unit="correlation",
)
DRIFT_DOC = Doc("change of the log median length with each update", unit="log tokens a step")


@dataclass(frozen=True, slots=True)
class OneKind(Options):
    """The lengths of one kind of prompt."""

    FIELD = FIELD

    family: Annotated[Family, _FAMILY]
    median_tokens: Annotated[float, MEDIAN, _MEDIAN]
    between_sd: Annotated[float, SPREAD, _BETWEEN]
    within_sd: Annotated[float, SPREAD, _WITHIN]

    @property
    def component(self) -> Component:
        """As the length model has it."""
        return Component(self.family, self.median_tokens, self.between_sd, self.within_sd)


@dataclass(frozen=True, slots=True)
class DrawnLengths(OneKind):
    """Lengths drawn from one family."""

    runaway: Annotated[float, SHARE, _RUNAWAY] = 0.0
    runaway_correlation: Annotated[float, CORRELATION, RUNAWAY_CORRELATION_DOC] = (
        RUNAWAY_CORRELATION
    )
    drift_per_step: Annotated[float, DRIFT, DRIFT_DOC] = 0.0

    @property
    def text(self) -> str:
        """The spreads, in words."""
        return (
            f"spread of the log {self.between_sd:.2f} between prompts and {self.within_sd:.2f} "
            "within"
        )

    def figures(self) -> dict[str, Any]:
        """As ``summary.json`` has them."""
        keys = ("family", "median_tokens", "between_sd", "within_sd", "runaway")
        return {key: getattr(self, key) for key in keys}

    def model(self) -> LengthModel:
        """The length model."""
        return LengthModel(
            (self.component,),
            (1.0,),
            runaway=self.runaway,
            drift_per_step=self.drift_per_step,
            runaway_correlation=self.runaway_correlation,
        )


@dataclass(frozen=True, slots=True)
class Share(OneKind):
    """One kind of prompt among several."""

    weight: Annotated[float, Above(0, 1), Doc("share of the prompts", unit="share")]


@dataclass(frozen=True, slots=True)
class MixtureLengths(Options):
    """Lengths of several kinds of prompt."""

    FIELD = FIELD
    TAG = ("family", "mixture")

    components: Annotated[
        tuple[Share, ...], Doc("kinds of prompt with their weights, which sum to 1")
    ]
    runaway: Annotated[float, SHARE, _RUNAWAY] = 0.0
    runaway_correlation: Annotated[float, CORRELATION, RUNAWAY_CORRELATION_DOC] = (
        RUNAWAY_CORRELATION
    )
    drift_per_step: Annotated[float, DRIFT, DRIFT_DOC] = 0.0

    def agree(self) -> None:
        """There are components, and their weights sum to 1."""
        if not self.components:
            raise self.refuse("components", "is empty; give {weight, family, ...} of each")
        total = math.fsum(part.weight for part in self.components)
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            raise self.refuse("components", f"the weights sum to {total:g}; they must sum to 1")

    def model(self) -> LengthModel:
        """The length model."""
        return LengthModel(
            tuple(part.component for part in self.components),
            tuple(part.weight for part in self.components),
            runaway=self.runaway,
            drift_per_step=self.drift_per_step,
            runaway_correlation=self.runaway_correlation,
        )


_OF_ALL = ("runaway", "runaway_correlation", "drift_per_step")


@dataclass(frozen=True, slots=True)
class PresetLengths(Options):
    """Lengths of a preset, of which further keys override what they name."""

    FIELD = FIELD

    preset: Annotated[str, Doc("name of a length preset (rollcast presets lengths)")]
    family: Annotated[Family | None, _FAMILY] = None
    median_tokens: Annotated[float | None, MEDIAN, _MEDIAN] = None
    between_sd: Annotated[float | None, SPREAD, _BETWEEN] = None
    within_sd: Annotated[float | None, SPREAD, _WITHIN] = None
    runaway: Annotated[float | None, SHARE, _RUNAWAY] = None
    runaway_correlation: Annotated[float | None, CORRELATION, RUNAWAY_CORRELATION_DOC] = None
    drift_per_step: Annotated[float | None, DRIFT, DRIFT_DOC] = None

    def agree(self) -> None:
        """The preset is one, and what overrides it fits."""
        if self.preset not in length_presets():
            hint = nearest(self.preset, length_presets())
            raise self.refuse("preset", f"unknown preset {self.preset!r}; {hint}")
        if len(length_presets()[self.preset].model.components) > 1:
            for key in self._given("family", "median_tokens", "between_sd", "within_sd"):
                raise self.refuse(key, f"{self.preset} is a mixture, which has no {key} to change")

    def model(self) -> LengthModel:
        """The length model."""
        model = length_presets()[self.preset].model
        changed = self._given("family", "median_tokens", "between_sd", "within_sd")
        if changed:
            model = replace(model, components=(replace(model.components[0], **changed),))
        return replace(model, **self._given(*_OF_ALL))

    def drawn(self, chance: Chance) -> PresetLengths:
        """The lengths with parameters drawn by the preset's standard errors (one normal each,
        lengths on the log scale), except those given."""
        preset = length_presets()[self.preset]
        changed: dict[str, Any] = {}
        for key, error in preset.details.get("standard_errors", {}).items():
            z = chance.normal(f"lengths/{key}")
            if getattr(self, key) is None:
                value = float(preset.lengths[key])
                drawn = value * math.exp(z * error / value) if value else 0.0
                changed[key] = min(drawn, LARGEST_SD) if key.endswith("_sd") else drawn
        if "runaway" in changed:
            changed["runaway"] = min(changed["runaway"], 1.0)
        return replace(self, **changed)

    def _given(self, *keys: str) -> dict[str, Any]:
        return {key: getattr(self, key) for key in keys if getattr(self, key) is not None}


@dataclass(frozen=True, slots=True)
class TraceLengths(Options):
    """Lengths replayed from a trace."""

    FIELD = FIELD

    trace: Annotated[
        Path, Doc("CSV or JSON Lines file of responses, relative to the scenario's folder")
    ]
    repeat: Annotated[bool, Doc("whether the trace starts over once its groups are used up")] = (
        False
    )
    within_sd: Annotated[
        float | None,
        SPREAD,
        Doc(
            "for traces of single requests: each request becomes a prompt whose responses "
            "are lognormal with this spread; null: consecutive requests form groups",
            unit=_LOG,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class MeasuredLengths(Options):
    """Groups that a run measured, drawn again."""

    FIELD = FIELD

    file: Annotated[
        Path, Doc("file written by rollcast calibrate, with the groups that it measured")
    ]


ModelLengths = DrawnLengths | MixtureLengths | PresetLengths
Lengths = PresetLengths | TraceLengths | MeasuredLengths | MixtureLengths | DrawnLengths


@dataclass(frozen=True, slots=True)
class LengthPreset:
    """A named length model. kind: ``fitted`` (to responses) or ``published`` (solved from published
    moments). source, note: origin of the data, and caveats. lengths: parameters as a scenario
    writes them. details: the rest of the record, such as counts and standard errors."""

    name: str
    kind: str
    source: str
    note: str
    lengths: Mapping[str, Any]
    details: Mapping[str, Any]

    @property
    def model(self) -> LengthModel:
        """The length model."""
        return lengths_from_spec(self.lengths)


@lru_cache(maxsize=1)
def length_presets() -> dict[str, LengthPreset]:
    """Every length preset by name, in the order of the file."""
    presets = {}
    for name, record in read_yaml(PRESETS_FILE).items():
        rest = {k: v for k, v in record.items() if k not in ("kind", "source", "note", "lengths")}
        presets[name] = LengthPreset(
            name, record["kind"], record["source"], record.get("note", ""), record["lengths"], rest
        )
    return presets


def lengths_from_spec(spec: object) -> LengthModel:
    """The model of a mapping of `DrawnLengths`, `MixtureLengths` or `PresetLengths`. Raises
    ScenarioError naming the key."""
    made: ModelLengths = take(PresetLengths | MixtureLengths | DrawnLengths, spec, FIELD)
    return made.model()
