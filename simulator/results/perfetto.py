"""A run as Chrome trace events, for https://ui.perfetto.dev or ``chrome://tracing``.

Format: "Trace Event Format" (Chromium project), JSON object form. Times are microseconds, written
from whole nanoseconds, so that what does not overlap in a run does not overlap in the file either.

Each slice has a category, to search or colour by: step, rollout, train, sync, switch, environment,
reward or down.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict
from heapq import heappop, heappush
from os import PathLike, fspath
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.rollout import CALL_ENDS, CALL_KINDS
from rollcast.simulator.core.spans import DROPPED, PENDING, TRAINED, PhaseSpan, Run, StepRecord
from rollcast.simulator.results.intervals import FloatArray
from rollcast.simulator.results.over_time import (
    IntArray,
    context_over_time,
    down_intervals,
    running_over_time,
)

_OUTCOMES = {PENDING: "carried", TRAINED: "trained", DROPPED: "dropped"}
_NS_PER_S = 1e9
_NS_PER_US = 1000
_STEPS_PID = 1
_FIRST_REPLICA_PID = 2
_ROWS_AT_A_TIME = 8192
_GZIP_LEVEL = 4
_Slice = tuple[str, float, float, dict[str, Any]]  # name, start_s, end_s, args
_SEGMENT_ARGS = {  # column by argument
    "attempt": "attempt",
    "step": "step",
    "version": "version",
    "versions": "versions",
    "tokens": "new_tokens",
    "total_tokens": "total_tokens",
    "prompt_tokens": "prompt_tokens",
    "prefill_tokens": "prefill_tokens",
    "recomputed_tokens": "recomputed_tokens",
    "preemptions": "preemptions",
    "finished": "finished",
    "outcome": "outcome",
    "reward": "reward",
}
_SEGMENT = (
    '{"name":"g%d/%d","cat":"rollout","ph":"X","pid":%d,"tid":%d,"ts":%d.%03d,"dur":%d.%03d,'
    '"args":{' + "".join(f'"{name}":%s,' for name in _SEGMENT_ARGS) + '"queued_us":%d.%03d}}'
)


def write_trace(run: Run, file: str | PathLike[str] | TextIO) -> None:
    """Writes a run's trace to a path or an open text file; ``.gz`` is packed, reproducibly.

    One process per replica: a thread for each concurrent rollout (slices ``g<group>/<index>``) and
    two counters, running rollouts and their context tokens (`metrics.context_over_time`). Arrows
    lead from a segment to the rollout's next one. Further processes: steps, trainer, weight sync,
    switch, environments, judges. A segment that was never computed is a slice of length 0.
    """
    if not isinstance(file, str | PathLike):
        _write(run, file)
    elif fspath(file).endswith(".gz"):
        with (
            open(file, "wb") as raw,
            gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as packed,
            io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text,
        ):
            _write(run, text)
    else:
        with open(file, "w", encoding="utf-8", newline="\n") as text:
            _write(run, text)


def _write(run: Run, file: TextIO) -> None:
    file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    separator = ""
    for event in _events(run):
        file.write(separator)
        file.write(event)
        separator = ",\n"
    file.write("\n]}\n")


def lanes(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The lowest free lane for each interval, so that none overlap. starts must rise."""
    taken: list[tuple[int, int]] = []  # (end, lane)
    free: list[int] = []
    count = 0
    chosen = []
    for start, end in zip(starts, ends, strict=True):
        while taken and taken[0][0] <= start:
            heappush(free, heappop(taken)[1])
        if free:
            lane = heappop(free)
        else:
            lane = count
            count += 1
        heappush(taken, (end, lane))
        chosen.append(lane)
    return chosen


def _events(run: Run) -> Iterator[str]:
    replicas = run.shape.replicas
    after = _FIRST_REPLICA_PID + replicas
    yield from _steps(run)
    placed = _Placed(run)
    for number in range(replicas):
        yield from _replica(run, number, placed)
    yield from _flows(placed)
    worked = [phase for phase in run.phases if phase.kind != "rollout"]
    switches = [phase for phase in worked if phase.kind == "switch"]
    for pid, track in ((after, "trainer"), (after + 1, "sync")):
        phases = [p for p in worked if p.track == track and p.kind != "switch"]
        yield from _phases(pid, track, phases, "train" if track == "trainer" else "sync")
    if switches:
        yield from _phases(after + 2, "switch", switches, "switch")
    for number, kind in enumerate(CALL_KINDS):
        yield from _calls(after + 3 + number, kind, run, number)


def _calls(pid: int, name: str, run: Run, kind: int) -> Iterator[str]:
    """A process for environments or judges, with a slice per call from the start of its slot."""
    chosen = run.calls["kind"] == kind
    if not chosen.any():
        return
    columns = ("group", "index", "attempt", "step", "turn", "ended", "asked_s", "start_s", "end_s")
    rows = zip(*(run.calls[column][chosen].tolist() for column in columns), strict=True)
    slices = []
    for group, index, attempt, step, turn, ended, asked_s, start_s, end_s in rows:
        args = {"attempt": attempt, "step": step, "turn": turn, "ended": CALL_ENDS[ended]}
        queued = _microseconds(_nanoseconds(start_s) - _nanoseconds(asked_s))
        slices.append((f"g{group}/{index}", start_s, end_s, {**args, "queued_us": queued}))
    yield from _process(pid, name, pid)
    yield from _slices(pid, "slot", slices, name)


def _phases(pid: int, name: str, phases: Iterable[PhaseSpan], category: str) -> Iterator[str]:
    """A process for phases."""
    yield from _process(pid, name, pid)
    yield from _slices(pid, name, _phase_slices(phases), category)


def _phase_slices(phases: Iterable[PhaseSpan]) -> list[_Slice]:
    return [(p.kind, p.start_s, p.end_s, {"step": p.step, "tokens": p.tokens}) for p in phases]


def _steps(run: Run) -> Iterator[str]:
    """Slices of steps and rollout phases; a marker at each step's end."""
    yield from _process(_STEPS_PID, "steps", _STEPS_PID)
    steps = [(f"step {r.step}", r.start_s, r.end_s, _step_args(r)) for r in run.steps]
    after = yield from _slices(_STEPS_PID, "step", steps, "step")
    rollouts = _phase_slices(p for p in run.phases if p.kind == "rollout")
    yield from _slices(_STEPS_PID, "rollout phase", rollouts, "rollout", first_tid=after)
    for record in run.steps:
        yield _json(
            {
                "name": f"version {record.step + 1}",
                "ph": "i",
                "s": "g",
                "pid": _STEPS_PID,
                "tid": 0,
                "ts": _microseconds(_nanoseconds(record.end_s)),
            }
        )


def _step_args(record: StepRecord) -> dict[str, Any]:
    args = asdict(record)
    args["staleness"] = {str(age): tokens for age, tokens in record.staleness.items()}
    return {name: args[name] for name in args if not name.endswith(("start_s", "end_s"))}


def _slices(
    pid: int, thread: str, slices: Iterable[_Slice], category: str, first_tid: int = 0
) -> Generator[str, None, int]:
    """Slices on threads; returns the next free thread."""
    rows = sorted(
        ((_nanoseconds(start), _nanoseconds(end), name, args) for name, start, end, args in slices),
        key=lambda row: row[:2],
    )
    chosen = lanes([row[0] for row in rows], [row[1] for row in rows])
    count = max(chosen, default=0) + 1
    for lane in range(count):
        yield from _thread(pid, first_tid + lane, thread if lane == 0 else f"{thread} {lane + 1}")
    for lane, (start, end, name, args) in zip(chosen, rows, strict=True):
        yield _json(
            {
                "name": name,
                "cat": category,
                "ph": "X",
                "pid": pid,
                "tid": first_tid + lane,
                "ts": _microseconds(start),
                "dur": _microseconds(end - start),
                "args": args,
            }
        )
    return first_tid + count


class _Placed:
    """Where segments are drawn. start, end (ns) and tid: shape (segments,), as `Run.segments`."""

    def __init__(self, run: Run) -> None:
        self.segments = run.segments
        self.replica = run.segments["replica"]
        self.start, self.end = _ticks(run.segments["start_s"]), _ticks(run.segments["end_s"])
        self.tid = np.zeros(len(self.replica), dtype=np.int64)
        for number in range(run.shape.replicas):
            rows = self.on(number)
            self.tid[rows] = lanes(self.start[rows].tolist(), self.end[rows].tolist())

    def on(self, replica: int) -> NDArray[np.int64]:
        """Rows of a replica's segments by time, shape (n,)."""
        rows = np.flatnonzero(self.replica == replica)
        return rows[np.lexsort((self.end[rows], self.start[rows]))]


def _replica(run: Run, number: int, placed: _Placed) -> Iterator[str]:
    """Segments on lanes, then the counters; formatted by hand, as there may be half a million."""
    pid = _FIRST_REPLICA_PID + number
    yield from _process(pid, f"replica {number}", pid)
    rows = placed.on(number)
    slots = int(placed.tid[rows].max(initial=-1)) + 1
    for tid in range(slots):
        yield from _thread(pid, tid, f"slot {tid}")
    downs: list[_Slice] = [
        ("down", start_s, end_s, {}) for start_s, end_s in down_intervals(run, number)
    ]
    if downs:
        yield from _slices(pid, "down", downs, "down", first_tid=slots)
    for low in range(0, len(rows), _ROWS_AT_A_TIME):
        part = slice(low, low + _ROWS_AT_A_TIME)
        columns = _segment_columns(placed, pid, rows[part])
        for values in zip(*columns, strict=True):
            yield _SEGMENT % values
    running = running_over_time(run, number)
    yield from _counter(pid, "running rollouts", "rollouts", *running)
    yield from _counter(pid, "context tokens", "tokens", *context_over_time(run, number))


def _flows(placed: _Placed) -> Iterator[str]:
    """Arrows between consecutive computed segments of an attempt."""
    names = ("group", "index", "attempt")
    computed = np.flatnonzero(placed.end > placed.start)
    keys = [placed.segments[name][computed] for name in names]
    order = np.lexsort((placed.start[computed], *keys[::-1]))
    same = np.logical_and.reduce([np.diff(key[order]) == 0 for key in keys])
    rows = computed[order]
    number = 0
    for low in range(0, len(same), _ROWS_AT_A_TIME):
        linked = low + np.flatnonzero(same[low : low + _ROWS_AT_A_TIME])
        first, then = rows[linked], rows[linked + 1]
        # Within both slices, as an arrow belongs to the slice at its time.
        leaves = np.maximum(placed.end[first] - _NS_PER_US, placed.start[first])
        for values in zip(
            *(
                column.tolist()
                for column in (
                    placed.replica[first],
                    placed.tid[first],
                    leaves,
                    placed.replica[then],
                    placed.tid[then],
                    placed.start[then],
                )
            ),
            strict=True,
        ):
            number += 1
            yield _flow("s", number, *values[:3])
            yield _flow("f", number, *values[3:])


def _flow(end: str, number: int, replica: int, tid: int, tick: int) -> str:
    """One end of an arrow: ``s`` where it leaves a slice, ``f`` where it enters one."""
    bound = ',"bp":"e"' if end == "f" else ""
    return (
        f'{{"name":"resumed","cat":"resumed","ph":"{end}","id":{number},'
        f'"pid":{_FIRST_REPLICA_PID + replica},"tid":{tid},"ts":{_microseconds_text(tick)}{bound}}}'
    )


def _segment_columns(placed: _Placed, pid: int, rows: NDArray[np.int64]) -> Iterator[list[Any]]:
    """The values of `_SEGMENT`, a list each."""
    segments, start = placed.segments, placed.start[rows]
    queued = np.maximum(start - _ticks(segments["submitted_s"][rows]), 0)
    yield segments["group"][rows].tolist()
    yield segments["index"][rows].tolist()
    yield [pid] * len(rows)
    yield placed.tid[rows].tolist()
    for ticks in (start, placed.end[rows] - start):
        yield from (part.tolist() for part in np.divmod(ticks, _NS_PER_US))
    for name in _SEGMENT_ARGS.values():
        values = segments[name][rows].tolist()
        if name == "finished":
            values = ["true" if value else "false" for value in values]
        elif name == "outcome":
            values = [f'"{_OUTCOMES[value]}"' for value in values]
        elif name == "reward":
            values = [value if math.isfinite(value) else "null" for value in values]
        yield values
    yield from (part.tolist() for part in np.divmod(queued, _NS_PER_US))


def _counter(pid: int, name: str, unit: str, times: FloatArray, values: IntArray) -> Iterator[str]:
    for tick, value in zip(_ticks(times).tolist(), values.tolist(), strict=True):
        yield (
            f'{{"name":"{name}","ph":"C","pid":{pid},"ts":{_microseconds_text(tick)},'
            f'"args":{{"{unit}":{value}}}}}'
        )


def _process(pid: int, name: str, position: int) -> Iterator[str]:
    yield _json({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}})
    args = {"sort_index": position}
    yield _json({"name": "process_sort_index", "ph": "M", "pid": pid, "args": args})


def _thread(pid: int, tid: int, name: str) -> Iterator[str]:
    base = {"ph": "M", "pid": pid, "tid": tid}
    yield _json({"name": "thread_name", **base, "args": {"name": name}})
    yield _json({"name": "thread_sort_index", **base, "args": {"sort_index": tid}})


def _json(event: dict[str, Any]) -> str:
    return json.dumps(_finite(event), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """``value`` with None for nan and infinities."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NS_PER_S)


def _ticks(seconds: NDArray[Any]) -> NDArray[np.int64]:
    return np.rint(seconds * _NS_PER_S).astype(np.int64)


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _microseconds_text(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
