"""Learning curves out of run folders and imports, and the law of progress fitted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rollcast.calibration.fits.learning import (
    CONCENTRATION,
    LEAST_EVALUATIONS,
    LearningRun,
    check_runs,
    fit,
    known_from,
    law_of,
)
from rollcast.calibration.folder import FIELD, RunFolder, Table, check_given_once
from rollcast.calibration.judge.learning import Judged, judge
from rollcast.calibration.logs import columns
from rollcast.calibration.logs.write import CONTENT, holds_import
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.learning.data import prior
from rollcast.simulator.learning.law import Law
from rollcast.simulator.learning.schedule import schedule_of
from rollcast.simulator.learning.signals import (
    NO_SELECTION,
    FloatArray,
    IntArray,
    Signals,
    first_come,
)
from rollcast.simulator.results import schema
from rollcast.simulator.results.read import place, read_json, read_lines, read_table

_BATCH = ("workload.batch_groups", "workload.group_size")
_EVALUATE = "set engine.evaluation (every: 5) and run again"


def calibrate_learning(folders: Sequence[Path]) -> Law:
    """The law of one's own runs, from the prior where they say nothing.

    folders: of rollcast run, with evaluations, or of rollcast import, whose rewards from 0 to 1
    then count as accuracy. Raises ScenarioError (``RUN_DIR``) for no runs, one given twice, runs
    without evaluations, of one seed, of several tasks, or whose accuracy does not move.
    """
    check_given_once(folders)
    runs = [read_run(folder, number) for number, folder in enumerate(folders)]
    check_runs(runs, FIELD)
    before = prior()
    fitted = fit(runs, *known_from(before))
    policies = sorted({run.policy for run in runs})
    source = f"{len(runs)} runs ({', '.join(policies[:6])}) of {runs[0].origin}"
    return law_of(fitted, runs[0].origin, source, before)


def validate_learning(law: Law, folders: Sequence[Path]) -> list[list[Judged]]:
    """A law's figures of each run (`calibration.judge.learning`). Raises ScenarioError."""
    judged = []
    for number, folder in enumerate(folders):
        run = read_run(folder, number)
        if len(run.updates) < LEAST_EVALUATIONS:
            raise ScenarioError(FIELD, f"{folder} has only {len(run.updates)} evaluations")
        factor = 1.0 if law.learning_rate is None else run.rate / law.learning_rate
        judged.append(judge(law, run, float(run.accuracy[0]), factor))
    return judged


def read_run(folder: Path, number: int = 0) -> LearningRun:
    """The learning curve in a folder. number: among those given; the seed of an import, which names
    none. Raises ScenarioError (``RUN_DIR``)."""
    if folder.is_dir() and holds_import(folder):
        return _imported(folder, number)
    return _own(RunFolder.open(folder))


def _own(run: RunFolder) -> LearningRun:
    if not place(run.path, schema.EVALUATIONS.name).exists():
        raise ScenarioError(
            FIELD, f"{run.path} has no evaluation ({schema.EVALUATIONS.name}); {_EVALUATE}"
        )
    table = read_table(run.path, schema.EVALUATIONS, FIELD)
    done = np.minimum(table["steps_done"], len(run.steps["step"]))
    return curve_of(run, done, table["reward"], table["rollouts"].astype(float))


def curve_of(
    run: RunFolder, done: IntArray, accuracy: FloatArray, answers: FloatArray
) -> LearningRun:
    """A run of ours with these evaluations, each (evaluations,): after so many updates, the share
    of right answers of so many."""
    steps = run.steps
    size = steps.get("group_size", np.zeros(len(steps["step"])))
    groups = steps.get("trained_groups", np.zeros(len(steps["step"])))
    decisions = read_lines(run.path, schema.DECISIONS, FIELD)
    plan = decisions[-1].get("plan", {}) if decisions else {}
    stages = [stage["type"] for stage in plan.get("select", ())]
    sampled = np.maximum(groups * size, 1)
    options = run.section("engine", "trainer")
    count = len(steps["step"])
    steps_of = int(options.get("minibatches", 1)) * int(options.get("epochs", 1))
    schedule = schedule_of(options)
    if schedule.open_ended:
        schedule = replace(schedule, schedule_updates=count * steps_of)
    rights, wrongs = _lengths(run.rollouts, done, count)
    return LearningRun(
        name=str(run.path),
        origin=_origin(run.scenario),
        policy=run.policy,
        seed=run.seed,
        rate=float(options.get("learning_rate", 1e-6)),
        signals=Signals(
            rollouts=steps["trained_rollouts"],
            groups=np.asarray(groups, dtype=np.int64),
            group_size=np.asarray(size, dtype=float),
            kept=np.minimum(steps["trained_rollouts"] / sampled, 1.0),
            age=steps["mean_staleness"],
            age_spread=np.zeros(count),
            minibatches=np.full(count, float(options.get("minibatches", 1))),
            seconds=steps["end_s"],
            selection="+".join(stages) or NO_SELECTION,
            filtered=plan.get("filter") is not None,
            first_come=any(first_come(decision.get("plan", {})) for decision in decisions),
            rates=schedule.rates(np.arange(count), steps_of),
        ),
        updates=done,
        accuracy=accuracy,
        answers=answers,
        right_tokens=rights,
        wrong_tokens=wrongs,
    )


def _origin(scenario: Mapping[str, Any]) -> str:
    """What the runs of one task and model share."""
    engine = scenario.get("engine")
    engine = engine if isinstance(engine, Mapping) else {}
    model = engine.get("model") or scenario.get("model") or "the built-in model"
    task = engine.get("task") or {}
    return f"{model}, task {' '.join(map(str, task.values())) or 'as built in'}"


def _lengths(rollouts: Table, done: Any, count: int) -> tuple[FloatArray, FloatArray]:
    """Mean tokens of right and of wrong answers among those that finished in the step after each
    evaluation, nan for none."""
    reward = rollouts["reward"]
    tokens = rollouts.get("total_tokens", rollouts["new_tokens"])
    step = np.minimum(done, count - 1)
    whole = (rollouts["finished"] == 1) & np.isfinite(reward)

    def mean(chosen: Any) -> FloatArray:
        rows = np.bincount(rollouts["step"][chosen], minlength=count)
        total = np.bincount(rollouts["step"][chosen], tokens[chosen], minlength=count)
        return np.asarray(np.where(rows > 0, total / np.maximum(rows, 1), np.nan)[step])

    return mean(whole & (reward >= 0.5)), mean(whole & (reward < 0.5))


def _imported(folder: Path, number: int) -> LearningRun:
    """A log's curve: each logged step's mean reward is an evaluation of the weights before it."""
    content = read_json(folder / CONTENT, FIELD)
    table = read_table(folder, columns.STEPS, FIELD)
    step = np.asarray(table["step"], dtype=np.int64)
    logged = len(step)
    reward = table.get("mean_reward", np.full(logged, np.nan))
    known = np.flatnonzero(np.isfinite(reward))
    if not len(known):
        raise ScenarioError(
            FIELD, f"{folder}: its log names no reward, so it has no learning curve"
        )
    count = int(step[-1] - step[0]) + 1

    def column(name: str, otherwise: float) -> FloatArray:
        """By update, also by those that are not logged."""
        values = np.asarray(table.get(name, np.full(logged, np.nan)), dtype=float)
        middle = np.nanmedian(values) if np.isfinite(values).any() else otherwise
        values = np.where(np.isfinite(values), values, middle)
        return np.asarray(values[np.searchsorted(step, step[0] + np.arange(count))])

    parts = {part["key"]: part for part in content["scenario"]}

    def said(key: str) -> Any:
        return parts.get(key, {}).get("value")

    missing = [key for key in _BATCH if parts.get(key, {}).get("assumed")]
    if missing and not np.isfinite(table.get("rollouts", np.full(1, np.nan))).any():
        raise ScenarioError(
            FIELD,
            f"{folder}: its log does not say how many rollouts an update is of ({missing[0]} is "
            "assumed), and a law of learning needs that: import the log beside its settings",
        )
    asked = [float(said(key) or 1) for key in _BATCH]
    rollouts, groups = column("rollouts", asked[0] * asked[1]), column("groups", asked[0])
    policy = said("policy") or "sync"
    updates = step[known] - step[0]
    # A group's rollouts are of one prompt, so that they tell less than as many prompts would.
    alike = 1.0 + (asked[1] - 1.0) / (CONCENTRATION + 1.0)
    return LearningRun(
        name=str(folder),
        origin=f"model {said('model')}, {content['stack']}",
        policy=str(policy),
        seed=number,
        rate=1.0,
        signals=Signals(
            rollouts=rollouts.astype(np.int64),
            groups=groups.astype(np.int64),
            group_size=np.full(count, asked[1]),
            kept=np.ones(count),
            age=column("mean_staleness", 0.0),
            age_spread=np.zeros(count),
            minibatches=np.ones(count),
            seconds=np.cumsum(column("step_s", 1.0)),
            filtered="dynamic_sampling" in str(policy),
        ),
        updates=updates,
        accuracy=reward[known],
        answers=np.maximum(rollouts[updates] / alike, 1.0),
        right_tokens=np.full(len(known), np.nan),
        wrong_tokens=np.full(len(known), np.nan),
    )
