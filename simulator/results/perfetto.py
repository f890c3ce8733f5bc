"""A run as Chrome trace events, for https://ui.perfetto.dev or ``chrome://tracing``.

Format: "Trace Event Format" (Chromium project), JSON object form. Times are microseconds, written
from whole nanoseconds, so that what does not overlap in a run does not overlap in the file either.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import asdict
from heapq import heappop, heappush
from os import PathLike
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from simulator.results.metrics import running_over_time
from simulator.spans import DROPPED, PENDING, TRAINED, Run, StepRecord

_FATES = {PENDING: "carried", TRAINED: "trained", DROPPED: "dropped"}
_NS_PER_S = 1e9
_STEPS_PID = 1
_FIRST_REPLICA_PID = 2
_ROWS_AT_A_TIME = 8192
_STAY_ARGS = (  # in the order of `_stay`'s parameters
    "group",
    "index",
    "attempt",
    "step",
    "version",
    "versions",
    "new_tokens",
    "total_tokens",
    "prompt_tokens",
    "prefill_tokens",
    "recomputed_tokens",
    "preemptions",
    "finished",
    "fate",
    "reward",
    "submitted_s",
)


def write_trace(run: Run, file: str | PathLike[str] | TextIO) -> None:
    """Writes a run's trace to a path or an open text file, event by event.

    One process a replica, with a thread for each rollout that runs at the same time (slices named
    ``g<group>/<index>``) and a counter of running rollouts; a process each for the trainer, the
    weight sync and the steps. A stay that was never computed is a slice of no length at its end.
    """
    if not hasattr(file, "write"):
        with open(file, "w", encoding="utf-8") as opened:
            write_trace(run, opened)
        return
    file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    separator = ""
    for event in _events(run):
        file.write(separator)
        file.write(event)
        separator = ",\n"
    file.write("\n]}\n")


def lanes(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """A lane for each of these intervals, such that no two in a lane overlap: in order of start,
    the lowest lane that is free, which needs no more lanes than ever run at once. starts rise."""
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
    trainer = _FIRST_REPLICA_PID + replicas
    phases = [phase for phase in run.phases if phase.kind != "rollout"]
    yield from _steps(run)
    for number in range(replicas):
        yield from _replica(run, number)
    for pid, track in ((trainer, "trainer"), (trainer + 1, "sync")):
        slices = [
            (p.kind, p.start_s, p.end_s, {"step": p.step, "tokens": p.tokens})
            for p in phases
            if p.track == track
        ]
        yield from _process(pid, track, pid)
        yield from _slices(pid, track, slices)


def _steps(run: Run) -> Iterator[str]:
    """A slice for each step, a slice for each rollout phase, and a marker at each step's end."""
    yield from _process(_STEPS_PID, "steps", _STEPS_PID)
    steps = [(f"step {r.step}", r.start_s, r.end_s, _step_args(r)) for r in run.steps]
    after = yield from _slices(_STEPS_PID, "step", steps)
    rollouts = [
        ("rollout", p.start_s, p.end_s, {"step": p.step, "tokens": p.tokens})
        for p in run.phases
        if p.kind == "rollout"
    ]
    yield from _slices(_STEPS_PID, "rollout phase", rollouts, first_tid=after)
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
    pid: int,
    thread: str,
    slices: Iterable[tuple[str, float, float, dict[str, Any]]],
    first_tid: int = 0,
) -> Generator[str, None, int]:
    """Slices on as many threads as they need; returns the next free thread."""
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
                "ph": "X",
                "pid": pid,
                "tid": first_tid + lane,
                "ts": _microseconds(start),
                "dur": _microseconds(end - start),
                "args": args,
            }
        )
    return first_tid + count


def _replica(run: Run, number: int) -> Iterator[str]:
    """Stays on lanes, then the counter. Written by hand: there can be half a million of them."""
    pid = _FIRST_REPLICA_PID + number
    yield from _process(pid, f"replica {number}", pid)
    stays = run.stays
    rows = np.flatnonzero(stays["replica"] == number)
    start, end = _ticks(stays["start_s"][rows]), _ticks(stays["end_s"][rows])
    order = np.lexsort((end, start))
    rows, start, end = rows[order], start[order], end[order]
    tids = lanes(start.tolist(), end.tolist())
    for tid in range(max(tids, default=-1) + 1):
        yield from _thread(pid, tid, f"slot {tid}")
    columns = [stays[name][rows] for name in _STAY_ARGS]
    for low in range(0, len(rows), _ROWS_AT_A_TIME):
        part = slice(low, low + _ROWS_AT_A_TIME)
        parts = [column[part].tolist() for column in columns]
        lists = zip(start[part].tolist(), end[part].tolist(), tids[part], *parts, strict=True)
        for values in lists:
            yield _stay(pid, *values)
    yield from _counter(run, number, pid)


def _stay(
    pid: int,
    start: int,
    end: int,
    tid: int,
    group: int,
    index: int,
    attempt: int,
    step: int,
    version: int,
    versions: int,
    new_tokens: int,
    total_tokens: int,
    prompt_tokens: int,
    prefill_tokens: int,
    recomputed_tokens: int,
    preemptions: int,
    finished: int,
    fate: int,
    reward: float,
    submitted_s: float,
) -> str:
    queued = max(0, start - _nanoseconds(submitted_s))
    return (
        f'{{"name":"g{group}/{index}","ph":"X","pid":{pid},"tid":{tid},'
        f'"ts":{_microseconds_text(start)},"dur":{_microseconds_text(end - start)},'
        f'"args":{{"attempt":{attempt},"step":{step},"version":{version},"versions":{versions},'
        f'"tokens":{new_tokens},"total_tokens":{total_tokens},"prompt_tokens":{prompt_tokens},'
        f'"prefill_tokens":{prefill_tokens},"recomputed_tokens":{recomputed_tokens},'
        f'"preemptions":{preemptions},"finished":{"true" if finished else "false"},'
        f'"fate":"{_FATES[fate]}","reward":{reward if math.isfinite(reward) else "null"},'
        f'"queued_us":{_microseconds_text(queued)}}}}}'
    )


def _counter(run: Run, number: int, pid: int) -> Iterator[str]:
    times, counts = running_over_time(run, number)
    for tick, count in zip(_ticks(times).tolist(), counts.tolist(), strict=True):
        yield (
            f'{{"name":"running rollouts","ph":"C","pid":{pid},"ts":{_microseconds_text(tick)},'
            f'"args":{{"rollouts":{count}}}}}'
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
    """The same without nan and infinities, which JSON does not know."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NS_PER_S)


def _ticks(seconds: NDArray[Any]) -> NDArray[np.int64]:
    return np.rint(seconds * _NS_PER_S).astype(np.int64)


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _microseconds_text(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
