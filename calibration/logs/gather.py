"""Gathers what all files hold into one run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcast.calibration.logs import columns, overlay, recognise, seen
from rollcast.calibration.logs.errors import LogError, NoStepsError
from rollcast.calibration.logs.formats import machine
from rollcast.calibration.logs.gaps import gaps_of, level_of
from rollcast.calibration.logs.opened import LogFile, find
from rollcast.calibration.logs.pauses import without_pauses
from rollcast.calibration.logs.readers import launch_of, readers
from rollcast.calibration.logs.rollouts import Rollouts
from rollcast.calibration.logs.run_log import RunLog
from rollcast.calibration.logs.scan import scan
from rollcast.calibration.logs.scanned import CONSOLE, Scanned
from rollcast.calibration.logs.step_rows import counts, rows_of, table_of
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.text import seconds
from rollcast.simulator.stacks.keys import Key
from rollcast.simulator.stacks.launch import Given
from rollcast.simulator.stacks.log_format import Metrics, Raw, Rollout, Row, Session, StackLog
from rollcast.simulator.stacks.settings import Place, Settings, value
from rollcast.simulator.stacks.settings import whole as setting
from rollcast.simulator.workload.traces import read_trace

if TYPE_CHECKING:
    import pandas as pd

_UNNAMED = 0.2
"""Share of a step in no phase that is read, above which a note says so."""
_LARGEST_TRACE = 64 << 20
"""Bytes of a file that is no log, up to which it is tried as a trace."""
_LEAST_ALIKE = 3
_LEAST_SETTINGS = 3
"""Of a stack's keys in a written configuration, before it counts as that stack's."""
_EVERY_STACK = {
    "engine.kv_tokens": (Key(key="vllm: GPU KV cache size"),),
    "gpu": (Key(key=machine.GPU),),
    "run.gpus_per_node": (Key(key=machine.COUNT),),
    "run.nodes": (Key(key=machine.MACHINES),),
}
_OF_A_LOOP = tuple(
    column.name
    for column in columns.STEPS.columns
    if column.unit in ("tokens", "rollouts", "turns", "versions", "share", "groups")
    or column.name in ("mean_reward", "reward_sd", *columns.PHASES)
)
"""Columns of which some row of an RL loop has one."""


def read_log(
    paths: Sequence[Path], stack: str | None = None, tokens: Callable[[str], int] | None = None
) -> RunLog:
    """Reads the log of one run.

    paths: files and folders that the trainer left. stack: its name, where two could have written
    them. tokens: counts those of a response whose text alone was dumped. Raises LogError, with file
    and line, where there is no step and no rollout of a known stack, where the files are of two
    runs or two stacks, and where seconds are negative or no number.
    """
    wanted = named(stack)
    dumps = Dumps(wanted, tokens)
    scanned = [scan(file, dumps.take) for file in find([*paths, *_machines(paths)])]
    return gathered(paths, scanned, dumps, wanted)


def _machines(paths: Sequence[Path]) -> list[Path]:
    """What Weights & Biases says of the machine, beside or just above what was given."""
    above = (folder for path in paths for folder in (path.parent, path.parent / "files"))
    beside = {folder / machine.FILE for folder in above}
    return sorted(file for file in beside if file.is_file())


class Dumps:
    """Rollouts by stack. wanted: the only stack to take, or None. tokens: as in `read_log`."""

    def __init__(self, wanted: StackLog | None, tokens: Callable[[str], int] | None = None) -> None:
        self._wanted, self.tokens = wanted, tokens
        self._by: dict[str, Rollouts] = {}

    def take(self, of: StackLog, record: Rollout | Session, file: LogFile) -> None:
        """Adds a rollout, or times of one."""
        if self._wanted is None or of is self._wanted:
            if of.name not in self._by:
                self._by[of.name] = Rollouts(of, self.tokens)
            self._by[of.name].take(record, file)

    def of(self, stack: StackLog) -> Rollouts:
        """Those of a stack."""
        return self._by.get(stack.name) or Rollouts(stack)

    @property
    def mingled(self) -> bool:
        """See `Rollouts`."""
        return any(rollouts.mingled for rollouts in self._by.values())

    def copied(self) -> Dumps:
        """A copy that shares nothing that changes."""
        other = Dumps(self._wanted, self.tokens)
        other._by = {name: rollouts.copied() for name, rollouts in self._by.items()}
        return other


def gathered(
    paths: Sequence[Path], scanned: Sequence[Scanned], dumps: Dumps, wanted: StackLog | None
) -> RunLog:
    """The run in files that were read. Raises LogError as `read_log` does."""
    stack = wanted or _only_stack(scanned)
    settings, notes = _settings(scanned, stack)
    parts = _parts(scanned, stack, settings)
    whole = overlay.merged(stack, parts) if parts else None
    size = setting(settings, "workload.group_size")
    dumped = dumps.of(stack)
    rollouts, requests, again = dumped.tables(size)
    raws = [step.values for _, step in sorted(whole.steps.items())] if whole else []
    overlaps = stack.overlaps(raws, settings)
    overlapped = overlaps is not False
    rows: list[tuple[Row, Raw]] = []
    if whole is not None:
        settings = seen.of_steps(stack, whole, settings, overlaps)
        rows = rows_of(stack, whole, settings, overlapped, counts(rollouts))
    steps = table_of(rows, rollouts)
    if steps.empty:
        raise _nothing(scanned, stack)
    _check_loop(stack, steps)
    notes += _remarks(settings, again, whole, overlaps, steps)
    steps, paused = without_pauses(steps)
    if paused:
        notes.append(paused)
    if not overlapped and (unread := _unread(stack, steps)):
        notes.append(unread)
    gaps = gaps_of(stack, steps, rollouts, requests, dumped.some_unnamed and size is None)
    if stack.tool_tokens_inside and (steps["max_turns"] > 2).any():
        notes.append("lengths of responses hold what tools wrote (turns were more than one)")
    written_by = stack.written_by(raws)
    mattered = [s for s in scanned if s.tally.used or s.tally.unread or s.rows]
    return RunLog(
        stack=stack.name,
        name=paths[0].resolve().name or stack.name,
        steps=steps,
        rollouts=rollouts,
        requests=requests,
        settings=settings,
        level=level_of(steps, rollouts, requests),
        gaps=gaps,
        overlapped=overlapped,
        outside=frozenset(stack.outside),
        tool_tokens_inside=stack.tool_tokens_inside,
        tallies=tuple(s.tally for s in mattered),
        notes=tuple(notes),
        ignored=len(scanned) - len(mattered),
        words=_words(stack, rows),
        advice=launch_of(stack)[0].advised(settings, written_by),
        releases=written_by,
        tokenized=dumps.tokens is not None,
        pads=stack.pads or pads_by(settings),
        fully_async=stack.fully_async,
    )


def _check_loop(stack: StackLog, steps: pd.DataFrame) -> None:
    """Raises NoStepsError where nothing in the steps is of a loop of RL."""
    if not stack.logs_apart and steps[list(_OF_A_LOOP)].isna().all(axis=None):
        place = Place(str(steps["file"].iloc[0]), int(steps["line"].iloc[0]))
        raise NoStepsError(
            f"{place}: no step has rollouts, lengths or rewards: the log is of no RL loop, or of "
            "one that trains on given answers"
        )


def _remarks(
    settings: Settings,
    again: int,
    whole: overlay.Series | None,
    overlaps: bool | None,
    steps: pd.DataFrame,
) -> Iterator[str]:
    """What is odd in what was read. again: dumps that repeat others."""
    filtered = settings.get("run.filter_groups")
    if filtered is not None and filtered.value:
        yield (
            f"groups are filtered ({filtered.theirs}): lengths are those of what was trained on, "
            "generation's time is that of all"
        )
    if again:
        yield f"{again} dumps repeat the rollouts of the step before: counted once"
    if whole is not None and overlaps is None:
        yield (
            "the log does not say whether rollouts overlapped training: it is assumed "
            "that they did, since generation_s is then a wait"
        )
    if whole is not None and whole.again:
        held = f"{min(whole.again)} to {max(whole.again)}"
        yield f"steps logged more than once: {len(whole.again)} ({held}); the later counts"
    if len(steps) > _LEAST_ALIKE and steps["step_s"].nunique() == 1 and steps["step_s"].all():
        yield (
            f"every step has the same time, {seconds(steps['step_s'].iloc[0])}, a mean of the run "
            "with its start and validations: what a step's time depends on is not known"
        )


def _unread(stack: StackLog, steps: pd.DataFrame) -> str:
    """What is in no phase that is read, where generation is none of them, as in forks that time it
    under a key of their own; '' for little."""
    if steps["generation_s"].notna().any() or steps["update_s"].isna().all():
        return ""
    inside = [name for name in columns.PHASES if name not in stack.outside]
    rest = steps["step_s"] - steps[inside].sum(axis=1)
    share = (rest / steps["step_s"]).median()
    if not share > _UNNAMED:
        return ""
    return (
        f"{seconds(rest.median())} of a step ({100 * share:.0f} %) are in no phase that is read; "
        "if the log times generation under a key of its own, give a table that has it as "
        "generation_s (docs/importing.md)"
    )


def pads_by(settings: Settings) -> bool:
    """Whether the run says that passes are padded to their longest rollout, and filled by tokens:
    one holds so many rollouts that this is about the longest of the batch."""
    said = settings.get("run.packing")
    packs = said is None or said.unsaid or said.value is not False
    return not packs and value(settings, "run.dynamic_batches") is True


def _words(stack: StackLog, rows: Sequence[tuple[Row, Raw]]) -> dict[str, str]:
    """The stack's own key for each of our columns, as far as its rows have one."""
    seen = {key for _, raw in rows for key in raw}
    return {
        column: next(key for key in keys if key in seen)
        for column, keys in stack.metrics.items()
        if not seen.isdisjoint(keys)
    }


def named(stack: str | None) -> StackLog | None:
    """The stack of that name; None for none. Raises LogError for another."""
    if stack is None:
        return None
    stack_named = recognise.named(stack)
    if stack_named is None:
        names = ", ".join(reader.name for reader in readers())
        raise LogError(f"no stack is called {stack!r}; known are {names}")
    return stack_named


def _only_stack(scanned: Sequence[Scanned]) -> StackLog:
    """The stack that wrote all files."""
    by: dict[str, tuple[int, str]] = {}
    for source in scanned:
        for name, rows in source.rows.items():
            if rows:
                by.setdefault(name, (rows[0].line, source.file.name))
        for name in source.dumped:
            by.setdefault(name, (0, source.file.name))
    if not by:
        raise _nothing(scanned, None)
    if len(by) > 1:
        (one, (line, file)), (other, (there, beside)) = list(by.items())[:2]
        raise LogError(
            f"{Place(file, line)} is of {one}, and {Place(beside, there)} of {other}: "
            "two runs are mixed; import one at a time, or name one with --stack"
        )
    named_stack = recognise.named(next(iter(by)))
    assert named_stack is not None
    return named_stack


def _nothing(scanned: Sequence[Scanned], stack: StackLog | None) -> NoStepsError:
    """Why there is no step."""
    for source in scanned:
        if source.tally.examples:
            first = source.tally.examples[0]
            rest = f" ({source.tally.unread} such)" if source.tally.unread > 1 else ""
            return NoStepsError(f"{first.place}: {first.why}{rest}; no step could be read")
    looked = [source for source in scanned if source.looked_at and source.tally.lines]
    if not looked:
        name = scanned[0].file.name
        return NoStepsError(
            f"{name} is no log: neither text nor a kind of file that a trainer writes"
        )
    known = stack.name if stack else ", ".join(reader.name for reader in readers())
    last = looked[0]
    others = f", nor any of {len(scanned) - 1} files beside it" if len(scanned) > 1 else ""
    place = Place(last.file.name, last.tally.lines)
    return NoStepsError(
        f"{place}: the file ends without a single step of {known}{others}{_as_trace(scanned)}"
    )


def _as_trace(scanned: Sequence[Scanned]) -> str:
    """What else a file of lengths alone, as serving benchmarks write it, is good for."""
    file = scanned[0].file
    if len(scanned) > 1 or file.member or file.path.stat().st_size > _LARGEST_TRACE:
        return ""
    try:
        trace = read_trace(file.path)
    except ScenarioError:
        return ""
    responses = sum(len(group.rollouts) for group in trace.groups)
    return (
        f"; it has the lengths of {responses} responses: a scenario takes them as "
        f"workload.lengths: {{trace: {file.path}}}"
    )


# Settings


def _settings(scanned: Sequence[Scanned], stack: StackLog) -> tuple[Settings, list[str]]:
    launch, implied = launch_of(stack)
    every = {ours: (*launch.keys.get(ours, ()), *keys) for ours, keys in _EVERY_STACK.items()}
    launch = replace(launch, keys={**launch.keys, **every})
    given: list[Given] = []
    for source in scanned:
        known = [
            Given(one.key, one.value, Place(source.file.name, one.line), sure)
            for sure, one in source.settings
            if one.key in launch.ours and _plain(one.value)
        ]
        told = any(one.key in (machine.GPU, machine.COUNT) for one in known)
        if told or len({one.key for one in known}) >= _LEAST_SETTINGS or source.rows:
            given += known
    notes = [
        f"{had.theirs} is {had.value!r} in {had.place}, and {new.value!r} in {new.place}: the "
        "first is taken"
        for had, new in launch.conflicts(given)
    ]
    return launch.read(given, implied), notes


def _plain(value: Any) -> bool:
    if isinstance(value, str):
        return "${" not in value and 0 < len(value) < 1000 and value.lower() not in ("null", "none")
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # an int may be more


# Steps


def _parts(scanned: Sequence[Scanned], stack: StackLog, settings: Settings) -> list[overlay.Series]:
    """The steps of each file that has any. Rows that a console only counts are used where nothing
    else names the steps, and are the windows that the run logged."""
    parts = []
    for source in scanned:
        charted = [row for row in source.charted if stack.known(row.values)]
        rows: Sequence[Metrics] = source.rows.get(stack.name) or charted
        counted = bool(rows) and rows[-1].step == len(rows)  # not named by a bar
        if source.kind == CONSOLE and stack.console_counts and counted:
            named = any(s.rows.get(stack.name) and s.kind != CONSOLE for s in scanned)
            window = setting(settings, "run.logging_steps") or 1
            rows = [] if named else [replace(row, step=row.step * window) for row in rows]
        part = overlay.series(stack, rows, source.kind, source.file.name)
        if part is not None:
            parts.append(part)
    return parts
