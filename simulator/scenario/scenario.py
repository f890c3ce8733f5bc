"""A scenario: what to simulate, checked, and built into a world, a policy and a plan."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from simulator.checks import known_keys, nearest
from simulator.cluster.replica import EngineSpec
from simulator.cluster.simulated import SimulatedCluster
from simulator.costs import (
    LinearCost,
    RooflineCost,
    ScenarioCost,
    TablesCost,
    aiconfigurator_provider,
    kv_pool_tokens,
)
from simulator.costs.base import LARGEST_COST_S
from simulator.costs.fitted import FittedCost
from simulator.costs.hardware import Gpu, load_gpu
from simulator.costs.models import Model, load_model, model_presets
from simulator.errors import ScenarioError
from simulator.plan import Batch, StepPlan
from simulator.policies import (
    build_chain,
    check_policy,
    label,
    name_of,
    parse_labelled,
    parse_policy,
    spell,
)
from simulator.policy import Chain, Policy, chain
from simulator.results.read import read_json
from simulator.scenario.file import RawScenario
from simulator.scenario.sections import (
    MAX_ROLLOUTS,
    ClusterSection,
    EngineSection,
    ScenarioModel,
    short,
    validate,
)
from simulator.workload.build import Workload, build_workload
from simulator.world import ClusterShape

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
    cost: ScenarioCost
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

    def world(self) -> SimulatedCluster:
        """A fresh cluster at time 0. Raises ScenarioError where a rollout could never fit."""
        try:
            return SimulatedCluster(self.shape, self.engine, self.cost, self.workload, self.routing)
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
        said = _check_policy(policy, self.plan, self.shape)
        return replace(self, policy=policy, policy_name=name, warnings=tuple(said))


def build_scenario(raw: RawScenario) -> Scenario:
    """Checks a scenario and builds its parts.

    Raises ScenarioError that names the key, its line, and the nearest valid name or value.
    """
    try:
        return _build(raw)
    except ScenarioError as error:
        raise raw.locate(error) from None


def _build(raw: RawScenario) -> Scenario:
    model = validate(raw.data)
    cluster, counts = model.cluster, model.workload
    shape = _shape(cluster)
    gpu = None if model.gpu is None else load_gpu(model.gpu)
    network = None if model.model is None else _load_model(model.model, raw.folder)
    cost = _cost(model.cost, network, gpu, cluster, shape, raw.folder)
    _check_costs(cost)
    workload = build_workload(model.workload.model_dump(), model.seed, raw.folder)
    engine = _engine(model.engine, cost, network, gpu, cluster.tensor_parallel)
    batch = Batch(counts.batch_groups, counts.group_size)
    _check_sizes(batch, workload, engine, shape, cluster.routing)
    plan = StepPlan(batch)
    policy = build_policies(model.policy, model.seed, raw.modules)
    said = _check_policy(policy, plan, shape)
    return Scenario(
        model.name or raw.name.removesuffix(".yaml").removesuffix(".yml"),
        shape,
        engine,
        cost,
        workload,
        policy,
        plan,
        model.steps,
        model.seed,
        gpu,
        raw,
        cluster.routing,
        # a seed that follows the run's is not spelt
        spell(build_policies(model.policy, 0, raw.modules)),
        tuple(said),
    )


def build_policies(spec: Any, seed: int, folder: Path | None = None) -> Chain:
    """The chain that ``policy`` spells, as a list or in one line of text. folder: the scenario's,
    where modules of policies are looked for too. Raises ScenarioError."""
    build = parse_policy if isinstance(spec, str) else build_chain
    return build(spec, seed=seed, folder=folder)


def _check_policy(policy: Chain, plan: StepPlan, shape: ClusterShape) -> list[str]:
    """What is worth a warning about a policy. Raises ScenarioError for one that this cluster or
    workload cannot carry out."""
    said = check_policy(policy, plan)
    name = overlapping(policy, plan)
    if shape.colocated and name is not None:
        raise ScenarioError(
            f"policy.{name}",
            "overlaps training with rollout, which needs cluster.placement: disaggregated",
        )
    return said


def overlapping(policy: Chain, plan: StepPlan) -> str | None:
    """The name of the first policy in the chain that lets training overlap with rollout, if any
    does."""
    for member in policy.policies:
        if member.plan(plan, member.init()).overlaps:
            return name_of(member)
    return None


def _shape(cluster: ClusterSection) -> ClusterShape:
    colocated = cluster.placement == "colocated"
    rollout_gpus = cluster.replicas * cluster.tensor_parallel
    trainer_gpus = cluster.trainer_gpus or rollout_gpus
    if colocated and trainer_gpus > rollout_gpus:
        raise ScenarioError(
            "cluster.trainer_gpus",
            f"is {trainer_gpus}, but colocated replicas hold only {rollout_gpus} GPUs "
            "(replicas x tensor_parallel); raise replicas, or use placement: disaggregated",
        )
    return ClusterShape(cluster.replicas, cluster.tensor_parallel, trainer_gpus, colocated)


def _load_model(spec: str | dict[str, Any], folder: Path) -> Model:
    """A model whose path, if it is one, starts from the scenario's folder."""
    if isinstance(spec, str) and spec.lower() not in model_presets():
        with suppress(OSError, ValueError, RuntimeError):  # no path at all
            path = folder / Path(spec).expanduser()
            if path.exists() or spec.endswith(".json"):
                return load_model(path)
    try:
        return load_model(spec)
    except OSError:
        raise ScenarioError("model", f"{short(spec)} is no preset, and no path") from None


def _cost(
    spec: str | dict[str, Any],
    network: Model | None,
    gpu: Gpu | None,
    cluster: ClusterSection,
    shape: ClusterShape,
    folder: Path,
) -> ScenarioCost:
    kinds = ("roofline", "tables", "file", "linear")
    if isinstance(spec, str):
        if spec not in kinds:
            raise ScenarioError("cost", f"unknown cost {short(spec)}; {nearest(spec, kinds)}")
        spec = {spec: None}
    known_keys(spec, kinds, "cost")
    if len(spec) != 1:
        raise ScenarioError("cost", f"must be exactly one of {', '.join(kinds)}")
    [(kind, options)] = spec.items()
    if kind == "file":
        return _from_file(options, folder)
    if kind == "linear":
        if not isinstance(options, dict):
            message = f"must be a mapping of coefficients, got {short(options)}"
            raise ScenarioError("cost.linear", message)
        return LinearCost.from_mapping(options)
    if network is None or gpu is None:
        key = "gpu" if network else "model"
        raise ScenarioError(key, f"missing; cost: {kind} needs it (or give cost: linear)")
    if options is not None and not isinstance(options, dict):
        raise ScenarioError(f"cost.{kind}", f"must be a mapping of options, got {short(options)}")
    options = dict(options or {})
    backend = options.pop("backend", "vllm") if kind == "tables" else None
    of_roofline = options.pop("roofline", None) if kind == "tables" else options
    if kind == "tables":
        known_keys(options, ("backend", "roofline"), "cost.tables")
    roofline = RooflineCost.from_options(
        network,
        gpu,
        of_roofline,
        tensor_parallel=cluster.tensor_parallel,
        replicas=shape.replicas,
        trainer_gpus=shape.trainer_gpus,
        placement=cluster.placement,
    )
    if backend is None:
        return roofline
    provider = aiconfigurator_provider(network, gpu, cluster.tensor_parallel, str(backend))
    return TablesCost(provider, roofline)


def _from_file(path: Any, folder: Path) -> ScenarioCost:
    """The costs in a file that ``rollcast calibrate`` wrote, or JSON with a mapping ``linear``."""
    if not isinstance(path, str):
        raise ScenarioError("cost.file", f"{path!r} is not the path of a file")
    try:
        place = folder / Path(path).expanduser()
        strange = place.exists() and not place.is_file()
    except (OSError, ValueError, RuntimeError):  # too long, not a path, no such home
        raise ScenarioError("cost.file", f"{path!r} is not the path of a file") from None
    if strange:
        raise ScenarioError("cost.file", f"{path} is not a file")
    content = read_json(place, "cost.file", path, "give one that rollcast calibrate wrote")
    if isinstance(content, dict) and isinstance(content.get("linear"), dict):
        return LinearCost.from_mapping(content["linear"])
    return FittedCost.from_mapping(content, path)


def _check_costs(cost: ScenarioCost) -> None:
    """Raises ScenarioError for coefficients with which the clock would stand still or overflow."""
    if isinstance(cost, LinearCost):
        for coefficient in fields(cost):
            value = getattr(cost, coefficient.name)
            if value > LARGEST_COST_S:
                raise ScenarioError(
                    f"cost.linear.{coefficient.name}",
                    f"must be at most {LARGEST_COST_S:g} seconds, got {value:g}",
                )
    if cost.decode_curve(1).ticks(1) == 0:
        raise ScenarioError("cost", "an iteration takes no time; give it a cost")


def _engine(
    section: EngineSection,
    cost: ScenarioCost,
    network: Model | None,
    gpu: Gpu | None,
    tensor_parallel: int,
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
        kv_tokens = kv_pool_tokens(network, gpu, tensor_parallel)
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
