"""A tensor-parallel replica as an actor: two workers of vLLM below one process, on CPU cores."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed (engine/engine-cpu.lock)", allow_module_level=True)
if find_spec("ray") is None:
    pytest.skip("Ray is not installed (rollcast[ray])", allow_module_level=True)

from actor_threads import Lent

from rollcast.engine.config import build_run
from rollcast.engine.start import start_actors
from rollcast.engine.world import EngineWorld, Recipes
from rollcast.simulator.loop import run
from rollcast.simulator.plan import Batch, StepPlan
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.scenario.file import parse_scenario
from tests.engine.conftest import build_tiny

STEPS = 3
PLAN = StepPlan(Batch(3, 4))
SCENARIO = f"""\
cluster: {{placement: disaggregated, replicas: 1, tensor_parallel: 2, trainer_gpus: 1}}
engine: {{model: model, max_seqs: 8, max_batched_tokens: 64, kv_tokens: 4096, block_tokens: 32,
  task: {{prompts: prompts.jsonl, reward: "actor_fakes:even", reward_timeout_s: 60}},
  trainer: {{learning_rate: 1.0e-3}}}}
workload: {{batch_groups: 3, group_size: 4, max_new_tokens: 16}}
policy: [one_step_off]
steps: {STEPS}
seed: 7
"""


COLOCATED = SCENARIO.replace(
    "placement: disaggregated, replicas: 1, tensor_parallel: 2, trainer_gpus: 1",
    "placement: colocated, replicas: 1, tensor_parallel: 2",
).replace("policy: [one_step_off]", "policy: []")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rollcast.engine.tasks.tokenizer import build_tokenizer

    folder = tmp_path_factory.mktemp("wide")
    build_tiny(1).save_pretrained(folder / "model")
    build_tokenizer().save_pretrained(folder / "model")
    lines = [json.dumps({"prompt": f"count to {i}"}) + "\n" for i in range(24)]
    (folder / "prompts.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def wide(home: Path, ray_transport: Any) -> Iterator[EngineWorld]:
    with pytest.MonkeyPatch.context() as patch:
        lent = Lent(ray_transport)
        patch.setattr("rollcast.engine.actors.on_ray.RayTransport", lambda *args, **options: lent)
        world = start_actors(build_run(parse_scenario(SCENARIO, "scenario.yaml", home)))
        yield world
        world.close()


def processes() -> dict[int, tuple[str, int]]:
    """Name and parent of each that runs, by its number; zombies do not."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdigit() else ""
        except OSError:
            continue
        if stat:
            name, _, rest = stat.partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            if state != "Z":
                found[int(entry.name)] = (name, int(parent))
    return found


def workers() -> dict[int, int]:
    """The parents of vLLM's workers that descend from this process, by their numbers."""
    every = processes()
    found = {}
    for number, (name, parent) in every.items():
        above = number
        while above in every and above != os.getpid():
            above = every[above][1]
        if name.startswith("VLLM::Worker") and above == os.getpid():
            found[number] = parent
    return found


def test_it_runs_and_none_of_its_workers_outlives_it(wide: EngineWorld) -> None:
    assert (wide.shape.gpus_per_replica, wide.shape.gpus) == (2, 3)
    result = run(wide, parse_policy("one_step_off"), PLAN, STEPS)
    assert result.ledger.balance == 0
    assert len(result.steps) == STEPS
    assert not wide.log.faults
    assert max(wide.log.sync_differences) < 1e-4  # the weights are in both halves
    started = workers()
    assert len(started) == 2
    (actor,) = set(started.values())
    os.kill(actor, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while started.keys() & processes().keys() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not started.keys() & processes().keys()


def test_one_that_sleeps_while_two_ranks_train_on_its_devices(
    home: Path, ray_transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU there is no memory to give up, for which a scenario is refused; the calls are the
    same."""
    monkeypatch.setattr(
        "rollcast.engine.actors.on_ray.RayTransport", lambda *args, **options: Lent(ray_transport)
    )
    monkeypatch.setattr(
        "rollcast.engine.start.Recipes",
        lambda replicas, trainer, channel, sleeps: Recipes(replicas, trainer, channel, True),
    )
    world = start_actors(build_run(parse_scenario(COLOCATED, "scenario.yaml", home)))
    try:
        assert (world.shape.gpus_per_replica, world.shape.trainer_gpus, world.shape.gpus) == (
            2,
        ) * 3
        result = run(world, parse_policy("sync"), PLAN, STEPS)
        assert result.ledger.balance == 0
        assert not world.log.faults
        assert max(world.log.sync_differences) < 1e-4
        kinds = [phase.kind for phase in sorted(result.phases, key=lambda one: one.start_s)]
        assert kinds.count("switch") == 2 * STEPS
        assert [kind for kind in kinds if kind in ("switch", "sync")][:3] == [
            "switch",
            "switch",
            "sync",
        ]
    finally:
        world.close()
