"""Scenarios whose lengths a fake stack replays, on a cluster where every rollout in flight gains
one token an iteration: then a fake needs no model of a GPU."""

from typing import Any

from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import Scenario, build_scenario
from rollcast.simulator.studies.simulate import simulate
from tests.scenarios import FREE

CAP = 60
COST = {**FREE, "iteration_s": 1.0, "train_fixed_s": 5.0, "sync_s": 1.0}

TRAINERS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"kv_memory_utilization": 0.6, "offload_optimizer": True, "engine_sleep": "none"},
    {"trainer": {"recompute": "none", "microbatch_rollouts": 2, "batching": "padded"}},
    {"trainer": {"backend": "fsdp2", "states_on_host": True, "microbatch_tokens": 20000}},
    {"trainer": {"sequence_parallel": 2, "weights": "lora", "offload_activations": True}},
    {
        "trainer": {
            **{"tensor_parallel": 2, "pipeline_parallel": 2, "virtual_stages": 2},
            **{"recompute": "full", "optimizer_on_host": True, "tensor_sequence_parallel": False},
        }
    },
)
"""Rooflines that the fit in memory rests on, and none."""


def scenario(policy: str = "sync", **given: Any) -> Scenario:
    """A small scenario; ``given`` replaces keys of its sections, such as ``steps`` or
    ``cluster={"replicas": 2}``."""
    overlaps = any(word in policy for word in ("one_step_off", "fully_async", "pipeline"))
    data: dict[str, Any] = {
        "cluster": {"placement": "disaggregated" if overlaps else "colocated"},
        "engine": {"max_seqs": 512, "max_batched_tokens": 1_000_000, "kv_tokens": 10_000_000},
        "workload": {
            "batch_groups": 4,
            "group_size": 4,
            "prompt_tokens": 3,
            "max_new_tokens": CAP,
            "lengths": {
                "family": "lognormal",
                "median_tokens": 18,
                "between_sd": 0.6,
                "within_sd": 0.5,
            },
            "rewards": {"family": "beta_bernoulli", "mean": 0.5, "between_sd": 0.3},
        },
        "policy": policy,
        "cost": {"linear": COST},
        "steps": 8,
        "seed": 3,
    }
    for key, value in given.items():
        merged = isinstance(value, dict) and key != "cost"
        data[key] = {**data.get(key, {}), **value} if merged else value
    return build_scenario(RawScenario(data))


def simulated(checked: Scenario) -> list[dict[str, Any]]:
    """What the simulator decides, step by step."""
    return simulate(checked).run.decisions


def priced(policy: str, roofline: dict[str, Any] | None) -> Scenario:
    """A scenario of a real model on 8 GPUs, or as many again for replicas apart; without a roofline
    the small one."""
    if roofline is None:
        return scenario(policy)
    apart = policy in ("one_step_off", "fully_async")
    placement = "disaggregated" if apart else "colocated"
    return scenario(
        policy,
        model="qwen3-0.6b",
        gpu="h100-sxm",
        cluster={"placement": placement, "replicas": 8, "trainer_gpus": 8},
        engine={"kv_tokens": None},
        cost={"roofline": roofline},
    )
