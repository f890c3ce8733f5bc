"""Actors killed by SIGKILL at random moments, until there were enough: how many runs ended right.

``python tests/actors/actor_kills.py [KILLS]``: each run is of a policy in turn, on two replicas
and a trainer in processes of Ray, of no model; every other one's trainer has two ranks. A run is
right if it ends, its books balance, its record gives the same decisions, and its trainer was given
each batch once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from actor_fakes import (
    FakeTask,
    StartEngine,
    StartProcessRank,
    StartTrainer,
    kill_signed,
    signed,
)
from actor_threads import FOLDERS, Lent
from running_actors import CAP, PLAN
from test_actor_faults import POLICIES, trained_on, watched

from rollcast.engine.actors.fleet import MOST_LOSSES, Recipe
from rollcast.engine.actors.on_ray import RayTransport
from rollcast.engine.world import EngineWorld, Recipes
from rollcast.simulator.loop import run
from rollcast.simulator.loop.recorded import RecordedWorld
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.world import ClusterShape

STEPS = 12


def kill_some(folder: Path, random: Random, kills: int, stop: threading.Event) -> list[str]:
    """Kills processes that have signed in ``folder``, replicas and ranks as often each as one may
    be lost in a row: they may all be the same one, which is then given up."""
    killed: list[str] = []
    while len(killed) < kills and not stop.wait(random.uniform(0.1, 1.5)):
        often = Counter(_kind(name) for name in killed)
        marks = [mark for mark in signed(folder) if often[_kind(mark.name)] < MOST_LOSSES]
        if marks:
            killed.append(kill_signed(random.choice(marks)))
    return killed


def _kind(name: str) -> str:
    return "trainer" if name.startswith("trainer") else "replica"


def one_run(
    transport: Any, policy: str, seed: int, kills: int, ranks: int
) -> tuple[list[str], bool, str]:
    """One run: what was killed, whether it ended right, and what was wrong."""
    folder, stop = Path(tempfile.mkdtemp()), threading.Event()
    alone = StartTrainer(5e-4, processes=folder)
    trainer = [alone] if ranks == 1 else [StartProcessRank(5e-4, folder)] * ranks
    recipes = Recipes(
        [Recipe(StartEngine(8, 2e-2, processes=folder))] * 2, [Recipe(start) for start in trainer]
    )
    lent = Lent(transport)
    world = EngineWorld(lent, recipes, ClusterShape(2, 1, ranks, False), FakeTask(CAP), seed)
    parts = watched(world)
    killed: list[str] = []
    thread = threading.Thread(
        target=lambda: killed.extend(kill_some(folder, Random(seed), kills, stop))
    )
    record = RecordedWorld([], world, world.shape, world.name)
    wrong = ""
    thread.start()
    try:
        result = run(record, parse_policy(policy, seed=5), PLAN, STEPS)
        latest = world._updates.latest
        assert latest is not None
        if float(lent.get(latest.ref)["w"].array[0]) != trained_on(parts):
            wrong = "the trainer was given other batches"
        alone = RecordedWorld(record.entries, None, world.shape, world.name)
        if run(alone, parse_policy(policy, seed=5), PLAN, STEPS).decisions != result.decisions:
            wrong = "the record gives other decisions"
        if result.ledger.balance:
            wrong = "the books do not balance"
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    finally:
        stop.set()
        thread.join()
        world.close()
    return killed, not wrong, wrong


def main(kills: int) -> int:
    """Runs until so many were killed; the number of runs that did not end right."""
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, FOLDERS))
    transport, random = RayTransport(), Random(0)
    done: list[str] = []
    wrong = runs = 0
    began = time.perf_counter()
    while len(done) < kills:
        policy = POLICIES[runs % len(POLICIES)]
        ranks = 1 + (runs // len(POLICIES) + runs) % 2
        killed, right, said = one_run(transport, policy, runs, random.randint(3, 7), ranks)
        runs, done = runs + 1, done + killed
        wrong += not right
        print(
            f"{runs}: {policy}, {ranks} rank(s), {len(killed)} killed, {said or 'right'}",
            flush=True,
        )
    counts = ", ".join(f"{done.count(name)} {name}s" for name in sorted(set(done)))
    seconds = time.perf_counter() - began
    print(f"{len(done)} killed ({counts}) in {runs} runs, {wrong} not right; {seconds:.0f} s")
    transport.close()
    return wrong


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100) > 0)
