"""The real world's part of a scenario: model, task, trainer and sampling, under ``engine``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from engine.replica import Sampling
from engine.trainer.config import TrainerConfig
from engine.trainer.losses import LOSSES, LossConfig
from simulator.checks import known_keys, nearest, whole
from simulator.errors import ScenarioError
from simulator.plan import Batch, StepPlan
from simulator.policies import build_chain, check_policy, parse_policy, spell
from simulator.policy import Chain
from simulator.scenario import EngineSection, validate
from simulator.scenario_file import RawScenario

BUILT_IN = "collatz"
_TASK_KEYS = ("name", "style", "prompts", "reward", "chat", "reward_timeout_s")


@dataclass(frozen=True)
class RunSpec:
    """A checked scenario for the real engine.

    model: folder of a Hugging Face model; None is the built-in task's warm-started one.
    """

    name: str
    policy: Chain
    policy_name: str
    plan: StepPlan
    steps: int
    seed: int
    max_new_tokens: int
    engine: EngineSection
    model: Path | None
    task: Mapping[str, Any]
    trainer: TrainerConfig
    sampling: Sampling
    raw: RawScenario


def build_run(raw: RawScenario) -> RunSpec:
    """Checks a scenario for the real engine.

    Raises ScenarioError that names the key and its line; nothing is loaded or started.
    """
    try:
        return _build(raw)
    except ScenarioError as error:
        raise raw.locate(error) from None


def _build(raw: RawScenario) -> RunSpec:
    model = validate(raw.data)
    engine, counts = model.engine, model.workload
    if model.cluster.replicas != 1 or model.cluster.tensor_parallel != 1:
        raise ScenarioError(
            "cluster.replicas", "the real engine runs one replica in this process; make it 1"
        )
    if model.cluster.placement != "colocated":
        raise ScenarioError(
            "cluster.placement", "replica and trainer share this process; make it colocated"
        )
    plan = StepPlan(Batch(counts.batch_groups, counts.group_size))
    spec = model.policy
    policy = (
        parse_policy(spec, seed=model.seed)
        if isinstance(spec, str)
        else build_chain(spec, seed=model.seed)
    )
    check_policy(policy, plan)
    if policy.plan(plan, policy.init()).launch.run_ahead:
        raise ScenarioError("policy.one_step_off", "needs replica and trainer on GPUs of their own")
    workload = raw.data["workload"]
    if "max_new_tokens" not in workload:
        raise ScenarioError("workload.max_new_tokens", "missing; give a number of tokens")
    task = dict(engine.task or {"name": BUILT_IN})
    known_keys(task, _TASK_KEYS, "engine.task")
    path = None if engine.model is None else raw.folder / engine.model
    if path is None and "prompts" in task:
        raise ScenarioError("engine.model", "missing; a task of your own needs a model's folder")
    if path is not None and not (path / "config.json").is_file():
        raise ScenarioError("engine.model", f"{engine.model} holds no Hugging Face config.json")
    return RunSpec(
        model.name or raw.name.removesuffix(".yaml"),
        policy,
        spell(policy),
        plan,
        model.steps,
        model.seed,
        whole(workload["max_new_tokens"], "workload.max_new_tokens", minimum=1),
        engine,
        path,
        task,
        trainer_config(engine.trainer or {}, model.seed),
        _sampling(engine.sampling or {}),
        raw,
    )


def trainer_config(options: Mapping[str, Any], seed: int) -> TrainerConfig:
    """The trainer's settings; ``loss`` is a name, or a mapping whose ``name`` is the base."""
    given = dict(options)
    known_keys(given, [f.name for f in fields(TrainerConfig)], "engine.trainer")
    loss = given.pop("loss", "grpo")
    changes = dict(loss) if isinstance(loss, Mapping) else {"name": loss}
    base = str(changes.pop("name", "grpo"))
    if base not in LOSSES:
        raise ScenarioError("engine.trainer.loss", f"unknown loss {base!r}; {nearest(base, LOSSES)}")
    known_keys(changes, [f.name for f in fields(LossConfig)], "engine.trainer.loss")
    if "betas" in given:
        given["betas"] = tuple(given["betas"])
    given.setdefault("seed", seed)
    try:
        return TrainerConfig(loss=replace(LOSSES[base], **changes), **given)
    except (TypeError, ValueError) as error:
        raise ScenarioError("engine.trainer", str(error)) from None


def _sampling(options: Mapping[str, Any]) -> Sampling:
    known_keys(options, [f.name for f in fields(Sampling)], "engine.sampling")
    return Sampling(**options)
