"""One engine for all sources: ``sources.yaml`` declares them, a module of each prices its rows."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from benchmarks.validation.case import (
    Case,
    Check,
    Source,
    by,
    error_text,
    grouped,
    held_out,
    mape,
    outside,
)
from benchmarks.validation.files import PUBLISHED, AbsentError, read_table
from rollcast.simulator import values


@dataclass(frozen=True, slots=True)
class Mean:
    """A check of each group of cases: the mean absolute error.

    name: with ``{group}``. role, groups: of the cases that it takes; groups is a pattern. target:
    a share, or shares by a pattern of the group, of which the first that fits counts. split: a
    pattern of a part of the cases' names, by which the note splits the error. note: whether bias
    and worst case are told.
    """

    name: str
    role: str = "held out"
    groups: str = ""
    target: float | Mapping[str, float] | None = None
    split: str = ""
    note: bool = True


@dataclass(frozen=True, slots=True)
class Reason:
    """Why cases whose ``group: name`` fits the pattern ``cases`` are off."""

    name: str
    cases: str
    because: str


@dataclass(frozen=True, slots=True)
class Declared:
    """A source as ``sources.yaml`` declares it.

    table: its file, in the folder of data sets, or among this repository's where ``published``.
    checks: of the groups' mean errors. outside: the target of the share of held-out cases outside
    their intervals. reasons: given for cases that are off by more than ``beyond``. listed: whether
    cases are reported one by one. The texts may name ``{facts}`` of the module.
    """

    title: str
    citation: str
    table: str
    calibrated: str
    held_out: str
    published: bool = False
    listed: bool = True
    assumed: tuple[str, ...] = ()
    checks: tuple[Mean, ...] = ()
    outside: float | None = None
    beyond: float = 0.2
    reasons: tuple[Reason, ...] = ()
    misses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """What a source's module makes of its rows.

    checks: beyond those declared. notes: misses in words. facts: for the declared texts.
    scenarios: by name, as a scenario file's keys.
    """

    cases: Sequence[Case]
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    scenarios: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@cache
def declarations() -> Mapping[str, Declared]:
    """The sources by key, in the order in which they are reported."""
    text = Path(__file__).with_name("sources.yaml").read_text("utf-8")
    return {key: values.read(Declared, keys, key) for key, keys in yaml.safe_load(text).items()}


def read(key: str, data: Path) -> list[Any]:
    """The rows of a source's table. Raises AbsentError or ScenarioError."""
    declared = declarations()[key]
    folder = PUBLISHED if declared.published else data
    module = import_module(f"benchmarks.validation.{key}")
    if hasattr(module, "read"):
        rows: list[Any] = module.read(folder / declared.table)
        return rows
    return read_table(folder / declared.table, module.Row)


def judge(key: str, data: Path) -> Source:
    """One source. Raises AbsentError where its table is not there, ScenarioError where it is
    wrong."""
    declared = declarations()[key]
    found: Judged = import_module(f"benchmarks.validation.{key}").judge(read(key, data))
    return Source(
        key,
        declared.title,
        declared.citation,
        declared.calibrated.format(**found.facts),
        declared.held_out,
        tuple(text.format(**found.facts) for text in declared.assumed),
        tuple(found.cases),
        tuple(_checks(declared, found)),
        (*explain(found.cases, declared.reasons, declared.beyond), *declared.misses, *found.notes),
        found.scenarios,
        declared.listed,
    )


def judge_all(data: Path, keys: Sequence[str] | None = None) -> list[Source]:
    """The sources named (all of them), in order; one whose data set is absent is marked skipped."""
    sources = []
    for key in keys or declarations():
        try:
            sources.append(judge(key, data))
        except AbsentError as reason:
            sources.append(Source(key, key.replace("_", " "), "", skipped=str(reason)))
    return sources


def _checks(declared: Declared, found: Judged) -> Iterator[Check]:
    """Held-out figures first, those fitted to last."""
    for mean in declared.checks:
        if mean.role == "held out":
            yield from mean_checks(found.cases, mean)
    if declared.outside is not None:
        held = held_out(found.cases)
        name = "held out, outside their 90 % interval"
        yield Check(name, outside(held), declared.outside, len(held))
    yield from found.checks
    for mean in declared.checks:
        if mean.role != "held out":
            yield from mean_checks(found.cases, mean)


def mean_checks(cases: Sequence[Case], mean: Mean) -> Iterator[Check]:
    """A check for each group of the cases that ``mean`` takes."""
    taken = [c for c in cases if c.role == mean.role and re.search(mean.groups, c.group)]
    for group, members in grouped(taken).items():
        note = error_text(members) if mean.note else ""
        if mean.split:
            parts = by(members, lambda case: re.findall(mean.split, case.name)[0])
            texts = [f"{part}: {mape(some):.1%}" for part, some in sorted(parts.items())]
            note += "; " + ", ".join(texts)
        name = mean.name.format(group=group)
        yield Check(name, mape(members), _target(mean, group), len(members), note)


def _target(mean: Mean, group: str) -> float | None:
    if not isinstance(mean.target, Mapping):
        return mean.target
    return next((t for pattern, t in mean.target.items() if re.search(pattern, group)), None)


def explain(cases: Sequence[Case], reasons: Sequence[Reason], beyond: float) -> Iterator[str]:
    """A sentence for each reason that has cases more than ``beyond`` off, with their range."""
    for reason in reasons:
        errors = [
            case.error
            for case in cases
            if abs(case.error) > beyond and re.search(reason.cases, f"{case.role}|{case.full_name}")
        ]
        if errors:
            yield (
                f"{reason.name}: {len(errors)} more than {beyond:.0%} off ({min(errors):+.0%} to "
                f"{max(errors):+.0%}); {reason.because}."
            )
