"""A run of actors again, from its record alone: whether the decisions are the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator.errors import RunError, ScenarioError
from simulator.loop import run
from simulator.loop.recorded import Entry, RecordedWorld, read_entry
from simulator.plan import Batch, Prompts, StepPlan
from simulator.results import schema
from simulator.results.read import place, read_document, read_lines
from simulator.results.write import plain
from simulator.scenario.scenario import build_policies, cluster_shape, validate
from simulator.spans import Run

FIELD = "RUN_DIR"


@dataclass(frozen=True)
class Replayed:
    """run: what the loop made of the record. differs: the first step whose decision is not the one
    that was taken; None where all are the same."""

    run: Run
    differs: int | None


def replay(folder: Path, modules: Path | None = None) -> Replayed:
    """The run in ``folder``, which has an events.jsonl. modules: where policies of one's own are
    looked for too. Raises ScenarioError (``RUN_DIR``) for a folder that holds no such run, or whose
    record the loop does not follow."""
    entries = read_record(folder)
    described = read_document(folder, schema.SCENARIO, FIELD)
    model = validate(described["scenario"])
    counts = model.workload
    plan = StepPlan(
        Batch(counts.batch_groups, counts.group_size), prompts=Prompts(dataset=counts.prompts)
    )
    policy = build_policies(model.policy, model.seed, modules)
    slots = model.cluster.replicas * model.engine.max_seqs
    shape = replace(cluster_shape(model.cluster), slots=slots)
    world = RecordedWorld(entries, None, shape, "recorded")
    try:
        result = run(world, policy, plan, model.steps)
    except RunError as error:
        raise ScenarioError(FIELD, f"{folder}/{schema.EVENTS.name}: {error}") from None
    told = read_lines(folder, schema.DECISIONS, FIELD)
    made = [json.loads(json.dumps(plain(decision))) for decision in result.decisions]
    return Replayed(result, _first_difference(told, made))


def read_record(folder: Path) -> list[Entry]:
    """The record of a run. Raises ScenarioError (``RUN_DIR``)."""
    if not place(folder, schema.EVENTS.name).exists():
        raise ScenarioError(
            FIELD,
            f"{folder} holds no {schema.EVENTS.name}: only runs of several processes have a record",
        )
    lines = read_lines(folder, schema.EVENTS, FIELD)
    try:
        return [
            read_entry(line, f"{schema.EVENTS.name}, line {number}")
            for number, line in enumerate(lines, start=1)
        ]
    except ValueError as error:
        raise ScenarioError(FIELD, f"{folder}/{error}") from None


def _first_difference(told: list[dict[str, Any]], made: list[dict[str, Any]]) -> int | None:
    for step, (one, other) in enumerate(zip(told, made, strict=False)):
        if one != other:
            return step
    return None if len(told) == len(made) else min(len(told), len(made))
