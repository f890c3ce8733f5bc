"""Weights that go from the trainer's device to each replica's, and what becomes of that when one of
them is lost. The wire is one between threads; vLLM's own is asked for what its workers take."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (engine/engine-cpu.lock)")

import torch
from actor_wires import PASSES, StartHandled, StartWired, ThreadHandles, ThreadWire
from running_actors import PLAN, STEPS, Home, drive, kill_each, make, save_trainer

from rollcast.engine.actors.weights import unpack
from rollcast.engine.actors.wire import ByWire
from rollcast.engine.edges import OnWire
from rollcast.engine.errors import EngineError
from rollcast.engine.log import EngineLog
from rollcast.simulator.loop.recorded import UnderWay


def wired(replicas: int = 2) -> Home:
    return make(replicas, tensors=True, engine=StartWired(), channel=ThreadWire())


@pytest.mark.parametrize(
    "policy", ["sync", "one_step_off", "fully_async(max_staleness=2)", "pipeline_rl"]
)
def test_every_replica_has_the_trainers_weights(policy: str) -> None:
    home = wired()
    result, _ = drive(home, policy)
    assert result.ledger.balance == 0
    assert len(result.steps) == STEPS
    assert not home.world.log.faults
    if policy == "sync":  # elsewhere replicas are seldom idle when they come
        assert len(home.world.log.sync_differences) == 2 * STEPS
    assert set(home.world.log.sync_differences) <= {0.0}


def test_a_run_ends_right_whoever_is_killed() -> None:
    """But where the trainer goes with the only copy of what the replicas have, and a replica asks
    for it before the next update: then it says how to go on."""
    ends = []
    for seed in range(6):
        home = wired()
        kill_each(home, Random(seed), 2)
        try:
            result, _ = drive(home, "one_step_off" if seed % 2 else "sync")
        except EngineError as error:
            ends.append(str(error))
            continue
        assert home.world.log.faults
        assert result.ledger.balance == 0
        assert len(result.steps) == STEPS
        assert set(home.world.log.sync_differences) <= {0.0}
        ends.append("right")
    assert all(end == "right" or "add --resume" in end for end in ends)
    assert ends.count("right") > len(ends) / 2


def test_a_run_goes_on_from_what_is_saved(tmp_path: Path) -> None:
    """The weights of a checkpoint come by the store, the next ones by wire again."""
    first = wired(1)
    drive_a_little(first)
    state = replace(first.world.state(), trainer=save_trainer(first.world, tmp_path / "trainer-1"))
    assert (state.version, state.updates) == (1, 2)
    assert state.weights is not None  # the replica's are not the trainer's
    first.world.close()
    home = wired(1)
    home.world.load_state(state, EngineLog())
    home.world.go_on(UnderWay((), None, sync=True))
    while not home.world.quiet:
        home.world.wait()
    assert home.world.log.sync_differences == []  # nothing to compare with in a checkpoint
    assert home.world.state().weights is None
    home.world.close()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # killed threads
def test_replicas_on_the_trainers_gpus_get_buckets_of_every_rank(ranks: int) -> None:
    """In one pass for all replicas. A replica that is lost while the trainer works asks for weights
    that are gone, which is said; any other loss is gone on from."""
    ends = []
    for seed in range(4):
        PASSES.clear()
        home = make(
            2,
            colocated=True,
            ranks=ranks,
            tensors=True,
            engine=StartHandled(),
            channel=ThreadHandles(),
        )
        killed = seed > 0
        if killed:
            kill_each(home, Random(seed))
        try:
            result, _ = drive(home, "sync")
        except EngineError as error:
            ends.append(str(error))
            continue
        assert bool(home.world.log.faults) == killed
        assert result.ledger.balance == 0
        assert len(result.steps) == STEPS
        if not killed:
            assert len(PASSES) == STEPS * ranks
            assert len(home.world.log.sync_differences) == 2 * STEPS
        assert set(home.world.log.sync_differences) <= {0.0}
        ends.append("right")
    assert ends[0] == "right"
    assert all(end == "right" or "add --resume" in end for end in ends)


def drive_a_little(home: Home) -> None:
    """Two updates, of which the replica has the first."""
    from rollcast.simulator.core.rollout import Rollout
    from rollcast.simulator.core.world import Ended, TrainBatch, TrainGroup

    world = home.world
    rollouts = [Rollout(0, index) for index in range(PLAN.batch.group_size)]
    world.submit(rollouts)
    while any(not rollout.finished for rollout in rollouts):
        for event in world.wait():
            assert isinstance(event, Ended)
            next(r for r in rollouts if r.key == event.segment.key).add(event.segment)
    rewards = tuple(rollout.reward or 0.0 for rollout in rollouts)
    for step in range(2):
        world.train(TrainBatch(step, (TrainGroup(0, tuple(rollouts), rewards),)), "dense")
        while not world.quiet:
            world.wait()
        if step == 0:
            world.sync_weights()
            while not world.quiet:
                world.wait()


def test_a_copy_is_kept_until_it_is_sent_and_another_came() -> None:
    wire, weights = ByWire(), {"a": torch.ones(2, 3, dtype=torch.bfloat16)}
    first = wire.pack(weights)
    assert first == OnWire(1, ("a",), ("bfloat16",), ((2, 3),))
    weights["a"] += 1
    second = wire.pack(weights)
    assert unpack(wire.packed(first))["a"].float().sum() == 6
    assert unpack(wire.packed(second))["a"].float().sum() == 12
    wire._sent = second.number
    wire.pack(weights)
    with pytest.raises(EngineError, match="add --resume"):
        wire.packed(first)
    wire.packed(second)


def test_what_vllm_is_told_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own classes: both sides agree on place, size and packing."""
    pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    from rollcast.engine.vllm.wire import ByVllm

    mine, theirs = ByVllm().infos("10.0.0.7", 4711, 5)
    parsed: Any = NCCLWeightTransferEngine.init_info_cls(**theirs)
    assert (mine.backend, mine.rank, mine.is_sender) == ("nccl", 0, True)
    for name in (
        "master_address",
        "master_port",
        "world_size",
        "packed",
        "packed_buffer_size_bytes",
        "packed_num_buffers",
    ):
        assert getattr(mine, name) == getattr(parsed, name)
    assert (parsed.master_address, parsed.world_size, parsed.rank_offset) == ("10.0.0.7", 5, 1)
    place = ByVllm().meet(0, workers=4)
    assert place["world_size"] == 5
