"""What a launch says of the costs: ``cost.roofline`` of a scenario."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from rollcast.simulator.costs.backends import backends_of
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.stacks import FOLDERS, STACKS
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES
from rollcast.simulator.costs.trainer.step_options import MATRICES, MasterDtype, Optimizer
from rollcast.simulator.launches.parts import HOST_MEMORY, Part
from rollcast.simulator.launches.run_parts import shape_of
from rollcast.simulator.stacks.settings import Settings, value, whole

ROOFLINE = "cost.roofline"
TRAINER = f"{ROOFLINE}.trainer"
FUSED_TRAFFIC_PER_LOGIT = 8.7  # as the doc of traffic_per_logit has it
FUSED_CHUNK_TOKENS = 1024
BUILDS_ATTENTION = ("h100", "h200")
"""GPUs on which Transformer Engine takes cuDNN's attention before flash attention's (compute
capability 9.0), and on which the time to build it was measured; B200 takes less."""
INIT, ALL = "run.shards_at_start", 3  # and the stage of ZeRO that shares weights too
CRITIC_LEAVES = "run.offload_critic"
CRITIC_WEIGHTS = "run.offload_critic_parameters"
_RECOMPUTE = {"full": "full", "selective": "attention", "mlp": "mlp", "none": "none"}
_BASE_BITS = {"4bit": 4, "8bit": 8}
ZERO = {0: "none", 1: "zero1", 2: "zero2", 3: "fsdp"}
_SAME: tuple[tuple[str, str, type], ...] = (
    ("run.cpu_optimizer", "optimizer_on_host", bool),
    ("run.pinned_optimizer", "pinned_optimizer", bool),
    ("run.cpu_offload", "states_on_host", bool),
    ("run.offload_activations", "offload_activations", bool),
    ("run.reduce_every_pass", "reduce_every_microbatch", bool),
    ("run.freezes_tower", "freeze_tower", bool),
    ("run.reshard_after_forward", "reshard_after_forward", bool),
    ("run.merges_at_once", "gathers_to_merge", bool),
    ("run.gathers_to_score", "gathers_to_score", bool),
    ("run.splits_tied_head", "split_tied_head", bool),
    ("run.splits_recurrent", "split_recurrent", bool),
    ("run.foreach_optimizer", "foreach_optimizer", bool),
    ("run.pages_moments", "pages_moments", bool),
    ("run.overlap_comm", "overlap_comm", bool),
    ("run.expandable_segments", "expandable_segments", bool),
    ("cost.roofline.trainer.tensor_parallel", "tensor_parallel", int),
    ("cost.roofline.trainer.pipeline_parallel", "pipeline_parallel", int),
    ("cost.roofline.trainer.context_parallel", "context_parallel", int),
    ("cost.roofline.trainer.sequence_parallel", "sequence_parallel", int),
    ("cost.roofline.trainer.expert_parallel", "expert_parallel", int),
    ("cost.roofline.trainer.tensor_sequence_parallel", "tensor_sequence_parallel", bool),
)
"""Our setting, the trainer's option that is the same, and the kind of both."""


def preset_of(stack: str, release: str | None, mode: object = None) -> str:
    """The preset of a stack's costs: that of a way in which it runs, if there is one, else that of
    the release, else the newest one before it, or the oldest where none is, else the stack's own;
    ``unknown`` for a stack without costs."""
    if f"{stack}-{mode}" in FOLDERS:
        return f"{stack}-{mode}"
    names = [name for name, folder in FOLDERS.items() if folder.name == stack]
    plain = next((name for name in names if name in (stack, stack.replace("_", "-"))), None)
    if release is None or plain is None:
        return plain or (names[0] if names else "unknown")
    versions = {_ordered(name.rpartition("-")[2]): name for name in names if name != plain}
    known = sorted(version for version in versions if version)
    before = [version for version in known if version <= _ordered(release)]
    return versions[(before or known[:1])[-1]] if known else plain


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


@dataclass(frozen=True, slots=True)
class Step:
    """What a step works on. rollouts: of its batch."""

    rollouts: int
    group_size: int


def cost_parts(known: Settings, preset: str, step: Step, gpu: object) -> Iterator[Part]:
    """The keys of ``cost.roofline`` that the settings give. preset: of the stack's costs. gpu: the
    name of its preset, anything else where there is none."""
    yield Part(f"{ROOFLINE}.stack", preset, "the launch's stack")
    yield from engine_parts(known, preset)
    yield from _trainer(known, preset)
    yield from pass_parts(known, step)
    yield from _built_attention(known, gpu)
    yield from role_parts(known, preset)


def _said(known: Settings, key: str, ours: str, found: Any) -> Part:
    return Part(ours, found, known[key].source, known[key].assumed)


def engine_parts(known: Settings, preset: str) -> Iterator[Part]:
    """How the engine runs, and what it leaves of the GPUs' memory beside the trainer."""
    eager, share = value(known, "run.enforce_eager"), value(known, "run.gpu_memory_share")
    if isinstance(eager, bool):
        yield _said(known, "run.enforce_eager", f"{ROOFLINE}.cuda_graphs", not eager)
    if value(known, "run.spread_requests") is True:
        yield _said(known, "run.spread_requests", f"{ROOFLINE}.client_factor", 0.0)
    if isinstance(share, int | float) and not isinstance(share, bool) and 0 < share <= 1:
        key = f"{ROOFLINE}.kv_memory_utilization"
        yield _said(known, "run.gpu_memory_share", key, float(share))
    if isinstance(parks := value(known, "run.offload_optimizer"), bool):
        yield _said(known, "run.offload_optimizer", f"{ROOFLINE}.offload_optimizer", parks)
    level, frees = value(known, "run.sleep_level"), value(known, "run.free_engine")
    frees = True if frees is False and STACKS[preset].always_sleeps else frees
    if frees is False:
        yield _said(known, "run.free_engine", f"{ROOFLINE}.engine_sleep", "none")
    elif level in (1, 2):
        sleep = "offload" if level == 1 else "discard"
        yield _said(known, "run.sleep_level", f"{ROOFLINE}.engine_sleep", sleep)
    elif frees is True:
        own = STACKS[preset].engine_sleep
        sleep = "discard" if own == "none" else own  # weights are sent before the next rollouts
        yield _said(known, "run.free_engine", f"{ROOFLINE}.engine_sleep", sleep)
    if _merges(known):
        yield _said(known, "run.merges_adapters", f"{ROOFLINE}.merges_adapters", True)
    if value(known, "run.saves_checkpoints") is False:
        yield _said(known, "run.saves_checkpoints", f"{ROOFLINE}.saves_checkpoints", False)
    if (whole(known, "run.engine_expert_parallel") or 1) > 1:
        yield _said(known, "run.engine_expert_parallel", f"{ROOFLINE}.expert_parallel", True)
    if size := whole(known, "run.host_memory_bytes"):
        yield _said(known, "run.host_memory_bytes", HOST_MEMORY, float(size))
    if value(known, "run.engine_data_attention") is True:
        key = f"{ROOFLINE}.data_parallel_attention"
        yield _said(known, "run.engine_data_attention", key, True)
    per_node = whole(known, "run.gpus_per_node")
    if per_node:
        for key in (f"{ROOFLINE}.gpus_per_node", f"{TRAINER}.gpus_per_node"):
            yield _said(known, "run.gpus_per_node", key, per_node)


def _merges(known: Settings) -> bool:
    """Whether adapters are merged for each sync, where a stack has that as a setting."""
    return bool(whole(known, "run.lora_rank")) and value(known, "run.merges_adapters") is True


_ON = {"veomni": "fsdp2"}
"""Trainers that split and step weights as a backend that is known."""
_WHOLE = 10**12  # weights that ZeRO-3 steps at once: more than a GPU's part of any model


def _trainer(known: Settings, preset: str) -> Iterator[Part]:
    """How the weights are trained and split."""
    strategy, backends = value(known, "run.strategy"), backends_of(preset)
    strategy = _ON.get(str(strategy), strategy)
    if strategy in backends and _can_be(known, backends[strategy].splits):
        yield _said(known, "run.strategy", f"{TRAINER}.backend", strategy)
    for key, ours, kind in _SAME:
        found = whole(known, key) if kind is int else value(known, key)
        if isinstance(found, kind) and found is not None:
            yield _said(known, key, f"{TRAINER}.{ours}", found)
    yield from adapter_parts(known)
    for key, ours, words in (
        ("run.optimizer", "optimizer", get_args(Optimizer)),
        ("run.trainer_dtype", "master_dtype", get_args(MasterDtype)),
    ):
        if (found := value(known, key)) in words and not known[key].unsaid:
            yield _said(known, key, f"{TRAINER}.{ours}", found)
    # rows of several sequences need a kernel that keeps them apart
    if value(known, "run.attention") == "eager" and value(known, "run.packing") is not True:
        yield _said(known, "run.attention", f"{TRAINER}.attention", "eager")
    recompute, modules = _RECOMPUTE.get(str(value(known, "run.recompute"))), "run.recompute_modules"
    if recompute == "attention" and re.search(r"\b(mlp|moe)\b", str(value(known, modules))):
        recompute = "mlp"  # which is most of a layer
    if recompute:
        yield _said(known, "run.recompute", f"{TRAINER}.recompute", recompute)
        layers = whole(known, "run.recompute_layers")
        if layers and recompute != "none":
            yield _said(known, "run.recompute_layers", f"{TRAINER}.recompute_layers", layers)
    stage = value(known, "run.zero_stage")
    if stage in ZERO and not isinstance(stage, bool):
        yield _said(known, "run.zero_stage", f"{TRAINER}.sharding", ZERO[stage])
        if stage == ALL and value(known, INIT) is False:
            yield _said(known, INIT, f"{TRAINER}.whole_at_start", True)
    elif value(known, "run.shard_gpus") == -1 and strategy in ("fsdp", "fsdp2"):
        yield _said(known, "run.shard_gpus", f"{TRAINER}.sharding", "fsdp")
    elif (sharers := whole(known, "run.shard_gpus")) and sharers < (
        trainer_gpus(known) or math.inf
    ):
        yield _said(known, "run.shard_gpus", f"{TRAINER}.sharding", "hybrid")
        yield _said(known, "run.shard_gpus", f"{TRAINER}.shard_gpus", sharers)
    if strategy in ("fsdp", "fsdp2") and value(known, INIT) is False:
        yield _said(known, INIT, f"{TRAINER}.whole_at_start", True)
    chunk = whole(known, "run.logits_chunk_tokens")
    if value(known, "run.fused_head") is True:
        key = f"{TRAINER}.traffic_per_logit"
        yield _said(known, "run.fused_head", key, FUSED_TRAFFIC_PER_LOGIT)
        chunked = f"{TRAINER}.logits_chunk_tokens"
        yield _said(known, "run.fused_head", chunked, chunk or FUSED_CHUNK_TOKENS)
    else:
        for key, ours, of_chunks in (
            ("run.logit_bytes", "logit_bytes", 2 * COMPUTE_BYTES),
            ("run.scored_logit_bytes", "ungraded_logit_bytes", COMPUTE_BYTES),
        ):
            if (each := whole(known, key)) is not None:
                yield _said(known, key, f"{TRAINER}.{ours}", each)
            elif chunk:  # 16 bit logits and their gradients; what is in 32 bit is of a chunk
                yield _said(known, "run.logits_chunk_tokens", f"{TRAINER}.{ours}", of_chunks)
    yield from _kept_between_steps(known)
    if value(known, "run.offload_reference") is True and value(known, "run.reference") is True:
        yield _said(known, "run.offload_reference", f"{TRAINER}.reference_on_host", True)
    for bucket in ("reduce_bucket", "prefetch_bucket"):
        elements = value(known, f"run.{bucket}")
        if elements == 0 or whole(known, f"run.{bucket}"):
            yield _said(known, f"run.{bucket}", f"{TRAINER}.{bucket}", int(elements))
    group = value(known, "run.step_group")
    if isinstance(group, int | float) and not isinstance(group, bool) and group >= 1:
        yield _said(known, "run.step_group", f"{TRAINER}.step_group", int(min(group, _WHOLE)))
    if (precision := value(known, "run.precision")) in ("fp8", "fp32"):
        yield _said(known, "run.precision", f"{TRAINER}.precision", precision)


_FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
_MEGATRON_S = {
    **{"linear_qkv": ("q", "k", "v"), "linear_proj": ("o",)},
    **{"linear_fc1": ("gate", "up"), "linear_fc2": ("down",)},
}
"""Matrices that are one, by their names in transformers and in Megatron."""


def adapter_parts(known: Settings) -> Iterator[Part]:
    """Adapters that are trained in the place of the weights, and how these are kept below them."""
    rank, strategy = whole(known, "run.lora_rank"), value(known, "run.strategy")
    if not rank:
        return
    yield _said(known, "run.lora_rank", f"{TRAINER}.weights", "lora")
    yield _said(known, "run.lora_rank", f"{TRAINER}.lora_rank", rank)
    reentrant = "run.reentrant_checkpoints"
    if _ON.get(str(strategy), strategy) == "fsdp" and value(known, reentrant) is True:
        yield _said(known, reentrant, f"{TRAINER}.reentrant_checkpoints", True)
    if some := _adapted(value(known, "run.lora_targets")):
        yield _said(known, "run.lora_targets", f"{TRAINER}.lora_matrices", some)
    if bits := _BASE_BITS.get(str(value(known, "run.quantized_base"))):
        yield _said(known, "run.quantized_base", f"{TRAINER}.base_bits", bits)
        if bits == 4 and value(known, "run.nested_scales") is False:
            yield _said(known, "run.nested_scales", f"{TRAINER}.nested_scales", False)
        if value(known, "run.fp32_norms") is True:
            yield _said(known, "run.fp32_norms", f"{TRAINER}.fp32_norms", True)


def _adapted(targets: Any) -> str | None:
    """The matrices that names or a pattern of modules adapt; None for all, and for names that are
    not known."""
    text = " ".join(map(str, targets)) if isinstance(targets, list) else str(targets)
    names = re.findall(r"(?<![a-z_])(qkv|gate_up|q|k|v|o|gate|up|down)_proj\b", text)
    chosen = {one for name in names for one in _FUSED.get(name, (name,))}
    for name, several in _MEGATRON_S.items():
        chosen |= set(several) if name in text else set()
    some = [name for name in MATRICES if name in chosen]
    return "+".join(some) if some and len(some) < len(MATRICES) else None


def _kept_between_steps(known: Settings) -> Iterator[Part]:
    """What stays on a colocated trainer's GPUs when its optimiser leaves them, and what is made
    there of weights below adapters for a sync."""
    parks = value(known, "run.offload_optimizer") is True
    if parks and value(known, "run.offload_parameters") is False:
        yield _said(known, "run.offload_parameters", f"{TRAINER}.keeps_weights", True)
    if parks and value(known, "run.critic") is True and value(known, CRITIC_LEAVES) is False:
        yield _said(known, CRITIC_LEAVES, f"{TRAINER}.critic_stays", True)
    own = value(known, CRITIC_WEIGHTS)
    leaves = value(known, "run.offload_parameters")
    if parks and value(known, "run.critic") is True and isinstance(own, bool) and own != leaves:
        yield _said(known, CRITIC_WEIGHTS, f"{TRAINER}.critic_keeps_weights", not own)
    loads = value(known, "run.engine_loads")
    if whole(known, "run.lora_rank") and isinstance(loads, str) and "dummy" in loads:
        if _merges(known):  # every sync gathers them, and sends them from where they are
            return
        yield _said(known, "run.engine_loads", f"{TRAINER}.gathered_copies", 2)


def _can_be(known: Settings, splits: Collection[str]) -> bool:
    """Whether a strategy that the launch does not name itself splits the model as it says."""
    wanted = [
        ours
        for key, ours, _ in _SAME
        if ours.endswith("_parallel") and (whole(known, key) or 1) > 1
    ]
    return not known["run.strategy"].unsaid or set(wanted) <= set(splits)


def trainer_gpus(known: Settings) -> int | None:
    """GPUs of the trainer; None where the launch does not say."""
    nodes, per_node = whole(known, "run.nodes"), whole(known, "run.gpus_per_node")
    return whole(known, "cluster.trainer_gpus") or (
        nodes * per_node if nodes and per_node else None
    )


def minibatches(known: Settings, rollouts: int, group_size: int) -> Part | None:
    """Optimiser steps of an update on so many rollouts; None where the settings do not say."""
    for key, each in (("run.mini_batch_rollouts", 1), ("run.mini_batch_groups", group_size)):
        if per_step := whole(known, key):
            times = math.ceil(rollouts / (per_step * each)) * (whole(known, "run.iterations") or 1)
            source = f"the batch over {known[key].source}"
            return Part(f"{TRAINER}.minibatches", max(times, 1), source)
    return None


def sequence_split(known: Settings) -> int:
    """GPUs that share a pass, where its tokens are those of each of them; else 1."""
    if value(known, "run.pass_tokens_each") is not True:
        return 1
    return math.prod(
        whole(known, f"{TRAINER}.{how}_parallel") or 1 for how in ("context", "sequence")
    )


def pass_parts(known: Settings, step: Step) -> Iterator[Part]:
    """Optimiser steps of an update, and what a microbatch holds."""
    if (part := minibatches(known, step.rollouts, step.group_size)) is not None:
        yield part
    dynamic, packs = value(known, "run.dynamic_batches"), value(known, "run.packing")
    room, rows = whole(known, "run.max_pass_tokens"), whole(known, "run.micro_batch_rollouts")
    padding = value(known, "run.padding")
    if room and dynamic is not False:
        tokens = room * sequence_split(known)
        yield _said(known, "run.max_pass_tokens", f"{TRAINER}.microbatch_tokens", tokens)
        if packs is not False:
            yield _said(known, "run.max_pass_tokens", f"{TRAINER}.batching", "packed")
        elif padding:
            yield _said(known, "run.padding", f"{TRAINER}.batching", padding)
    elif rows and packs is True:
        yield _said(known, "run.packing", f"{TRAINER}.batching", "packed")
        yield _said(known, "run.micro_batch_rollouts", f"{TRAINER}.microbatch_rollouts", rows)
    elif rows:
        key = "run.padding" if padding else "run.micro_batch_rollouts"
        yield _said(known, key, f"{TRAINER}.batching", padding or "padded")
        yield _said(known, "run.micro_batch_rollouts", f"{TRAINER}.microbatch_rollouts", rows)
    elif padding:
        yield _said(known, "run.padding", f"{TRAINER}.batching", padding)
    yield from _log_prob_passes(known)
    critic = value(known, "run.critic") is True
    critic_packs = value(known, "run.critic_packing") if critic else None
    cap = whole(known, "run.max_prompt_tokens")
    if cap and (padding or critic_packs is False):
        yield _said(known, "run.max_prompt_tokens", f"{TRAINER}.padded_prompt_tokens", cap)
    if critic_packs is True:
        yield _said(known, "run.critic_packing", f"{TRAINER}.critic_batching", "packed")
    if critic:
        yield from _critic_passes(known)


def _built_attention(known: Settings, gpu: object) -> Iterator[Part]:
    """What rows of many lengths take of the host where cuDNN computes their attention."""
    measured = isinstance(gpu, str) and gpu.startswith(BUILDS_ATTENTION)
    unpacked = value(known, "run.packing") is False
    if measured and unpacked and value(known, "run.builds_attention") is True:
        seconds = figures("launches").attention_build_s
        yield _said(known, "run.packing", f"{TRAINER}.attention_build_s", seconds)


def _critic_passes(known: Settings) -> Iterator[Part]:
    """What a critic's microbatch holds and keeps, where the stack has settings of its own for it:
    either measure as the policy's, unless it is said."""
    own = value(known, "run.critic_dynamic_batches")
    dynamic = value(known, "run.dynamic_batches") if own is None else own
    tokens, rows = "run.critic_max_pass_tokens", "run.critic_micro_rollouts"
    split = "run.critic_sequence_parallel"
    shared = whole(known, split)
    if dynamic is True and (room := whole(known, tokens)):
        yield _said(known, tokens, f"{TRAINER}.critic_microbatch_tokens", room * (shared or 1))
    elif dynamic is not True and (most := whole(known, rows)):
        yield _said(known, rows, f"{TRAINER}.critic_microbatch_rollouts", most)
    if shared and shared != (whole(known, f"{TRAINER}.sequence_parallel") or 1):
        yield _said(known, split, f"{TRAINER}.critic_sequence_parallel", shared)
    repeats = value(known, "run.critic_recompute")
    if repeats in ("full", "selective", "none") and repeats != value(known, "run.recompute"):
        yield _said(known, "run.critic_recompute", f"{TRAINER}.critic_recompute", repeats)


def _log_prob_passes(known: Settings) -> Iterator[Part]:
    """What a microbatch of the passes before the update holds."""
    tokens, rows = "run.log_prob_pass_tokens", "run.log_prob_micro_rollouts"
    key = f"{TRAINER}.log_prob_microbatch_tokens"
    room, most = whole(known, tokens), whole(known, rows)
    if room and value(known, "run.dynamic_batches") is not False:
        yield _said(known, tokens, key, room * sequence_split(known))
    elif most and value(known, "run.dynamic_batches") is True:
        return  # as large as the update's
    elif most:
        yield _said(known, rows, f"{TRAINER}.log_prob_microbatch_rollouts", most)


def _other_shape(known: Settings, key: str) -> str | None:
    """The preset of a model beside the policy, if its shape is known to be another."""
    policy, other = (shape_of(str(value(known, one))) for one in ("model", key))
    differs = policy is not None and other is not None and policy[1] != other[1]
    return other[1] if differs and other is not None else None


def role_parts(known: Settings, preset: str) -> Iterator[Part]:
    """Models beside the policy."""
    reference, anew = value(known, "run.reference"), value(known, "run.log_probs")
    usual = next(iter(backends_of(preset).values())).options.get("log_prob_passes", 1)
    own = usual - (usual > 1)  # without the reference that it counts
    if isinstance(anew, bool):
        own = max(own, 1) if anew else 0
    key = f"{TRAINER}.log_prob_passes"
    if isinstance(reference, bool):
        teacher = _other_shape(known, "run.reference_model") if reference else None
        why = "run.log_probs" if anew is False and not reference else "run.reference"
        yield _said(known, why, key, own + (reference and teacher is None))
        if reference and teacher is None and not own:  # whose pass is the only one
            yield _said(known, why, f"{TRAINER}.reference", True)
        if teacher is not None:  # which adds its pass
            yield _said(known, "run.reference_model", f"{TRAINER}.reference_model", teacher)
    elif isinstance(anew, bool) and not known["run.log_probs"].unsaid:
        yield _said(known, "run.log_probs", key, own + (usual > 1))
    critic = value(known, "run.critic") is True
    reward = value(known, "run.reward_model") not in (None, False, "")
    reward = reward and value(known, "run.reward_models") is not False  # its path stands there too
    if critic:
        yield _said(known, "run.critic", f"{TRAINER}.critic", True)
        valued = _other_shape(known, "run.critic_model")
        if valued is not None:
            yield _said(known, "run.critic_model", f"{TRAINER}.critic_model", valued)
    if reward:
        yield _said(known, "run.reward_model", f"{TRAINER}.reward_passes", 1)
    for role, key, has in (
        ("critic", "run.critic_gpus", critic),
        ("reference", "run.reference_gpus", reference is True),
        ("reward", "run.reward_model_gpus", reward),
    ):
        if has and (gpus := whole(known, key)):
            yield _said(known, key, f"{TRAINER}.{role}_gpus", gpus)
    shared = "run.share_reward_model"
    if critic and reward and value(known, shared) is True and whole(known, "run.critic_gpus"):
        yield _said(known, shared, f"{TRAINER}.reward_with_critic", True)
