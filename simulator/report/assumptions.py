"""The values of a scenario and their sources."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.report.page import Content, Markup, tag
from rollcast.simulator.report.parts import Column, Row, folded, section, table
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.workload.solved import solved_lengths

GIVEN = "given"
_LEFT_OUT = ("policy", "steps", "seed", "name", "plan")
_PARTS_OF_THEIR_OWN = ("_model.", "speculative.", ".sync.")  # defaults that few runs have a use for


@dataclass(frozen=True, slots=True)
class Assumption:
    """A value. kind: ``given``, ``measured``, ``fitted``, ``published``, ``assumed`` and such."""

    key: str
    value: str
    kind: str
    source: str


def given(scenario: Scenario) -> list[Assumption]:
    """The values in the scenario's file."""
    where = scenario.raw.name
    return [
        Assumption(key, _text(value), GIVEN, scenario.raw.overridden.get(key, where))
        for key, value in flat(scenario.raw.data)
        if key.split(".")[0] not in _LEFT_OUT
    ]


def of_presets(scenario: Scenario) -> list[Assumption]:
    """The figures of its presets that it does not replace, and the lengths solved for."""
    figures = []
    data = scenario.raw.data
    keys = {key for key, _ in flat(data)}
    for place, gpu in (("gpu", scenario.gpu), ("cluster.trainer_gpu", scenario.trainer_gpu)):
        for figure, about in gpu.provenance.items() if gpu is not None else ():
            if f"{place}.{figure}" in keys:
                continue
            value = f"{getattr(gpu, figure):.4g}"
            figures.append(Assumption(f"{place}.{figure}", value, about.kind, about.source))
    if isinstance(data.get("model"), str):
        model = getattr(scenario.cost, "model", None)
        source = getattr(model, "source", "")
        figures.append(Assumption("model", data["model"], "published" if source else "", source))
    figures.extend(_of_stack(scenario, keys))
    lengths = data["workload"].get("lengths")
    if isinstance(lengths, Mapping) and "preset" in lengths:
        from rollcast.simulator.workload.length_specs import length_presets

        preset = length_presets()[lengths["preset"]]
        prompts = preset.details.get("prompts")
        source = preset.source + (f", {prompts} prompts" if prompts else "")
        errors = preset.details.get("standard_errors", {})
        for key, value in preset.lengths.items():
            if key in lengths:
                continue
            off = f" ± {errors[key]:g}" if key in errors else ""
            text = f"{_text(value)}{off}"
            figures.append(Assumption(f"workload.lengths.{key}", text, preset.kind, source))
    if solved := solved_lengths(data["workload"]):
        known = ", ".join(f"{key} {_text(value)}" for key, value in solved["known"].items())
        for key, value in solved["solved"].items():
            source = f"solved for {known}"
            figures.append(Assumption(f"workload.lengths.{key}", _text(value), "fitted", source))
        for key, (low, central, high) in solved["open"].items():
            text = f"{central:.3g}, {low:.3g} to {high:.3g} in intervals"
            source = f"left open by {known}"
            figures.append(Assumption(f"workload.lengths.{key}", text, "assumed", source))
    return figures


def _of_stack(scenario: Scenario, keys: Collection[str]) -> Iterator[Assumption]:
    """The figures of the scenario's stack and of its trainer's backend that it does not replace."""
    cost = getattr(scenario.cost, "inner", scenario.cost)
    stack, trainer = getattr(cost, "stack", None), getattr(cost, "trainer_of", None)
    if stack is None or trainer is None:
        return
    from rollcast.simulator.costs.stack_figures import stack_figures, trainer_figures

    backend = trainer.backend
    for key, value, source in (*stack_figures(stack, backend), *trainer_figures(stack, backend)):
        if f"cost.roofline.{key}" not in keys:
            yield Assumption(f"cost.roofline.{key}", value, source.kind, source.source)


def of_defaults(scenario: Scenario) -> list[Assumption]:
    """The defaults with a source, of sections in use."""
    from rollcast.simulator.scenario.reference import reference

    keys = {key for key, _ in flat(scenario.raw.data)} | {of.key for of in of_presets(scenario)}
    cost = scenario.raw.data.get("cost", "roofline")
    of_the_roofline = cost == "roofline" or (isinstance(cost, Mapping) and "roofline" in cost)
    prefixes = ("engine.", *(("cost.roofline.",) if of_the_roofline else ()))
    return [
        Assumption(entry.key, entry.default, *_split(entry.source))
        for entry in reference()
        if entry.key.startswith(prefixes)
        if entry.source and entry.default not in ("", "null") and entry.key not in keys
        if not any(part in entry.key for part in _PARTS_OF_THEIR_OWN)
    ]


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a mapping by dotted key."""
    for name, value in values.items():
        key = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping) and value:
            yield from flat(value, key)
        else:
            yield key, value


def assumptions(scenario: Scenario) -> Markup:
    """The page's section on them."""
    parts = (
        ("Given in the scenario", given(scenario)),
        ("Figures of presets", of_presets(scenario)),
        ("Defaults that have a source", of_defaults(scenario)),
    )
    return section(
        "What it rests on",
        [folded(f"{name} ({len(rows)})", _table(rows, name)) for name, rows in parts if rows],
        about="Measured, fitted, published or of a datasheet, each figure with its source; what is "
        "only assumed is marked.",
    )


def _table(rows: Iterable[Assumption], caption: str) -> Markup:
    columns = [Column(heading, text=True) for heading in ("key", "value", "it is", "source")]

    def cells(row: Assumption) -> Sequence[Content]:
        kind = tag("span", row.kind, class_=f"kind {row.kind}") if row.kind else None
        return row.key, row.value, kind, row.source

    return table(columns, [Row(cells(row)) for row in rows], caption)


def _split(source: str) -> tuple[str, str]:
    """Kind and source of a default's source text."""
    kind, colon, rest = source.partition(": ")
    known = ("measured", "fitted", "assumed", "datasheet", "published")
    return (kind, rest) if colon and kind in known else ("", source)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
