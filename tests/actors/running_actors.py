"""Worlds of actors without engines, for the tests of the loop on them."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from actor_fakes import FakeTask, FakeTrainer, StartEngine, StartRank, StartTrainer, Trouble
from actor_threads import ThreadTransport

from rollcast.engine.actors.fleet import Recipe
from rollcast.engine.actors.trainer import Part
from rollcast.engine.actors.weights import unpack
from rollcast.engine.edges import TrainerSave
from rollcast.engine.world import EngineWorld
from rollcast.engine.world_parts import Recipes
from rollcast.simulator.core.plan import Batch, Prompts, StepPlan
from rollcast.simulator.core.spans import Run
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.loop import Loop
from rollcast.simulator.loop.recorded import Entry, RecordedWorld
from rollcast.simulator.policies import POLICIES, parse_policy
from rollcast.simulator.testing import bound_holds
from rollcast.simulator.testing.laws import promises

STEPS = 5
PLAN = StepPlan(Batch(4, 4), prompts=Prompts(dataset=10))
CAP = 24
_PARAMETERS = {
    "april": "april(over_sampling=2)",
    "difficulty": "difficulty(easy=0.6, hard=0.3)",
    "pods": "pods(keep=2)",
    "sagc": "sagc(candidates=[2, 4, 8], first=4)",
    "token_budget": "token_budget(tokens=8)",
}
EVERY = [
    *(
        _PARAMETERS.get(name, name)
        for name in {kind: name for name, kind in POLICIES.items()}.values()
    ),
    "sync",
    "one_step_off(steps=3)",
    "fully_async(max_staleness=1)",
    "fully_async(max_staleness=3, sync_every=2)",
    "pipeline_rl(in_flight=0.5, queue=null)+dynamic_sampling+pods(keep=2)",
    "streaming(groups=3)+april(over_sampling=2)+prefix_reuse",
]
"""Each policy that there is, and chains of those that overlap."""


@dataclass
class Home:
    world: EngineWorld
    transport: ThreadTransport


def make(
    replicas: int = 2,
    *,
    colocated: bool = False,
    iteration_s: float = 5e-4,
    engine_trouble: Trouble | None = None,
    tensors: bool = False,
    heartbeat_s: float = 60.0,
    token_s: float = 1e-5,
    ranks: int = 1,
    sleeps: bool = False,
    engine: Callable[[], Any] | None = None,
    channel: Any = None,
    task: Any = None,
    ballast: int = 0,
) -> Home:
    """A world of threads. engine, channel: how replicas start and get their weights. ballast:
    numbers beside the trainer's weight."""
    transport = ThreadTransport()
    alone = Recipe(StartTrainer(token_s, tensors=tensors, ballast=ballast))
    trainer = [alone] if ranks == 1 else [Recipe(StartRank(token_s))] * ranks
    replica = Recipe(engine or StartEngine(8, iteration_s, engine_trouble))
    recipes = Recipes([replica] * replicas, trainer, channel, sleeps)
    shape = ClusterShape(replicas, 1, ranks, colocated=colocated)
    task = task or FakeTask(CAP)
    return Home(EngineWorld(transport, recipes, shape, task, 3, heartbeat_s=heartbeat_s), transport)


def kill_each(home: Home, rng: Random, most: int = 3) -> None:
    """Kills so many of two replicas and the trainer, between messages."""
    names = rng.sample(["replica 0", "replica 1", "trainer"], most)
    left, receive = [rng.randrange(4, 14)], home.world._receive

    def watched(timeout_s: float) -> None:
        left[0] -= 1
        if left[0] == 0 and names:
            left[0] = rng.randrange(4, 14)
            for actor in home.transport.alive(names.pop()):
                actor.kill()
        receive(timeout_s)

    home.world._receive = watched  # type: ignore[method-assign]


def drive(home: Home, policy: str, steps: int = STEPS) -> tuple[Run, list[Entry]]:
    """A run, and its record; the world is closed."""
    world = home.world
    record = RecordedWorld([], world, world.shape, world.name)
    try:
        result = Loop(record, parse_policy(policy, seed=5), PLAN).run(steps)
    finally:
        world.close()
    return result, record.entries


def save_trainer(world: EngineWorld, folder: Path) -> TrainerSave:
    """The trainer's state in a folder, once it is written."""
    snapshot = world.updates.take_snapshot(folder)
    world.updates.finish_snapshot()
    assert snapshot.save is not None
    return snapshot.save


def keeps_its_bound(trial: Any) -> None:
    """Nothing trained on is older than the policy promises, where it does."""
    if any(promises(decision["plan"]) < math.inf for decision in trial.decisions):
        bound_holds(trial)


def rows(result: Run) -> Any:
    """Everything that a run says, but for figures that are no number."""
    return (
        repr([*result.segments.rows()]),
        repr(result.steps),
        repr(result.phases),
        result.decisions,
    )


def trained_on(parts: Iterable[Part]) -> float:
    """The weight of a trainer that was given these, once each."""
    trainer = FakeTrainer()
    for part in parts:
        trainer.step(
            part.groups, shared_prefix=part.shared_prefix, version=part.version, final=part.final
        )
    return float(trainer.weights()["w"][0])


def weight_of(home: Home) -> float:
    """The trainer's newest weight."""
    latest = home.world._updates.latest
    return float(unpack(home.transport.get(latest.ref))["w"][0])


def made(result: Run) -> list[tuple[Any, ...]]:
    """The finished rollouts, whatever replica they were on."""
    columns = ("group", "index", "attempt", "total_tokens", "reward", "trained_step")
    finished = result.segments["finished"].astype(bool)
    return sorted(zip(*(result.segments[name][finished].tolist() for name in columns), strict=True))
