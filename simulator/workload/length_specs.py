"""From a scenario's ``workload.lengths`` to a length model: inline parameters or a preset."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from simulator import checks
from simulator.errors import ScenarioError
from simulator.fields import Fields
from simulator.workload.lengths import FAMILIES, LARGEST_CAP, Component, LengthModel

FIELD = "workload.lengths"
PRESETS_FILE = Path(__file__).parent / "presets" / "lengths.yaml"

# Beyond this a log-scale effect spans more than any response can.
LARGEST_SD = 5.0

_COMPONENT_KEYS = ("family", "median_tokens", "between_sd", "within_sd")
_COMMON_KEYS = ("family", "runaway", "drift_per_step")


@dataclass(frozen=True, slots=True)
class LengthPreset:
    """A named length model and where its figures come from.

    kind: ``fitted`` (to real responses) or ``published`` (solved from published moments).
    source, note: origin of the data and what to beware of. lengths: the parameters, as a scenario
    writes them. details: the rest of the record, such as counts and standard errors.
    """

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
    import yaml

    records = yaml.safe_load(PRESETS_FILE.read_text(encoding="utf-8"))
    presets = {}
    for name, record in records.items():
        rest = {k: v for k, v in record.items() if k not in ("kind", "source", "note", "lengths")}
        presets[name] = LengthPreset(
            name, record["kind"], record["source"], record.get("note", ""), record["lengths"], rest
        )
    return presets


def lengths_from_spec(spec: object, field: str = FIELD) -> LengthModel:
    """The model that ``spec`` describes.

    spec: ``{family: lognormal | gamma | weibull, median_tokens, between_sd, within_sd}``, or
    ``{family: mixture, components: [{weight, family, ...}, ...]}``, either with ``runaway`` and
    ``drift_per_step``; or ``{preset: name}``, whose figures further keys override.
    Raises ScenarioError naming the key under ``field``.
    """
    if isinstance(spec, Mapping) and spec.get("preset") is not None:
        return lengths_from_spec(_with_preset(spec, field), field)
    every = (*_COMPONENT_KEYS, *_COMMON_KEYS, "components", "preset", "trace", "file")
    family = Fields(spec, field, every).choice("family", (*FAMILIES, "mixture"))
    if family == "mixture":
        fields = Fields(spec, field, (*_COMMON_KEYS, "components", "preset"))
        components, weights = _mixture(fields)
    else:
        fields = Fields(spec, field, (*_COMPONENT_KEYS, *_COMMON_KEYS, "preset"))
        components, weights = (_component(fields),), (1.0,)
    return LengthModel(
        components,
        weights,
        runaway=fields.number("runaway", 0.0, maximum=1.0),
        drift_per_step=fields.number("drift_per_step", 0.0, minimum=-1.0, maximum=1.0),
    )


def _with_preset(spec: Mapping[str, Any], field: str) -> dict[str, Any]:
    presets = length_presets()
    name = spec["preset"]
    if not isinstance(name, str) or name not in presets:
        hint = checks.nearest(str(name), presets)
        raise ScenarioError(checks.join(field, "preset"), f"unknown preset {name!r}; {hint}")
    overrides = {k: v for k, v in spec.items() if k != "preset" and v is not None}
    if overrides.get("family") == "mixture":
        raise ScenarioError(
            checks.join(field, "family"), "a preset cannot become a mixture; leave preset out"
        )
    return {**presets[name].lengths, **overrides}


def _component(fields: Fields) -> Component:
    return Component(
        fields.choice("family", FAMILIES),
        fields.number("median_tokens", above=True, maximum=LARGEST_CAP),
        fields.number("between_sd", maximum=LARGEST_SD),
        fields.number("within_sd", maximum=LARGEST_SD),
    )


def _mixture(fields: Fields) -> tuple[tuple[Component, ...], tuple[float, ...]]:
    name = fields.name("components")
    listed = fields.get("components")
    if not isinstance(listed, list | tuple) or not listed:
        raise ScenarioError(name, "missing; give a list of {weight, family, median_tokens, ...}")
    parts = [
        Fields(part, f"{name}[{i}]", ("weight", *_COMPONENT_KEYS)) for i, part in enumerate(listed)
    ]
    weights = tuple(part.number("weight", above=True, maximum=1.0) for part in parts)
    if not math.isclose(sum(weights), 1.0, abs_tol=1e-6):
        raise ScenarioError(name, f"the weights sum to {sum(weights):g}; they must sum to 1")
    return tuple(_component(part) for part in parts), weights
