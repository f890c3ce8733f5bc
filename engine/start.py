"""Starting what a scenario needs: the task, the trainer with its model, and the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config import RunSpec
from engine.edges import Engine, Trainer
from engine.errors import sentence
from engine.hub import fetch
from engine.tasks.base import Task
from engine.vllm.environment import prepare
from engine.world import EngineWorld
from simulator.errors import ScenarioError


def start_world(spec: RunSpec) -> EngineWorld:
    """The world of a scenario; the built-in model is warm-started first. What starts fast starts
    first, so that what is wrong with it is said soon.

    Raises EngineError or ScenarioError where something cannot be had.
    """
    prepare(local_files=not isinstance(spec.model, str))
    try:
        task, path = start_task(spec)
        trainer = start_trainer(spec, path)
    except ScenarioError as error:
        raise spec.raw.locate(error) from None
    return EngineWorld(start_replica(spec, path), trainer, task, spec.seed)


def start_task(spec: RunSpec) -> tuple[Task, Path]:
    """The task, and the folder of the model that it is for."""
    task = spec.task
    model = fetch(spec.model) if isinstance(spec.model, str) else spec.model
    if task.prompts is not None:
        from engine.tasks.custom import FileTask

        assert model is not None
        own = FileTask(
            task.prompts,
            task.reward,
            model,
            max_new_tokens=spec.max_new_tokens,
            chat=task.chat,
            reward_timeout_s=task.reward_timeout_s,
        )
        return own, model
    from engine.tasks.collatz import LOG_SD, CollatzTask
    from engine.tasks.warm_start import Recipe, warm_start

    log_sd = LOG_SD if task.log_sd is None else task.log_sd
    built_in = CollatzTask(task.style, spec.max_new_tokens, log_sd)
    return built_in, model or warm_start(Recipe(style=task.style))


def start_trainer(spec: RunSpec, path: Path) -> Trainer:
    """The trainer, with the model in ``path`` on the scenario's device."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    from engine.trainer.trainer import Trainer as TorchTrainer

    torch.manual_seed(spec.seed)
    model: Any  # transformers' own types of ``to`` are of no use
    bars: Any = transformers_logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, spec.engine.dtype))
        model.to(spec.engine.device)
    except Exception as error:  # of several libraries, each with a base of its own
        message = f"the model in {path.name} cannot be loaded: {sentence(error)}"
        raise ScenarioError("engine.model", message) from error
    finally:
        if shown:
            bars.enable_progress_bar()
    return TorchTrainer(model, spec.trainer)


def start_replica(spec: RunSpec, path: Path) -> Engine:
    """The engine, with the model in ``path``."""
    from engine.vllm.replica import VllmReplica

    section = spec.engine
    return VllmReplica(
        path,
        max_seqs=section.max_seqs,
        max_batched_tokens=section.max_batched_tokens,
        kv_tokens=section.kv_tokens,
        block_tokens=section.block_tokens,
        prefix_caching=section.prefix_caching,
        dtype=section.dtype,
        seed=spec.seed,
        sampling=spec.sampling,
        device=section.device,
        memory_fraction=section.gpu_memory_utilization,
    )
