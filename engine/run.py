"""A scenario on the real engine: vLLM and torch under the simulator's loop and policies."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine import checkpoint
from engine.config import BUILT_IN, RunSpec
from engine.tasks.base import Task
from engine.world import EngineLog, EngineWorld
from simulator.errors import ScenarioError
from simulator.loop import Loop
from simulator.metrics import summarise
from simulator.output import check_target, write_folder, write_json, write_run
from simulator.spans import Run, StepRecord

OnStep = Callable[[StepRecord, float], None]


@dataclass(frozen=True)
class RealRun:
    """A finished real run: the loop's result, what the engine measured, and the summary."""

    run: Run
    log: EngineLog
    summary: dict[str, Any]


def build_world(spec: RunSpec) -> EngineWorld:
    """Starts the engine and the trainer of a scenario (warm-starting the built-in model first).

    Raises EngineError or ScenarioError where either cannot be had.
    """
    from engine.environment import prepare

    prepare()
    import torch
    from transformers import AutoModelForCausalLM

    from engine.trainer.trainer import Trainer
    from engine.vllm_engine import VllmReplica

    task, path = _task_and_model(spec)
    section = spec.engine
    replica = VllmReplica(
        path,
        max_seqs=section.max_seqs,
        max_batched_tokens=section.max_batched_tokens,
        kv_tokens=section.kv_tokens,
        block_tokens=section.block_tokens,
        prefix_caching=section.prefix_caching,
        dtype=section.dtype,
        seed=spec.seed,
        sampling=spec.sampling,
    )
    torch.manual_seed(spec.seed)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, section.dtype))
    model.to(section.device)
    return EngineWorld(replica, Trainer(model, spec.trainer), task, spec.seed)


def _task_and_model(spec: RunSpec) -> tuple[Task, Path]:
    task = dict(spec.task)
    if "prompts" in task or "reward" in task:
        from engine.tasks.custom import FileTask

        for key in ("prompts", "reward"):
            if key not in task:
                raise ScenarioError(f"engine.task.{key}", "missing; a task needs prompts and reward")
        assert spec.model is not None
        return (
            FileTask(
                spec.raw.folder / str(task["prompts"]),
                str(task["reward"]),
                spec.model,
                max_new_tokens=spec.max_new_tokens,
                chat=bool(task.get("chat", False)),
                reward_timeout_s=float(task.get("reward_timeout_s", 30.0)),
            ),
            spec.model,
        )
    if task.get("name", BUILT_IN) != BUILT_IN:
        raise ScenarioError(
            "engine.task.name", f"{task['name']!r} is unknown; {BUILT_IN} is built in"
        )
    from engine.tasks.collatz import CollatzTask
    from engine.tasks.warm_start import Recipe, warm_start

    style = str(task.get("style", "bare"))
    built = CollatzTask(style, spec.max_new_tokens)
    return built, spec.model or warm_start(Recipe(style=style))


def run_scenario(
    spec: RunSpec,
    out: Path | None,
    *,
    resume: bool = False,
    force: bool = False,
    plot: bool = True,
    on_step: OnStep | None = None,
) -> RealRun:
    """Runs a scenario on the real engine and writes its folder.

    out: with it, the run is saved after every step beside ``out``, and with ``resume`` an
    unfinished one goes on from its last finished step. Raises ScenarioError, EngineError or
    RunError; what was saved stays.
    """
    saved = None
    if out is not None:
        check_target(out, force)
        if resume:
            saved = checkpoint.load(out, spec.raw.data)
        elif checkpoint.exists(out) and not force:
            raise ScenarioError(
                "--out", f"an unfinished run lies beside {out}; add --resume or --force"
            )
    elif resume:
        raise ScenarioError("--resume", "needs --out, beside which the unfinished run lies")
    world = build_world(spec)

    def stepped(record: StepRecord) -> None:
        if on_step is not None:
            on_step(record, accuracy(loop.result, record.step))

    loop = Loop(world, spec.policy, spec.plan, stepped)
    if saved is not None:
        loop.load_state_dict(saved["loop"])
        world.load_state_dict(saved["world"])
        world.log = saved["log"]

    def keep(loop: Loop) -> None:
        if out is not None:
            state = {"scenario": spec.raw.data, "loop": loop.state_dict(), "log": world.log}
            checkpoint.save(out, {**state, "world": world.state_dict()})

    try:
        result = loop.run(spec.steps, after_step=keep)
    finally:
        world.close()
    real = RealRun(result, world.log, _summary(spec, result, world.log))
    if out is not None:
        write_folder(out, lambda folder: _write(folder, spec, real, plot), force)
        checkpoint.discard(out)
    return real


def accuracy(run: Run, step: int) -> float:
    """Mean reward of the rollouts that finished in a step, whether trained on or not."""
    rewards = run.stays["reward"][run.stays["step"] == step]
    known = rewards[~np.isnan(rewards)]
    return float(known.mean()) if len(known) else float("nan")


def _summary(spec: RunSpec, run: Run, log: EngineLog) -> dict[str, Any]:
    steps = [accuracy(run, record.step) for record in run.steps]
    window = max(1, len(steps) // 10)
    return {
        "schema": "rollcast-run/1",
        "scenario": spec.name,
        "policy": spec.policy_name,
        "world": run.world,
        "seed": spec.seed,
        **summarise(run),
        "accuracy_first": float(np.nanmean(steps[:window])),
        "accuracy_last": float(np.nanmean(steps[-window:])),
        "sync_log_prob_difference": max(log.sync_differences, default=float("nan")),
        "iterations": len(log.iterations),
        "warnings": list(run.warnings),
    }


def _write(folder: Path, spec: RunSpec, real: RealRun, plot: bool) -> None:
    from engine.provenance import provenance

    write_run(
        folder,
        real.run,
        real.summary,
        {"name": spec.name, "policy_spelt": spec.policy_name, "scenario": spec.raw.data},
        plot,
    )
    with (folder / "iterations.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(ITERATION_COLUMNS)
        for record in real.log.iterations:
            m, work = record.measured, record.measured.work
            writer.writerow(
                [
                    record.step_version,
                    record.start_s,
                    m.seconds,
                    work.rollouts,
                    work.context_tokens,
                    work.prefill_tokens,
                    work.prefill_pairs,
                    work.prefill_rollouts,
                    work.prefill_context_tokens,
                    m.waiting,
                    m.kv_blocks,
                    m.preemptions,
                ]
            )
    with (folder / "updates.jsonl").open("w", encoding="utf-8") as file:
        for step, metrics in real.log.updates:
            line = {"step": step, "accuracy": accuracy(real.run, step), **asdict(metrics)}
            file.write(json.dumps(line) + "\n")
    write_json(folder / "provenance.json", provenance())


ITERATION_COLUMNS = (
    "version",
    "start_s",
    "seconds",
    "rollouts",
    "context_tokens",
    "prefill_tokens",
    "prefill_pairs",
    "prefill_rollouts",
    "prefill_context_tokens",
    "waiting",
    "kv_blocks",
    "preemptions",
)
