"""The ledger of a roofline's cluster: engine and trainer in every phase of a step.

Colocated GPUs hold both in every phase, as the stack's sleep and offload leave them; GPUs apart
hold their own. An engine's share of a GPU is a pool of its own: its weights, its workspace and the
KV of one rollout must fit into that share before anything is generated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from rollcast.simulator.costs.memory.kv_pool import kv_bytes_per_token, weight_bytes_per_gpu
from rollcast.simulator.costs.memory.ledger import ENGINE_SHARE, Holding, Ledger, MemoryPhase, Pool
from rollcast.simulator.costs.memory.processes import communicator_bytes, usable_bytes
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.roofline.cost import RooflineCost
from rollcast.simulator.costs.roofline.host_memory import (
    host_bytes,
    host_limit_bytes,
    processes_beside,
)
from rollcast.simulator.costs.stacks import STACKS
from rollcast.simulator.costs.trainer.memory import Parts, Use
from rollcast.simulator.costs.trainer.packing import prefix_pass_tokens
from rollcast.simulator.costs.trainer.roles import Role
from rollcast.simulator.costs.trainer.trainer import RooflineTrainer
from rollcast.simulator.errors import ScenarioError

_SWITCHED_STATES = ("weights", "master_weights")  # of states that are offloaded, back for a sync


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step works on. rollouts: of a batch. prompt_tokens, new_tokens: of the longest one.
    prefix_tokens: of a prefix that its group shares in training, groups: how many there are.
    mean_tokens: of a rollout, prompt and response; the longest where unknown. kv_tokens: of an
    engine's pool, None: what its share has room for. seqs, batched_tokens: an engine's rollouts and
    tokens at once."""

    rollouts: int
    prompt_tokens: int
    new_tokens: int
    prefix_tokens: int
    mean_tokens: float
    kv_tokens: int | None
    seqs: int
    batched_tokens: int
    groups: int = 1

    @property
    def longest(self) -> int:
        """Tokens of the longest rollout, in training without a prefix that is shared."""
        return self.new_tokens if self.prefix_tokens else self.prompt_tokens + self.new_tokens


def use_of(trainer: RooflineTrainer, batch: Batch) -> Use:
    """The largest microbatch of an update: the tokens that are set, or as many padded rows as are
    set, of the longest rollout each; where neither is set, one such rollout."""
    if trainer.padded_prompt_tokens and not batch.prefix_tokens:
        prompt = max(batch.prompt_tokens, trainer.padded_prompt_tokens)
        batch = replace(batch, prompt_tokens=prompt)
    longest = batch.longest
    rows = math.ceil(batch.rollouts / trainer.minibatches / trainer.layout.data_parallel)
    tokens = _pass_tokens(
        trainer, batch, rows, trainer.microbatch_tokens, trainer.microbatch_rollouts
    )
    budget, most = trainer.log_prob_microbatch_tokens, trainer.log_prob_microbatch_rollouts
    scored = tokens
    if budget is not None or most is not None:
        scored = _pass_tokens(trainer, batch, rows * trainer.minibatches, budget, most)
    logits = tokens
    if not trainer.logits_of_prompts:
        logits = math.ceil(tokens * batch.new_tokens / longest)
    one_microbatch = longest + (rows - 1) * min(batch.mean_tokens, longest) <= tokens
    images = trainer.model.image_share * batch.prompt_tokens / longest
    groups = math.ceil(batch.groups / trainer.minibatches / trainer.layout.data_parallel)
    room = prefix_pass_tokens(tokens, trainer.prefix_microbatch_tokens)
    prefixes = max(batch.prefix_tokens, min(groups * batch.prefix_tokens, room))
    return Use(
        tokens, logits, prefixes, not one_microbatch, min(1.0, images), scored / tokens, longest
    )


def _pass_tokens(
    trainer: RooflineTrainer, batch: Batch, rows: int, budget: int | None, most: int | None
) -> int:
    """Tokens of the largest pass over ``rows`` rollouts of a GPU, of a budget of tokens or of as
    many rows at most."""
    longest = batch.longest
    if trainer.batching == "one_sequence":
        return longest
    if trainer.batching == "packed":
        mean = min(batch.mean_tokens, longest)
        share = min(math.ceil((rows + 1) * mean), rows * longest)  # a row more than its part
        if budget is None and most is not None:  # rows without padding: one is the longest
            budget = math.ceil(longest + (most - 1) * mean)
        return max(longest, min(budget or 0, share))
    most = most or (1 if budget is None else rows)
    if budget is not None:
        most = min(most, max(1, budget // longest))
    return min(most, rows) * longest


def cluster_ledger(cost: RooflineCost, batch: Batch) -> Ledger:
    """The ledger of a cluster at its largest microbatch and longest rollout."""
    trainer, colocated = cost.trainer_of, cost.placement == "colocated"
    capacity = cost.gpu.memory_bytes
    limit = usable_bytes(trainer.gpu) * trainer.memory_utilization
    engine_gpus = cost.replicas * cost.engine_gpus
    pools = [Pool(ENGINE_SHARE, cost.gpu.name, engine_gpus, capacity * cost.engine_share)]
    if colocated:
        pools.append(Pool("colocated", cost.gpu.name, engine_gpus, limit))
        if trainer.gpus > engine_gpus:
            pools.append(Pool("trainer", cost.gpu.name, trainer.gpus - engine_gpus, limit))
    else:
        pools.append(Pool("trainer", trainer.gpu.name, trainer.gpus, limit))
        pools.append(Pool("engine", cost.gpu.name, engine_gpus, usable_bytes(cost.gpu)))
    engine = [*_engine(cost, batch, colocated)]
    beside = {h.phase: h.total for h in engine if h.pool == "colocated"}
    pool = "colocated" if colocated else "trainer"
    trained = [*_trainer(cost, batch, pool, beside.get("update", 0.0))]
    if colocated and trainer.gpus > engine_gpus:
        trained += _trainer(cost, batch, "trainer", 0.0)
    holdings = [*engine, *(_with_processes(holding, cost) for holding in trained)]
    alone = math.fsum(trainer.unshared.values())
    started = [one for one in holdings if (one.phase, one.pool) == ("start", pool)]
    if alone > math.fsum(one.total for one in started):  # before the engine is there
        holdings = [one for one in holdings if one not in started]
        holdings.append(_holding("start", "trainer", pool, trainer.unshared))
    for role, other in trainer.others:
        if role.gpus and not role.with_critic:
            pools.append(Pool(role.name, other.gpu.name, other.gpus, limit))
        if role.gpus:
            holdings += _apart(role, other, use_of(other, batch))
    if not has_a_pool(cost):
        pools = [pool for pool in pools if pool.name != ENGINE_SHARE]
        holdings = [holding for holding in holdings if holding.pool != ENGINE_SHARE]
    known = figures("memory")
    found = Ledger(
        tuple(holding for holding in holdings if holding.bytes),
        {pool.name: pool for pool in pools},
        host_bytes(cost),
        host_limit_bytes(cost),
        known.spread,
        trainer.configured_spread,
        _unforeseen(trainer),
        known.host_spread,
        cost.host_memory_bytes,
    )
    return _by_haste(found) if colocated and _sleeps_late(cost) else found


def _by_haste(ledger: Ledger) -> Ledger:
    """The ledger where a trainer takes its states back while its engine may have freed its memory
    or may not: nobody knows which, so its chance is over both, on the side of the answer."""
    chances = [ledger.chance(*at) for at in ledger.places if at[0] != "switch"]
    freed = ledger.of_chances([*chances, ledger.host_chance])
    late = ledger.fits_probability
    share: float = figures("memory").freed_in_time_share
    chance = late + share * (freed - late)
    return replace(ledger, likely=max(chance, 0.5) if ledger.fits else min(chance, 0.49))


def _unforeseen(trainer: RooflineTrainer) -> float:
    """Chance that a run which fits by its settings is out of memory all the same."""
    known = figures("memory")
    share: float = known.unforeseen_share
    if trainer.backend == "deepspeed":
        share = max(share, known.unforeseen_with_deepspeed)
    if trainer.model.vision is not None:
        share = max(share, known.unforeseen_with_images)
        if trainer.backend == "deepspeed":
            share = max(share, known.unforeseen_with_images_and_deepspeed)
    return share


def _pool_tokens(cost: RooflineCost, batch: Batch) -> int:
    """Tokens of a replica's pool: those that are given, or as the engine's share has room for; of
    one rollout at the least."""
    if batch.kv_tokens is not None:
        return batch.kv_tokens
    for reserve in (cost.reserve_bytes, cost.workspace_bytes(batch.batched_tokens, batch.seqs)):
        with suppress(ScenarioError):
            return cost.pool_beside(reserve)
    return batch.prompt_tokens + batch.new_tokens


def _holding(phase: MemoryPhase, role: str, pool: str, parts: Mapping[str, float]) -> Holding:
    return Holding(phase, role, pool, {name: size for name, size in parts.items() if size > 0})


def _engine(cost: RooflineCost, batch: Batch, colocated: bool) -> Iterator[Holding]:
    """What the engine holds in every phase."""
    pool, weights = "colocated" if colocated else "engine", engine_weights(cost)
    context = batch.prompt_tokens + batch.new_tokens
    workspace = cost.workspace_bytes(batch.batched_tokens, batch.seqs)
    least = {"weights": weights, "kv_pool": kv_bytes(cost, context), "reserve": workspace}
    yield _holding("start", "engine", ENGINE_SHARE, least)
    if has_a_pool(cost):
        awake = {"weights": weights, "kv_pool": kv_bytes(cost, _pool_tokens(cost, batch))}
        share = cost.engine_share * cost.gpu.memory_bytes
        left = max(workspace, share - math.fsum(awake.values()))
        awake["reserve"] = min(cost.reserve_bytes, left)
        if batch.kv_tokens is None and static_share(cost):
            awake |= {"reserve": cost.reserve_bytes, "context": _engine_context(cost)}
            free = usable_bytes(cost.gpu) - awake["context"]
            if colocated and cost.stack is not None and STACKS[cost.stack].starts_last:
                free -= math.fsum(size for of in _started(cost).values() for size in of.values())
                if STACKS[cost.stack].starts_beside_cache and not cost.offloads:
                    free -= cost.trainer_of.cached_bytes
            kept = cost.kv_memory_utilization * free - weights
            awake["kv_pool"] = max(kv_bytes(cost, context), kept)
    else:
        running = math.ceil(batch.rollouts / cost.replicas)
        kv = kv_bytes(cost, context * min(running, batch.seqs))
        awake = {"gathered_weights": borrowed_weights(cost), "kv_pool": kv, "reserve": workspace}
    if cost.borrows:  # among the trainer's
        weights, awake = 0.0, awake | {"weights": 0.0}
    generating = awake
    if cost.with_graphs and has_a_pool(cost):
        generating = awake | {"graphs": _graphs(cost)}
    yield _holding("start", "engine", pool, awake)
    yield _holding("generation", "engine", pool, generating)
    if colocated:
        slept = asleep(cost, generating)
        stays = slept is generating or not has_a_pool(cost)
        woken = slept if stays else slept | {"weights": weights}
        at_once = not stays and _wakes_whole(cost)
        for phase in ("log_prob", "update", "optimizer_step"):
            yield _holding(phase, "engine", pool, slept)
        late = not stays and _sleeps_late(cost)
        yield _holding("switch", "engine", pool, generating if late else woken)
        yield _holding("sync", "engine", pool, generating if at_once else woken)
    else:
        yield _holding("sync", "engine", pool, generating)


def _wakes_whole(cost: RooflineCost) -> bool:
    return cost.stack is not None and STACKS[cost.stack].wakes_whole


def _sleeps_late(cost: RooflineCost) -> bool:
    return cost.stack is not None and STACKS[cost.stack].sleeps_late


def _trainer(cost: RooflineCost, batch: Batch, pool: str, beside_bytes: float) -> Iterator[Holding]:
    """What the trainer, and models that share its GPUs, hold in every phase. pool: of which GPUs.
    beside_bytes: of an engine on them."""
    trainer, colocated = cost.trainer_of, cost.placement == "colocated"
    use = use_of(trainer, batch)
    away = cost.offloads
    resting = trainer.resting(states=not away)
    uses: dict[str, Use] = {
        role.name: use_of(other, batch) for role, other in trainer.others if role.trained
    }
    for phase, roles in trainer.phases(use, beside_bytes, away, uses).items():
        for role, parts in roles.items():
            yield _holding(phase, role, pool, parts)
    if colocated:
        for role, parts in _started(cost).items():
            yield _holding("start", role, pool, parts)
        for role, parts in (trainer.resting() if _sleeps_late(cost) else resting).items():
            yield _holding("switch", role, pool, parts)
    sent: dict[str, Parts] = resting
    if away and not trainer.keeps_weights:
        back = {
            n: size for n, size in trainer.resting()["trainer"].items() if n in _SWITCHED_STATES
        }
        sent = {**resting, "trainer": resting["trainer"] | back}
    for role, parts in (sent if cost.beside_trainer else resting).items():
        yield _holding("generation", role, pool, parts)
    # who offloads its weights does so once they are copied, but before an engine that wakes at once
    copied = trainer.sent_copy_bytes * (not away or _wakes_whole(cost))
    for role, parts in sent.items():
        bucket = {}
        if role == "trainer":
            bucket["gathered_weights"] = trainer.sync_bytes + copied
        yield _holding("sync", role, pool, parts | bucket)


def _started(cost: RooflineCost) -> dict[str, Parts]:
    """What the trainer, and models that share its GPUs, hold when a colocated engine starts: before
    the first step there are no optimiser's states."""
    resting = cost.trainer_of.resting(states=not cost.offloads)
    return {
        role: {name: size for name, size in parts.items() if name != "optimizer"}
        for role, parts in resting.items()
    }


def _with_processes(holding: Holding, cost: RooflineCost) -> Holding:
    """A trainer's holding with what the processes of models beside it hold of the GPU: as its
    own, whether their weights are there or not."""
    beside = processes_beside(cost) if holding.role == "trainer" else 0
    if not beside or "context" not in holding.bytes:
        return holding
    context = (1 + beside) * holding.bytes["context"]
    return replace(holding, bytes={**holding.bytes, "context": context})


def _apart(role: Role, other: RooflineTrainer, use: Use) -> Iterator[Holding]:
    """What a model on GPUs of its own, or of the critic, holds."""
    pool = "critic" if role.with_critic else role.name
    for phase, roles in other.phases(use).items():
        if role.trained or phase == "log_prob":
            yield _holding(phase, role.name, pool, roles["trainer"])
        elif role.with_critic:
            yield _holding(phase, role.name, pool, other.resting()["trainer"])


# An engine on each of its GPUs: awake, asleep, and at the least


def engine_weights(cost: RooflineCost) -> float:
    """Bytes of a replica's weights on each GPU, with those of a draft."""
    return weight_bytes_per_gpu(
        cost.model,
        cost.tensor_parallel,
        cost.pipeline_parallel,
        cost.data_parallel_attention,
        cost.more_weight_bytes,
    )


def borrowed_weights(cost: RooflineCost) -> float:
    """Bytes of weights that an engine of the stack's own, which reads the trainer's, needs beside
    these on each GPU: all of them in 16 bit where ZeRO-3 gathers them to generate (deepspeed's
    GatheredParameters), else the layers at work."""
    trainer = cost.trainer_of
    if trainer.backend == "deepspeed" and trainer.kept in ("fsdp", "hybrid"):
        return engine_weights(cost)
    return trainer.working_weights


def kv_bytes(cost: RooflineCost, tokens: float) -> float:
    """Bytes on each GPU of a pool of ``tokens``."""
    speculative = cost.speculative
    return tokens * kv_bytes_per_token(
        cost.model,
        cost.tensor_parallel,
        cost.pipeline_parallel,
        cost.kv_rollout_tokens,
        cost.data_parallel_attention,
        speculative.draft_of(cost.model) if speculative else None,
    )


def has_a_pool(cost: RooflineCost) -> bool:
    """Whether the engine takes its share of the memory for KV at once; an engine of the stack's own
    takes what its rollouts need."""
    return cost.engine is not None or cost.stack is None or STACKS[cost.stack].engine is not None


def static_share(cost: RooflineCost) -> bool:
    """Whether the engine's share is of what is free when it starts, and of weights and KV alone:
    SGLang's mem_fraction_static (model_executor/model_runner.py, profile_max_num_token). What it
    computes with comes on top; vLLM's share holds that too."""
    return (cost.engine or "").startswith("sglang")


def _engine_context(cost: RooflineCost) -> float:
    """Bytes of an engine's process on one of its GPUs: CUDA's, and buffers of collectives."""
    context: float = figures("memory").context_bytes
    return context + (communicator_bytes(cost.gpu) if cost.engine_gpus > 1 else 0.0)


def asleep(cost: RooflineCost, awake: dict[str, float]) -> dict[str, float]:
    """What a colocated engine keeps on the GPU while the trainer works, of what it holds awake."""
    if cost.engine_sleep == "none" or not has_a_pool(cost):
        return awake if has_a_pool(cost) else {}
    kept = {"context": _engine_context(cost)}
    return kept | ({"graphs": _graphs(cost)} if cost.with_graphs else {})


def _graphs(cost: RooflineCost) -> float:
    """Bytes of CUDA graphs and of buffers that an engine keeps beside its share."""
    known = figures("memory")
    return float(known.sglang_graphs_bytes if static_share(cost) else known.graphs_bytes)
