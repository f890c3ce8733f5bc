"""Held-out prompts, asked between two steps: the same ones every time, with the same random
numbers, so that equal weights earn equal rewards."""

from __future__ import annotations

import time
from math import fsum

from rollcast.engine.log import EngineLog, Evaluation
from rollcast.engine.run_options import EvaluationOptions
from rollcast.engine.tasks.base import Task
from rollcast.engine.world import EngineWorld
from rollcast.simulator.errors import ScenarioError

_FIRST_GROUP = -2  # -1 is none


def evaluations(log: EngineLog) -> list[Evaluation]:
    """A log's, each once: what followed a save is evaluated again."""
    return [*{one.steps_done: one for one in log.evaluations}.values()]


class Evaluator:
    """Evaluates a world's weights. Raises ScenarioError where the task holds no prompt out."""

    def __init__(self, options: EvaluationOptions, task: Task) -> None:
        self._options = options
        held_out = task.held_out(options.prompts)
        if not held_out:
            raise ScenarioError(
                f"{options.FIELD}",
                "needs held-out prompts, and none of engine.task.prompts is one (an eighth of "
                "them, by a hash of their text): give more prompts, or leave it out",
            )
        self._prompts = {_FIRST_GROUP - n: prompt for n, prompt in enumerate(held_out)}

    def due(self, log: EngineLog, steps: int, last: int) -> bool:
        """Whether it is time, after so many steps of a run of ``last``."""
        if not log.evaluations:
            return True
        done, every = log.evaluations[-1].steps_done, self._options.every
        return steps // every > done // every or steps == last > done

    def evaluate(self, world: EngineWorld, steps: int) -> None:
        """Asks and logs."""
        began_s, count = time.perf_counter(), self._options.rollouts
        found = world.sample_apart(self._prompts, count)
        rollouts = len(found.rewards)
        world.log.evaluations.append(
            Evaluation(
                steps,
                found.version,
                len(self._prompts),
                rollouts,
                fsum(found.rewards) / rollouts,
                sum(found.tokens) / rollouts,
                found.cut / rollouts,
                found.failed,
                time.perf_counter() - began_s,
            )
        )
