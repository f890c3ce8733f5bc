"""prime-rl's two writers, console lines and traces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from rollcast.simulator.stacks.consoles import Parsed
from rollcast.simulator.stacks.log_format import (
    Origin,
    Raw,
    Record,
    RecordError,
    Request,
    Rollout,
    Row,
    digest,
    length,
    real,
    whole,
)
from rollcast.simulator.stacks.settings import Settings
from rollcast.simulator.values.readers import SECONDS

_TRAINER = (
    *("time/wait_for_batch", "time/forward_backward", "time/load_data"),
    *("time/broadcast_weights", "perf/throughput"),
)
_ORCHESTRATOR = (
    *("time/pack", "time/wait_for_policy", "time/generate_completions", "time/wait_for_ckpt"),
    "off_policy/mean",
)
_SHARED = ("time/step", "time/save_ckpt")
_DURATION = re.compile(r"([\d.]{1,12})(ms|[smhd])")
_STEP = re.compile(rf"\s*(?:Time: )?((?:{_DURATION.pattern} ?){{1,2}})\s*\| (.*)")
_PARTS = (
    (re.compile(r"Seq\. Length: ([\d.]+) tokens"), "seq_len/mean", 1),
    (re.compile(r"Reward:? (-?[\d.]+)"), "reward/mean", 1),
    (re.compile(r"Truncation:? ([\d.]+)%"), "is_truncated/mean", 100),
    (re.compile(r"Trainable \d+/(\d+)"), "shipped", 1),
    (re.compile(r"Turns:? ([\d.]+)"), "train/agg/effective/num_turns/mean", 1),
    (re.compile(r"Max\.? Off-Policy(?: Level:)? (\d+)"), "off_policy/max", 1),
)


def named(values: Raw) -> Raw:
    """Puts the name of its writer before the keys that trainer and orchestrator share."""
    if values.keys().isdisjoint(_SHARED):
        return values
    trainer = any(key in values for key in _TRAINER)
    orchestrator = any(key in values for key in _ORCHESTRATOR) or any(
        key.startswith(("train/agg/", "progress/", "dispatcher/")) for key in values
    )
    if trainer == orchestrator:
        return values
    writer = "trainer:" if trainer else "orchestrator:"
    return {f"{writer}{key}" if key in _SHARED else key: item for key, item in values.items()}


def row(text: str) -> Parsed:
    """``Step 7 |  1m 13s | Reward ... | Trainable 96/128 (75.0%) | ...``: of the trainer where it
    names a loss, else of the orchestrator. Before 2026 ``Time: 73.8s``. (`step_message` of
    prime_rl/trainer/rl/train.py, `head` of orchestrator/orchestrator.py.)"""
    match = _STEP.match(text)
    if match is None:
        return None
    told = match[match.re.groups]
    trainer = "Loss" in told or "Grad" in told
    try:
        seconds = sum(float(n) * SECONDS[unit] for n, unit in _DURATION.findall(match[1]))
        if trainer:
            return None, {"trainer:time/step": seconds}
        values = {"orchestrator:time/step": seconds}
        for form, key, scale in _PARTS:
            part = form.search(told)
            if part:
                values[key] = float(part[1]) / scale
    except ValueError:
        raise RecordError("a figure of the step is no number") from None
    return None, values


def overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    """Always."""
    return True


def derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    """``perf/mfu`` is in per cent."""
    if "perf/mfu" in raw:
        row["trainer_flop_share"] = raw["perf/mfu"] / 100


def rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    """The traces of an episode, or a single trace."""
    if "eval" in origin.folders:
        return
    traces = record.get("traces")
    episode = record if isinstance(traces, list) else {}
    step = _step(record, origin)
    group = _below(record, "group", "id")
    for at, trace in enumerate(traces if isinstance(traces, list) else [record]):
        if not isinstance(trace, Mapping):
            raise RecordError("a trace is no mapping")
        name = trace.get("id") or (episode.get("id"), at)
        trained = None if "all" in origin.folders else 1.0
        yield _one(trace, step, group, name, trained)


def _step(record: Record, origin: Origin) -> int:
    for folder in reversed(origin.folders):
        if folder.startswith("step_") and folder[5:].isdecimal() and len(folder) < 16:
            return int(folder[5:])
    return whole(_below(record, "run", "work", "step"), "run.work.step")


def _below(record: Any, *keys: str) -> Any:
    for key in keys:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


def _one(
    trace: Mapping[str, Any], step: int, group: Any, name: Any, trained: float | None
) -> Rollout:
    requests = tuple(_requests(trace.get("calls")))
    nodes = trace.get("nodes")
    new: float | None = None
    if any(r.new_tokens is not None for r in requests):
        new = sum(r.new_tokens or 0.0 for r in requests)
    elif isinstance(nodes, list):
        sampled = (n for n in nodes if isinstance(n, Mapping) and n.get("sampled"))
        new = float(sum(length(n.get("token_ids") or ()) for n in sampled))
    tool = gaps = 0.0
    for before, after in pairwise(requests):
        gaps += max(after.start_s - before.end_s, 0.0)
        had = (before.prompt_tokens or 0.0) + (before.new_tokens or 0.0)
        tool += max((after.prompt_tokens or 0.0) - had, 0.0)
    versions = [r.version for r in requests if r.version is not None]
    columns: dict[str, float | None] = {
        "new_tokens": new,
        "reward": _reward(trace.get("rewards"), trace.get("reward")),
        "truncated": _cut(trace),
        "trained": trained,
    }
    if requests:
        columns |= {
            "prompt_tokens": requests[0].prompt_tokens,
            "tool_tokens": tool,
            "turns": float(len(requests)),
            "environment_s": gaps,
        }
    if versions:
        columns |= {"first_version": min(versions), "last_version": max(versions)}
    return Rollout(
        step,
        None if group is None else str(group),
        identity=str(name),
        prompt=None if trace.get("task") is None else digest(trace["task"]),
        requests=requests,
        columns=columns,
    )


def _reward(rewards: object, single: object) -> float | None:
    if not isinstance(rewards, Mapping):
        return real(single)
    parts = []
    for entry in rewards.values():
        score = real(entry.get("score") if isinstance(entry, Mapping) else entry)
        weight = real(entry.get("weight", 1.0)) if isinstance(entry, Mapping) else 1.0
        if score is not None and weight is not None:
            parts.append(score * weight)
    return sum(parts) if parts else None


def _cut(trace: Mapping[str, Any]) -> float | None:
    calls, stop = trace.get("calls"), trace.get("stop_condition")
    last = calls[-1] if isinstance(calls, list) and calls else None
    reason = last.get("finish_reason") if isinstance(last, Mapping) else None
    if reason is None and stop is None:
        return None
    return float(reason == "length" or (isinstance(stop, str) and "length" in stop))


def _requests(calls: object) -> Iterable[Request]:
    """``usage.prompt_tokens`` leaves out cached tokens."""
    requests = []
    for call in calls if isinstance(calls, list) else ():
        if not isinstance(call, Mapping):
            raise RecordError("a call is no mapping")
        start, end = (real(_below(call, "time", key)) for key in ("start", "end"))
        if start is None or end is None:
            continue
        cached = real(_below(call, "usage", "cached_input_tokens"))
        fresh = real(_below(call, "usage", "prompt_tokens"))
        policy = call.get("policy")
        version = policy if not isinstance(policy, Mapping) else policy.get("start")
        requests.append(
            Request(
                start,
                end,
                None if fresh is None else fresh + (cached or 0.0),
                cached,
                real(_below(call, "usage", "completion_tokens")),
                None,
                real(version),
            )
        )
    return sorted(requests, key=lambda request: request.start_s)
