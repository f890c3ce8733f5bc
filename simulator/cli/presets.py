"""The presets as tables: what there is, and where each figure comes from."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollcast.simulator.cli.console import console
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
from rollcast.simulator.policies import outside, registry
from rollcast.simulator.policies.described import Description, describe
from rollcast.simulator.results.write import plain
from rollcast.simulator.stacks.syntax.yaml_text import spelt
from rollcast.simulator.values import Option, nearest
from rollcast.simulator.workload.length_specs import length_presets
from rollcast.simulator.workload.turn_presets import TurnPreset, turn_presets

if TYPE_CHECKING:
    from rich.console import Console


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
    own = list(stack_figures(name))
    figures = [("", figure) for figure in own]
    for backend in backends_of(name):
        its = (*trainer_figures(name, backend), *stack_figures(name, backend))
        figures += [(f"{backend}: ", figure) for figure in its if figure not in own]
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
            "beside the GPU": "yes" if host.overlaps else "no",
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
            "us a token": f"{1e6 * stack.rest_per_token_s:g}",
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
        lambda speed: {
            "of the bf16 peak": "gpu's" if speed.share is None else f"{speed.share:.1%}",
            **_sources(speed.provenance),
        },
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


_NEVER_BROKEN = 12
_LONGEST_NAME = 24
_ROOM_FOR_TEXT = 20


def show_presets(kind: str | None, name: str | None, as_json: bool = False) -> None:
    """Prints the presets of a kind, or all; with a name, every figure and its source."""
    if kind is not None and kind not in KINDS:
        raise ScenarioError("presets", f"unknown kind {kind!r}; {nearest(kind, KINDS)}")
    if name is not None and kind is not None:
        details: Any = policy_facts(name) if kind == "policies" else preset_details(kind, name)
        if as_json:
            print(json.dumps(plain(details), indent=1))
        elif kind == "policies":
            show_policy(name)
        else:
            _print_table(f"{kind}: {name}", details)
        return
    kinds = [kind] if kind else list(KINDS)
    if as_json:
        print(json.dumps(plain({k: preset_rows(k) for k in kinds}), indent=1))
        return
    for presets in kinds:
        _print_table(presets, preset_rows(presets), f"rollcast presets {presets} NAME")


def _print_table(title: str, rows: Rows, more: str = "") -> None:
    """Prints a table. Columns with one value go below it; texts without room are left to the
    command ``more``."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    shared = [name for name in rows[0] if len(rows) > 1 and len({str(r[name]) for r in rows}) == 1]
    columns = [name for name in rows[0] if name not in shared]
    cells = {name: [str(row[name]) for row in rows] for name in columns}
    cells[columns[0]] = [_in_lines(name) for name in cells[columns[0]]]
    widths = {name: _width(name, cells[name]) for name in columns}
    texts = [name for name in columns[1:] if widths[name] > _NEVER_BROKEN]
    room = screen.width - sum(widths[c] + 3 for c in columns if c not in texts)
    if more and texts and room < _ROOM_FOR_TEXT * len(texts):
        columns = [name for name in columns if name not in texts]
    else:
        more = ""
    grid = Table(title=Text(title), title_justify="left", padding=(0, 0, 0, 1))
    for name in columns:
        grid.add_column(
            textwrap.fill(name, widths[name], break_long_words=False),
            justify="right" if isinstance(rows[0][name], int | float) else "left",
            overflow="fold",
            no_wrap=name not in texts,
        )
    for row in zip(*(cells[name] for name in columns), strict=True):
        grid.add_row(*map(Text, row))
    screen.print(grid)
    for name in shared:
        screen.print(f"{name}: {rows[0][name]}", style="dim", markup=False)
    if more:
        screen.print(f"{more} shows {' and '.join(texts)}.", style="dim", markup=False)


def _width(heading: str, cells: Sequence[str]) -> int:
    """Of a column whose heading may be broken between words."""
    lines = [line for cell in cells for line in cell.split("\n")]
    return max(map(len, (*heading.split(), *lines)))


def _in_lines(name: str) -> str:
    """A long name broken after its underscores."""
    lines = [""]
    for part in re.findall("[^_]+_*|_+", name):
        if lines[-1] and len(lines[-1]) + len(part) > _LONGEST_NAME:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


_WIDEST = 100  # longer lines are hard to read


def policy_facts(name: str) -> dict[str, Any]:
    """The page as JSON types. name: a known policy or ``module:Class``. Raises ScenarioError."""
    known = registry.names()
    if name not in known and not outside.is_reference(name):
        raise ScenarioError("presets policies", f"unknown name {name!r}; {nearest(name, known)}")
    kind = registry.find(name, f"presets policies {name}")
    about = describe(kind)
    facts: dict[str, Any] = {
        "name": name,
        "what it does": about.mechanism,
        "source": about.source,
        "how": list(about.paragraphs),
        "parameters": [_parameter(option) for option in outside.options_of(kind)],
    }
    short_name = getattr(kind, "NAME", "")
    other = name in registry.built_in() and short_name != name
    return {**facts, "another name of": short_name} if other else facts


def _parameter(option: Option) -> dict[str, Any]:
    facts = {"name": option.key, "must be": option.reader.wanted, "unit": option.unit}
    if not option.required:
        facts["default"] = option.default
    return {**facts, "meaning": option.doc.sentence, "default from": option.doc.source}


def show_policy(name: str) -> None:
    """Prints a policy's page."""
    screen = console()
    facts = policy_facts(name)
    _say(screen, f"{name}: {facts['what it does']}", style="bold")
    if facts["source"]:
        _say(screen, f"Source: {facts['source']}.")
    if "another name of" in facts:
        _say(screen, f"Another name of {facts['another name of']}.")
    for number, text in enumerate(facts["how"]):
        listed = text.startswith("- ")
        if not (listed and number and facts["how"][number - 1].startswith("- ")):
            screen.print()
        _say(screen, text.removeprefix("- "), "  - " if listed else "")
    screen.print()
    if not facts["parameters"]:
        _say(screen, "It has no parameters.")
    for parameter in facts["parameters"]:
        _say(screen, _heading(parameter), style="bold")
        if parameter["meaning"]:
            _say(screen, parameter["meaning"], "    ")
        if parameter["default from"]:
            _say(screen, f"default from: {parameter['default from']}", "    ")


def _heading(parameter: dict[str, Any]) -> str:
    default = parameter.get("default", _NONE)
    given = "required" if default is _NONE else f"default {spelt(default)}"
    unit = f" ({parameter['unit']})" if parameter["unit"] else ""
    return f"{parameter['name']}: {parameter['must be']}{unit}; {given}"


_NONE = object()


def _say(screen: Console, text: str, lead: str = "", style: str = "") -> None:
    """A paragraph, whose later lines stand below its first."""
    width = min(screen.width, _WIDEST)
    after = " " * len(lead)
    for line in textwrap.wrap(
        text, width, initial_indent=lead, subsequent_indent=after, break_on_hyphens=False
    ):
        screen.print(line, style=style or None, markup=False)
