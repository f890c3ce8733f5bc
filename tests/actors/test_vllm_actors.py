"""Real vLLM and torch in processes of their own, on Ray: every policy, above all those that train
while they sample, with a tiny random model.

What was recorded is then carried out by the simulator, which takes the same decisions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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

from rollcast.engine.actors.transport import Need, Sharing, places
from rollcast.engine.config import build_run
from rollcast.engine.errors import EngineError
from rollcast.engine.log import EngineLog
from rollcast.engine.start import start_actors
from rollcast.engine.world import EngineWorld, WorldState
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.costs import LinearCost
from rollcast.simulator.loop import run
from rollcast.simulator.loop.recorded import RecordedWorld
from rollcast.simulator.plan import Batch, StepPlan
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.spans import Run
from rollcast.simulator.workload.recorded import RecordedWorkload
from tests.engine.conftest import build_tiny

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
    "one_step_off(steps=2)",
    "fully_async(max_staleness=1)",
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


@pytest.fixture(scope="module")
def started(home: Path, ray_transport: Any) -> Iterator[tuple[EngineWorld, WorldState]]:
    """A world of one replica and a trainer, and how it stood when it had started."""
    with pytest.MonkeyPatch.context() as patch:
        lent = Lent(ray_transport)
        patch.setattr("rollcast.engine.actors.on_ray.RayTransport", lambda *args, **options: lent)
        spec = build_run(parse_scenario(SCENARIO, "scenario.yaml", home))
        world = start_actors(spec)
        yield world, world.state()
        world.close()


def real_run(started: tuple[EngineWorld, WorldState], policy: str) -> tuple[Run, RecordedWorld]:
    world, fresh = started
    world.keep_only(())
    world.load_state(fresh, EngineLog())
    record = RecordedWorld([], world, world.shape, world.name)
    return run(record, parse_policy(policy, seed=5), PLAN, STEPS), record


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
    monkeypatch.setattr("rollcast.engine.vllm.adapter.vllm_version", lambda: ("0.32.0", False))
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


def test_two_ranks_train_as_one(
    started: tuple[EngineWorld, WorldState], home: Path, ray_transport: Any
) -> None:
    """The same scenario with a trainer over two ranks: the same decisions, and the same weights."""
    world, fresh = started
    alone, _ = real_run(started, "sync")
    after = world.state().trainer
    with pytest.MonkeyPatch.context() as patch:
        lent = Lent(ray_transport, keep=True)
        patch.setattr("rollcast.engine.actors.on_ray.RayTransport", lambda *args, **options: lent)
        two = SCENARIO.replace("trainer_gpus: 1", "trainer_gpus: 2")
        ranked = start_actors(build_run(parse_scenario(two, "scenario.yaml", home)))
    try:
        assert ranked.shape.trainer_gpus == 2
        ranked.load_state(fresh, EngineLog())  # of one rank
        record = RecordedWorld([], ranked, ranked.shape, ranked.name)
        result = run(record, parse_policy("sync", seed=5), PLAN, STEPS)
        assert result.decisions == alone.decisions
        assert result.ledger.balance == 0
        assert max(ranked.log.sync_differences) < 1e-4
        ours = ranked.state().trainer
        assert ours.tensors.keys() == after.tensors.keys()
        assert ours.plain == after.plain
        for name, tensor in after.tensors.items():
            if name.startswith("model/"):  # within a tenth of one step of AdamW
                assert float((ours.tensors[name] - tensor).abs().max()) < 1e-4
    finally:
        ranked.close()


def test_rollouts_run_beside_updates(started: tuple[EngineWorld, WorldState]) -> None:
    result, _ = real_run(started, "fully_async(max_staleness=2)")
    updates = [p for p in result.phases if p.track == "trainer" and p.kind == "backward"]
    segments = list(zip(result.segments["start_s"], result.segments["end_s"], strict=True))
    assert updates
    assert any(start < p.end_s and end > p.start_s for p in updates for start, end in segments)


def test_weights_come_in_while_rollouts_run(started: tuple[EngineWorld, WorldState]) -> None:
    """A response that new weights came into has tokens of both versions, each with the
    log-probability that its own version gave it."""
    result, record = real_run(started, "pipeline_rl")
    segments = [segment for entry in record.entries for segment in entry.segments]
    mixed = [
        segment for segment in segments if len({s.version for s in segment.tokens_by_version}) > 1
    ]
    assert mixed
    assert all(
        segment.prefill_tokens == segment.prompt_tokens for segment in mixed
    )  # nothing computed anew
    assert result.ledger.balance == 0
