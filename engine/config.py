"""The real world's part of a scenario: model, task, trainer and sampling, under ``engine``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.edges import Sampling
from engine.environments.base import Environment
from engine.hub import is_hub_name
from engine.options import TaskSpec, TrainerConfig
from engine.tasks.named import load_named
from engine.vllm.environment import vllm_version
from engine.world import SHAPE
from simulator.errors import ScenarioError
from simulator.options import read
from simulator.plan import Batch, Prompts, StepPlan
from simulator.policies import check_policy, spell
from simulator.policy import Chain
from simulator.scenario.file import RawScenario
from simulator.scenario.scenario import EngineSection, build_policies, overlapping, validate
from simulator.scenario.sections import ClusterSection, ScenarioModel
from simulator.workload.environment import EnvironmentSection
from simulator.world import ClusterShape

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class TurnSpec:
    """What a scenario says of rollouts of several turns.

    environment: what it says of those. make: makes one, of a task of one's own; None is the
    built-in task's. max_turns, max_context_tokens: at which a rollout is ended; None is no cap but
    the model's own context.
    """

    environment: EnvironmentSection
    make: Callable[[], Environment] | None
    max_turns: int | None
    max_context_tokens: int | None


@dataclass(frozen=True)
class RunSpec:
    """A checked scenario for the real engine.

    model: folder of a Hugging Face model, or its name on the hub; None is the built-in task's
        warm-started one. turns: of rollouts that have several; None where they have one.
    """

    name: str
    policy: Chain
    policy_name: str
    plan: StepPlan
    steps: int
    seed: int
    max_new_tokens: int
    cluster: ClusterSection
    engine: EngineSection
    model: Path | str | None
    task: TaskSpec
    trainer: TrainerConfig
    sampling: Sampling
    raw: RawScenario
    weights_folder: Path | None = None
    turns: TurnSpec | None = None
    warnings: tuple[str, ...] = ()

    @property
    def in_process(self) -> bool:
        """Whether it runs in one process: one replica, which takes turns with the trainer."""
        return self.shape == SHAPE

    @property
    def shape(self) -> ClusterShape:
        """Its replicas and trainer, of one device each."""
        cluster = self.cluster
        return ClusterShape(cluster.replicas, 1, 1, cluster.placement == "colocated")


def build_run(raw: RawScenario) -> RunSpec:
    """Checks a scenario for the real engine; nothing is loaded or started.

    Raises ScenarioError that names the key and its line, EngineError where vLLM is missing.
    """
    try:
        return _build(raw)
    except ScenarioError as error:
        raise raw.locate(error) from None


def _build(raw: RawScenario) -> RunSpec:
    model = validate(raw.data)
    engine, counts = model.engine, model.workload
    _check_cluster(model.cluster)
    batch = Batch(counts.batch_groups, counts.group_size)
    plan = StepPlan(
        batch,
        prompts=Prompts(dataset=counts.prompts),
        failed="keep" if model.environment is None else model.environment.failed,
    )
    policy = build_policies(model.policy, model.seed, raw.modules)
    said = check_policy(policy, plan)
    sampling = _sampling(engine.sampling)
    colocated = model.cluster.placement == "colocated"
    if colocated and (name := overlapping(policy, plan)) is not None:
        raise ScenarioError(
            f"policy.{name}",
            "overlaps training with rollout, which needs replica and trainer on devices of their "
            "own: cluster.placement: disaggregated",
        )
    trainer = trainer_config(engine.trainer, model.seed, sampling)
    _check_streaming(policy.plan(plan, policy.init()), trainer)
    _check_engine(engine, counts.max_new_tokens)
    _check_devices(model.cluster, engine)
    task = read(TaskSpec, engine.task or {}, TaskSpec.FIELD)
    if task.prompts is not None:
        task = replace(task, prompts=raw.folder / task.prompts)
    turns = _turns(model, task, raw.modules)
    if engine.model is None and task.prompts is not None:
        raise ScenarioError("engine.model", "missing; a task of your own needs a model's folder")
    return RunSpec(
        model.name or raw.name.removesuffix(".yaml").removesuffix(".yml"),
        policy,
        spell(
            build_policies(model.policy, 0, raw.modules)
        ),  # a seed that follows the run's is not spelt
        plan,
        model.steps,
        model.seed,
        counts.max_new_tokens,
        model.cluster,
        engine,
        _model(engine.model, raw.folder),
        task,
        trainer,
        sampling,
        raw,
        _weights_folder(engine.weights_folder, raw.folder),
        turns,
        tuple(said),
    )


def _turns(model: ScenarioModel, task: TaskSpec, folder: Path | None) -> TurnSpec | None:
    """What is said of rollouts of several turns; None where the task has one. folder: where the
    module of its environment is looked for too."""
    counts = model.workload
    if not task.has_turns:
        for field, section in (
            ("workload.turns", counts.turns),
            ("environment", model.environment),
        ):
            if section is not None:
                raise ScenarioError(
                    field,
                    "is of rollouts of several turns, and those of engine.task have one; leave it "
                    "out, or make the task calculator, or one with an environment of your own",
                )
        return None
    if model.reward is not None:
        raise ScenarioError(
            "reward", "is the simulator's; a real run of several turns has its rewards at once"
        )
    make = None
    if task.environment:
        methods = ("reset", "step", "close")
        make = load_named(task.environment, "engine.task.environment", methods, folder)
    return TurnSpec(
        model.environment or EnvironmentSection(),
        make,
        None if counts.turns is None else counts.turns.drawn.max_turns,
        counts.max_context_tokens,
    )


def _model(model: str | None, folder: Path) -> Path | str | None:
    """Its folder, or its name on the hub."""
    if model is None:
        return None
    if is_hub_name(model, folder):
        return model
    if not (folder / model / "config.json").is_file():
        raise ScenarioError(
            "engine.model",
            f"{model} holds no Hugging Face config.json, nor is it a name on the hub such as "
            "Qwen/Qwen3-0.6B",
        )
    return folder / model


def _weights_folder(named: str | None, folder: Path) -> Path | None:
    if named is None:
        return None
    place = folder / named
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ScenarioError(
            "engine.weights_folder", f"{named} is no folder that can be written to; make it first"
        )
    return place.resolve()


def _check_cluster(cluster: ClusterSection) -> None:
    for key in ("tensor_parallel", "pipeline_parallel"):
        if (count := getattr(cluster, key)) != 1:
            message = f"is {count}; a replica of the real engine is one device, so make it 1"
            raise ScenarioError(f"cluster.{key}", message)
    trainer = cluster.replicas if cluster.trainer_gpus is None else cluster.trainer_gpus
    if trainer != 1:
        raise ScenarioError(
            "cluster.trainer_gpus",
            f"is {trainer}; the real trainer is one process on one device, so make it 1",
        )


def _check_streaming(plan: StepPlan, trainer: TrainerConfig) -> None:
    """A batch that comes in parts is trained on in one update."""
    if plan.stream_groups is None:
        return
    for key in ("minibatches", "epochs"):
        if (count := getattr(trainer, key)) > 1:
            raise trainer.refuse(
                key,
                f"is {count}, but a policy that streams groups to the trainer makes one update of "
                "them as they come; make it 1",
            )


def _check_devices(cluster: ClusterSection, engine: EngineSection) -> None:
    """Several actors have a GPU each."""
    alone = cluster.replicas == 1 and cluster.placement == "colocated"
    if alone or not engine.device.startswith("cuda"):
        return
    if engine.device != "cuda":
        raise ScenarioError(
            "engine.device",
            f"is {engine.device}; replicas and trainer have a GPU each, so make it cuda",
        )
    if cluster.placement == "colocated":
        raise ScenarioError(
            "cluster.placement",
            "several replicas that share their GPUs with the trainer are not supported; make it "
            "disaggregated",
        )


def _check_engine(engine: EngineSection, max_new_tokens: int) -> None:
    """What can be known to fail without starting anything."""
    _, on_cpu = vllm_version()
    if on_cpu and engine.block_tokens % 32:
        raise ScenarioError(
            "engine.block_tokens", f"is {engine.block_tokens}; vLLM on a CPU needs a multiple of 32"
        )
    if engine.max_batched_tokens < engine.max_seqs:
        raise ScenarioError(
            "engine.max_batched_tokens",
            f"is {engine.max_batched_tokens}, less than max_seqs ({engine.max_seqs}): every "
            "running rollout needs one token per iteration",
        )
    pool_tokens = None if engine.kv_tokens is None else engine.kv_tokens // engine.block_tokens
    if pool_tokens is not None and pool_tokens * engine.block_tokens <= max_new_tokens:
        raise ScenarioError(
            "engine.kv_tokens",
            f"a pool of {engine.kv_tokens} tokens cannot hold one rollout of a prompt and "
            f"{max_new_tokens} new tokens",
        )
    if engine.dtype not in DTYPES:
        raise ScenarioError("engine.dtype", f"{engine.dtype!r} is not one of {', '.join(DTYPES)}")
    _check_device(engine.device, on_cpu)


def _check_device(name: str, on_cpu: bool) -> None:
    """The device is the trainer's and the engine's. on_cpu: whether vLLM is built for CPUs."""
    import torch

    field = "engine.device"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ScenarioError(field, f"{name!r} is not cpu, cuda, or one of several such as cuda:1")
    if device.type == "cpu" and not on_cpu:
        raise ScenarioError(field, "is cpu, but the vLLM here is built for GPUs; make it cuda")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            seen = f"{count} GPU{'s' if count > 1 else ''}" if count else "no GPU"
            raise ScenarioError(field, f"is {name}, but torch sees {seen} here; make it cpu")
        if on_cpu:
            raise ScenarioError(field, f"is {name}, but the vLLM here is built for CPUs")


def trainer_config(
    options: Mapping[str, Any] | None, seed: int, sampling: Sampling | None = None
) -> TrainerConfig:
    """The trainer's settings; ``loss`` is a name, or a mapping whose ``name`` is the base.

    The temperature is that of ``sampling``. Raises ScenarioError that names the key.
    """
    sampling = sampling or Sampling()
    defaults = {"seed": seed, "temperature": sampling.temperature}
    config = read(TrainerConfig, options or {}, TrainerConfig.FIELD, defaults=defaults)
    if config.temperature != sampling.temperature:
        raise config.refuse(
            "temperature",
            f"is {config.temperature:g}, but tokens are sampled at {sampling.temperature:g}; "
            "leave it out",
        )
    if (sampling.top_p < 1 or sampling.top_k > 0) and config.old_log_probs != "trainer":
        raise config.refuse(
            "old_log_probs",
            "must be trainer with engine.sampling.top_p or top_k: the log-probabilities sampled "
            "with are of the truncated distribution, and the trainer's are of the whole one",
        )
    return config


def _sampling(options: Mapping[str, Any] | None) -> Sampling:
    sampling = read(Sampling, options or {}, Sampling.FIELD)
    if sampling.temperature == 0:
        raise sampling.refuse(
            "temperature", "is 0: a group of equal responses teaches nothing; raise it"
        )
    return sampling
