"""A driver to be killed: ``python actor_driver.py SCENARIO OUT [--resume]`` runs a scenario on Ray,
with actors without engines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from actor_fakes import FakeTask, StartEngine, StartTrainer

from engine import start
from engine.actors.fleet import Recipe
from engine.actors.on_ray import RayTransport
from engine.actors.world import ActorWorld, Recipes
from engine.config import RunSpec, build_run
from engine.run import run_scenario
from simulator.scenario.file import read_scenario


def start_actors(spec: RunSpec, address: str | None = None) -> Any:
    recipes = Recipes(
        [Recipe(StartEngine(8, 5e-3))] * spec.cluster.replicas,
        [Recipe(StartTrainer(1e-4, tensors=True))],
    )
    return ActorWorld(RayTransport(), recipes, spec.shape, FakeTask(spec.max_new_tokens), 3)


if __name__ == "__main__":
    start.start_actors = start_actors  # type: ignore[assignment]
    scenario, out = Path(sys.argv[1]), Path(sys.argv[2])
    run_scenario(build_run(read_scenario(scenario)), out, plot=False, resume="--resume" in sys.argv)
