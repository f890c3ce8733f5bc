"""One run: a warm start, a policy, and the table that it leaves."""

import copy
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning.arms import Setup
from benchmarks.learning.learner import Learner
from benchmarks.learning.tables import SIGNALS
from benchmarks.learning.tasks import TASKS
from benchmarks.learning.warm import evaluate, warm_start
from benchmarks.learning.world import LearningWorld
from rollcast.simulator.core.plan import Batch, Prompts, StepPlan
from rollcast.simulator.core.spans import Run
from rollcast.simulator.learning.signals import signals_of
from rollcast.simulator.loop import Loop
from rollcast.simulator.policies import check_policy, parse_policy
from rollcast.simulator.scenario.scenario import overlapping

EVERY = 5  # updates between evaluations


def carry_out(setup: Setup, warm_starts: Path) -> dict[str, Any]:
    """Makes a run; its table: a list for each column, evaluations and updates apart."""
    task, arm = TASKS[setup.task], setup.arm
    trained_on = copy.copy(task)  # evaluations are never cut
    trained_on.cap = task.cap if arm.cap is None else arm.cap
    torch.manual_seed(setup.seed)
    model = warm_start(setup.task, setup.warm, warm_starts)
    learner = Learner(task, model, task.learning_rate * arm.rate, arm.minibatches, arm.mask)
    policy = parse_policy(arm.policy, seed=setup.seed)
    plan = StepPlan(Batch(arm.groups, arm.size), prompts=Prompts(dataset=arm.prompts))
    check_policy(policy, plan)
    seed = 1_000 * setup.warm + setup.seed
    world = LearningWorld(
        trained_on,
        learner,
        slots=1024,
        train_s=arm.train_s,
        apart=overlapping(policy, plan) is not None,
        seed=seed,
    )
    evaluations = [{"updates": 0, **evaluate(model, task)}]

    def after(step: Any) -> None:
        done = len(learner.updates)
        if done % EVERY == 0 and done > evaluations[-1]["updates"]:
            evaluations.append({"updates": done, **evaluate(model, task)})

    updates = task.updates * setup.length
    run = Loop(world, policy, plan, after).run(updates)
    return {
        "task": setup.task,
        "arm": arm.name,
        "warm": setup.warm,
        "seed": setup.seed,
        "evaluations": _columns(evaluations),
        "updates": _columns(learner.updates[:updates]) | _signals(run),
    }


def _signals(run: Run) -> dict[str, Any]:
    signals = signals_of(run)
    return {
        **{name: getattr(signals, name).tolist() for name in SIGNALS},
        "reward": [step.mean_reward for step in run.steps],
        "selection": signals.selection,
        "filtered": signals.filtered,
    }


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}
