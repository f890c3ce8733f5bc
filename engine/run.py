"""A scenario on the real engine: vLLM and torch under the simulator's loop and policies."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine import checkpoint
from engine.config import RunSpec
from engine.log import EngineLog, Iterations
from engine.start import start_world
from engine.world import EngineWorld
from simulator.errors import ScenarioError
from simulator.loop import Loop
from simulator.results.folder import check_target, write_folder, write_json, write_run
from simulator.results.metrics import summarise
from simulator.spans import Run, StepRecord

OnStep = Callable[[StepRecord, float], None]
"""Called after each step with its record and its accuracy."""


@dataclass(frozen=True)
class RealRun:
    """A finished real run: the loop's result, what the engine measured, and the summary."""

    run: Run
    log: EngineLog
    summary: dict[str, Any]


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

    out: with it, the run is saved before the first step and after every one, beside ``out``; with
    ``resume`` an unfinished one goes on from there. Raises ScenarioError, EngineError or RunError;
    what was saved stays once a step is done, and a note on the error says so.
    """
    saved = _check_out(spec, out, resume, force)
    world = start_world(spec)

    def stepped(record: StepRecord) -> None:
        if on_step is not None:
            on_step(record, accuracy(loop.result)[record.step])

    loop = Loop(world, spec.policy, spec.plan, stepped)
    try:
        result = _run(spec, world, loop, out, saved)
        real = RealRun(result, world.log, _summary(spec, result, world.log))
        if out is not None:
            write_folder(out, lambda folder: _write(folder, spec, real, plot), force)
    except BaseException as error:
        if out is not None and loop.next_step == 0:
            checkpoint.discard(out)
        elif out is not None:
            error.add_note("add --resume to go on from the last step that was saved")
        raise
    finally:
        world.close()
    if out is not None:
        checkpoint.discard(out)
    return real


def _check_out(spec: RunSpec, out: Path | None, resume: bool, force: bool) -> dict[str, Any] | None:
    """The state to go on from, if any; everything is checked before anything is started."""
    if out is None:
        if resume:
            raise ScenarioError("--resume", "needs --out, beside which the unfinished run lies")
        return None
    check_target(out, force)
    if not resume:
        if checkpoint.exists(out) and not force:
            raise ScenarioError(
                "--out", f"an unfinished run lies beside {out}; add --resume or --force"
            )
        return None
    saved = checkpoint.load(out, spec.raw.data)
    if saved.get("prompts") != _prompts_digest(spec):
        message = f"the prompts have changed since the unfinished run beside {out} was saved"
        raise ScenarioError("--resume", message)
    done = saved["loop"]["next_step"]
    if done > spec.steps:
        message = f"is {spec.steps}, but the unfinished run has done {done} already"
        raise spec.raw.locate(ScenarioError("steps", message))
    return saved


def _run(
    spec: RunSpec, world: EngineWorld, loop: Loop, out: Path | None, saved: dict[str, Any] | None
) -> Run:
    prompts = _prompts_digest(spec)

    def between_steps(loop: Loop) -> None:
        with world.clock_stopped():
            world.keep_only({group.group for group in (*loop.buffer, *loop.ready)})
            world.take_pulse(loop.next_step)
            if out is not None:
                state = {"loop": loop.state_dict(), "world": world.state_dict()}
                known = {"scenario": spec.raw.data, "prompts": prompts}
                checkpoint.save(out, {**known, **state})

    if saved is None:
        between_steps(loop)
    else:
        loop.load_state_dict(saved["loop"])
        world.load_state_dict(saved["world"])
    return loop.run(spec.steps, after_step=between_steps)


def _prompts_digest(spec: RunSpec) -> str | None:
    """A hash of the prompts' file, which the scenario names but does not hold."""
    if spec.task.prompts is None:
        return None
    try:
        return hashlib.sha256(spec.task.prompts.read_bytes()).hexdigest()
    except OSError:
        return None  # starting the task says what is wrong with it


def accuracy(run: Run) -> dict[int, float]:
    """Per step, the mean reward of the rollouts that finished in it, whether trained on or not."""
    steps, rewards = run.stays["step"], run.stays["reward"]
    known = ~np.isnan(rewards)
    count = np.bincount(steps[known], minlength=len(run.steps))
    total = np.bincount(steps[known], weights=rewards[known], minlength=len(run.steps))
    return {
        step: float(total[step] / count[step]) if count[step] else float("nan")
        for step in range(len(count))
    }


def _summary(spec: RunSpec, run: Run, log: EngineLog) -> dict[str, Any]:
    steps = [value for value in accuracy(run).values() if not np.isnan(value)]
    window = max(1, len(steps) // 10)
    return {
        "schema": "rollcast-run/1",
        "scenario": spec.name,
        "policy": spec.policy_name,
        "world": run.world,
        "seed": spec.seed,
        **summarise(run),
        "accuracy_first": float(np.mean(steps[:window])),
        "accuracy_last": float(np.mean(steps[-window:])),
        "sync_log_prob_difference": max(log.sync_differences, default=float("nan")),
        "sync_check_s": sum(log.sync_check_s),
        "iterations": len(log.iterations),
        "warnings": list(run.warnings),
    }


def _write(folder: Path, spec: RunSpec, real: RealRun, plot: bool) -> None:
    from engine.provenance import provenance

    description = {
        "name": spec.name,
        "policy_spelt": spec.policy_name,
        "scenario": spec.raw.data,
    }
    write_run(folder, real.run, real.summary, description, plot)
    reached = accuracy(real.run)
    _append_column(folder / "steps.csv", "accuracy", [reached[r.step] for r in real.run.steps])
    _write_table(folder / "iterations.csv", Iterations.columns, real.log.iterations.rows())
    pulses = ((step, beat.short_s, beat.long_s) for step, beat in real.log.pulses)
    _write_table(folder / "pulses.csv", ("steps_done", "short_s", "long_s"), pulses)
    with (folder / "updates.jsonl").open("w", encoding="utf-8") as file:
        for step, metrics in real.log.updates:
            line = {"step": step, "accuracy": reached[step], **asdict(metrics)}
            file.write(json.dumps(line) + "\n")
    write_json(folder / "provenance.json", provenance(spec.engine.device))


def _write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _append_column(path: Path, name: str, values: list[float]) -> None:
    header, *rows = path.read_text("utf-8").splitlines()
    lines = [f"{header},{name}"]
    lines += [f"{row},{value}" for row, value in zip(rows, values, strict=True)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
