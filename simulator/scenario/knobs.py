"""What can be changed of a set-up beside its GPUs and policy: the trainer's memory and layout, the
engine's room, and what a step trains on.

``knobs.yaml`` has the keys of the scenario with the values to try, and where they apply. What a
stack can set is read from its own files: ways to split a model from ``costs.yaml``, launch settings
from ``launch.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rollcast.simulator.costs.backends import BACKENDS, Backend, backends_of
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.stacks import FOLDERS, UNKNOWN, known_stack
from rollcast.simulator.stacks.settings import meanings
from rollcast.simulator.stacks.stack import all_stacks
from rollcast.simulator.values import choice
from rollcast.simulator.values.yaml_file import read_yaml

Effect = Literal["trainer", "engine", "training"]
"""What a knob acts on: the trainer's speed and memory, the engine's, or what is learned."""

_ROOFLINE, _TRAINER = "cost.roofline", "cost.roofline.trainer"


@dataclass(frozen=True, slots=True)
class Knob:
    """A key of the scenario. values: to try, in order. words: what it does. effect: on what; one on
    ``training`` changes what is learned, and is nobody's to change unasked. settings: names of
    `meanings` by which a launch says it, the likeliest first."""

    key: str
    values: tuple[Any, ...]
    words: str
    effect: Effect
    settings: tuple[str, ...] = ()

    def others(self, now: Any) -> tuple[Any, ...]:
        """The values that are not the scenario's own."""
        return tuple(value for value in self.values if value != now)


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a knob applies. backends, placement: None for any. split: whether it is a way to split
    a model, of ``costs.yaml``."""

    knob: Knob
    backends: tuple[Backend, ...] | None = None
    placement: Literal["colocated"] | None = None
    split: bool = False


@cache
def _table() -> tuple[_Entry, ...]:
    """The entries of ``knobs.yaml``, in its order."""
    entries = []
    for row in read_yaml(Path(__file__).with_name("knobs.yaml")):
        applies = {
            name: row.pop(name) for name in ("backends", "placement", "split") if name in row
        }
        row |= {name: tuple(row[name]) for name in ("values", "settings")}
        entries.append(_Entry(Knob(**row), **applies))
    return tuple(entries)


def knobs_of(
    stack: str | None, backend: str | None, placement: str, model: Model | None
) -> tuple[Knob, ...]:
    """What can be set under a stack, in the order of the table.

    stack: of ``cost.roofline.stack``; None: any. backend: of its trainer; None: its default.
    placement: colocated or disaggregated. model: whose heads, layers and experts the values of a
    split divide; None: any. A setting for which the launch tables have a name is offered where the
    stack's own table has a key for it. Raises ScenarioError for a stack or backend that is none.
    """
    name = UNKNOWN if stack is None else known_stack(stack, f"{_ROOFLINE}.stack")
    known = backends_of(name)
    chosen = next(iter(known)) if backend is None else backend
    choice(chosen, f"{_TRAINER}.backend", tuple(known) if stack else BACKENDS)
    splits = known[chosen].splits  # type: ignore[index]
    return tuple(_fitting(chosen, placement, splits, model, _takes(name)))


def _takes(stack: str) -> frozenset[str] | None:
    """The settings that the stack's launch can say; None where its launch is not known."""
    folder = all_stacks().get(FOLDERS[stack].name)
    if folder is None:
        return None
    keys = folder.launch.keys
    return frozenset(ours for ours in keys if any(key.holds(None) for key in keys[ours]))


def _fitting(
    backend: str,
    placement: str,
    splits: tuple[str, ...],
    model: Model | None,
    takes: frozenset[str] | None,
) -> Iterator[Knob]:
    for entry in _table():
        knob = entry.knob
        if entry.backends is not None and backend not in entry.backends:
            continue
        if entry.placement not in (None, placement):
            continue
        if entry.split and knob.key.rpartition(".")[2] not in splits:
            continue
        named = [setting for setting in knob.settings if setting in meanings()]
        if takes is not None and named and takes.isdisjoint(named):
            continue
        values = tuple(value for value in knob.values if _divides(knob.key, value, model))
        if len(values) > 1 or not entry.split:
            yield replace(knob, values=values)


def _divides(key: str, value: Any, model: Model | None) -> bool:
    """Whether a model can be split so."""
    if model is None:
        return True
    if key.endswith((".tensor_parallel", ".sequence_parallel")):
        return bool(model.heads % value == 0)
    if key.endswith(".pipeline_parallel"):
        return bool(value <= model.layers)
    if key.endswith(".expert_parallel"):
        return bool(model.experts and model.experts % value == 0)
    return True


__all__ = ["Effect", "Knob", "knobs_of"]
