"""A checked scenario, built into a world, a policy and a plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.policy import Chain, Policy, chain
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.costs.base import CostModel
from rollcast.simulator.costs.section import CostSection, build_cost, build_model
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import (
    build_chain,
    check_policy,
    label,
    name_of,
    parse_labelled,
    spell,
)
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.ledger import ledger_of, roofline_of
from rollcast.simulator.scenario.memory import check_memory
from rollcast.simulator.scenario.sections import (
    ClusterSection,
    EngineSection,
    ScenarioModel,
    base_plan,
    validate,
)
from rollcast.simulator.values.words import require, visible
from rollcast.simulator.workload.base import Workload, longest_context
from rollcast.simulator.workload.section import MAX_ROLLOUTS, WorkloadSection, build_workload
from rollcast.simulator.workload.slots import UNLIMITED, EnvironmentSpec

if TYPE_CHECKING:
    from rollcast.simulator.costs.memory.ledger import Ledger
    from rollcast.simulator.costs.presets.gpus import Gpu
    from rollcast.simulator.costs.presets.models import Model
    from rollcast.simulator.learning.build import Learning


@dataclass(frozen=True)
class Scenario:
    """A checked scenario. ``world()`` makes a fresh simulated cluster each time."""

    name: str
    shape: ClusterShape
    engine: EngineSpec
    cost: CostModel
    workload: Workload
    policy: Chain
    plan: StepPlan
    steps: int
    seed: int
    gpu: Gpu | None
    raw: RawScenario
    routing: str
    policy_name: str
    warnings: tuple[str, ...] = ()
    environment: EnvironmentSpec = UNLIMITED
    poll_s: float = 0.0
    trial_timeout_s: float | None = None
    whatever: tuple[str, ...] = ()  # the warnings that it has under any policy
    trainer_gpu: Gpu | None = None  # None where it is gpu
    no_pool: ScenarioError | None = None  # why the engine has no room for KV, where it has none
    learning: Learning | None = None

    @property
    def rollout_gpus(self) -> int:
        """GPUs of the kind ``gpu``: all, or those of the replicas where the trainer (with models
        beside it) has another."""
        shape = self.shape
        if self.trainer_gpu is None:
            return shape.held_gpus
        return shape.replicas * shape.gpus_per_replica

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Mean price of the GPUs held; None where one has no price."""
        if self.gpu is None or not self.gpu.usd_per_hour:
            return None
        if self.trainer_gpu is None:
            return self.gpu.usd_per_hour
        if not self.trainer_gpu.usd_per_hour:
            return None
        share = self.rollout_gpus / self.shape.held_gpus
        return share * self.gpu.usd_per_hour + (1 - share) * self.trainer_gpu.usd_per_hour

    @property
    def gpu_names(self) -> str:
        """Numbers and names of the GPUs held: ``16 h20 + 8 h100-sxm``; '' where they have none."""
        if self.gpu is None:
            return ""
        names = f"{self.rollout_gpus} {self.gpu.name}"
        if self.trainer_gpu is None:
            return names
        return f"{names} + {self.shape.held_gpus - self.rollout_gpus} {self.trainer_gpu.name}"

    @cached_property
    def ledger(self) -> Ledger | None:
        """What its GPUs hold in every phase; None where its costs know no memory."""
        return ledger_of(self)

    def check_memory(self, *, likely: bool = False, remedied: bool = True) -> None:
        """Raises ScenarioError where it is clear that the longest possible rollout does not fit
        into a replica's KV pool or the GPUs' memory, or with ``likely`` where it more likely does
        not than does; whatever the number of steps. Runs nothing."""
        with self.raw.locating():
            if self.no_pool is not None:
                raise self.no_pool
            check_memory(self, likely=likely, remedied=remedied)

    def world(self) -> SimulatedCluster:
        """A fresh cluster at time 0. Raises ScenarioError as `check_memory` does."""
        self.check_memory()
        parts = (self.shape, self.engine, self.cost, self.workload, self.routing, self.environment)
        with self.raw.locating():
            return SimulatedCluster(*parts)

    def with_policy(self, policy: str | Policy) -> Scenario:
        """The same scenario under another policy: an object, or its spelling on the command line
        with an optional label (``all = april+sagc``). Raises ScenarioError."""
        if isinstance(policy, Policy):
            name, parsed = label(policy), chain(policy)
        else:
            require(str, policy, "policy", "a policy, or text such as 'april+pods(keep=4)'")
            name, parsed = parse_labelled(policy, seed=self.seed, folder=self.raw.modules)
        warnings = (*self.whatever, *_check_policy(parsed, self.plan, self.shape))
        return replace(self, policy=parsed, policy_name=visible(name), warnings=warnings)


@dataclass(frozen=True)
class Outline:
    """A scenario's sections, read but not built: whether it fits its GPUs is not checked."""

    name: str
    sections: ScenarioModel
    shape: ClusterShape
    plan: StepPlan
    policy: Chain
    policy_name: str
    raw: RawScenario


def outline(raw: RawScenario) -> Outline:
    """A scenario's outline. Raises ScenarioError as `build_scenario` does."""
    with raw.locating():
        model = validate(raw.data)
        return Outline(
            visible(model.name or raw.name.removesuffix(".yaml").removesuffix(".yml")),
            model,
            replace(cluster_shape(model.cluster), other_gpus=_other_gpus(model.cost)),
            base_plan(model),
            build_chain(model.policy, seed=model.seed, folder=raw.modules),
            # a seed that follows the run's is not spelt
            spell(build_chain(model.policy, folder=raw.modules)),
            raw,
        )


def build_scenario(raw: RawScenario) -> Scenario:
    """Checks a scenario and builds its parts.

    Raises ScenarioError that names the key, its line, and the nearest valid name or value.
    """
    read = outline(raw)
    with raw.locating():
        return _build(read)


def _build(read: Outline) -> Scenario:
    model, shape, plan, folder = read.sections, read.shape, read.plan, read.raw.folder
    cluster, gpu = model.cluster, model.gpu
    network = None if model.model is None else build_model(model.model, folder)
    learning, counts = _learning(model, folder), model.workload
    if learning is not None and learning.lengths:
        from rollcast.simulator.learning.lengths import as_drawn, check_drifts, drifting

        check_drifts(counts, learning)
        still = build_workload(counts, model.seed, folder, model.environment, model.reward)
        learning = as_drawn(learning, still, plan.batch.group_size)
        counts = drifting(counts, learning, plan, model.steps)
    workload = build_workload(counts, model.seed, folder, model.environment, model.reward)
    cost = build_cost(
        model.cost,
        network,
        gpu,
        shape,
        folder,
        stages=cluster.pipeline_parallel,
        trainer_gpu=cluster.trainer_gpu,
        padded_tokens=longest_context(workload),
    )
    section = _of_the_stack(model.engine, model.cost, read.raw)
    engine, no_pool = _engine(section, cost, network, gpu, cluster, workload.max_prompt_tokens)
    if no_pool is not None:  # as large as its workload needs: `check_memory` says that it is not
        needed = longest_context(workload) * plan.batch.group_size
        engine = replace(engine, kv_tokens=needed + engine.block_tokens)
    _check_sizes(model.steps, plan.batch, workload, engine, shape, cluster.routing)
    whatever = (*_check_context(model.workload, network, workload), *_without_engine(shape))
    environment = UNLIMITED
    if model.environment is not None or model.reward is not None:
        from rollcast.simulator.workload.environment import environment_spec

        environment = environment_spec(model.environment, model.reward)
    return Scenario(
        read.name,
        shape,
        engine,
        cost,
        workload,
        read.policy,
        plan,
        model.steps,
        model.seed,
        gpu,
        read.raw,
        cluster.routing,
        read.policy_name,
        (*whatever, *_check_policy(read.policy, plan, shape)),
        environment,
        model.poll_s,
        None if model.environment is None else model.environment.trial_timeout_s,
        whatever,
        cluster.trainer_gpu,
        no_pool,
        learning,
    )


def _learning(model: ScenarioModel, folder: Path) -> Learning | None:
    """How its accuracy rises, where the scenario asks for it."""
    if model.learning is None:
        return None
    from rollcast.simulator.learning.build import build_learning

    roofline = model.cost.of_the_roofline
    minibatches = 1 if roofline is None else roofline.trainer.minibatches
    trainer = model.engine.trainer
    return build_learning(model.learning, model.workload, minibatches, folder, trainer)


def _check_context(
    counts: WorkloadSection, network: Model | None, workload: Workload
) -> tuple[str, ...]:
    """A warning about contexts beyond the model's positions. Raises ScenarioError for prompts, and
    for a cap on contexts, beyond them."""
    most = None if network is None else network.max_positions
    if network is None or most is None:
        return ()
    prompt = workload.max_prompt_tokens
    for field, tokens in (
        ("workload.max_context_tokens", counts.max_context_tokens or 0),
        ("workload.prompt_tokens", prompt + 1 if prompt >= most else 0),
    ):
        if tokens > most:
            raise ScenarioError(
                field,
                f"{network.name} supports contexts of up to {most} tokens, and this needs "
                f"{tokens}; make it smaller, or set model.max_positions if its positions "
                "are extended",
            )
    if counts.max_context_tokens is None and longest_context(workload) > most:
        return (
            f"{network.name} supports contexts of up to {most} tokens, and prompts and "
            f"responses may have {longest_context(workload)}; lower "
            "workload.max_context_tokens (turns) or max_new_tokens (responses), or set "
            "model.max_positions if its positions are extended",
        )
    return ()


MOST_IN_A_RUN = 1_000_000_000
BYTES_PER_ROLLOUT, SECONDS_PER_ROLLOUT = 750, 5e-5
"""Measured on 256,000 rollouts of APRIL on 8 replicas: benchmarks/results/speed.json."""


def _check_policy(policy: Chain, plan: StepPlan, shape: ClusterShape) -> list[str]:
    """Warnings about a policy. Raises ScenarioError for one that launches more than can be
    simulated, or that this cluster cannot carry out."""
    warnings = check_policy(policy, plan)
    first = policy.plan(plan, policy.init())
    for key, groups in (
        ("policy", first.launch.groups_in_wave(first.batch)),
        ("policy.dynamic_sampling.refill_groups", first.filter and first.filter.refill_groups),
    ):
        rollouts = (groups or 0) * first.launch.rollouts_per_group(first.batch.group_size)
        if rollouts > MAX_ROLLOUTS:
            raise ScenarioError(
                key,
                f"launches {rollouts:,} rollouts at once; the most is {MAX_ROLLOUTS:,}: "
                "launch fewer groups",
            )
    name = overlapping(policy, plan)
    if shape.colocated and name is not None:
        raise ScenarioError(
            f"policy.{name}",
            "overlaps training with rollout, which needs cluster.placement: disaggregated; "
            f"rollcast plan SCENARIO --gpus N --policy sync --policy {name} compares both on as "
            "many GPUs, each with its best split",
        )
    return warnings


def overlapping(policy: Chain, plan: StepPlan) -> str | None:
    """The name of the chain's first policy that overlaps training with rollout; None for none."""
    for member in policy.policies:
        if member.plan(plan, member.init()).overlaps:
            return name_of(member)
    return None


def cluster_shape(cluster: ClusterSection) -> ClusterShape:
    """The cluster's GPUs. A colocated trainer may have more than it shares with engines, or fewer.
    Raises ScenarioError for one with GPUs of another kind."""
    colocated = cluster.placement == "colocated"
    if colocated and cluster.trainer_gpu is not None:
        raise ScenarioError(
            "cluster.trainer_gpu",
            "colocated replicas and trainer share their GPUs, which are of one kind; leave it out, "
            "or use placement: disaggregated",
        )
    replica_gpus = cluster.tensor_parallel * cluster.pipeline_parallel
    rollout_gpus = cluster.replicas * replica_gpus
    trainer_gpus = cluster.trainer_gpus or rollout_gpus
    return ClusterShape(cluster.replicas, replica_gpus, trainer_gpus, colocated)


def _without_engine(shape: ClusterShape) -> Iterator[str]:
    """A warning of a colocated trainer's GPUs that have no engine."""
    engines = shape.replicas * shape.gpus_per_replica
    if shape.colocated and shape.trainer_gpus > engines:
        yield (
            f"cluster.trainer_gpus: {shape.trainer_gpus - engines} of the trainer's "
            f"{shape.trainer_gpus} GPUs have no engine and wait while rollouts run; replicas x "
            f"tensor_parallel x pipeline_parallel is {engines}"
        )


def _other_gpus(section: CostSection) -> int:
    """GPUs of reference, critic and reward models."""
    roofline = section.of_the_roofline
    if roofline is None:
        return 0
    from rollcast.simulator.costs.trainer.roles import roles_apart

    return sum(role.gpus for role in roles_apart(roofline.trainer) if not role.with_critic)


def _of_the_stack(section: EngineSection, cost: CostSection, raw: RawScenario) -> EngineSection:
    """The engine's limits, with the rollouts that the scenario's stack runs at once where nobody
    gave them: no more than the tokens of an iteration."""
    stack = None if cost.of_the_roofline is None else cost.of_the_roofline.stack
    if stack is None or "max_seqs" in (raw.data.get("engine") or {}):
        return section
    from rollcast.simulator.costs.stacks import STACKS

    most = STACKS[stack].max_seqs or section.max_seqs
    return replace(section, max_seqs=min(most, section.max_batched_tokens))


def _engine(
    section: EngineSection,
    cost: CostModel,
    network: Model | None,
    gpu: Gpu | None,
    cluster: ClusterSection,
    prompt_tokens: int,
) -> tuple[EngineSpec, ScenarioError | None]:
    """The engine's limits; a KV pool that is not given follows from model and GPU memory. With why
    there is none, where weights leave no room for it."""
    kv_tokens, no_pool = section.kv_tokens, None
    if kv_tokens is None:
        try:
            kv_tokens = cost.kv_pool_tokens
            if kv_tokens is None:
                kv_tokens = _pool_of(network, gpu, cluster)
        except ScenarioError as error:
            if error.field != "cluster.tensor_parallel":
                raise
            kv_tokens, no_pool = _least_pool(section, cost, error, prompt_tokens)
    spec = EngineSpec(
        section.max_seqs,
        section.max_batched_tokens,
        kv_tokens,
        section.block_tokens,
        section.prefix_caching,
    )
    return spec, no_pool


def _least_pool(
    section: EngineSection, cost: CostModel, error: ScenarioError, prompt_tokens: int
) -> tuple[int, ScenarioError | None]:
    """The pool of an engine that needs the least for itself, where the usual reserve leaves none;
    a block and ``error`` where there is no room for that, or for a prompt, either."""
    roofline = roofline_of(cost)
    with suppress(ScenarioError):
        if roofline is not None:
            least = roofline.workspace_bytes(section.max_batched_tokens, section.max_seqs)
            pool = roofline.pool_beside(least)
            if pool > prompt_tokens:
                return pool, None
    return section.block_tokens, error


def _pool_of(network: Model | None, gpu: Gpu | None, cluster: ClusterSection) -> int:
    """The KV pool of a replica whose costs know of no memory. Raises ScenarioError."""
    if network is None or gpu is None:
        raise ScenarioError(
            "engine.kv_tokens", "missing; give it, or give model and gpu, from which it is computed"
        )
    from rollcast.simulator.costs.memory.kv_pool import kv_pool_tokens

    return kv_pool_tokens(
        network, gpu, cluster.tensor_parallel, pipeline_parallel=cluster.pipeline_parallel
    )


def _check_sizes(
    steps: int,
    batch: Batch,
    workload: Workload,
    engine: EngineSpec,
    shape: ClusterShape,
    routing: str,
) -> None:
    """Raises ScenarioError for a run too long for memory, too large a batch, and a group whose
    beginning does not fit into the KV pools that it is spread over."""
    rollouts = steps * batch.rollouts
    if rollouts > MOST_IN_A_RUN:
        raise ScenarioError(
            "steps",
            f"{steps:,} steps of {batch.rollouts:,} rollouts take about "
            f"{rollouts * SECONDS_PER_ROLLOUT / 3600:,.0f} h and "
            f"{rollouts * BYTES_PER_ROLLOUT / 1e9:,.0f} GB of memory; simulate "
            "fewer steps: their mean is known nearly as well",
        )
    if batch.rollouts > MAX_ROLLOUTS:
        raise ScenarioError(
            "workload.group_size", f"{batch.rollouts} rollouts a step are more than {MAX_ROLLOUTS}"
        )
    pools = 1 if routing == "group_affinity" else shape.replicas
    prompt = workload.max_prompt_tokens
    if prompt >= engine.kv_tokens:
        raise ScenarioError(
            "workload.prompt_tokens",
            f"a prompt of {prompt} tokens does not fit into a KV pool of {engine.kv_tokens}; make "
            "it shorter or engine.kv_tokens larger",
        )
    shared = prompt * min(pools, batch.group_size) if engine.prefix_caching else 0
    need = shared + batch.group_size * (1 if engine.prefix_caching else prompt + 1)
    pool = engine.kv_tokens * pools
    if need > pool:
        raise ScenarioError(
            "workload.group_size",
            f"a group of {batch.group_size} needs at least {need} tokens of KV for its prompts and "
            f"first tokens, but its replicas' pools hold {pool}; make the group smaller or "
            "engine.kv_tokens larger",
        )
