"""What rollcast says of each case beforehand, from its presets alone."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmarks.gpu.cases import Case
from benchmarks.gpu.shapes import ATTENTION, BATCHES, ROUTED, products
from rollcast.engine.room import Devices, priced
from rollcast.simulator.costs import RooflineTrainer
from rollcast.simulator.costs.backends import backends_of
from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.costs.memory.ledger import chance_of
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.sync.state_copies import copy_bytes_per_s
from rollcast.simulator.costs.trainer.memory import DYNAMIC, Use
from rollcast.simulator.costs.trainer.options import TrainerOptions
from rollcast.simulator.costs.trainer.trainer import FP32_SHARE, STREAM_EFFICIENCY

Values = dict[str, float]
NOT_ALLOCATED = ("context", "fragmentation")
OURS = backends_of("rollcast")["fsdp2"].options
OF_TIME = (
    *("traffic_per_activation_byte", "traffic_per_logit", "graded_traffic_per_logit"),
    "logits_of_prompts",
    *("launch_s_per_layer", "shared_launch_s_per_layer", "launch_overlap", "step_fixed_s"),
    "attention",
)
"""Figures of our trainer's seconds, which ``stack: rollcast`` sets."""


def forecast(case: Case, gpu: Gpu) -> Values:
    """By the names of what is measured; none where rollcast says nothing."""
    if case.kind in ("update", "plain"):
        return _update(case, gpu)
    if case.kind == "log_prob":
        return _log_prob(case, gpu)
    if case.kind in _OF_PARTS:
        return _OF_PARTS[case.kind](case, gpu)
    return {}


def trainer_of(case: Case, gpu: Gpu) -> RooflineTrainer:
    """Ours, or as a stack without fused heads has it: rows padded, all logits at once, an optimiser
    that works on lists of tensors. On a GPU whose memory never ends."""
    room = Devices(round(gpu.memory_bytes), 0.0)
    trainer = replace(
        priced(case.spec, case.config(), case.passes, room),
        gpu=replace(gpu, memory_bytes=1e15),
        microbatch_tokens=case.microbatch,
        prefix_microbatch_tokens=case.together,
    )
    if case.kind != "plain":
        trainer = replace(trainer, **{key: OURS[key] for key in OF_TIME if key in OURS})
    if case.passes == "float32":
        trainer = replace(trainer, precision="fp32")
    if case.kind == "plain":
        trainer = replace(
            trainer,
            batching="padded",
            logits_chunk_tokens=None,
            logit_bytes=_kept_logit_bytes(case),
            foreach_optimizer=True,
        )
    return trainer


def _kept_logit_bytes(case: Case) -> float:
    """In ``plain``, of a logit: all in fp32, and of those of responses a copy in rows and its
    log-softmax."""
    return 4 + 8 * case.response / (case.prompt + case.response)


def load_of(case: Case) -> TrainLoad:
    prompt, response = case.prompt, case.response
    if case.kind == "plain":  # logits of prompts are computed, too
        prompt, response = 1, prompt + response - 1
    return TrainLoad([(prompt, [response] * case.rollouts)] * case.groups, case.shared)


def _use(case: Case) -> Use:
    response = case.rows * case.response
    if case.shared:
        prefixes = case.prefixes * (case.prompt - 1)
        return Use(response, response, prefixes, accumulates=case.microbatches > 1)
    tokens = case.rows * (case.prompt + case.response - 1)
    logits = tokens if case.kind == "plain" else response
    return Use(tokens, logits, 0, accumulates=case.microbatches > 1)


def _update(case: Case, gpu: Gpu) -> Values:
    trainer = trainer_of(case, gpu)
    phases = dict(trainer.train(load_of(case)).phases_s)
    found = {f"{name}_s": phases[name] for name in ("forward", "backward", "optimizer")}
    if "log_prob" in phases:
        found["log_prob_s"] = phases.pop("log_prob")
    found["update_s"] = math.fsum(phases.values())
    on_it = replace(trainer, gpu=gpu)
    held = on_it.phases(_use(case))
    roles = {phase: dict(parts["trainer"]) for phase, parts in held.items()}
    sums = {phase: _allocated(parts) for phase, parts in roles.items()}
    found["peak_passes_bytes"] = max(sums["update"], sums.get("log_prob", 0.0))
    found["peak_optimizer_bytes"] = sums["optimizer_step"]
    fullest = max(roles, key=lambda phase: math.fsum(roles[phase].values()))
    found["peak_bytes"] = max(sums.values())
    most = roles[fullest]
    found["reserved_bytes"] = sums[fullest] + most.get("fragmentation", 0.0)
    found["used_bytes"] = math.fsum(most.values())
    resting = on_it.resting()["trainer"]
    found["resting_bytes"] = _allocated(resting)
    for name, size in roles["update"].items():
        if name not in NOT_ALLOCATED:
            found[f"part {name} bytes"] = size
    known = figures("memory")
    found["fits_chance"] = min(
        chance_of(parts.values(), on_it._budget_bytes, known.spread, known.configured_spread)
        for parts in held.values()
    )
    return found


def _allocated(parts: Mapping[str, float]) -> float:
    return math.fsum(size for name, size in parts.items() if name not in NOT_ALLOCATED)


def _log_prob(case: Case, gpu: Gpu) -> Values:
    """Of a model that has weights alone."""
    trainer = replace(trainer_of(case, gpu), log_prob_passes=1)
    phases = dict(trainer.train(load_of(case)).phases_s)
    parts = trainer.phases(_use(case))["log_prob"]["trainer"]
    held = ("weights", "master_weights", "activations", "logits", "gathered_weights")
    return {
        "log_prob_s": phases["log_prob"],
        "peak_bytes": math.fsum(parts.get(name, 0.0) for name in held),
    }


def _matmul(case: Case, gpu: Gpu) -> Values:
    found: Values = {}
    for name, (rows, inner, columns), dtype in products():
        share = 1.0 if dtype == "bfloat16" else FP32_SHARE
        width = 2 if dtype == "bfloat16" else 4
        flop = 2.0 * rows * inner * columns
        by_flop = flop / (gpu.bf16_flop_per_s * gpu.gemm_flop_efficiency * share)
        read = width * inner * columns
        by_bytes = read / (gpu.bandwidth_bytes_per_s * gpu.gemm_bandwidth_efficiency)
        found[f"{name} flop_per_s"] = flop / max(by_flop, by_bytes)
    return found


def _copies(case: Case, gpu: Gpu) -> Values:
    """on_gpu: bytes read and written a second."""
    pinned, pageable = copy_bytes_per_s(True, gpu), copy_bytes_per_s(False, gpu)
    streamed = gpu.bandwidth_bytes_per_s * STREAM_EFFICIENCY
    return {
        "on_gpu bytes_per_s": streamed,
        "adam bytes_per_s": streamed,
        "pinned down bytes_per_s": pinned[0],
        "pinned up bytes_per_s": pinned[1],
        "pageable down bytes_per_s": pageable[0],
        "pageable up bytes_per_s": pageable[1],
    }


def attention_flop(sequences: int, heads: int, tokens: int, width: int) -> float:
    """Of a forward and backward over the causal half, as three forwards."""
    return 3 * 4.0 * sequences * heads * width * tokens * tokens / 2


def _attention(case: Case, gpu: Gpu) -> Values:
    reached = gpu.bf16_flop_per_s * gpu.trainer_attention_flop_efficiency
    return {f"{name} default flop_per_s": reached for name in ATTENTION}


def _layers(case: Case, gpu: Gpu) -> Values:
    """One layer's forward by a few tokens, replayed: its weights are read, and the floor."""
    model = case.spec
    each = (model.parameters - model.head_parameters * (1 if model.tied_embeddings else 2)) / (
        model.layers
    )
    read_s = 2 * each / (gpu.bandwidth_bytes_per_s * gpu.gemm_bandwidth_efficiency)
    return {f"{tokens} tokens graph_s": read_s + gpu.layer_floor_s for tokens in BATCHES}


def _experts(case: Case, gpu: Gpu) -> Values:
    """Products of routed experts; one by one also their launches, as in PyTorch's FSDP."""
    model = case.spec
    launch_s = backends_of("unknown")["fsdp"].options["expert_launch_s"]
    found = {}
    for tokens in ROUTED:
        flop = 2.0 * tokens * model.experts_per_token * model.expert_parameters
        products_s = flop / (gpu.bf16_flop_per_s * gpu.gemm_flop_efficiency)
        touched = model.experts_touched(tokens)
        for name, more_s in (("one by one", touched * launch_s), ("grouped", 0.0)):
            found[f"{tokens} tokens {name} forward_s"] = products_s + more_s
            found[f"{tokens} tokens {name} passes_s"] = 3 * (products_s + more_s)
    return found


def _weights(case: Case, gpu: Gpu) -> Values:
    moved = 2.0 * case.spec.parameters
    return {"weights_s": moved / copy_bytes_per_s(False, gpu)[0]}


def _host_adam(case: Case, gpu: Gpu) -> Values:
    return {"host_adam_bytes_per_s": float(TrainerOptions.host_memory_bytes_per_s)}


def _allocator(case: Case, gpu: Gpu) -> Values:
    """The share of the peak in which it runs: what is stuck of what comes and goes is left over."""
    as_plain = replace(case, kind="plain")
    trainer = replace(trainer_of(as_plain, gpu), gpu=gpu, expandable_segments=case.expandable)
    roles = trainer.phases(_use(as_plain))
    parts = max((dict(held["trainer"]) for held in roles.values()), key=_allocated)
    stuck = min(trainer.stuck_bytes, math.fsum(parts.get(name, 0.0) for name in DYNAMIC))
    peak = _allocated(parts)
    return {"free allocated_bytes": peak, "runs_in": (peak + stuck) / peak}


_OF_PARTS: Mapping[str, Callable[[Case, Gpu], Values]] = {
    "matmul": _matmul,
    "copies": _copies,
    "attention": _attention,
    "layers": _layers,
    "experts": _experts,
    "host_adam": _host_adam,
    "weights": _weights,
    "allocator": _allocator,
}
