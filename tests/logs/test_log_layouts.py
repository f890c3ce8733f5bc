"""Which GPUs roll out and which train, from what each stack's settings say of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.gather import read_log
from rollcast.simulator.policies.fully_async import FullyAsync
from rollcast.simulator.stacks.stack import all_stacks
from tests.logs import written

Layout = tuple[str, int, int, int]
"""Placement, replicas, GPUs of each, GPUs of the trainer."""


def _areal(mode: str, nodes: int = 3) -> dict[str, Any]:
    return {"allocation_mode": mode, "cluster.n_nodes": nodes, "cluster.n_gpus_per_node": 8}


def _roll(trains: str, rolls: str, tensor: int = 1) -> dict[str, Any]:
    return {
        "actor_train.device_mapping": trains,
        "actor_infer.device_mapping": rolls,
        "actor_infer.strategy_args.strategy_config.tensor_parallel_size": tensor,
        "num_gpus_per_node": 8,
    }


def _nemo(nodes: int, of: dict[str, int]) -> dict[str, Any]:
    above = "policy.generation.colocated"
    return {
        "cluster.num_nodes": nodes,
        "cluster.gpus_per_node": 8,
        f"{above}.enabled": False,
        "policy.generation.vllm_cfg.tensor_parallel_size": 2,
        **{f"{above}.resources.{key}": value for key, value in of.items()},
    }


def _trl(**more: Any) -> dict[str, Any]:
    return {
        "generation_batch_size": 128,
        "per_device_train_batch_size": 4,
        "steps_per_generation": 4,
        "vllm_tensor_parallel_size": 2,
        **more,
    }


_EXPERTS = "(attn:d4p2t2|ffn:d2p2e4)"
_ACTOR = {"actor_num_nodes": 1, "actor_num_gpus_per_node": 2}
_OPENRLHF = {"vllm_num_engines": 3, "vllm_tensor_parallel_size": 2, **_ACTOR}


@pytest.mark.parametrize(
    ("stack", "settings", "layout"),
    [
        # the forms of the documentation of allocation_mode, and those of its own examples
        ("areal", _areal("sglang:d4t2+archon:d4p2t2"), ("disaggregated", 4, 2, 16)),
        ("areal", _areal("sglang.d4p1t1+d4p1t1"), ("disaggregated", 4, 1, 4)),
        ("areal", _areal(f"vllm:d2t4+megatron:{_EXPERTS}"), ("disaggregated", 2, 4, 16)),
        ("areal", _areal("sglang:d8|fsdp:d8"), ("colocated", 8, 1, 8)),
        ("areal", _areal("sglang:d8+fsdp:d8"), ("disaggregated", 8, 1, 8)),
        ("areal", _areal("sglang:d8+fsdp:d8", 1), ("colocated", 8, 1, 8)),  # dealt out twice
        ("areal", _areal("no form of it"), ("disaggregated", 24, 1, 24)),
        ("roll", _roll("list(range(0,8))", "list(range(0,8))", 2), ("colocated", 4, 2, 8)),
        ("roll", _roll("list(range(0, 16))", "list(range(16, 24))"), ("disaggregated", 8, 1, 16)),
        ("roll", _roll("[0,1]", "list(range(4)) + [6, 7]"), ("colocated", 6, 1, 2)),
        ("nemo_rl", _nemo(1, {"gpus_per_node": 2}), ("disaggregated", 1, 2, 6)),
        ("nemo_rl", _nemo(4, {"num_nodes": 1, "gpus_per_node": 8}), ("disaggregated", 4, 2, 24)),
        ("openrlhf", _OPENRLHF, ("disaggregated", 3, 2, 2)),
        ("trl", _trl(use_vllm=True, vllm_mode="colocate"), ("colocated", 4, 2, 8)),
        ("trl", _trl(use_vllm=False, vllm_mode="server"), ("colocated", 8, 2, 8)),
        ("trl", _trl(use_vllm=True, vllm_mode="server"), ("disaggregated", 1, 2, 8)),
    ],
)
def test_the_layout_of_a_run(
    stack: str, settings: dict[str, Any], layout: Layout, tmp_path: Path
) -> None:
    written.history(tmp_path / "h.jsonl", written.run(), stack)
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    log = read_log([tmp_path])
    assert log.stack == stack
    own = {part.key: part for part in draft(log)}
    keys = ("placement", "replicas", "tensor_parallel", "trainer_gpus")
    assert tuple(own[f"cluster.{key}"].value for key in keys) == layout
    if layout[0] == "disaggregated":
        assert not own["cluster.placement"].assumed


def test_a_mapping_of_devices_is_never_run(tmp_path: Path) -> None:
    """ROLL hands it to Python."""
    code = "[__import__('pathlib').Path('run').touch()]"
    written.history(tmp_path / "h.jsonl", written.run(), "roll")
    (tmp_path / "config.yaml").write_text(json.dumps(_roll(code, code)))
    own = {part.key: part for part in draft(read_log([tmp_path]))}
    assert own["cluster.replicas"].assumed


_SYNCS = "async_training.trigger_parameter_sync_step"
_SHARE = "async_training.staleness_threshold"
_HEAD = "rollout.max_head_offpolicyness"
_CAPACITY = {"exceeded": "capacity", "refill": "group"}
_WINDOW = {"exceeded": "window", "weights": "keep"}


def _verl(staleness: int, syncs: int) -> dict[str, Any]:
    return {"max_staleness": staleness, "exceeded": "capacity", "sync_every": syncs}


@pytest.mark.parametrize(
    ("stack", "settings", "options"),
    [
        ("areal", {_HEAD: 4}, {"max_staleness": 4, **_CAPACITY}),
        ("areal", {_HEAD: 1}, {"max_staleness": 1, **_CAPACITY}),
        (
            "skyrl",
            {"trainer.fully_async.max_staleness_steps": 4},
            {"max_staleness": 4, **_CAPACITY, "weights": "keep"},
        ),
        ("prime_rl", {"orchestrator.max_off_policy_steps": 8}, {"max_staleness": 8, **_WINDOW}),
        ("trl", {"max_staleness": 4}, {"max_staleness": 4, **_WINDOW, "in_flight": 4.0}),
        ("trl", {"max_staleness": 1}, {"max_staleness": 1, **_WINDOW, "in_flight": 1.0}),
        ("roll", {"async_generation_ratio": 0.5}, {"max_staleness": 0.5, "exceeded": "wait"}),
        # the rollouts of the next update may start, and none beyond them
        ("verl", {_SHARE: 1.0, _SYNCS: 1}, {"max_staleness": 1, "exceeded": "capacity"}),
        (
            "nemo_rl",
            {"grpo.async_grpo.max_trajectory_age_steps": 2},
            {"max_staleness": 2, "exceeded": "wait", "refill": "group", "weights": "keep"},
        ),
        # verl's bound is a share of the rollouts of a synchronisation, here of 10 and of 4 updates
        ("verl", {_SHARE: 0.1, _SYNCS: 10}, _verl(10, 10)),
        ("verl", {_SHARE: 0.5, _SYNCS: 4}, _verl(5, 4)),
    ],
)
def test_what_becomes_of_the_too_old_is_the_rule_of_the_stack(
    stack: str, settings: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    if stack == "prime_rl":
        written.prime_metrics(tmp_path / "metrics.jsonl", written.run())
    else:
        written.history(tmp_path / "h.jsonl", written.run(), stack)
    keys = all_stacks()[stack].launch.keys
    usual = ("workload.group_size", "workload.max_new_tokens", "run.steps", "run.temperature")
    beside = {keys[each][0].key: 1 for each in usual if each in keys}
    (tmp_path / "config.yaml").write_text(json.dumps({**beside, **settings}))
    log = replace(read_log([tmp_path], stack), overlapped=True)
    [part] = [each for each in draft(log) if each.key == "policy"]
    assert part.value == [{"fully_async": options}]
    assert not part.assumed
    FullyAsync(**options)  # which refuses options that contradict each other
