"""slime and its forks: ``perf N: {...}`` on the console, TensorBoard, dumps of ``torch.save``.

Keys: slime/observability/rollout_metrics.py, train_metric_utils.py; samples: slime/utils/types.py
and trace_utils.py (0.1.0 to 0.3.1). Traps held here:

- a step has two rows, the rollout manager's and the trainer's, and a third, ``rollout N: {...}``
  (log_utils.py), which alone tells how long prompts are;
- ``perf/step_time`` (``total_train_time`` in 0.1) is the wait and the training, without the way of
  the weights and sleep;
- ``response_length`` holds what tools wrote (loss_mask 0).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rollcast.simulator.stacks.consoles import DictConsole
from rollcast.simulator.stacks.log_format import (
    Dump,
    Metrics,
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
    of_validation,
    real,
    tokens,
    total,
    whole,
)
from rollcast.simulator.stacks.settings import Settings, value

_METRICS = {
    "step_s": ("perf/step_time", "perf/total_train_time"),
    "generation_s": ("perf/rollout_time",),
    "wait_s": ("perf/train_wait_time",),
    "log_prob_s": ("perf/log_probs_time",),
    "reference_s": ("perf/ref_log_probs_time",),
    "update_s": ("perf/actor_train_time", "perf/train_time"),
    "data_s": ("perf/data_preprocess_time",),
    "sync_s": ("perf/update_weights_time",),
    "checkpoint_s": ("perf/save_model_time",),
    "mean_new_tokens": ("rollout/response_len/mean", "rollout/response_lengths"),
    "median_new_tokens": ("rollout/response_len/median",),
    "max_new_tokens": ("rollout/response_len/max",),
    "min_new_tokens": ("rollout/response_len/min",),
    "truncated_share": ("rollout/truncated_ratio",),
    "mean_reward": ("rollout/raw_reward",),
    "slowest_tokens_per_s": ("perf/longest_sample_tokens_per_sec",),
    "mean_environment_s": ("perf/non_generation_time/mean",),
    "max_environment_s": ("perf/non_generation_time/max",),
    "mean_request_s": ("perf/request/e2e_latency/mean",),
    "max_request_s": ("perf/request/e2e_latency/max",),
    "min_request_s": ("perf/request/e2e_latency/min",),
    "tokens_per_gpu_s": ("perf/tokens_per_gpu_per_sec",),
}
_OWN, _BOTH = "rollout/response_lengths", "rollout/total_lengths"


class _Lines(DictConsole):
    """``perf N: {...}`` of two writers; of ``rollout N: {...}`` the lengths alone: the rest is what
    the others say, averaged otherwise."""

    def __init__(self) -> None:
        super().__init__(r"\b(?:perf|rollout) (?P<step>\d{1,12}): ?(?=\{)")

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """The row of a line."""
        for row in super().feed(line, text):
            if any(key.startswith("perf/") for key in row.values):
                yield row
            elif lengths := {k: row.values[k] for k in (_OWN, _BOTH) if k in row.values}:
                yield Metrics(row.step, lengths, row.line)


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    """train_async.py: the trainer waits for less than the rollouts take."""
    if value(settings, "run.colocated") is True:
        return False
    waits = [
        (row["perf/train_wait_time"], row["perf/rollout_time"])
        for row in rows
        if "perf/train_wait_time" in row and "perf/rollout_time" in row
    ]
    return len(waits) > 2 and sum(wait < 0.9 * made for wait, made in waits[1:]) > len(waits) // 2


def _derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    if not overlapped and "generation_s" in row:
        row.pop("wait_s", None)  # the same time, seen from the trainer


def _fits(record: Record) -> bool:
    return "rollout_id" in record and isinstance(record.get("samples"), list)


def _rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    if of_validation(origin):
        return
    step = whole(record["rollout_id"], "rollout_id")
    for sample in record["samples"]:
        if not isinstance(sample, Mapping):
            raise RecordError("a sample is no mapping")
        yield _one(sample, step)


def _one(sample: Mapping[str, Any], step: int) -> Rollout:
    inside = tokens(sample.get("response_length"), "response_length")
    mask = sample.get("loss_mask")
    made = inside if mask is None else min(total(mask), inside)
    status = str(getattr(sample.get("status"), "value", sample.get("status")))
    reward = sample.get("reward")
    if isinstance(reward, Mapping):
        reward = next((item for item in reward.values() if real(item) is not None), None)
    versions = [
        int(v) for v in sample.get("weight_versions") or () if re.fullmatch(r"[0-9]{1,12}", str(v))
    ]
    group, index = sample.get("group_index"), sample.get("index")
    requests = tuple(_requests(sample.get("trace")))
    asked = sample.get("prompt")
    return Rollout(
        step,
        None if group is None else whole(group, "group_index"),
        None if index is None else whole(index, "index"),
        None if asked is None else digest(asked),
        requests=requests,
        columns={
            "prompt_tokens": float(max(length(sample.get("tokens")) - inside, 0)),
            "new_tokens": float(made),
            "tool_tokens": float(inside - made),
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


LOG = StackLog(
    "slime",
    _METRICS,
    marks=(
        "perf/rollout_time",
        "perf/train_wait_time",
        "perf/actor_train_time",
        "rollout/response_len/mean",
    ),
    sums={"switch_s": ("perf/sleep_time", "perf/wake_up_time")},
    differences={"mean_prompt_tokens": (_BOTH, _OWN)},
    start=rb"\b(?:perf|rollout) \d{1,12}: ?\{'",
    cue=b"{'",
    console=_Lines,
    dumps=(Dump(_fits, _rollouts, one_file_a_step=True),),
    overlapped=_overlapped,
    inside={"checkpoint": False},
    derive=_derive,
    outside=frozenset({"sync_s", "switch_s"}),
    how={
        1: "the console, or --use-tensorboard, holds 'perf N: {...}' of rollout and trainer",
        2: "--save-debug-rollout-data FOLDER/{rollout_id}.pt dumps the rollouts",
        3: "slime 0.2.4 and later put a trace into each dumped sample",
    },
    tool_tokens_inside=True,
)
