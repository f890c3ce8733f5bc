"""GPUs as figures with a provenance: what a datasheet promises and what kernels reach of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, ClassVar

from rollcast.simulator.costs.presets.provenance import Kind, Provenance, figures, read_presets
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import (
    NOT_NEGATIVE,
    Above,
    Between,
    Doc,
    Options,
    check_unknown_keys,
    join,
    keys,
    nearest,
    read,
)

PCIE_BYTES_PER_S = 64e9  # of a slot of generation 5, one direction
GRACE_BYTES_PER_S = 4e11  # NVLink-C2C has 450e9, one direction
Size = Annotated[float, Above(0, 1e30)]
Peak = Annotated[float, Between(0, 1e30)]
Floor = Annotated[float, Between(0, 1e6)]
Efficiency = Annotated[float, Above(0, 1.5)]  # of a datasheet's peak, which a kernel may pass


@dataclass(frozen=True, slots=True)
class Gpu(Options):
    """One GPU: peaks from its datasheet, and the shares of them that kernels reach.

    ``provenance`` says for each figure whether it is measured, fitted, from a datasheet or assumed,
    and its source.
    """

    FIELD = "gpu"
    FIXED = ("provenance",)
    ALSO: ClassVar[Mapping[str, Doc]] = {
        "preset": Doc("a GPU preset (rollcast presets gpus); other keys override its figures")
    }

    DEFAULTS: ClassVar[Mapping[str, str]] = {"name": "custom"}

    name: Annotated[str, Doc("name used in reports")]
    memory_bytes: Annotated[Size, Doc("memory of one GPU")]
    bandwidth_bytes_per_s: Annotated[Size, Doc("peak bandwidth of the device memory")]
    bf16_flop_per_s: Annotated[Size, Doc("dense bfloat16 peak, no sparsity")]
    fp8_flop_per_s: Annotated[Peak, Doc("dense fp8 peak; 0: not supported")] = 0.0
    int8_flop_per_s: Annotated[Peak, Doc("dense int8 peak; 0: not supported")] = 0.0
    fp4_flop_per_s: Annotated[Peak, Doc("dense fp4 peak; 0: not supported")] = 0.0
    interconnect_bytes_per_s: Annotated[
        Size, Doc("bandwidth to the other GPUs of the node, one direction", source="a PCIe 5 slot")
    ] = 32e9
    host_link_bytes_per_s: Annotated[
        Size, Doc("bandwidth to host memory, one direction", source="a PCIe 5 slot")
    ] = 32e9
    usd_per_hour: Annotated[
        float,
        NOT_NEGATIVE,
        Doc("price of one GPU; 0: reports show no costs", unit="US dollars per hour"),
    ] = 0.0
    gemm_bandwidth_efficiency: Annotated[
        Efficiency,
        Doc(
            "share of the memory bandwidth that matrix products of few tokens reach (they "
            "mostly read weights)"
        ),
    ] = 0.75
    gemm_flop_efficiency: Annotated[
        Efficiency, Doc("share of the flop peak that matrix products of many tokens reach")
    ] = 0.65
    decode_attention_bandwidth_efficiency: Annotated[
        Efficiency,
        Doc(
            "share of the memory bandwidth that decode attention reaches while it reads "
            "the KV cache"
        ),
    ] = 0.80
    prefill_attention_flop_efficiency: Annotated[
        Efficiency, Doc("share of the flop peak that causal attention over a prompt reaches")
    ] = 0.50
    layer_floor_s: Annotated[
        Floor, Doc("time per layer that is added to its roofline (latency of its kernels)")
    ] = 15e-6
    all_reduce_floor_s: Annotated[Floor, Doc("latency of one tensor-parallel all-reduce")] = 18e-6
    interconnect_efficiency: Annotated[
        Efficiency, Doc("share of the interconnect's bandwidth that collectives reach")
    ] = 0.50
    trainer_attention_flop_efficiency: Annotated[
        Efficiency,
        Doc(
            "share of the flop peak that attention reaches in training, forward and "
            "backward together"
        ),
    ] = 0.50
    interconnect_shared: Annotated[
        bool | None,
        Doc(
            "whether more than two GPUs of a node share one link (PCIe); false: each has its own "
            "(NVLink); null: taken as false, and over PCIe drawn in intervals"
        ),
    ] = None
    mesh_gpus: Annotated[
        int,
        Between(0, 64),
        Doc(
            "GPUs of a node that each have a link to every other one (AMD's Infinity Fabric), so "
            "that some of them talk over some of their links; 0: they talk through a switch",
            unit="GPUs",
        ),
    ] = 0
    has_bf16: Annotated[
        bool,
        Doc(
            "whether it multiplies bfloat16; false: 16 bit products are float16's, whose peak "
            "bf16_flop_per_s then is"
        ),
    ] = True
    provenance: Mapping[str, Provenance] = field(default_factory=dict, repr=False, compare=False)

    def __hash__(self) -> int:
        names = ("name", *SWITCHES, *figure_names())
        return hash(tuple(getattr(self, name) for name in names))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], field: str = "gpu") -> Gpu:
        """A GPU by field name, each a number or ``{value, kind, source}``, or changes of ``preset:
        NAME``. Raises ScenarioError naming the key that is unknown, missing or out of range."""
        check_unknown_keys(mapping, keys(cls), field)
        values: dict[str, Any] = {}
        provenance: dict[str, Provenance] = {}
        for key, entry in mapping.items():
            if key == "preset" or entry is None:
                continue
            figure = Figure(entry)
            if key in figure_names() and isinstance(entry, Mapping):
                figure = read(Figure, entry, join(field, key))
            if key in figure_names():
                provenance[key] = Provenance(figure.kind, figure.source)
            values[key] = figure.value
        preset = mapping.get("preset")
        if preset is not None:
            base = load_gpu(preset, join(field, "preset"))
            made = read(cls, {"name": preset, **values}, field, base=base)
            return replace(made, provenance={**base.provenance, **provenance})
        for key in figure_names():
            provenance.setdefault(key, Provenance("assumed", "default of a GPU without a preset"))
        made = read(cls, values, field, defaults={"name": "custom"})
        return replace(made, provenance=provenance)

    @classmethod
    def from_text(cls, name: str, field: str = "gpu") -> Gpu:
        """The preset of that name. Raises ScenarioError."""
        return load_gpu(name, field)

    @property
    def over_pcie(self) -> bool:
        """Whether the GPUs of a node talk over PCIe."""
        return self.interconnect_bytes_per_s <= PCIE_BYTES_PER_S

    @property
    def grace(self) -> bool:
        """Whether its host is NVIDIA's Grace, the one CPU that NVLink joins to a GPU."""
        return self.host_link_bytes_per_s >= GRACE_BYTES_PER_S

    @property
    def assumed(self) -> bool:
        """Whether no product of matrices was measured on it: its efficiencies are others'."""
        return not self.measured(EFFICIENCIES[:2])

    @property
    def launch_factor(self) -> float:
        """What its host takes to launch a kernel, over what x86 takes."""
        return float(figures("grace").launch_factor) if self.grace else 1.0

    def link_bytes_per_s(self, gpus: int) -> float:
        """What each of ``gpus`` GPUs of a node has of the interconnect when all send at once.

        Where it is shared (PCIe), two GPUs talk directly and more than two share one link; in a
        mesh each uses its links to the others.
        """
        senders = gpus if self.interconnect_shared and gpus > 2 else 1
        links = 1.0
        if 1 < gpus < self.mesh_gpus:
            links = (gpus - 1) / (self.mesh_gpus - 1)
        return links * self.interconnect_bytes_per_s / senders

    @property
    def pcie_share(self) -> float:
        """Share of a link that collectives reach at most where it is PCIe, of which NCCL reaches
        less than of NVLink; 1 where it is not."""
        return self.interconnect_efficiency if self.over_pcie else 1.0

    def measured(self, names: Iterable[str]) -> bool:
        """Whether one of the figures ``names`` was measured, or fitted to measurements."""
        return bool(self.kinds(names) & {"measured", "fitted"})

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


SWITCHES = ("interconnect_shared", "mesh_gpus", "has_bf16")
_NOT_FIGURES = ("name", *SWITCHES, "provenance")


@cache
def figure_names() -> tuple[str, ...]:
    """Names of the numeric figures of a GPU, in order."""
    return tuple(f.name for f in fields(Gpu) if f.name not in _NOT_FIGURES)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its provenance, as a scenario may write it in place of a number."""

    value: Annotated[Any, Doc("the figure, a number")]
    kind: Annotated[Kind, Doc("how it was found")] = "assumed"
    source: Annotated[str, Doc("by whom, and where")] = "given in the scenario"


@cache
def gpu_presets() -> dict[str, Gpu]:
    """Every GPU preset by name. Raises ScenarioError for a preset that leaves a figure out."""
    content = read_presets("gpus.yaml")
    sources = content["sources"]
    presets = {}
    for name, entries in content["gpus"].items():
        figures: dict[str, Any] = {"name": name}
        figures.update({key: entries[key] for key in SWITCHES if key in entries})
        for key in figure_names():
            if key not in entries:
                raise ScenarioError(f"presets.gpus.{name}.{key}", "missing from the preset")
            value, kind, source = entries[key]
            figures[key] = {"value": value, "kind": kind, "source": sources.get(source, source)}
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
        hint = nearest(spec, presets, "rollcast presets gpus")
        own = "--set 'gpu={preset: a100-80gb, memory_bytes: 64e9}'"
        raise ScenarioError(field, f"unknown GPU {spec!r}; {hint} (figures of your own: {own})")
    return presets[spec.lower()]


_FORMS = ("pcie", "nvl", "3e", "server")  # that a name without them does not mean
_LEFT_OUT = ("sxm", "rtx", *_FORMS)  # words that names may lack
_OTHERS = ("laptop", "mobile", "max")  # variants of which there is no preset
_GB = re.compile(r"\b(\d+)(?:gb|gib|g)\b")
_HOSTS_GB = {"gh200": (120, 480)}  # in a driver's name, which says its Grace's memory


def named_gpu(text: str) -> str | None:
    """The preset that a driver's name ("NVIDIA A100-SXM4-80GB") or a user's ("h100", "h100-80gb")
    means: the first of its family with that form and memory. None where there is none, or several
    families are named."""
    presets = gpu_presets()
    words = re.findall(r"[a-z0-9]+", re.sub(r"\brtx(?=\d)", "rtx ", text.lower()))
    if text.lower().strip() in presets:
        return text.lower().strip()
    joined = " ".join(words)
    sizes = [int(gb) for gb in _GB.findall(re.sub(r"(\d) (gb|gib)\b", r"\1\2", joined))]
    if any(word in _OTHERS for word in words):
        return None
    found: dict[tuple[str, ...], str] = {}
    for name, gpu in presets.items():
        parts = name.split("-")
        family = tuple(p for p in parts if p not in _LEFT_OUT and not _GB.fullmatch(p))
        if not set(family) <= set(words):
            continue
        if any((form in words) != (form in parts) for form in _FORMS):
            continue
        own = [gb for gb in sizes if gb not in _HOSTS_GB.get(name, ())]
        if all(abs(gpu.memory_bytes / 1e9 / gb - 1) < 0.1 for gb in own):
            found.setdefault(family, name)
    longest = max(found, key=len, default=())
    return found[longest] if found and all(set(f) <= set(longest) for f in found) else None
