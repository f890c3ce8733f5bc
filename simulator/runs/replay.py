"""A real run again, from its record alone: whether the decisions are the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollcast.simulator.core.spans import Run
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.loop.recorded import Entry, RecordedWorld, read_entry
from rollcast.simulator.policies import build_chain
from rollcast.simulator.results import schema
from rollcast.simulator.results.read import place, read_document, read_lines
from rollcast.simulator.results.write import plain
from rollcast.simulator.runs.drive import Parts, drive
from rollcast.simulator.scenario.file import Trust, kept_modules, require_trust
from rollcast.simulator.scenario.scenario import cluster_shape
from rollcast.simulator.scenario.sections import base_plan, validate

FIELD = "RUN_DIR"


@dataclass(frozen=True)
class Replayed:
    """run: what the loop made of the record. differs: the first step whose decision is not the one
    that was taken; None where all are the same."""

    run: Run
    differs: int | None


def replay(folder: Path, trust_modules: Trust = False) -> Replayed:
    """The run in ``folder``, from its events.jsonl.

    trust_modules: whether modules of policies that the run names may be imported. Raises
    ScenarioError (``RUN_DIR``) for a folder without such a run, untrusted modules, or a record that
    the loop does not follow.
    """
    entries = read_record(folder)
    described = read_document(folder, schema.SCENARIO, FIELD)
    model = validate(described["scenario"])
    require_trust(described["scenario"], trust_modules, str(folder), FIELD)
    folder_of_modules = kept_modules(described["scenario"])
    policy = build_chain(model.policy, seed=model.seed, folder=folder_of_modules)
    slots = model.cluster.replicas * model.engine.max_seqs
    shape = replace(cluster_shape(model.cluster), slots=slots)
    limit_s = None if model.environment is None else model.environment.trial_timeout_s
    job = Parts(policy, base_plan(model), model.poll_s, limit_s)
    world = RecordedWorld(entries, None, shape, "recorded")
    try:
        result = drive(job, world, model.steps)
    except RunError as error:
        raise ScenarioError(FIELD, f"{folder}/{schema.EVENTS.name}: {error}") from None
    recorded = read_lines(folder, schema.DECISIONS, FIELD)
    made = [json.loads(json.dumps(plain(decision))) for decision in result.decisions]
    return Replayed(result, _first_difference(recorded, made))


def read_record(folder: Path) -> list[Entry]:
    """The record of a run. Raises ScenarioError (``RUN_DIR``)."""
    if not folder.is_dir():
        wanted = "give the folder of a run, as rollcast run --out writes it"
        raise ScenarioError(FIELD, f"{folder} is not a folder; {wanted}")
    if not place(folder, schema.EVENTS.name).exists():
        raise ScenarioError(
            FIELD,
            f"{folder} holds no {schema.EVENTS.name}; real runs write it (earlier versions of "
            "rollcast: only runs of several processes)",
        )
    lines = read_lines(folder, schema.EVENTS, FIELD)
    try:
        return [
            read_entry(line, f"{schema.EVENTS.name}, line {number}")
            for number, line in enumerate(lines, start=1)
        ]
    except ValueError as error:
        raise ScenarioError(FIELD, f"{folder}/{error}") from None


def _first_difference(recorded: list[dict[str, Any]], made: list[dict[str, Any]]) -> int | None:
    for step, (one, other) in enumerate(zip(recorded, made, strict=False)):
        if one != other:
            return step
    return None if len(recorded) == len(made) else min(len(recorded), len(made))
