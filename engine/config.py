"""The real world's part of a scenario: model, task, trainer and sampling, under ``engine``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.edges import Sampling
from engine.errors import EngineError
from engine.hub import is_hub_name
from engine.options import mapping, typed
from engine.trainer.config import TrainerConfig
from engine.trainer.losses import LOSSES, LossConfig
from engine.vllm.environment import vllm_version
from simulator.checks import flag, known_keys, nearest, number, whole
from simulator.errors import ScenarioError
from simulator.plan import Batch, Prompts, StepPlan
from simulator.policies import check_policy, spell
from simulator.policy import Chain
from simulator.scenario.file import RawScenario
from simulator.scenario.scenario import EngineSection, build_policies, overlapping, validate
from simulator.scenario.sections import ClusterSection

BUILT_IN = "collatz"
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class TaskSpec:
    """What to ask and how to judge it: the built-in task by ``name``, ``style`` and ``log_sd`` (see
    `engine.tasks.collatz`), or one's own by ``prompts`` (a JSON Lines file) and ``reward``
    (``package.module:function``)."""

    name: str | None = None
    style: str = "bare"
    log_sd: float | None = None
    prompts: Path | None = None
    reward: str = ""
    chat: bool = False
    reward_timeout_s: float = 30.0


@dataclass(frozen=True)
class RunSpec:
    """A checked scenario for the real engine.

    model: folder of a Hugging Face model, or its name on the hub; None is the built-in task's
        warm-started one.
    """

    name: str
    policy: Chain
    policy_name: str
    plan: StepPlan
    steps: int
    seed: int
    max_new_tokens: int
    engine: EngineSection
    model: Path | str | None
    task: TaskSpec
    trainer: TrainerConfig
    sampling: Sampling
    raw: RawScenario
    warnings: tuple[str, ...] = ()


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
    plan = StepPlan(batch, prompts=Prompts(dataset=counts.prompts))
    policy = build_policies(model.policy, model.seed, raw.modules)
    said = check_policy(policy, plan)
    if (name := overlapping(policy, plan)) is not None:
        raise ScenarioError(f"policy.{name}", "needs replica and trainer on GPUs of their own")
    if counts.max_new_tokens is None:
        raise ScenarioError("workload.max_new_tokens", "missing; give a number of tokens")
    max_new_tokens = whole(counts.max_new_tokens, "workload.max_new_tokens", minimum=1)
    _check_engine(engine, max_new_tokens)
    task = _task(engine.task, raw.folder)
    if engine.model is None and task.prompts is not None:
        raise ScenarioError("engine.model", "missing; a task of your own needs a model's folder")
    sampling = _sampling(engine.sampling)
    return RunSpec(
        model.name or raw.name.removesuffix(".yaml").removesuffix(".yml"),
        policy,
        spell(
            build_policies(model.policy, 0, raw.modules)
        ),  # a seed that follows the run's is not spelt
        plan,
        model.steps,
        model.seed,
        max_new_tokens,
        engine,
        _model(engine.model, raw.folder),
        task,
        trainer_config(engine.trainer, model.seed, sampling),
        sampling,
        raw,
        tuple(said),
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


def _check_cluster(cluster: ClusterSection) -> None:
    for key in ("replicas", "tensor_parallel"):
        if (count := getattr(cluster, key)) != 1:
            message = f"is {count}; the real engine is one replica in this process, so make it 1"
            raise ScenarioError(f"cluster.{key}", message)
    if cluster.placement != "colocated":
        raise ScenarioError(
            "cluster.placement", "replica and trainer share this process; make it colocated"
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


def _task(options: Any, folder: Path) -> TaskSpec:
    field = "engine.task"
    given = mapping(options, field)
    known_keys(given, TaskSpec.__dataclass_fields__, field)
    for key in ("name", "style", "prompts", "reward"):
        if key in given and not isinstance(given[key], str):
            raise ScenarioError(f"{field}.{key}", f"{given[key]!r} is not text")
    if "prompts" in given or "reward" in given:
        for key in ("prompts", "reward"):
            if key not in given:
                raise ScenarioError(f"{field}.{key}", "missing; a task needs prompts and reward")
        for key in ("name", "style", "log_sd"):
            if key in given:
                message = "is of the built-in task; leave it out, or leave out prompts and reward"
                raise ScenarioError(f"{field}.{key}", message)
        timeout_s = given.get("reward_timeout_s", TaskSpec.reward_timeout_s)
        return TaskSpec(
            prompts=folder / given["prompts"],
            reward=given["reward"],
            chat=flag(given.get("chat", False), f"{field}.chat"),
            reward_timeout_s=number(timeout_s, f"{field}.reward_timeout_s", above=True),
        )
    for key in ("chat", "reward_timeout_s"):
        if key in given:
            message = "is for a task of your own, with prompts and reward"
            raise ScenarioError(f"{field}.{key}", message)
    name, style = given.get("name", BUILT_IN), given.get("style", TaskSpec.style)
    if name != BUILT_IN:
        raise ScenarioError(f"{field}.name", f"{name!r} is unknown; {BUILT_IN} is built in")
    from engine.tasks.collatz import STYLES

    if style not in STYLES:
        raise ScenarioError(f"{field}.style", f"{style!r} is unknown; {nearest(style, STYLES)}")
    log_sd = None if given.get("log_sd") is None else number(given["log_sd"], f"{field}.log_sd")
    return TaskSpec(name=name, style=style, log_sd=log_sd)


def trainer_config(options: Any, seed: int, sampling: Sampling | None = None) -> TrainerConfig:
    """The trainer's settings; ``loss`` is a name, or a mapping whose ``name`` is the base.

    The temperature is that of ``sampling``. Raises ScenarioError that names the key.
    """
    sampling = sampling or Sampling()
    field = "engine.trainer"
    given = typed(options, TrainerConfig, field, apart=("loss",))
    given["loss"] = _loss(given.get("loss", "grpo"), f"{field}.loss")
    given.setdefault("seed", seed)
    if given.setdefault("temperature", sampling.temperature) != sampling.temperature:
        raise ScenarioError(
            f"{field}.temperature",
            f"is {given['temperature']:g}, but tokens are sampled at {sampling.temperature:g}; "
            "leave it out",
        )
    config = TrainerConfig(**given)
    if (sampling.top_p < 1 or sampling.top_k > 0) and config.old_log_probs != "trainer":
        raise ScenarioError(
            f"{field}.old_log_probs",
            "must be trainer with engine.sampling.top_p or top_k: the log-probabilities sampled "
            "with are of the truncated distribution, and the trainer's are of the whole one",
        )
    return config


def _loss(value: Any, field: str) -> LossConfig:
    options = {"name": value} if isinstance(value, str) else mapping(value, field)
    base = options.get("name", "grpo")
    if not isinstance(base, str) or base not in LOSSES:
        raise ScenarioError(field, f"unknown loss {base!r}; {nearest(str(base), LOSSES)}")
    changes = {key: item for key, item in options.items() if key != "name"}
    return replace(LOSSES[base], **typed(changes, LossConfig, field))


def _sampling(options: Any) -> Sampling:
    field = "engine.sampling"
    try:
        sampling = Sampling(**typed(options, Sampling, field))
    except EngineError as error:
        raise ScenarioError(field, str(error).rstrip(".")) from None
    if sampling.temperature == 0:
        raise ScenarioError(
            f"{field}.temperature", "is 0: a group of equal responses teaches nothing; raise it"
        )
    return sampling
