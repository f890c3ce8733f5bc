"""slime's console mappings and dumped samples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rollcast.simulator.stacks.consoles import PrintedMapping
from rollcast.simulator.stacks.log_format import (
    Metrics,
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
    tokens,
    total,
    whole,
)
from rollcast.simulator.stacks.settings import Settings, value

_LENGTHS = ("rollout/response_lengths", "rollout/total_lengths")


class Rows(PrintedMapping):
    """``perf N: {...}`` of two writers; of ``rollout N: {...}`` the lengths alone."""

    def end(self) -> Iterable[Metrics]:
        """The row of a mapping."""
        if not any(key.startswith("perf/") for key in self.values):
            self.values = {key: self.values[key] for key in _LENGTHS if key in self.values}
        return super().end()


def overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    """train_async.py: the trainer waits for less than the rollouts take."""
    if value(settings, "run.colocated") is True:
        return False
    waits = [
        (row["perf/train_wait_time"], row["perf/rollout_time"])
        for row in rows
        if "perf/train_wait_time" in row and "perf/rollout_time" in row
    ]
    return len(waits) > 2 and sum(wait < 0.9 * made for wait, made in waits[1:]) > len(waits) // 2


def derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    """Without overlap the trainer's wait is the generation."""
    if not overlapped and "generation_s" in row:
        row.pop("wait_s", None)


def rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    """The samples of a step."""
    if origin.of_validation:
        return
    step = whole(record["rollout_id"], "rollout_id")
    for sample in record["samples"]:
        if not isinstance(sample, Mapping):
            raise RecordError("a sample is no mapping")
        yield _one(sample, step)


def _one(sample: Mapping[str, Any], step: int) -> Rollout:
    """``response_length`` includes tokens written by tools, whose loss_mask is 0."""
    inside = tokens(sample.get("response_length"), "response_length")
    mask = sample.get("loss_mask")
    new = inside if mask is None else min(total(mask), inside)
    status = str(getattr(sample.get("status"), "value", sample.get("status")))
    reward = sample.get("reward")
    if isinstance(reward, Mapping):
        reward = next((item for item in reward.values() if real(item) is not None), None)
    versions = [
        int(v) for v in sample.get("weight_versions") or () if re.fullmatch(r"[0-9]{1,12}", str(v))
    ]
    group, index = sample.get("group_index"), sample.get("index")
    requests = tuple(_requests(sample.get("trace")))
    prompt = sample.get("prompt")
    return Rollout(
        step,
        None if group is None else whole(group, "group_index"),
        None if index is None else whole(index, "index"),
        None if prompt is None else digest(prompt),
        requests=requests,
        columns={
            "prompt_tokens": float(max(length(sample.get("tokens")) - inside, 0)),
            "new_tokens": float(new),
            "tool_tokens": float(inside - new),
            "reward": real(reward),
            "truncated": float(status == "truncated"),
            "turns": float(len(requests)) if requests else None,
            "first_version": float(versions[0]) if versions else None,
            "last_version": float(versions[-1]) if versions else None,
            "environment_s": real(sample.get("non_generation_time")),
            "trained": float(not sample.get("remove_sample") and status != "aborted"),
        },
    )


def _requests(trace: object) -> Iterable[Request]:
    """The pairs of start and end of ``sglang_generate`` in a sample's trace."""
    events = trace.get("events") if isinstance(trace, Mapping) else None
    begun: dict[object, float] = {}
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, Mapping) or event.get("name") != "sglang_generate":
            continue
        at, span = real(event.get("ts")), event.get("span_id")
        if at is None:
            continue
        if event.get("type") == "span_start":
            begun[span] = at
        elif event.get("type") == "span_end" and span in begun:
            given = event.get("attrs")
            attrs = given if isinstance(given, Mapping) else {}
            yield Request(
                begun.pop(span),
                at,
                real(attrs.get("prompt_tokens")),
                real(attrs.get("cached_tokens")),
                real(attrs.get("completion_tokens")),
                real(attrs.get("queue_time")),
            )
