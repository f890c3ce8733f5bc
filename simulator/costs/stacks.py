"""What an RL stack adds to its engine and trainer: host time, syncs, switches, rest of a step.

The figures are presets in the ``costs.yaml`` of the stacks' folders (`simulator.stacks`), each
fitted to the published phase that it names, never to whole steps
(`benchmarks.validation.phases` judges them on phases that were held out).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from rollcast.simulator.costs.engine.hosts import Engine
from rollcast.simulator.costs.presets.provenance import Kind, Provenance
from rollcast.simulator.costs.sync.sleep import Sleep
from rollcast.simulator.costs.sync.weight_sync import Mechanism
from rollcast.simulator.stacks.stack import Stack as Folder
from rollcast.simulator.stacks.stack import priced
from rollcast.simulator.values import choice

UNKNOWN = "unknown"
"""The preset of a stack that nobody knows: what others are taken to be where they do not say."""


@dataclass(frozen=True, slots=True)
class StackPreset:
    """A stack in figures.

    host_s, host_per_rollout_s: of an iteration inside its loop; the engine's own where None.
    colocated, disaggregated: how weights travel; per_tensor_s of that, the mechanism's where None.
    rest_s: of a step outside every phase. Spreads: factors within which the truth is taken to lie.
    """

    engine: Engine | None
    colocated: Mechanism
    disaggregated: Mechanism
    rest_s: float
    rest_spread: tuple[float, float]
    rest: Provenance
    cuda_graphs: bool = True
    engine_sleep: Sleep = "discard"
    host_s: float | None = None
    host_per_rollout_s: float | None = None
    host_spread: tuple[float, float] = (0.6, 1.6)
    host: Provenance | None = None
    per_tensor_s: float | None = None


def _preset(name: str, entry: Mapping[str, Any]) -> StackPreset:
    """A preset as in a file. Raises ScenarioError for a wrong word, KeyError for a missing
    figure."""
    field = f"presets.stacks.{name}"
    entry = {**priced()[UNKNOWN].costs["presets"][UNKNOWN], **entry}
    sync, rest, host = entry["sync"], entry["rest"], entry.get("host", {})
    given: dict[str, Any] = {
        key: entry[key] for key in ("cuda_graphs", "engine_sleep") if key in entry
    }
    given |= {key: host[key] for key in ("host_s", "host_per_rollout_s") if key in host}
    if host:
        given |= {"host": _provenance(host, field), "host_spread": tuple(host["spread"])}
    for key, words in (("engine", Engine), ("engine_sleep", Sleep)):
        if entry.get(key) is not None:
            choice(entry[key], f"{field}.{key}", get_args(words))
    for placement in ("colocated", "disaggregated"):
        choice(sync[placement], f"{field}.sync.{placement}", get_args(Mechanism))
    return StackPreset(
        engine=entry["engine"],
        rest_s=rest["rest_s"],
        rest_spread=tuple(rest["spread"]),
        rest=_provenance(rest, field),
        **sync,
        **given,
    )


def _provenance(figure: Mapping[str, Any], field: str) -> Provenance:
    choice(figure["kind"], f"{field}.kind", get_args(Kind))
    return Provenance(figure["kind"], figure["source"])


FOLDERS: Mapping[str, Folder] = MappingProxyType(
    {
        known: folder
        for folder in priced().values()
        for name, entry in folder.costs.get("presets", {}).items()
        for known in (name, *entry.get("also", ()))
    }
)
"""The folder of every preset of every stack, by its name in ``cost.roofline.stack``."""

_ENTRIES = {
    known: entry
    for folder in priced().values()
    for name, entry in folder.costs.get("presets", {}).items()
    for known in (name, *entry.get("also", ()))
}
STACKS: Mapping[str, StackPreset] = MappingProxyType(
    {name: _preset(name, entry) for name, entry in _ENTRIES.items()}
)
"""The presets by the same names."""

ALIASES = frozenset(alias for entry in _ENTRIES.values() for alias in entry.get("also", ()))
"""Names of versions that share the preset of another name."""

if TYPE_CHECKING:
    Stack = str
else:
    Stack = Literal[tuple(STACKS)]


def listed() -> str:
    """The stacks with their figures and kinds, in words."""
    lines = []
    for name, stack in STACKS.items():
        if name in ALIASES:
            continue
        graphs = "" if stack.cuda_graphs else ", eager"
        host = "" if stack.host is None else f"; host: {stack.host}"
        engine = stack.engine or "no engine of ours"
        lines.append(
            f"{name} {engine}{graphs}, {stack.colocated} colocated and "
            f"{stack.disaggregated} apart, rest {stack.rest_s:g} s, {stack.rest}{host}"
        )
    return ". ".join(lines)
