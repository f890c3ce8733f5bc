"""The real world of one engine and one trainer in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rollcast.engine.actors.fleet import Recipe
from rollcast.engine.actors.local import LocalTransport
from rollcast.engine.actors.weights import InPlace
from rollcast.engine.edges import Engine, Trainer
from rollcast.engine.environments.threads import Runner
from rollcast.engine.sessions import TurnRules
from rollcast.engine.tasks.base import Task
from rollcast.engine.world import EngineWorld
from rollcast.engine.world_parts import SHAPE, Recipes


class Lent:
    """An engine that a run leaves running, for the run after it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def shutdown(self) -> None:
        """Leaves it running, without rollouts."""
        self._engine.abort()


def in_process(
    replica: Engine,
    trainer: Trainer,
    task: Task,
    seed: int,
    *,
    turns: TurnRules | None = None,
    runner: Runner | None = None,
    timer: Callable[[], float] = time.perf_counter,
    sleeps: bool = False,
) -> EngineWorld:
    """The world of one engine and one trainer in this process. timer: its clock, seconds. sleeps:
    whether the engine gives up its memory while the trainer works."""
    recipes = Recipes([Recipe(lambda: replica)], [Recipe(lambda: trainer)], InPlace(), sleeps)
    rules = None if turns is None else lambda limits: turns
    transport = LocalTransport(timer)
    return EngineWorld(transport, recipes, SHAPE, task, seed, turns=rules, runner=runner)
