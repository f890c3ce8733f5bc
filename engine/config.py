"""The real world's part of a scenario: model, task, trainer and sampling, under ``engine``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from rollcast.engine.config_checks import (
    check_cluster,
    check_device,
    check_devices,
    check_engine,
    check_here,
    check_offload,
    check_streaming,
)
from rollcast.engine.edges import Sampling
from rollcast.engine.environments.base import Environment
from rollcast.engine.hub import is_hub_name
from rollcast.engine.options import TaskSpec, TrainerConfig
from rollcast.engine.run_options import EvaluationOptions, SaveOptions, WandbOptions
from rollcast.engine.tasks.named import load_named
from rollcast.engine.world_parts import SHAPE
from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Chain
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import build_chain, check_policy, spell
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import cluster_shape, overlapping
from rollcast.simulator.scenario.sections import (
    ClusterSection,
    EngineSection,
    ScenarioModel,
    base_plan,
    validate,
)
from rollcast.simulator.values import Options, read
from rollcast.simulator.workload.environment import EnvironmentSection

Section = TypeVar("Section", bound=Options)
SHARED_MEMORY, OWN_MEMORY = 0.3, 0.9
"""Of a GPU's memory, vLLM's part where the trainer shares the GPU, and where it does not."""


@dataclass(frozen=True)
class TurnSpec:
    """A scenario's rollouts of several turns. make: makes an environment of the user's task; None:
    the built-in task's. max_turns, max_context_tokens: end a rollout; None: the model's context
    only."""

    environment: EnvironmentSection
    make: Callable[[], Environment] | None
    max_turns: int | None
    max_context_tokens: int | None


@dataclass(frozen=True)
class RunSpec:
    """A checked scenario for the real engine. model: a Hugging Face folder or hub name; None: the
    built-in task's warm-started one. turns: None for one turn."""

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
    save: SaveOptions = field(default_factory=SaveOptions)
    evaluation: EvaluationOptions | None = None
    wandb: WandbOptions | None = None
    warnings: tuple[str, ...] = ()
    poll_s: float = 0.0  # a real trainer is notified at once

    @property
    def trial_timeout_s(self) -> float | None:
        """Seconds after which a rollout with turns is ended; None: never."""
        return None if self.turns is None else self.turns.environment.trial_timeout_s

    @property
    def in_process(self) -> bool:
        """Whether it runs in one process: one replica, which takes turns with the trainer."""
        return self.shape == SHAPE

    @property
    def shape(self) -> ClusterShape:
        """Its replicas and trainer, with one device a rank."""
        return cluster_shape(self.cluster)

    @property
    def memory_share(self) -> float:
        """vLLM's share of each of its GPUs."""
        share = self.engine.gpu_memory_utilization
        if share is not None:
            return share
        return SHARED_MEMORY if self.shape.colocated else OWN_MEMORY


def build_run(raw: RawScenario, elsewhere: bool = False) -> RunSpec:
    """Checks a scenario for the real engine, without loading anything. elsewhere: it runs on other
    machines, whose GPUs are unknown here. Raises ScenarioError with key and line, EngineError where
    vLLM is missing."""
    try:
        return _build(raw, elsewhere)
    except ScenarioError as error:
        raise raw.locate(error) from None


def _build(raw: RawScenario, elsewhere: bool) -> RunSpec:
    model = validate(raw.data)
    engine, counts = model.engine, model.workload
    check_cluster(model.cluster)
    if model.poll_s:
        raise ScenarioError(
            "poll_s",
            "applies to simulation only: the loop of a real run is notified "
            "immediately; leave it out",
        )
    plan = base_plan(model)
    policy = build_chain(model.policy, seed=model.seed, folder=raw.modules)
    warnings = check_policy(policy, plan)
    sampling = _sampling(engine.sampling)
    colocated = model.cluster.placement == "colocated"
    if colocated and (name := overlapping(policy, plan)) is not None:
        raise ScenarioError(
            f"policy.{name}",
            "overlaps training with rollout, which needs replica and trainer on devices of their "
            "own: cluster.placement: disaggregated",
        )
    trainer = trainer_config(engine.trainer, model.seed, sampling, engine.dtype)
    check_offload(trainer, model.cluster)
    if trainer.schedule_updates is None:
        updates = model.steps * trainer.minibatches * trainer.epochs
        trainer = replace(trainer, schedule_updates=updates)
    check_streaming(policy.plan(plan, policy.init()), trainer)
    check_engine(engine, model.cluster, counts.max_new_tokens)
    check_devices(model.cluster, engine)
    check_device(engine.device)
    if not elsewhere:
        check_here(engine, model.cluster)
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
            build_chain(model.policy, folder=raw.modules)
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
        read(SaveOptions, engine.save or {}, SaveOptions.FIELD),
        _optional(EvaluationOptions, engine.evaluation),
        _optional(WandbOptions, engine.wandb),
        tuple(warnings),
    )


def _turns(model: ScenarioModel, task: TaskSpec, folder: Path | None) -> TurnSpec | None:
    """The turns of a scenario; None for one. folder: where to find the environment's module."""
    counts = model.workload
    if not task.has_turns:
        for field, section in (
            ("workload.turns", counts.turns),
            ("environment", model.environment),
        ):
            if section is not None:
                raise ScenarioError(
                    field,
                    "applies to rollouts of several turns, but those of engine.task have one; "
                    "leave it out, or use the task calculator, or a task with an environment "
                    "of your own",
                )
        return None
    if model.reward is not None:
        raise ScenarioError(
            "reward",
            "applies to simulation only: a real run of several turns has its rewards "
            "at once; leave it out",
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


def trainer_config(
    options: Mapping[str, Any] | None,
    seed: int,
    sampling: Sampling | None = None,
    dtype: str = "float32",
) -> TrainerConfig:
    """The trainer's settings; its temperature is that of ``sampling``. dtype: the engine's, in
    which passes compute. Raises ScenarioError with the key."""
    sampling = sampling or Sampling()
    defaults = {"seed": seed, "temperature": sampling.temperature}
    config = read(TrainerConfig, options or {}, TrainerConfig.FIELD, defaults=defaults)
    if config.temperature != sampling.temperature:
        raise config.refuse(
            "temperature",
            f"is {config.temperature:g}, but tokens are sampled at {sampling.temperature:g}; "
            "leave it out",
        )
    if config.autocast is None:
        mixed = dtype == "bfloat16" and config.dtype == "float32"
        config = replace(config, autocast=mixed)
    if (sampling.top_p < 1 or sampling.top_k > 0) and config.old_log_probs != "trainer":
        raise config.refuse(
            "old_log_probs",
            "must be trainer with engine.sampling.top_p or top_k: the log-probabilities sampled "
            "with are of the truncated distribution, and the trainer's are of the whole one",
        )
    return config


def _optional(kind: type[Section], options: Mapping[str, Any] | None) -> Section | None:
    return None if options is None else read(kind, options, kind.FIELD)


def _sampling(options: Mapping[str, Any] | None) -> Sampling:
    sampling = read(Sampling, options or {}, Sampling.FIELD)
    if sampling.temperature == 0:
        raise sampling.refuse(
            "temperature",
            "is 0: the responses of a group would be equal, and nothing would be learnt; raise it",
        )
    return sampling
