"""A key of a scenario as the launch settings that say it: the way back from `launches.costs`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rollcast.simulator.launches.costs import ROOFLINE, TRAINER, ZERO, sequence_split, trainer_gpus
from rollcast.simulator.stacks.settings import Place, Setting, Settings, value, whole

LORA_RANK = 32
"""Of adapters, where a launch has none: the rank of LoRA without regret and of most scripts."""

Said = Callable[[Any, Settings], Mapping[str, Any]]


def _as(key: str) -> Said:
    return lambda wanted, _: {key: wanted}


def _not(key: str) -> Said:
    return lambda wanted, _: {key: not wanted}


def _sleep(wanted: Any, known: Settings) -> Mapping[str, Any]:
    if wanted == "none":
        return {"run.free_engine": False}
    if "run.sleep_level" in known:
        return {"run.sleep_level": 1 if wanted == "offload" else 2}
    return {"run.free_engine": True}


def _pass_tokens(wanted: Any, known: Settings) -> Mapping[str, Any]:
    tokens = {"run.max_pass_tokens": math.ceil(wanted / sequence_split(known))}
    if value(known, "run.dynamic_batches") is True or "run.dynamic_batches" not in known:
        return tokens
    return {"run.dynamic_batches": True, **tokens}


def _rows(wanted: Any, known: Settings) -> Mapping[str, Any]:
    """With as many passes as leave an optimiser step what it is, where a launch says their number,
    of which the batch follows."""
    rows, passes = whole(known, "run.micro_batch_rollouts"), "run.gradient_accumulation"
    if value(known, "run.dynamic_batches") is True:
        return {}
    if passes not in known or not rows:
        return {"run.micro_batch_rollouts": wanted}
    step = rows * (whole(known, passes) or 1)
    if step % wanted or "run.generation_every" in known:
        return {}
    return {"run.micro_batch_rollouts": wanted, passes: step // wanted}


def _experts(wanted: Any, known: Settings) -> Mapping[str, Any]:
    """Fewer GPUs than before only where those of a tensor-parallel group split an expert."""
    key = f"{TRAINER}.expert_parallel"
    whole_experts = whole(known, "run.expert_tensor_parallel") == 1
    return {} if whole_experts and wanted < (whole(known, key) or 1) else {key: wanted}


def _engine(wanted: Any, known: Settings) -> Mapping[str, Any]:
    """With as many engines as leave their GPUs what they are, where a launch says their number."""
    key, engines = "cluster.tensor_parallel", "cluster.replicas"
    if engines not in known or known[engines].implied:
        return {key: wanted}
    gpus = (whole(known, engines) or 1) * (whole(known, key) or 1)
    return {} if gpus % wanted else {key: wanted, engines: gpus // wanted}


def _sharding(wanted: Any, known: Settings) -> Mapping[str, Any]:
    stages = {name: stage for stage, name in ZERO.items()}
    if wanted == "hybrid":
        node, gpus = whole(known, "run.gpus_per_node") or 8, trainer_gpus(known)
        return {"run.shard_gpus": node} if gpus is None or gpus > node else {}
    if "run.zero_stage" in known and wanted in stages:
        return {"run.zero_stage": stages[wanted]}
    return {"run.shard_gpus": -1} if wanted == "fsdp" else {}


def _split(wanted: Any, known: Settings) -> Mapping[str, Any]:
    """Copies of the model on all GPUs become shards under DeepSpeed's ZeRO-3."""
    copies = value(known, "run.strategy") == "ddp" and wanted == "deepspeed"
    return {"run.strategy": wanted, "run.zero_stage": 3} if copies else {}


def _said_already(name: str) -> Said:
    """Of a limit that counts only where the launch sets it."""
    return lambda wanted, known: {name: wanted} if name in known else {}


def _on_host(wanted: Any, known: Settings) -> Mapping[str, Any]:
    """FSDP2 can keep all states on the host, and FSDP of most stacks can't."""
    other = {"run.strategy": "fsdp2"} if value(known, "run.strategy") == "fsdp" and wanted else {}
    return {**other, "run.cpu_offload": wanted}


_SAID: Mapping[str, Said] = {
    f"{ROOFLINE}.offload_optimizer": lambda wanted, _: {
        "run.offload_parameters": wanted,
        "run.offload_optimizer": wanted,
    },
    f"{ROOFLINE}.kv_memory_utilization": _as("run.gpu_memory_share"),
    f"{ROOFLINE}.engine_sleep": _sleep,
    f"{ROOFLINE}.cuda_graphs": _not("run.enforce_eager"),
    f"{TRAINER}.optimizer_on_host": _as("run.cpu_optimizer"),
    f"{TRAINER}.states_on_host": _on_host,
    f"{TRAINER}.offload_activations": _as("run.offload_activations"),
    f"{TRAINER}.recompute": lambda wanted, _: {
        "run.recompute": "selective" if wanted == "attention" else wanted
    },
    f"{TRAINER}.microbatch_tokens": _pass_tokens,
    f"{TRAINER}.microbatch_rollouts": _rows,
    f"{TRAINER}.log_prob_microbatch_tokens": _said_already("run.log_prob_pass_tokens"),
    f"{TRAINER}.log_prob_microbatch_rollouts": _said_already("run.log_prob_micro_rollouts"),
    f"{TRAINER}.logits_chunk_tokens": lambda wanted, _: {"run.fused_head": wanted is not None},
    f"{TRAINER}.attention": lambda wanted, _: {"run.attention": wanted or "flash_attention_2"},
    f"{TRAINER}.batching": lambda wanted, _: {"run.packing": wanted == "packed"},
    f"{TRAINER}.sharding": _sharding,
    f"{TRAINER}.backend": _split,
    f"{TRAINER}.reduce_every_microbatch": _as("run.reduce_every_pass"),
    f"{TRAINER}.weights": lambda wanted, _: (
        {"run.lora_rank": LORA_RANK} if wanted == "lora" else {}
    ),
    **{
        f"{TRAINER}.{split}": _as(f"{TRAINER}.{split}")
        for split in (
            *("tensor_parallel", "pipeline_parallel", "context_parallel"),
            *("sequence_parallel", "tensor_sequence_parallel"),
        )
    },
    f"{TRAINER}.virtual_stages": _as("run.virtual_stages"),
    f"{TRAINER}.expert_parallel": _experts,
    "cluster.tensor_parallel": _engine,
    "workload.max_new_tokens": _as("workload.max_new_tokens"),
    "workload.batch_groups": _as("workload.batch_groups"),
}


def overrides(key: str, wanted: Any, known: Settings, takes: frozenset[str]) -> Mapping[str, Any]:
    """Settings by our key that give a scenario's ``key`` this value; empty where the stack, which
    ``takes`` these, has none for it."""
    said = _SAID.get(key)
    settings = {} if said is None else said(wanted, known)
    spoken = {name: its for name, its in settings.items() if name in takes}
    needed = set(settings) - {"run.dynamic_batches", "run.offload_parameters"}
    return spoken if spoken and needed <= spoken.keys() else {}


def strategy_of(name: str) -> Settings:
    """The trainer's strategy as a setting, for what a stack takes under it."""
    return {"run.strategy": Setting("run.strategy", name, "run.strategy", Place("a change"))}
