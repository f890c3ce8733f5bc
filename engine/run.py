"""A scenario on the real engine: vLLM and torch under the simulator's loop and policies."""

from __future__ import annotations

import hashlib
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rollcast.engine import checkpoint, start
from rollcast.engine.board import Board, write_board
from rollcast.engine.config import RunSpec
from rollcast.engine.edges import Engine
from rollcast.engine.evaluation import Evaluator, evaluations
from rollcast.engine.hub import copy_tokenizer
from rollcast.engine.log import EngineLog
from rollcast.engine.notes import notes_on
from rollcast.engine.options import LossConfig
from rollcast.engine.run_options import WandbOptions
from rollcast.engine.samples import Sampler
from rollcast.engine.saving import Resumed, Saver, read, require_prompts
from rollcast.engine.sinks import Sink, Wandb
from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.loop import Loop
from rollcast.simulator.loop.recorded import Entry, RecordedWorld
from rollcast.simulator.results import schema
from rollcast.simulator.results.folder import check_target, write_folder
from rollcast.simulator.results.metrics import accuracy, run_summary
from rollcast.simulator.results.so_far import Idle, IdleSoFar
from rollcast.simulator.results.write import write_json, write_lines, write_run, write_table
from rollcast.simulator.runs.drive import loop_of
from rollcast.simulator.scenario.file import kept


@dataclass(frozen=True)
class Progress:
    """A run after a step: the step's record and accuracy, and the bubble so far."""

    record: StepRecord
    accuracy: float
    idle: Idle


OnStep = Callable[[Progress], None]
"""Called after each step."""


@dataclass(frozen=True)
class RealRun:
    """A finished real run: the loop's result, what the engine measured, the summary, and the record
    of what was returned to the loop."""

    run: Run
    log: EngineLog
    summary: dict[str, Any]
    entries: list[Entry] = field(default_factory=list)


def run_scenario(
    spec: RunSpec,
    out: Path | None,
    *,
    resume: bool = False,
    force: bool = False,
    plot: bool = True,
    on_step: OnStep | None = None,
    on_note: Callable[[str], None] = lambda note: None,
    ray: str | None = None,
    lent: Engine | None = None,
) -> RealRun:
    """Runs a scenario on the real engine and writes its folder.

    out: beside it the run is saved (`engine.options.SaveOptions`); ``resume`` continues an
    unfinished run from there, or a finished one with more steps. One process at a time may run into
    ``out``. on_note: is told at once if it goes on from an older save than the newest. ray: address
    of the Ray cluster of the actors; None: this machine. lent: an engine that runs already, for a
    run in this process (`engine.start.start_world`). Raises ScenarioError, EngineError or RunError;
    once a step is done its save stays, and a note on the error says so.
    """
    if ray is not None and spec.in_process:
        raise ScenarioError(
            "--ray",
            "one replica that takes turns with the trainer runs in this process; leave it out, or "
            "change cluster.placement or cluster.replicas",
        )
    if lent is not None and not spec.in_process:
        raise ScenarioError(
            "lent",
            "replicas of this run are actors with engines of their own; leave it out, or make "
            "cluster.placement colocated with one replica",
        )
    with nullcontext() if out is None else checkpoint.held(out):
        with _reopened(out, resume):
            resumed = _check_out(spec, out, resume, force)
            going = _Run(spec, out, resumed, on_step, ray, lent)
        if going.older:
            on_note(going.older)
        try:
            real = going.finish()
            if out is not None:
                replaces = force or (resume and checkpoint.finished(out))
                write_folder(out, lambda folder: _write(folder, out, spec, real, plot), replaces)
        except BaseException as error:
            if out is not None and not going.loop.result.steps and resumed is None:
                checkpoint.discard(out)
            elif out is not None:
                error.add_note("add --resume to go on from the last step that was saved")
            raise
        finally:
            going.close()
        if out is not None:
            checkpoint.discard(out)
    return real


class _Run:
    """A run under way: its world, the record of what was returned to the loop, and the loop; beside
    ``out`` its saves and its curves. resumed: the unfinished run to go on from."""

    def __init__(
        self,
        spec: RunSpec,
        out: Path | None,
        resumed: Resumed | None,
        on_step: OnStep | None,
        address: str | None,
        lent: Engine | None,
    ) -> None:
        self._spec, self._out, self._resumed, self._on_step = spec, out, resumed, on_step
        self._elsewhere = address not in (None, "local")
        self._board: Board | None = None
        self._sinks: list[Sink] = []
        self._wandb_id = resumed and resumed.saved.state.get("wandb")
        if spec.wandb is not None:
            self._sinks.append(self._wandb(spec.wandb))
        self._idle: IdleSoFar | None = None
        self._saver: Saver | None = None
        self._began_s = time.perf_counter() - (0.0 if resumed is None else resumed.wall_s)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        in_process = spec.in_process
        self.world = (
            start.start_world(spec, lent) if in_process else start.start_actors(spec, address)
        )
        self.world.sampler = Sampler(spec.save.samples, _advantage_by(spec.trainer.loss))
        try:
            self._evaluator = self._make_evaluator()
            if resumed is not None:
                resumed = self._resumed = self._put_back(resumed)
        except BaseException:
            self.world.close()
            raise
        self.older = "" if resumed is None else resumed.saved.older
        world, entries = self.world, [] if resumed is None else resumed.entries
        self._record = RecordedWorld(entries, world, world.shape, world.name, world.go_on)
        self.loop = loop_of(spec, self._record, self._look)

    def _wandb(self, options: WandbOptions) -> Sink:
        """Raises ScenarioError without a folder for the run, or where wandb does not begin."""
        if self._out is None:
            raise ScenarioError("--out", "is needed with engine.wandb, for the run's curves")
        self._wandb_id = str(self._wandb_id or uuid.uuid4().hex[:12])
        try:
            return Wandb(options, self._wandb_id, self._spec.raw.data)
        except ScenarioError as error:
            raise self._spec.raw.locate(error) from None

    def _make_evaluator(self) -> Evaluator | None:
        """Raises ScenarioError where no prompt is held out."""
        options = self._spec.evaluation
        if options is None:
            return None
        try:
            return Evaluator(options, self.world.task)
        except ScenarioError as error:
            raise self._spec.raw.locate(error) from None

    def _put_back(self, resumed: Resumed) -> Resumed:
        """Has the world take up the newest save that the trainer's ranks can read. Raises
        ScenarioError (``--resume``) where there is none."""
        assert self._out is not None
        while True:
            try:
                resumed.put_back(self.world)
                return resumed
            except ValueError as error:
                refused = resumed.saved.number, error
                resumed = read(self._out, self._spec.raw.data, self._spec.save.keep, refused)

    def finish(self) -> RealRun:
        """Goes to the last step."""
        spec, world, resumed = self._spec, self.world, self._resumed
        self._saver = self._make_saver()
        if resumed is None:
            if self._out is not None:
                checkpoint.discard(self._out)  # of an unfinished run, with --force
            self._between_steps(self.loop)
        result = self.loop.run(spec.steps, after_step=self._between_steps)
        if self._out is not None and spec.save.final:
            self._keep_model(checkpoint.place(self._out) / checkpoint.MODEL)
        older = [self.older] if self.older else []
        notes = (*spec.warnings, *older, *notes_on(world.log))
        result.warnings.extend(notes)
        summary = _summary(spec, result, world.log, self._wall_s)
        return RealRun(result, world.log, summary, self._record.entries)

    @property
    def _wall_s(self) -> float:
        """Seconds that the run has taken, starting and saving included."""
        return time.perf_counter() - self._began_s

    def _make_saver(self) -> Saver | None:
        """Saves beside ``out``; without that, what a lost trainer of this machine needs."""
        spec, resumed, out = self._spec, self._resumed, self._out
        if out is None:
            if spec.in_process or self._elsewhere:
                return None
            self._scratch = tempfile.TemporaryDirectory(prefix="rollcast-")
            out = Path(self._scratch.name) / "run"
        known = {"scenario": spec.raw.data, "prompts": _prompts_digest(spec)}
        known |= {"wandb": self._wandb_id} if self._wandb_id else {}
        if resumed is None:
            writer = checkpoint.Writer(out, spec.save.keep)
            return Saver(writer, known, self._record, self.world, spec.save)
        updates = resumed.world.updates
        return Saver(
            resumed.saved.writer, known, self._record, self.world, spec.save, version=updates
        )

    def _keep_model(self, folder: Path) -> None:
        """Writes the trained model and its tokenizer, for `_write` to put into the results."""
        self.world.export(folder, self._spec.engine.dtype)
        try:
            if self.world.model_folder is not None:
                copy_tokenizer(self.world.model_folder, folder)
        except OSError as error:
            message = f"cannot write to {folder}: {error.strerror or error}; make room there"
            raise RunError(message) from None

    def _between_steps(self, loop: Loop) -> None:
        """Saves the run; in one process only where nothing is under way and weights are synced."""
        if self._record.resuming:
            return
        world, spec = self.world, self._spec
        with world.clock_stopped():
            world.keep_only(loop.outstanding)
            world.take_pulse(loop.next_step)
        steps = len(loop.result.steps)
        if self._evaluator is not None and self._evaluator.due(world.log, steps, spec.steps):
            self._evaluator.evaluate(world, steps)
        began_s = time.perf_counter()
        if self._saver is not None and (not spec.in_process or loop.at_rest):
            last = self._out is not None and spec.save.final and steps == spec.steps
            self._saver.save(steps, self._wall_s, last)
        world.log.saving_s.append(time.perf_counter() - began_s)

    def _look(self, record: StepRecord) -> None:
        """Shows a step that an unfinished run had not done."""
        if self._record.resuming:
            return
        loop = self.loop
        with self.world.clock_stopped():
            if self._on_step is not None:
                self._idle = self._idle or IdleSoFar(loop.result)
                idle = self._idle.look(loop.rollouts.flying.values())
                self._on_step(Progress(record, accuracy(loop.result)[record.step], idle))
            if self._out is not None:
                self._draw(checkpoint.place(self._out))

    def _draw(self, folder: Path) -> None:
        try:
            self._board = self._board or Board(folder, self._sinks)
            self._board.catch_up(self.loop.result, self.world.log)
        except OSError as error:
            message = f"cannot write to {folder}: {error.strerror or error}; make room there"
            raise RunError(message) from None

    def close(self) -> None:
        """Ends the curves' file and the world."""
        if self._board is not None:
            self._board.close()
        else:
            for sink in self._sinks:
                sink.close()
        self.world.close()
        if self._scratch is not None:
            self._scratch.cleanup()


def _advantage_by(loss: LossConfig) -> Callable[[float, Sequence[float]], float]:
    """The advantage that a reward has in the trainer."""

    def advantage(reward: float, baseline: Sequence[float]) -> float:
        from rollcast.engine.trainer.advantages import group_advantages

        epsilon, divides = loss.advantage_epsilon, loss.divide_by_std
        return group_advantages([reward], baseline, epsilon=epsilon, divide_by_std=divides)[0]

    return advantage


def _check_out(spec: RunSpec, out: Path | None, resume: bool, force: bool) -> Resumed | None:
    """The run to go on from, if any; everything is checked before anything is started."""
    if out is None:
        if resume:
            raise ScenarioError("--resume", "needs --out, beside which the unfinished run lies")
        return None
    going_on = resume and checkpoint.finished(out)
    check_target(out, force or going_on)
    if not resume:
        if checkpoint.exists(out) and not force:
            raise ScenarioError(
                "--out", f"an unfinished run lies beside {out}; add --resume or --force"
            )
        return None
    opened = going_on and not checkpoint.exists(out)
    if opened:
        checkpoint.reopen(out)
    return _resumed(spec, out, opened)


@contextmanager
def _reopened(out: Path | None, resume: bool) -> Iterator[None]:
    """A finished run that cannot be gone on with is left as it was."""
    alone = out is not None and resume and not checkpoint.exists(out)
    try:
        yield
    except BaseException:
        if out is not None and alone:
            checkpoint.discard(out)
        raise


def _resumed(spec: RunSpec, out: Path, finished: bool) -> Resumed:
    """The run to go on from. finished: it needs more steps."""
    resumed = read(out, spec.raw.data, spec.save.keep)
    require_prompts(resumed.saved, out, _prompts_digest(spec))
    if finished and resumed.done >= spec.steps:
        message = f"is {spec.steps}, and the run in {out} has done them; give more, as --steps"
        raise spec.raw.locate(ScenarioError("steps", message))
    if resumed.done > spec.steps:
        message = f"is {spec.steps}, but the unfinished run has done {resumed.done} already"
        raise spec.raw.locate(ScenarioError("steps", message))
    return resumed


def _prompts_digest(spec: RunSpec) -> str | None:
    """A hash of the prompts' file, which the scenario names but does not hold."""
    if spec.task.prompts is None:
        return None
    try:
        return hashlib.sha256(spec.task.prompts.read_bytes()).hexdigest()
    except OSError:
        return None  # starting the task says what is wrong with it


def _summary(spec: RunSpec, run: Run, log: EngineLog, wall_s: float) -> dict[str, Any]:
    reached = accuracy(run)
    steps = reached[~np.isnan(reached)]
    window = max(1, len(steps) // 10)
    return run_summary(
        run,
        spec.name,
        spec.policy_name,
        spec.seed,
        accuracy_first=float(np.mean(steps[:window])),
        accuracy_last=float(np.mean(steps[-window:])),
        sync_log_prob_difference=max(log.sync_differences, default=float("nan")),
        sync_log_prob_mean_difference=max(log.sync_means, default=float("nan")),
        sync_check_s=sum(log.sync_check_s),
        iterations=len(log.iterations),
        saving_s=sum(log.saving_s),
        wall_s=wall_s,
        actors_lost=len(log.faults),
        rollouts_begun_again=sum(fault.rollouts for fault in log.faults),
    )


def _write(folder: Path, out: Path, spec: RunSpec, real: RealRun, plot: bool) -> None:
    from rollcast.engine.provenance import provenance

    description = {
        "name": spec.name,
        "policy_spelt": spec.policy_name,
        "scenario": kept(spec.raw.data, spec.raw.modules),
    }
    real.run.evaluations = {one.steps_done - 1: one.reward for one in evaluations(real.log)}
    write_run(folder, real.run, real.summary, description, plot)
    log, reached = real.log, accuracy(real.run).tolist()
    pulses = ((step, beat.short_s, beat.long_s) for step, beat in log.pulses)
    updates = ({"step": n, "accuracy": reached[n], **asdict(metrics)} for n, metrics in log.updates)
    started = schema.ITERATIONS.names.index("start_s")
    rows = sorted(log.iterations.rows(), key=lambda row: float(row[started]))
    write_table(folder, schema.ITERATIONS, rows)  # those of several replicas are interleaved
    if log.pulses:
        write_table(folder, schema.SPEED_PROBES, pulses)
    write_lines(folder, schema.UPDATES, updates)
    write_board(folder, real.run, log)
    write_json(folder / schema.PROVENANCE.name, provenance(spec.engine.device))
    if real.entries:
        write_lines(folder, schema.EVENTS, (entry.to_plain() for entry in real.entries))
    if log.arrivals:
        write_table(folder, schema.ARRIVALS, (astuple(arrival) for arrival in log.arrivals))
    if log.faults:
        write_table(folder, schema.FAULTS, (astuple(fault) for fault in log.faults))
    if log.failures:
        write_table(folder, schema.FAILURES, (astuple(failure) for failure in log.failures))
    if log.evaluations:
        write_table(folder, schema.EVALUATIONS, map(astuple, evaluations(log)))
    if log.samples:  # what was under way when a run was saved is trained on again
        once = {(one.step, one.group, one.index): one for one in log.samples}
        write_lines(folder, schema.SAMPLES, (asdict(one) for one in once.values()))
    if spec.save.final:
        checkpoint.keep(out, folder)
