"""GPUs as figures with a provenance: what a datasheet promises and what kernels reach of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

from simulator.checks import flag, join, known_keys, nearest, number
from simulator.errors import ScenarioError

Kind = Literal["measured", "fitted", "datasheet", "assumed"]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a figure comes from: its kind, and the source in words."""

    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: peaks from its datasheet, and the share of them that kernels reach.

    memory_bytes: device memory. bandwidth_bytes_per_s: peak of that memory.
    bf16_flop_per_s, fp8_flop_per_s: dense tensor-core peaks (no sparsity); fp8 0 where there is
    none. interconnect_bytes_per_s: to its peers in a node, one direction.
    host_link_bytes_per_s: to host memory, one direction. usd_per_hour: price of one GPU.

    Efficiencies are shares of a peak: ``gemm_bandwidth_efficiency`` of matrix products that read
    more weights than they compute (few tokens) and ``gemm_flop_efficiency`` of those with many;
    ``decode_attention_bandwidth_efficiency`` of reading the KV cache;
    ``prefill_attention_flop_efficiency`` of causal attention over a prompt, and
    ``trainer_attention_flop_efficiency`` of it in training, forward and backward together.
    ``layer_floor_s`` is what the kernels of one
    layer take beside their roofline however little they do, ``all_reduce_floor_s`` the latency of
    one tensor-parallel all-reduce.

    ``interconnect_shared`` says that the GPUs of a node share one link (PCIe) rather than having
    one each (NVLink): see :meth:`link_bytes_per_s`.

    ``provenance`` says for each figure whether it is measured, fitted, from a datasheet or assumed,
    and its source.
    """

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    bf16_flop_per_s: float
    fp8_flop_per_s: float = 0.0
    interconnect_bytes_per_s: float = 32e9
    host_link_bytes_per_s: float = 32e9
    usd_per_hour: float = 0.0
    gemm_bandwidth_efficiency: float = 0.75
    gemm_flop_efficiency: float = 0.65
    decode_attention_bandwidth_efficiency: float = 0.80
    prefill_attention_flop_efficiency: float = 0.50
    layer_floor_s: float = 15e-6
    all_reduce_floor_s: float = 18e-6
    interconnect_efficiency: float = 0.50
    trainer_attention_flop_efficiency: float = 0.50
    interconnect_shared: bool = False
    provenance: Mapping[str, Provenance] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in figure_names():
            _figure(name, getattr(self, name), join("gpu", name))
        flag(self.interconnect_shared, "gpu.interconnect_shared")

    def __hash__(self) -> int:
        return hash(
            (self.name, self.interconnect_shared, *(getattr(self, name) for name in figure_names()))
        )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], field: str = "gpu") -> Gpu:
        """A GPU by field name, each a number or ``{value, kind, source}``.

        ``preset: NAME`` starts from a preset; otherwise memory, bandwidth and bf16 flop are
        required and the efficiencies default to typical ones, marked as assumed. Raises
        ScenarioError naming the key that is unknown, missing or out of range.
        """
        given = dict(mapping)
        known_keys(
            given, [*(f.name for f in fields(cls) if f.name != "provenance"), "preset"], field
        )
        preset = given.pop("preset", None)
        name = str(given.pop("name", preset or "custom"))
        values: dict[str, Any] = {}
        provenance: dict[str, Provenance] = {}
        if "interconnect_shared" in given:
            shared = given.pop("interconnect_shared")
            values["interconnect_shared"] = flag(shared, join(field, "interconnect_shared"))
        for key, entry in given.items():
            values[key], provenance[key] = _entry(key, entry, join(field, key))
        if preset is not None:
            base = load_gpu(preset, join(field, "preset"))
            merged = {**base.provenance, **provenance}
            return replace(base, name=name, **values, provenance=merged)
        for key in ("memory_bytes", "bandwidth_bytes_per_s", "bf16_flop_per_s"):
            if key not in values:
                raise ScenarioError(join(field, key), "missing; give its value, or a preset")
        for key in figure_names():
            provenance.setdefault(key, Provenance("assumed", "default of a GPU without a preset"))
        return cls(name=name, **values, provenance=provenance)

    def link_bytes_per_s(self, gpus: int) -> float:
        """What each of ``gpus`` GPUs of a node has of the interconnect when all send at once.

        Where it is shared (PCIe), two GPUs talk directly and more than two share one link.
        """
        senders = gpus if self.interconnect_shared and gpus > 2 else 1
        return self.interconnect_bytes_per_s / senders

    def kinds(self, names: Iterable[str]) -> set[Kind]:
        """The kinds of the figures ``names``; "assumed" for one without a provenance."""
        fallback = Provenance("assumed", "")
        return {self.provenance.get(name, fallback).kind for name in names}


EFFICIENCIES = (
    "gemm_bandwidth_efficiency",
    "gemm_flop_efficiency",
    "decode_attention_bandwidth_efficiency",
    "prefill_attention_flop_efficiency",
)
TRAINER_EFFICIENCIES = ("trainer_attention_flop_efficiency",)


_NOT_FIGURES = ("name", "interconnect_shared", "provenance")


@cache
def figure_names() -> tuple[str, ...]:
    """Names of the numeric figures of a GPU, in order."""
    return tuple(f.name for f in fields(Gpu) if f.name not in _NOT_FIGURES)


def _figure(name: str, value: object, field: str) -> float:
    """``value`` as the figure ``name``; raises ScenarioError where it is out of range."""
    may_be_zero = name in ("fp8_flop_per_s", "usd_per_hour") or name.endswith("floor_s")
    result = number(value, field, above=not may_be_zero)
    if name.endswith("efficiency") and result > 1.5:
        raise ScenarioError(field, f"{result:g} is no share of a peak; give a number from 0 to 1")
    return result


def _entry(name: str, entry: object, field: str) -> tuple[float, Provenance]:
    """One figure and its provenance, from a number or ``{value, kind, source}``."""
    if not isinstance(entry, Mapping):
        return _figure(name, entry, field), Provenance("assumed", "given in the scenario")
    known_keys(entry, ("value", "kind", "source"), field)
    kind = entry.get("kind", "assumed")
    if kind not in get_args(Kind):
        raise ScenarioError(join(field, "kind"), f"{kind!r}; {nearest(str(kind), get_args(Kind))}")
    if "value" not in entry:
        raise ScenarioError(join(field, "value"), "missing; give the figure's value")
    source = str(entry.get("source", "given in the scenario"))
    return _figure(name, entry["value"], join(field, "value")), Provenance(kind, source)


@cache
def gpu_presets() -> dict[str, Gpu]:
    """Every GPU preset by name. Raises ScenarioError for a preset that leaves a figure out."""
    import yaml

    text = resources.files("simulator.costs").joinpath("presets/gpus.yaml").read_text("utf-8")
    content = yaml.safe_load(text)
    sources = content["sources"]
    presets = {}
    for name, entries in content["gpus"].items():
        figures: dict[str, Any] = {"name": name}
        figures["interconnect_shared"] = entries.pop("interconnect_shared", False)
        for key, (value, kind, source) in entries.items():
            figures[key] = {"value": value, "kind": kind, "source": sources.get(source, source)}
        for key in figure_names():
            if key not in figures:
                raise ScenarioError(f"presets.gpus.{name}.{key}", "missing from the preset")
        presets[name] = Gpu.from_mapping(figures, f"presets.gpus.{name}")
    return presets


def load_gpu(spec: str | Mapping[str, Any] | Gpu, field: str = "gpu") -> Gpu:
    """The GPU that ``spec`` names: a preset, or a mapping (:meth:`Gpu.from_mapping`).

    Raises ScenarioError naming ``field``, with the nearest presets for an unknown name.
    """
    if isinstance(spec, Gpu):
        return spec
    if isinstance(spec, Mapping):
        return Gpu.from_mapping(spec, field)
    if not isinstance(spec, str):
        raise ScenarioError(field, f"{spec!r} is not a preset's name or a mapping")
    presets = gpu_presets()
    if spec.lower() not in presets:
        raise ScenarioError(field, f"unknown GPU {spec!r}; {nearest(spec, presets)}")
    return presets[spec.lower()]
