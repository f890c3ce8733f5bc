"""Host memory of the fullest node of a roofline's cluster."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rollcast.simulator.costs.engine.hosts import engine_presets
from rollcast.simulator.costs.memory.kv_pool import weight_bytes_per_gpu
from rollcast.simulator.costs.memory.pinned import (
    fused_matrices,
    mean_rounding,
    pinned_bytes,
    rounding,
)
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.roofline.cost import RooflineCost
from rollcast.simulator.costs.stacks import STACKS, UNKNOWN, StackPreset
from rollcast.simulator.costs.trainer.buckets import keeps_buckets
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES, MASTER_BYTES
from rollcast.simulator.costs.trainer.parallel import GRADIENT_BYTES
from rollcast.simulator.costs.trainer.states import (
    adapter_parameters,
    frozen_parts,
    has_working_copy,
    master_bytes,
    moment_bytes,
)
from rollcast.simulator.costs.trainer.trainer import RooflineTrainer

SUB_GROUP = 1e9  # parameters whose gradients ZeRO-3 pins as one (sub_group_size of stage3.py)


class _Tenant(NamedTuple):
    """Who holds host memory for each of its GPUs. parts: bytes of each GPU's processes, by part.
    loading: of these, while models are loaded."""

    gpus: int
    parts: Mapping[str, float]
    loading: Mapping[str, float]

    @property
    def most(self) -> float:
        return max(math.fsum(self.parts.values()), math.fsum(self.loading.values()))


def host_bytes(cost: RooflineCost) -> dict[str, float]:
    """Bytes of host memory on the node that needs most, by part, in training or while models are
    loaded, whichever needs more; parts at 0 are left out.

    optimizer: weights, gradients and moments of an optimiser, or of all states, that works there.
    offloaded_states: what a colocated trainer's GPUs hold between steps, there while rollouts run.
    reference: weights that wait there, and with those that are swapped with them the policy's.
    engine_weights: of an engine that sleeps with them.
    checkpoint: copies of states while they are saved. swap: what an engine sets aside for KV.
    loading: models that are whole in a process before they are shared. gathered_weights: those
    below adapters, whole in each process when they are first sent to the engine.
    processes: of trainer, engines and the models beside them. system: of a node, what is there
    without any of them, Ray's own processes too where the stack has it. Data and a filled object
    store are left out.
    """
    left, steady, loading = cost.trainer_of.gpus_per_node, Counter[str](), Counter[str]()
    known = figures("memory")
    system: float = known.system_bytes if _stack(cost).ray else known.bare_system_bytes
    for tenant in sorted(_tenants(cost), key=lambda one: -one.most):
        gpus = min(tenant.gpus, left)
        left -= gpus
        for total, parts in ((steady, tenant.parts), (loading, tenant.loading)):
            for name, size in parts.items():
                total[name] += gpus * size  # type: ignore[assignment]
    loading["loading"] += _first_rank_bytes(cost)  # type: ignore[assignment]
    fuller = max((steady, loading), key=lambda parts: math.fsum(parts.values()))
    return {name: size for name, size in {**fuller, "system": system}.items() if size > 0}


def host_limit_bytes(cost: RooflineCost) -> float | None:
    """Bytes of a node at which the stack's workers are ended; None where nobody says what it has.
    Ray ends workers before the kernel would (RAY_memory_usage_threshold)."""
    if cost.host_memory_bytes is None:
        return None
    share: float = figures("memory").ray_share
    return cost.host_memory_bytes * (share if _stack(cost).ray else 1.0)


def _stack(cost: RooflineCost) -> StackPreset:
    return STACKS[cost.stack or UNKNOWN]


def _tenants(cost: RooflineCost) -> Iterator[_Tenant]:
    """Who has processes on a node: the trainer with what shares its GPUs, and each on GPUs of its
    own."""
    known, stack, trainer = figures("memory"), _stack(cost), cost.trainer_of
    process: float = known.process_bytes
    colocated = cost.placement == "colocated"
    guests = processes_beside(cost)
    engines = 1 if colocated and not stack.engine_in_trainer else 0
    asleep = _sleeping_bytes(cost) if colocated else 0.0
    swap = {"swap": _swap_bytes(cost)}
    own = {"processes": process * (1 + guests + engines), "engine_weights": asleep}
    own |= swap if colocated else {}
    whole = _loaded_bytes(cost, trainer)
    steady = {
        "optimizer": _optimizer_bytes(trainer, with_guests=True),
        "offloaded_states": _offloaded_bytes(cost),
        "reference": _reference_bytes(cost),
        "gathered_weights": _base_bytes(cost) if colocated else 0.0,
        "checkpoint": _saved_bytes(cost),
    }
    yield _Tenant(trainer.gpus, own | steady, own | {"loading": whole * (1 + guests)})
    if not colocated:
        alone = {"processes": process, **swap}
        yield _Tenant(cost.replicas * cost.engine_gpus, alone, alone)
    for role, other in trainer.others:
        if role.gpus:
            works = _optimizer_bytes(other) if role.trained else 0.0
            alone = {"processes": process}
            read = {"loading": _loaded_bytes(cost, other)}
            yield _Tenant(role.gpus, alone | {"optimizer": works}, alone | read)


def processes_beside(cost: RooflineCost) -> int:
    """Processes on each of the policy's GPUs beside its own: one a model where they have their
    own."""
    trainer = cost.trainer_of
    if not _stack(cost).process_a_role:
        return 0
    apart = {role.name for role, _ in trainer.others if role.gpus}
    beside = {
        "reference": trainer.compares and trainer.weights == "full",
        "critic": trainer.critic,
        "reward": trainer.reward_passes > 0,
    }
    return sum(there and name not in apart for name, there in beside.items())


# What is there in training, of each GPU


def _optimizer_bytes(trainer: RooflineTrainer, *, with_guests: bool = False) -> float:
    """Of an optimiser, or of all states, that works there. with_guests: of critics on the same GPUs
    too."""
    if not (trainer.states_on_host or trainer.optimizer_on_host):
        return 0.0
    if trainer.weights != "full":
        return _adapter_optimizer_bytes(trainer)
    total = _states_bytes(trainer, trainer.layout.owned_parameters)
    if not with_guests:
        return total
    for role, other in trainer.others:
        if role.trained and not role.gpus:
            total += _states_bytes(other, other.layout.owned_parameters)
    if trainer.critic and "critic" not in [role.name for role, _ in trainer.others]:
        total *= 2  # of the policy's model
    return total


def _adapter_optimizer_bytes(trainer: RooflineTrainer) -> float:
    """The same of adapters alone, and of the weights beside them where all states are there."""
    if not trainer.adapted:
        return 0.0
    split = trainer.tensor_parallel * trainer.pipeline_parallel
    sharded = trainer.kept in ("fsdp", "hybrid")
    split *= trainer.layout.sharers(trainer.layout.parts[0][1]) if sharded else 1
    own = adapter_parameters(trainer.model, trainer.lora_rank, trainer.lora_matrices)
    total = _states_bytes(trainer, own / split)
    if trainer.states_on_host:
        each = trainer.base_bytes_each
        size = each * math.fsum(
            weights / (trainer.layout.sharers(copies) if sharded else 1)
            for weights, copies in trainer.layout.parts
        )
        total += size * (mean_rounding() if trainer.pinned_optimizer else 1.0)
    return total


def _states_bytes(trainer: RooflineTrainer, owned: float) -> float:
    """Of an optimiser of ``owned`` parameters on the CPU: its weights, moments and gradients.

    DeepSpeed pins gradients and, of ZeRO-1 and 2, weights and their 16 bit copies, one block each,
    and gradients that are summed over microbatches once more (stage_1_and_2.py). ZeRO-3 pins
    gradients twice, by `SUB_GROUP` and in 16 bit in one block, and weights on the host as they were
    loaded and in one block (partition_parameters.py, stage3.py). Others pin weights and gradients
    one by one: Megatron's hybrid_optimizer.py, FSDP's CPU offload.
    """
    master, moments = master_bytes(trainer), moment_bytes(trainer)
    gradient = COMPUTE_BYTES if trainer.master_dtype == "bf16" else GRADIENT_BYTES
    total, pinned = moments * owned, trainer.pinned_optimizer
    copies = mean_rounding() if pinned else 1.0
    if trainer.backend != "deepspeed":
        return total + copies * (master + gradient) * owned

    def block(size: float) -> float:
        return pinned_bytes(size) if pinned else size

    total += block(COMPUTE_BYTES * owned)
    if trainer.kept not in ("fsdp", "hybrid"):
        summed = copies * COMPUTE_BYTES * owned
        return total + block(master * owned) + block(gradient * owned) + summed
    groups, rest = divmod(owned, SUB_GROUP)
    total += master * owned + groups * block(gradient * SUB_GROUP) + block(gradient * rest)
    if trainer.states_on_host:  # in one block that is always pinned
        total += pinned_bytes(COMPUTE_BYTES * owned)
        total += copies * COMPUTE_BYTES * owned if pinned else 0.0
    return total


def _offloaded_bytes(cost: RooflineCost) -> float:
    """Of what a colocated trainer takes off its GPUs between steps."""
    if not cost.offloads:
        return 0.0
    trainer = cost.trainer_of
    held = trainer.resting()["trainer"]
    stays = set(trainer.resting(states=False)["trainer"])
    stays |= {"gradients"} if trainer.drops_gradients else set()
    total = math.fsum(size for name, size in held.items() if name not in stays)
    total -= trainer.bucket_bytes if keeps_buckets(trainer) else 0.0
    rounded = trainer.rounded_copies
    if rounded is None:
        rounded = trainer.state_copies == "pinned"
    return total * (_copied_rounding(trainer) if rounded else 1.0)


def _copied_rounding(trainer: RooflineTrainer) -> float:
    """Of copies of states: FSDP1's of a layer, and of what no layer holds, are one block each."""
    if trainer.backend != "fsdp" or trainer.weights != "full" or not trainer.shard:
        return mean_rounding()
    model, sharers = trainer.model, trainer.layout.sharers(trainer.layout.parts[0][1])
    root = model.head_parameters * (1 if model.tied_embeddings else 2)
    layer = (model.parameters - root) / model.layers
    each = master_bytes(trainer) / sharers
    return rounding([(model.layers, each * layer), (1, each * root)])


def _reference_bytes(cost: RooflineCost) -> float:
    """Of weights that wait for their passes, pinned."""
    trainer = cost.trainer_of
    if not (trainer.reference_on_host and trainer.compares):
        return 0.0
    if trainer.weights != "full":
        return 0.0
    copies = 2 if _stack(cost).swaps_reference and trainer.working_copy else 1
    size = frozen_parts(trainer.layout, trainer, COMPUTE_BYTES)
    return copies * size * _copied_rounding(trainer)


def _sleeping_bytes(cost: RooflineCost) -> float:
    """Of an engine's weights while it sleeps with them: vLLM pins a copy of each."""
    if cost.engine_sleep != "offload":
        return 0.0
    shares = (cost.tensor_parallel, cost.pipeline_parallel, cost.data_parallel_attention)
    size = weight_bytes_per_gpu(cost.model, *shares, cost.more_weight_bytes)
    each = cost.model.weight_bytes / cost.model.parameters
    return size * rounding(fused_matrices(cost.model, cost.tensor_parallel, each))


def _swap_bytes(cost: RooflineCost) -> float:
    """What an engine pins for KV that it swaps out, a block a layer."""
    if cost.engine is None or not engine_presets()[cost.engine].swaps:
        return 0.0
    layers = math.ceil(cost.model.layers / cost.pipeline_parallel)
    return layers * pinned_bytes(figures("memory").swap_bytes / layers)


def _saved_bytes(cost: RooflineCost) -> float:
    """Of copies of a GPU's part of its states while they are saved: FSDP's, whose sharded state
    dict is offloaded (utils/checkpoint/fsdp_checkpoint_manager.py of verl and EasyR1), of the
    model alone or of what its optimiser keeps too. They lie beside what waits there."""
    trainer, saves = cost.trainer_of, _stack(cost).saves
    fsdp = trainer.backend in ("fsdp", "fsdp2") and trainer.weights == "full"
    if saves == "nothing" or not (fsdp and cost.saves_checkpoints):
        return 0.0
    kept = moment_bytes(trainer) if saves == "states" else 0.0
    return (master_bytes(trainer) + kept) * trainer.layout.owned_parameters


def _base_bytes(cost: RooflineCost) -> float:
    """Of weights below adapters, whole in a process when they are first sent to the engine
    (verl/workers/sharding_manager/fsdp_vllm.py)."""
    trainer = cost.trainer_of
    if trainer.weights != "lora" or not _stack(cost).gathers_base or cost.merges_adapters:
        return 0.0
    return trainer.base_bytes_each * trainer.model.parameters


# While models are loaded


def _loaded_bytes(cost: RooflineCost, trainer: RooflineTrainer) -> float:
    """Of one model, whole in each of its processes before it is on a GPU; while ZeRO-1 and 2 make
    one buffer of its weights, twice."""
    loads = _stack(cost).loads
    if loads not in ("ranks", "ranks_twice"):
        return 0.0
    if trainer.kept in ("fsdp", "hybrid"):  # ZeRO-3's init shares weights as they are made
        return 0.0
    copies = 2 if loads == "ranks_twice" and trainer.kept in ("zero1", "zero2") else 1
    return COMPUTE_BYTES * copies * trainer.model.parameters / trainer.pipeline_parallel


def _first_rank_bytes(cost: RooflineCost) -> float:
    """Of a model, whole in the first process alone, in 32 bit where its states are."""
    if _stack(cost).loads != "first":
        return 0.0
    trainer = cost.trainer_of
    narrow = has_working_copy(trainer) or trainer.weights != "full"
    return (COMPUTE_BYTES if narrow else MASTER_BYTES) * trainer.model.parameters
