"""A scenario: what to simulate, checked, and built into a world, a policy and a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.costs.base import CostModel
from rollcast.simulator.costs.section import CostSection
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.plan import Batch, StepPlan
from rollcast.simulator.policies import (
    build_chain,
    check_policy,
    label,
    name_of,
    parse_labelled,
    parse_policy,
    spell,
)
from rollcast.simulator.policy import Chain, Policy, chain
from rollcast.simulator.scenario.base_plan import base_plan
from rollcast.simulator.scenario.cost import build_cost, build_model
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.memory import check_memory
from rollcast.simulator.scenario.sections import (
    ClusterSection,
    EngineSection,
    ScenarioModel,
    validate,
)
from rollcast.simulator.values.visible import visible
from rollcast.simulator.workload.base import Workload, longest_context
from rollcast.simulator.workload.build import build_workload
from rollcast.simulator.workload.section import MAX_ROLLOUTS, WorkloadSection
from rollcast.simulator.workload.slots import UNLIMITED, EnvironmentSpec
from rollcast.simulator.world import ClusterShape

if TYPE_CHECKING:
    from rollcast.simulator.costs.presets.gpus import Gpu
    from rollcast.simulator.costs.presets.models import Model

__all__ = [
    "ClusterSection",
    "EngineSection",
    "Scenario",
    "ScenarioModel",
    "build_policies",
    "build_scenario",
    "validate",
]


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
    whatever: tuple[str, ...] = ()  # the warnings that it has under any policy

    def check_memory(self) -> None:
        """Raises ScenarioError where the longest rollout that there may be, with the longest prompt
        and a response at the cap, does not fit into a replica's KV pool or the trainer's GPUs. The
        same for every number of steps; costs next to nothing."""
        layout = self.policy.plan(self.plan, self.policy.init()).layout
        try:
            check_memory(self.engine, self.cost, self.workload, layout)
        except ScenarioError as error:
            raise self.raw.locate(error) from None

    def world(self) -> SimulatedCluster:
        """A fresh cluster at time 0. Raises ScenarioError where a rollout could never fit
        (`check_memory`)."""
        self.check_memory()
        try:
            return SimulatedCluster(
                self.shape,
                self.engine,
                self.cost,
                self.workload,
                self.routing,
                self.environment,
            )
        except ScenarioError as error:
            raise self.raw.locate(error) from None

    def with_policy(self, policy: str | Policy) -> Scenario:
        """The same scenario under another policy: an object, or its spelling on the command line,
        with a label of its own before it if wanted (``all = april+sagc``). Raises ScenarioError."""
        if isinstance(policy, Policy):
            return self._under(chain(policy), label(policy))
        name, parsed = parse_labelled(policy, seed=self.seed, folder=self.raw.modules)
        return self._under(parsed, name)

    def _under(self, policy: Chain, name: str) -> Scenario:
        warnings = (*self.whatever, *_check_policy(policy, self.plan, self.shape))
        return replace(self, policy=policy, policy_name=visible(name), warnings=warnings)


@dataclass(frozen=True)
class Outline:
    """What a scenario says, read but not built: whether it fits its GPUs is another question."""

    name: str
    sections: ScenarioModel
    shape: ClusterShape
    plan: StepPlan
    policy: Chain
    policy_name: str
    raw: RawScenario


def outline(raw: RawScenario) -> Outline:
    """A scenario's outline. Raises ScenarioError as `build_scenario` does."""
    try:
        return _outline(raw)
    except ScenarioError as error:
        raise raw.locate(error) from None


def _outline(raw: RawScenario) -> Outline:
    model = validate(raw.data)
    return Outline(
        visible(model.name or raw.name.removesuffix(".yaml").removesuffix(".yml")),
        model,
        replace(cluster_shape(model.cluster), other_gpus=_other_gpus(model.cost)),
        base_plan(model),
        build_policies(model.policy, model.seed, raw.modules),
        # a seed that follows the run's is not spelt
        spell(build_policies(model.policy, 0, raw.modules)),
        raw,
    )


def build_scenario(raw: RawScenario) -> Scenario:
    """Checks a scenario and builds its parts.

    Raises ScenarioError that names the key, its line, and the nearest valid name or value.
    """
    try:
        return _build(raw)
    except ScenarioError as error:
        raise raw.locate(error) from None


def _build(raw: RawScenario) -> Scenario:
    outline = _outline(raw)
    model, shape, plan = outline.sections, outline.shape, outline.plan
    cluster, counts, gpu = model.cluster, model.workload, model.gpu
    network = None if model.model is None else build_model(model.model, raw.folder)
    cost = build_cost(model.cost, network, gpu, shape, raw.folder, stages=cluster.pipeline_parallel)
    away = model.environment
    workload = build_workload(counts, model.seed, raw.folder, away, model.reward)
    engine = _engine(model.engine, cost, network, gpu, cluster)
    _check_length(model.steps, plan.batch)
    _check_sizes(plan.batch, workload, engine, shape, cluster.routing)
    whatever = _check_context(counts, network, workload)
    warnings = _check_policy(outline.policy, plan, shape)
    return Scenario(
        outline.name,
        shape,
        engine,
        cost,
        workload,
        outline.policy,
        plan,
        model.steps,
        model.seed,
        gpu,
        raw,
        cluster.routing,
        outline.policy_name,
        (*whatever, *warnings),
        _pools(model),
        model.poll_s,
        whatever,
    )


def _pools(model: ScenarioModel) -> EnvironmentSpec:
    """The slots of environments and judges."""
    if model.environment is None and model.reward is None:
        return UNLIMITED
    from rollcast.simulator.workload.environment import environment_spec

    return environment_spec(model.environment, model.reward)


def build_policies(spec: Any, seed: int, folder: Path | None = None) -> Chain:
    """The chain that ``policy`` spells, as a list or in one line of text. folder: the scenario's,
    where modules of policies are looked for too. Raises ScenarioError."""
    build = parse_policy if isinstance(spec, str) else build_chain
    return build(spec, seed=seed, folder=folder)


def _check_context(
    counts: WorkloadSection, network: Model | None, workload: Workload
) -> tuple[str, ...]:
    """What is worth a warning about contexts that the model cannot take. Raises ScenarioError for
    prompts, and for a cap on contexts, that are longer than that."""
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
                f"{network.name} takes contexts of {most} tokens, and this asks for {tokens}; make "
                "it smaller, or say how far positions are stretched with model.max_positions",
            )
    if counts.max_context_tokens is None and longest_context(workload) > most:
        return (
            f"{network.name} takes contexts of {most} tokens, and prompts and responses may have "
            f"{longest_context(workload)} (workload.max_context_tokens caps turns, max_new_tokens "
            "responses; model.max_positions says how far positions are stretched)",
        )
    return ()


def _check_policy(policy: Chain, plan: StepPlan, shape: ClusterShape) -> list[str]:
    """What is worth a warning about a policy. Raises ScenarioError for one that this cluster or
    workload cannot carry out."""
    warnings = check_policy(policy, plan)
    _check_launches(policy.plan(plan, policy.init()))
    name = overlapping(policy, plan)
    if shape.colocated and name is not None:
        raise ScenarioError(
            f"policy.{name}",
            "overlaps training with rollout, which needs cluster.placement: disaggregated",
        )
    return warnings


MOST_IN_A_RUN = 1_000_000_000
BYTES_PER_ROLLOUT, SECONDS_PER_ROLLOUT = 750, 5e-5
"""Measured on 256,000 rollouts of APRIL on 8 replicas: benchmarks/results/speed.json."""


def _check_launches(plan: StepPlan) -> None:
    """Raises ScenarioError for a plan that launches more at once than can be simulated."""
    refill = 0 if plan.filter is None else plan.filter.refill_groups or 0
    for key, groups in (
        ("policy", plan.launch.groups_in_wave(plan.batch)),
        ("policy.dynamic_sampling.refill_groups", refill),
    ):
        rollouts = groups * plan.launch.rollouts_per_group(plan.batch.group_size)
        if rollouts > MAX_ROLLOUTS:
            raise ScenarioError(
                key,
                f"launches {rollouts:,} rollouts at once, which are more than {MAX_ROLLOUTS:,}; "
                "launch fewer groups",
            )


def _check_length(steps: int, batch: Batch) -> None:
    """Raises ScenarioError for a run too long to be kept in memory."""
    rollouts = steps * batch.rollouts
    if rollouts > MOST_IN_A_RUN:
        raise ScenarioError(
            "steps",
            f"{steps:,} steps of {batch.rollouts:,} rollouts take about "
            f"{rollouts * SECONDS_PER_ROLLOUT / 3600:,.0f} h and "
            f"{rollouts * BYTES_PER_ROLLOUT / 1e9:,.0f} GB of memory; simulate fewer steps, "
            "whose mean is known as well",
        )


def overlapping(policy: Chain, plan: StepPlan) -> str | None:
    """The name of the first policy in the chain that lets training overlap with rollout, if any
    does."""
    for member in policy.policies:
        if member.plan(plan, member.init()).overlaps:
            return name_of(member)
    return None


def cluster_shape(cluster: ClusterSection) -> ClusterShape:
    """Its GPUs. Raises ScenarioError where the trainer has more than it shares."""
    colocated = cluster.placement == "colocated"
    replica_gpus = cluster.tensor_parallel * cluster.pipeline_parallel
    rollout_gpus = cluster.replicas * replica_gpus
    trainer_gpus = cluster.trainer_gpus or rollout_gpus
    if colocated and trainer_gpus > rollout_gpus:
        raise ScenarioError(
            "cluster.trainer_gpus",
            f"is {trainer_gpus}, but colocated replicas hold only {rollout_gpus} GPUs "
            "(replicas x tensor_parallel x pipeline_parallel); raise replicas, or use placement: "
            "disaggregated",
        )
    return ClusterShape(cluster.replicas, replica_gpus, trainer_gpus, colocated)


def _other_gpus(section: CostSection) -> int:
    """GPUs of reference, critic and reward models."""
    roofline = section.of_the_roofline
    if roofline is None:
        return 0
    from rollcast.simulator.costs.trainer.roles import roles_apart

    return sum(role.gpus for role in roles_apart(roofline.trainer))


def _engine(
    section: EngineSection,
    cost: CostModel,
    network: Model | None,
    gpu: Gpu | None,
    cluster: ClusterSection,
) -> EngineSpec:
    """The engine's limits; a KV pool that is not given follows from model and GPU memory."""
    kv_tokens = section.kv_tokens
    if kv_tokens is None:
        kv_tokens = cost.kv_pool_tokens
    if kv_tokens is None:
        if network is None or gpu is None:
            raise ScenarioError(
                "engine.kv_tokens", "missing; give it, or model and gpu for it to follow from"
            )
        from rollcast.simulator.costs.memory.kv_pool import kv_pool_tokens

        kv_tokens = kv_pool_tokens(
            network, gpu, cluster.tensor_parallel, pipeline_parallel=cluster.pipeline_parallel
        )
    return EngineSpec(
        section.max_seqs,
        section.max_batched_tokens,
        kv_tokens,
        section.block_tokens,
        section.prefix_caching,
    )


def _check_sizes(
    batch: Batch, workload: Workload, engine: EngineSpec, shape: ClusterShape, routing: str
) -> None:
    """A group must fit into the KV pools that it is spread over, at the very least at its start."""
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
