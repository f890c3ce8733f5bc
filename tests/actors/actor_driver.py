"""A driver to be stopped: ``actor_driver.py SCENARIO OUT [--resume]`` is ``rollcast run`` on Ray,
with actors without engines. RAY_FOLDERS: where Ray keeps its files."""

import os
import sys
from typing import Any

from actor_fakes import FakeTask, StartEngine, StartTrainer

from rollcast.engine import start
from rollcast.engine.actors import on_ray
from rollcast.engine.actors.fleet import Recipe
from rollcast.engine.actors.on_ray import RayTransport
from rollcast.engine.config import RunSpec
from rollcast.engine.world import EngineWorld
from rollcast.engine.world_parts import Recipes
from rollcast.simulator.cli import app as cli
from tests.small_ray import small_ray


def start_actors(spec: RunSpec, address: str | None = None) -> Any:
    recipes = Recipes(
        [Recipe(StartEngine(8, 5e-3))] * spec.cluster.replicas,
        [Recipe(StartTrainer(1e-4))],
    )
    return EngineWorld(RayTransport(), recipes, spec.shape, FakeTask(spec.max_new_tokens), 3)


if __name__ == "__main__":
    start.start_actors = start_actors  # type: ignore[assignment]
    on_ray.TEMPORARY = os.environ["RAY_FOLDERS"]
    with small_ray():
        cli.main(["run", sys.argv[1], "--out", *sys.argv[2:], "--no-plot"])
