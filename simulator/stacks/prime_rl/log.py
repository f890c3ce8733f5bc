"""prime-rl: ``metrics.jsonl`` of trainer and orchestrator, ``traces.jsonl`` with episodes.

Keys: prime_rl/trainer/rl/train.py, orchestrator/orchestrator.py and metrics.py, monitors/file.py;
traces: verifiers/v1/episode.py, trace.py, graph.py (0.6 to after 0.8, August 2026). Traps held
here:

- trainer and orchestrator write one file, both with ``time/step``: told apart by what else is in
  the row;
- rollouts are always made beside the training;
- ``usage.prompt_tokens`` leaves out cached tokens; ``train/all`` holds more than was trained on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from rollcast.simulator.stacks.log_format import (
    Dump,
    Metrics,
    OneLine,
    Origin,
    Raw,
    Record,
    RecordError,
    Request,
    Rollout,
    Row,
    StackLog,
    digest,
    length,
    real,
    whole,
)
from rollcast.simulator.stacks.settings import Settings

_TRAINER = (
    "time/wait_for_batch",
    "time/forward_backward",
    "time/load_data",
    "time/broadcast_weights",
    "perf/throughput",
)
_ORCHESTRATOR = (
    "time/pack",
    "time/wait_for_policy",
    "time/generate_completions",
    "time/wait_for_ckpt",
    "off_policy/mean",
)
_OURS, _THEIRS = "trainer:time/step", "orchestrator:time/step"
_SAVED, _SAVED_TOO = "trainer:time/save_ckpt", "orchestrator:time/save_ckpt"
_SHARED = {"time/step": (_OURS, _THEIRS), "time/save_ckpt": (_SAVED, _SAVED_TOO)}
_TOKENS = "num_output_tokens"
_METRICS = {
    "step_s": (_OURS,),
    "wait_s": ("time/wait_for_batch",),
    "data_s": ("time/load_data",),
    "update_s": ("time/forward_backward",),
    "sync_s": ("time/broadcast_weights", "time/update_weights"),
    "checkpoint_s": (_SAVED,),
    "orchestrator_step_s": (_THEIRS,),
    "rollout_wait_s": ("time/wait_for_policy", "time/wait_for_ckpt"),
    "mean_staleness": ("off_policy/mean",),
    "max_staleness": ("off_policy/max",),
    "dropped_rollouts": ("off_policy/dropped",),
    "mean_new_tokens": (
        f"train/agg/effective/{_TOKENS}/mean",
        f"train/agg/all/{_TOKENS}/mean",
        "seq_len/mean",
    ),
    "max_new_tokens": (f"train/agg/effective/{_TOKENS}/max", f"train/agg/all/{_TOKENS}/max"),
    "min_new_tokens": (f"train/agg/effective/{_TOKENS}/min", f"train/agg/all/{_TOKENS}/min"),
    "mean_prompt_tokens": ("train/agg/effective/num_input_tokens/mean",),
    "mean_turns": ("train/agg/effective/num_turns/mean", "train/agg/all/num_turns/mean"),
    "max_turns": ("train/agg/effective/num_turns/max", "train/agg/all/num_turns/max"),
    "mean_reward": ("train/agg/effective/reward/mean", "reward/mean"),
    "truncated_share": ("is_truncated/mean",),
    "tokens_per_gpu_s": ("perf/throughput_per_gpu",),
}


def apart(values: Raw) -> Raw:
    """The row with the keys that both processes use named after the one that wrote it."""
    if not _SHARED.keys() & values.keys():
        return values
    trainer = any(key in values for key in _TRAINER)
    orchestrator = any(key in values for key in _ORCHESTRATOR) or any(
        key.startswith(("train/agg/", "progress/", "dispatcher/")) for key in values
    )
    if trainer == orchestrator:
        return values
    return {
        (_SHARED[key][0 if trainer else 1] if key in _SHARED else key): item
        for key, item in values.items()
    }


_STEP = re.compile(r"\bStep (\d{1,12}) \| (?:Time: )?([\d.]+)s \| (.*)")
_PARTS = (
    (re.compile(r"Seq\. Length: ([\d.]+) tokens"), "seq_len/mean"),
    (re.compile(r"Reward:? (-?[\d.]+)"), "reward/mean"),
    (re.compile(r"Truncation:? ([\d.]+)%"), "is_truncated/mean"),
)


class _Lines(OneLine):
    """``Step 7 | 73.8s | Reward ... | Seq. Length: 5120 tokens/sample | ...``: of the trainer where
    it names a loss, else of the orchestrator."""

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """The row of a line."""
        match = _STEP.search(text)
        if match is None:
            return ()
        trainer = "Loss" in match[3] or "Grad" in match[3]
        values = {}
        try:
            values[_OURS if trainer else _THEIRS] = float(match[2])
            for form, key in _PARTS:
                part = form.search(match[3])
                if part and not trainer:
                    values[key] = float(part[1]) / (100 if key.startswith("is_") else 1)
        except ValueError:
            raise RecordError("a figure of the step is no number") from None
        return (Metrics(int(match[1]), values, line),)


def _always(rows: Iterable[Raw], settings: Settings) -> bool:
    return True


def _derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    if "perf/mfu" in raw:  # in per cent
        row["trainer_flop_share"] = raw["perf/mfu"] / 100


def _fits(record: Record) -> bool:
    return isinstance(record.get("traces"), list) or ("calls" in record and "nodes" in record)


def _rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
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
    made: float | None = None
    if any(r.new_tokens is not None for r in requests):
        made = sum(r.new_tokens or 0.0 for r in requests)
    elif isinstance(nodes, list):
        made = float(
            sum(
                length(n.get("token_ids") or ())
                for n in nodes
                if isinstance(n, Mapping) and n.get("sampled")
            )
        )
    tool = gaps = 0.0
    for before, after in pairwise(requests):
        gaps += max(after.start_s - before.end_s, 0.0)
        had = (before.prompt_tokens or 0.0) + (before.new_tokens or 0.0)
        tool += max((after.prompt_tokens or 0.0) - had, 0.0)
    rewards = trace.get("rewards")
    stop = trace.get("stop_condition")
    versions = [r.version for r in requests if r.version is not None]
    return Rollout(
        step,
        None if group is None else str(group),
        identity=str(name),
        prompt=None if trace.get("task") is None else digest(trace["task"]),
        requests=requests,
        columns={
            "prompt_tokens": requests[0].prompt_tokens if requests else None,
            "new_tokens": made,
            "tool_tokens": tool if requests else None,
            "reward": _reward(rewards, trace.get("reward")),
            "truncated": _cut(trace, stop),
            "turns": float(len(requests)) if requests else None,
            "first_version": min(versions) if versions else None,
            "last_version": max(versions) if versions else None,
            "environment_s": gaps if requests else None,
            "trained": trained,
        },
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


def _cut(trace: Mapping[str, Any], stop: object) -> float | None:
    calls = trace.get("calls")
    last = calls[-1] if isinstance(calls, list) and calls else None
    reason = last.get("finish_reason") if isinstance(last, Mapping) else None
    if reason is None and stop is None:
        return None
    return float(reason == "length" or (isinstance(stop, str) and "length" in stop))


def _requests(calls: object) -> Iterable[Request]:
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


LOG = StackLog(
    "prime_rl",
    _METRICS,
    marks=(
        _OURS,
        _THEIRS,
        "time/wait_for_batch",
        "time/forward_backward",
        "time/wait_for_policy",
        "time/pack",
    ),
    also=("perf/mfu", "time/step", "time/save_ckpt", *_TRAINER, *_ORCHESTRATOR),
    start=rb"\bStep \d{1,12} \| ",
    cue=b"Step ",
    console=_Lines,
    dumps=(Dump(_fits, _rollouts),),
    named=apart,
    overlapped=_always,
    inside={"checkpoint": True},
    derive=_derive,
    exceeded="drop",
    how={
        1: "metrics.jsonl lies in the run's folder (monitor.file, on by default since August 2026)",
        2: "rollouts/step_N/train/*/traces.jsonl lies in the run's folder",
        3: "traces.jsonl holds the times of each call",
    },
)
