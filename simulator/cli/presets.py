"""The presets as tables: what there is, and where each figure comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rollcast.simulator.costs.backends import backends_of
from rollcast.simulator.costs.engine.hosts import engine_presets
from rollcast.simulator.costs.presets.gpus import figure_names, gpu_presets
from rollcast.simulator.costs.presets.models import model_presets
from rollcast.simulator.costs.presets.provenance import Provenance
from rollcast.simulator.costs.stack_figures import stack_figures, trainer_figures
from rollcast.simulator.costs.stacks import ALIASES, STACKS
from rollcast.simulator.costs.sync.weight_sync import sync_presets
from rollcast.simulator.costs.trainer.attention_kernels import kernel_presets
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import registry
from rollcast.simulator.policies.described import Description, describe
from rollcast.simulator.values import nearest
from rollcast.simulator.workload.length_specs import length_presets
from rollcast.simulator.workload.turn_presets import TurnPreset, turn_presets

Rows = list[dict[str, Any]]


def preset_rows(kind: str) -> Rows:
    """One row per preset of a kind."""
    if kind == "policies":
        return _policies()
    presets, columns = _COLUMNS[kind]
    return [{"name": name, **columns(preset)} for name, preset in presets().items()]


def preset_details(kind: str, name: str) -> Rows:
    """Figures of a preset with kind and source. Raises ScenarioError for an unknown name."""
    rows = preset_rows(kind)
    names = [str(row["name"]) for row in rows]
    if name not in names:
        raise ScenarioError(f"presets {kind}", f"unknown name {name!r}; {nearest(name, names)}")
    if kind == "gpus":
        gpu = gpu_presets()[name]
        return [
            {
                "figure": figure,
                "value": f"{getattr(gpu, figure):.4g}",
                **_sources(gpu.provenance[figure]),
            }
            for figure in figure_names()
            if figure in gpu.provenance
        ]
    if kind == "lengths":
        preset = length_presets()[name]
        figures: dict[str, Any] = {"kind": preset.kind, "source": preset.source}
        figures.update({"note": preset.note, "lengths": preset.lengths, **preset.details})
        return [{"figure": key, "value": _text(value)} for key, value in figures.items()]
    if kind == "turns":
        return _turn_figures(turn_presets()[name])
    if kind == "stacks":
        return _stack_rows(name)
    row = next(row for row in rows if row["name"] == name)
    return [{"figure": key, "value": _text(value)} for key, value in row.items()]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    return str(value)


def _turn_figures(preset: TurnPreset) -> Rows:
    """The figures of a preset, grouped by source."""
    rows: Rows = [{"figure": "note", "value": preset.note, "kind": "", "source": ""}]
    for names, provenance in preset.figures.items():
        values = []
        for name in names.split(", "):
            part, _, key = name.partition(".")
            value = getattr(preset, part)
            values.append(_text(value[key] if key else value))
        kind = "published" if provenance.startswith("published") else "assumed"
        source = provenance.removeprefix(kind).lstrip(":;, ")
        rows.append({"figure": names, "value": "; ".join(values), "kind": kind, "source": source})
    return rows


def _stack_rows(name: str) -> Rows:
    """Its figures, then those of its trainer by backend, its default first."""
    figures = [("", figure) for figure in stack_figures(name)]
    for backend in backends_of(name):
        figures += [(f"{backend}: ", figure) for figure in trainer_figures(name, backend)]
    return [
        {"figure": lead + figure.key, "value": figure.value, **_sources(figure.source)}
        for lead, figure in figures
    ]


def _policies() -> Rows:
    rows = []
    for name in registry.names():
        try:
            about = describe(registry.find(name, name))
        except ScenarioError as error:  # another distribution's, which cannot be imported
            about = Description(error.message, "", ())
        rows.append({"name": name, "what it does": about.mechanism, "source": about.source})
    return rows


def _rate(bytes_per_s: float) -> str:
    return "" if bytes_per_s == math.inf else f"{bytes_per_s:.3g}"


def _sources(provenance: Provenance) -> dict[str, str]:
    return {"kind": provenance.kind, "source": provenance.source}


def _within(preset: Any) -> dict[str, str]:
    """The factors between which the truth is taken to lie, and the source."""
    return {
        "true within": f"{preset.low:g} to {preset.high:g} times",
        **_sources(preset.provenance),
    }


_COLUMNS: dict[str, tuple[Callable[[], Mapping[Any, Any]], Callable[[Any], dict[str, Any]]]] = {
    "gpus": (
        gpu_presets,
        lambda gpu: {
            "memory GB": f"{gpu.memory_bytes / 1e9:.0f}",
            "bandwidth TB/s": f"{gpu.bandwidth_bytes_per_s / 1e12:.2f}",
            "bf16 TFLOP/s": f"{gpu.bf16_flop_per_s / 1e12:.0f}",
            "decode attention": f"{gpu.decode_attention_bandwidth_efficiency:.0%}",
            "that figure is": gpu.provenance["decode_attention_bandwidth_efficiency"].kind,
            "assumed $/h": f"{gpu.usd_per_hour:.2f}",
        },
    ),
    "models": (
        model_presets,
        lambda model: {
            "parameters": f"{model.parameters / 1e9:.2f}e9",
            "active": f"{model.active_parameters / 1e9:.2f}e9",
            "layers": model.layers,
            "KV bytes/token": f"{model.kv_bytes_per_token:.0f}",
            "source": "its Hugging Face config.json",
        },
    ),
    "engines": (
        engine_presets,
        lambda host: {
            "ms an iteration": f"{1e3 * host.host_s:g}",
            "us a rollout": f"{1e6 * host.host_per_rollout_s:g}",
            **_within(host),
        },
    ),
    "stacks": (
        lambda: {name: its for name, its in STACKS.items() if name not in ALIASES},
        lambda stack: {
            "engine": stack.engine or "its own",
            "graphs": {True: "yes", False: "no", None: "unknown"}[stack.cuda_graphs],
            "loop, ms": f"{1e3 * stack.loop_s:g}",
            "us a rollout": f"{1e6 * stack.loop_per_rollout_s:g}",
            "rest, s": f"{stack.rest_s:g}",
            "its steps": "measured" if stack.measured else "never measured",
        },
    ),
    "syncs": (
        sync_presets,
        lambda sync: {
            "s a sync": f"{sync.fixed_s:g}",
            "bytes/s": f"{sync.bytes_per_s:.3g}",
            "of experts": _rate(sync.expert_bytes_per_s),
            "of a staged shard": _rate(sync.shard_bytes_per_s),
            "ms a tensor": f"{1e3 * sync.per_tensor_s:.2g}",
            **_within(sync),
        },
    ),
    "kernels": (
        lambda: {f"{kernel} on {gpu}": speed for (kernel, gpu), speed in kernel_presets().items()},
        lambda speed: {"of the bf16 peak": f"{speed.share:.1%}", **_sources(speed.provenance)},
    ),
    "lengths": (
        length_presets,
        lambda preset: {
            "median": preset.lengths.get("median_tokens", "mixture"),
            "between sd": preset.lengths.get("between_sd", ""),
            "within sd": preset.lengths.get("within_sd", ""),
            "runaway": preset.lengths.get("runaway", ""),
            "kind": preset.kind,
            "source": preset.source,
        },
    ),
    "turns": (
        turn_presets,
        lambda preset: {
            "turns": f"{preset.turns['median']:g}",
            "at most": preset.turns["max_turns"],
            "tokens a turn": f"{preset.lengths['median_tokens']:g}",
            "observed": f"{preset.turns['observation_tokens']['median_tokens']:g}",
            "seconds": f"{preset.turn_s['median_s']:g}",
            "what it is": preset.note,
        },
    ),
}
"""By kind: the presets by name, and the columns of one."""

KINDS = (*_COLUMNS, "policies")
