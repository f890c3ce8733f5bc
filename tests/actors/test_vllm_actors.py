"""Real vLLM and torch in processes of their own, on Ray, with a tiny random model: policies that
train while they sample, whose record the simulator follows with the same decisions, and a
tensor-parallel replica that sleeps while two ranks train."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed (engine/engine-cpu.lock)", allow_module_level=True)
if find_spec("ray") is None:
    pytest.skip("Ray is not installed (rollcast[ray])", allow_module_level=True)

from actor_threads import Lent
from running_actors import save_trainer

from rollcast.engine.actors.transport import Need, Sharing, places
from rollcast.engine.config import build_run
from rollcast.engine.errors import EngineError
from rollcast.engine.log import EngineLog
from rollcast.engine.start import start_actors
from rollcast.engine.world import EngineWorld
from rollcast.engine.world_parts import Recipes, WorldState
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.spans import Run
from rollcast.simulator.costs import LinearCost
from rollcast.simulator.loop.recorded import RecordedWorld
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.workload.recorded import RecordedWorkload
from tests.engine.conftest import build_tiny
from tests.running import run

CAP, STEPS = 24, 4
PLAN = StepPlan(Batch(4, 4))
SCENARIO = f"""\
cluster: {{placement: disaggregated, replicas: 1, trainer_gpus: 1}}
engine: {{model: model, max_seqs: 8, max_batched_tokens: 64, kv_tokens: 4096, block_tokens: 32,
  task: {{prompts: prompts.jsonl, reward: "actor_fakes:even", reward_timeout_s: 60}},
  trainer: {{learning_rate: 1.0e-3}}}}
workload: {{batch_groups: 4, group_size: 4, max_new_tokens: {CAP}}}
steps: {STEPS}
seed: 7
"""
POLICIES = [
    "sync",
    "april(over_sampling=2)",
    "one_step_off",
    "fully_async(max_staleness=2)",
    "pipeline_rl",
    "streaming(groups=2)",
    "one_step_off+prefix_reuse+pods(keep=2)",
]
COST = LinearCost(
    iteration_s=3e-3,
    per_rollout_s=6e-5,
    per_context_token_s=2e-7,
    per_prefill_token_s=3e-5,
    train_per_token_s=1e-4,
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rollcast.engine.tasks.tokenizer import build_tokenizer

    folder = tmp_path_factory.mktemp("actors")
    build_tiny(1).save_pretrained(folder / "model")
    build_tokenizer().save_pretrained(folder / "model")
    texts = [f"count to {i} and then {i * i} again" for i in range(24)]
    lines = [json.dumps({"prompt": text}) + "\n" for text in texts]
    (folder / "prompts.jsonl").write_text("".join(lines))
    return folder


def start(home: Path, transport: Any, text: str, keep: bool = False) -> EngineWorld:
    with pytest.MonkeyPatch.context() as patch:
        lent = Lent(transport, keep)
        patch.setattr("rollcast.engine.actors.on_ray.RayTransport", lambda *args, **options: lent)
        return start_actors(build_run(parse_scenario(text, "scenario.yaml", home)))


@pytest.fixture(scope="module")
def started(home: Path, ray_transport: Any) -> Iterator[tuple[EngineWorld, WorldState]]:
    """A world of one replica and a trainer, and its state at the start."""
    world = start(home, ray_transport, SCENARIO)
    yield world, replace(world.state(), trainer=save_trainer(world, home / "trainer-0"))
    world.close()


def real_run(
    started: tuple[EngineWorld, WorldState], policy: str, steps: int = STEPS
) -> tuple[Run, RecordedWorld]:
    world, fresh = started
    world.keep_only(())
    world.load_state(fresh, EngineLog())
    record = RecordedWorld([], world, world.shape, world.name)
    return run(record, parse_policy(policy, seed=5), PLAN, steps), record


@pytest.mark.parametrize("policy", POLICIES)
def test_real_and_simulated_decisions_are_identical(
    started: tuple[EngineWorld, WorldState], policy: str
) -> None:
    world, _ = started
    result, record = real_run(started, policy)
    assert result.ledger.balance == 0
    assert len(result.steps) == STEPS
    assert not world.log.faults
    if world.log.sync_differences:  # none where rollouts ran through every sync
        assert max(world.log.sync_differences) < 1e-4

    chain = parse_policy(policy, seed=5)
    spec = EngineSpec(8, 64, 4096, block_tokens=32, prefix_caching=True)
    recorded = RecordedWorkload(result.segments, CAP)
    followed = run(
        RecordedWorld(record.entries, None, result.shape, "recorded"), chain, PLAN, STEPS
    )
    assert followed.decisions == result.decisions
    columns = ("step", "group", "index", "attempt", "version", "versions", "new_tokens", "finished")
    for column in (*columns, "outcome", "trained_step"):
        assert followed.segments[column].tolist() == result.segments[column].tolist(), column
    if policy == "sync":  # nothing is decided by time: lengths and rewards alone will do
        free = SimulatedCluster(result.shape, spec, COST, recorded)
        assert run(free, chain, PLAN, STEPS).decisions == result.decisions
    if policy.startswith("fully_async"):
        overlaps(result)
    if policy == "pipeline_rl":
        mixes_versions(record)


def overlaps(result: Run) -> None:
    """Rollouts run beside updates."""
    updates = [p for p in result.phases if p.track == "trainer" and p.kind == "backward"]
    segments = list(zip(result.segments["start_s"], result.segments["end_s"], strict=True))
    assert any(start < p.end_s and end > p.start_s for p in updates for start, end in segments)


def mixes_versions(record: RecordedWorld) -> None:
    """Weights come in while rollouts run, and nothing is computed again."""
    segments = [segment for entry in record.entries for segment in entry.segments]
    mixed = [s for s in segments if len({part.version for part in s.tokens_by_version}) > 1]
    assert mixed
    assert all(segment.prefill_tokens == segment.prompt_tokens for segment in mixed)


def test_each_replica_and_each_rank_asks_for_a_device(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Need] = []

    class Asked:
        def __init__(self, address: str | None, gpus: int) -> None:
            self.gpus = gpus

        def require(self, needs: Sequence[Need]) -> None:
            asked.extend(needs)
            raise EngineError(f"of {self.gpus} GPUs")

        def close(self) -> None:
            asked.append(Need(0))

    monkeypatch.setattr("rollcast.engine.actors.on_ray.RayTransport", Asked)
    monkeypatch.setattr("rollcast.engine.start._gpus_here", lambda: 4)
    text = SCENARIO.replace("replicas: 1, trainer_gpus: 1", "replicas: 2, trainer_gpus: 3")
    spec = build_run(parse_scenario(text, "scenario.yaml", home))
    on_gpus = replace(spec, engine=replace(spec.engine, device="cuda"))
    for one, gpus in ((spec, 0), (on_gpus, 4)):
        with pytest.raises(EngineError, match=f"of {gpus} GPUs"):
            start_actors(one)
    assert [need.gpus for need in asked] == [0] * 6 + [1] * 5 + [0]
    assert not any(need.sharing for need in asked)
    asked.clear()
    monkeypatch.setattr("rollcast.engine.vllm.environment.vllm_version", lambda: ("0.32.0", False))
    text = SCENARIO.replace(
        "placement: disaggregated, replicas: 1, trainer_gpus: 1",
        "placement: colocated, replicas: 2, tensor_parallel: 2, trainer_gpus: 3",
    )
    sleeping = text.replace("{model: model,", "{model: model, device: cuda, sleep: true,")
    with pytest.raises(EngineError, match="of 4 GPUs"):
        start_actors(build_run(parse_scenario(sleeping, "scenario.yaml", home), elsewhere=True))
    assert [need.sharing for need in asked[:-1]] == [
        Sharing(0, (0, 1)),
        Sharing(1, (0, 1)),
        Sharing(0, (0,)),
        Sharing(0, (1,)),
        Sharing(1, (0,)),
    ]
    assert places(asked[:-1]) == [
        Need(4, 2, sharing=Sharing(0, (0, 1))),
        Need(3, 2, sharing=Sharing(1, (0, 1))),
    ]


def processes() -> dict[int, tuple[str, int]]:
    """Name and parent by process number; without zombies."""
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


def descendants() -> dict[int, tuple[str, int]]:
    """Name and parent of the processes that descend from this one, by process number."""
    every = processes()
    found = {}
    for number, process in every.items():
        above = number
        while above in every and above != os.getpid():
            above = every[above][1]
        if above == os.getpid():
            found[number] = process
    return found


def workers() -> dict[int, int]:
    """The parents of vLLM's workers below this process's actors, by process number. A worker has
    its title, unless what it changed in its environment keeps setproctitle from the arguments."""
    below, found = descendants(), {}
    for number, (_, parent) in below.items():
        try:
            title = Path(f"/proc/{number}/cmdline").read_text()
        except OSError:
            continue
        worker = title.startswith("VLLM::Worker") or "multiprocessing.spawn" in title
        if worker and below.get(parent, ("", 0))[0].startswith("ray::"):
            found[number] = parent
    return found


def within_a_minute(reached: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.1)
    return reached()


def test_a_wide_replica_that_sleeps_and_two_ranks_run_as_one_of_each(
    started: tuple[EngineWorld, WorldState],
    home: Path,
    ray_transport: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same decisions and weights, though it schedules asynchronously; and no worker outlives
    its actor. On a CPU there is no memory to give up, for which a scenario is refused; the calls
    are the same."""
    alone, _ = real_run(started, "sync", steps=2)
    one, fresh = started
    kept = save_trainer(one, home / "trainer-1")
    assert not one.log.faults
    monkeypatch.setattr(
        "rollcast.engine.start.Recipes",
        lambda replicas, trainer, channel, sleeps: Recipes(replicas, trainer, channel, True),
    )
    apart, together = "disaggregated, replicas: 1, trainer_gpus: 1", "colocated, tensor_parallel: 2"
    wide = SCENARIO.replace(apart, together).replace("{model", "{async_scheduling: true, model")
    assert "async_scheduling: true" in wide
    world = start(home, ray_transport, wide, keep=True)
    try:
        shape = world.shape
        assert (shape.gpus_per_replica, shape.trainer_gpus, shape.gpus) == (2, 2, 2)
        world.load_state(fresh, EngineLog())  # of one rank
        result = run(world, parse_policy("sync", seed=5), PLAN, 2)
        assert result.decisions == alone.decisions
        assert result.ledger.balance == 0
        assert not world.log.faults
        assert max(world.log.sync_differences) < 1e-4  # the weights are in both halves
        kinds = [phase.kind for phase in sorted(result.phases, key=lambda one: one.start_s)]
        assert kinds.count("switch") == 2 * 2
        expected = ["switch", "switch", "sync"]
        assert [kind for kind in kinds if kind in ("switch", "sync")][:3] == expected
        ours = save_trainer(world, home / "trainer-2")
        from tests.engine.saves import read_tensors

        assert len(ours.files) == 2
        assert ours.plain == kept.plain
        weights = [read_tensors(one.folder) for one in (ours, kept)]
        assert weights[0].keys() == weights[1].keys()
        for name, tensor in weights[1].items():
            if name.startswith("model/"):  # within a tenth of one step of AdamW
                assert float((weights[0][name] - tensor).abs().max()) < 1e-4
        assert within_a_minute(lambda: len(workers()) == 2), str(sorted(descendants().items()))
        begun = workers()
        (actor,) = set(begun.values())
        os.kill(actor, signal.SIGKILL)
        assert within_a_minute(lambda: not begun.keys() & processes().keys())
    finally:
        world.close()
