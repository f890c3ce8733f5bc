"""A plan's folder: the answer, the table, the recommended scenario."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from rollcast.simulator.planner.answer import Planned, Row
from rollcast.simulator.policies.chains import read_terms
from rollcast.simulator.policies.outside import is_reference
from rollcast.simulator.results import schema
from rollcast.simulator.results.phases import said
from rollcast.simulator.results.write import write_json, write_rows_as_table

_PATHS = (
    ("workload", "lengths", "trace"),
    ("workload", "lengths", "file"),
    ("cost", "file"),
    ("learning", "file"),
    ("model",),
    ("engine", "model"),
    ("modules",),
)
"""Keys of a scenario that may hold paths."""


def write_plan(folder: Path, planned: Planned, source: Path, target: Path) -> None:
    """Writes plan.json, plan.csv and recommended.yaml.

    source: the folder of the scenario's file, base of its paths; target: the folder's final place.
    """
    rows = [row.plain() for row in planned.rows] + [row.plain() for row in planned.unrun]
    write_rows_as_table(folder / schema.PLAN_CSV.name, rows)
    write_json(folder / schema.PLAN_JSON.name, document(planned))
    if planned.recommended is not None and planned.scenario is not None:
        text = scenario_text(planned, source, target)
        (folder / schema.PLAN_SCENARIO.name).write_text(text, encoding="utf-8")


def document(planned: Planned) -> dict[str, Any]:
    """plan.json."""
    return {
        "schema": schema.PLAN_SCHEMA,
        "name": planned.name,
        "work": planned.work.text,
        "work_assumed": planned.work.assumed,
        "objective": planned.objective,
        "limits": asdict(planned.limits),
        "recommended": _chosen(planned.recommended, planned),
        "nearest": _chosen(planned.nearest, planned),
        "give_up": {name: _chosen(row, planned) for name, row in planned.give_up.items()},
        "narrowed": planned.narrowed,
        "sentences": list(planned.sentences),
        "changes": list(planned.changes),
        "rivals": [
            {**_picked(rival.row), "behind": rival.behind, "wins": rival.wins}
            for rival in planned.rivals
        ],
        "baseline": None if planned.baseline is None else _picked(planned.baseline),
        "front": [_picked(row) for row in planned.front],
        "impossible": [
            {"problem": impossible.problem, "choices": list(impossible.choices)}
            for impossible in planned.impossible
        ],
        "rows": [row.plain() for row in planned.rows],
        "unrun": [row.plain() for row in planned.unrun],
        "simulated_steps": planned.simulated_steps,
        "brute_force_steps": planned.brute_force_steps,
    }


def _picked(row: Row) -> dict[str, Any]:
    plain = row.plain()
    kept = (
        "policy",
        "placement",
        "gpu",
        "gpus",
        "replicas",
        "tensor_parallel",
        "trainer_gpus",
        "hours",
        "hours_low",
        "hours_high",
        "usd",
        "usd_low",
        "usd_high",
        "gpu_hours",
        "updates",
        "step_s",
        "startup_s",
        "startup_steps",
        "break_even",
        "staleness_max",
        "length_bias",
        "warnings",
    )
    return {
        "settings": dict(row.choice.settings),
        **{key: plain[key] for key in kept},
        **said(plain),
    }


def _chosen(row: Row | None, planned: Planned) -> dict[str, Any] | None:
    if row is None:
        return None
    written = row is planned.recommended
    return {**_picked(row), "scenario": schema.PLAN_SCENARIO.name if written else None}


def scenario_text(planned: Planned, source: Path, target: Path) -> str:
    """recommended.yaml: the scenario as simulated, with paths from ``target``."""
    assert planned.scenario is not None
    data = dict(planned.scenario)
    if any(is_reference(term.name) for term in read_terms(data["policy"])):
        data.setdefault("modules", ".")
    data = _moved(data, source, target)
    comments = "\n".join(f"# {line}" for line in planned.sentences)
    return f"{comments}\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}"


def _moved(data: Mapping[str, Any], source: Path, target: Path) -> dict[str, Any]:
    """The scenario with its paths rewritten from ``source`` to ``target``."""
    moved = dict(data)
    for *above, last in _PATHS:
        place: Any = moved
        for key in above:
            below = place.get(key) if isinstance(place, dict) else None
            if not isinstance(below, dict):
                place = None
                break
            place[key] = dict(below)
            place = place[key]
        value = place.get(last) if isinstance(place, dict) else None
        if isinstance(value, str) and not Path(value).is_absolute() and _there(source / value):
            place[last] = os.path.relpath((source / value).resolve(), target.resolve())
    return moved


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
