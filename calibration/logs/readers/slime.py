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

from calibration.logs.readers.consoles import DictConsole
from calibration.logs.readers.stack import (
    Dump,
    Metrics,
    Origin,
    Raw,
    Record,
    RecordError,
    Request,
    Rollout,
    Row,
    Stack,
    digest,
    length,
    of_validation,
    real,
    tokens,
    total,
    whole,
)  # fmt: skip
from calibration.logs.settings import Settings, value

_METRICS = {
    "step_s": ("perf/step_time", "perf/total_train_time"),
    "generation_s": ("perf/rollout_time",),
    "wait_s": ("perf/train_wait_time",),
    "log_prob_s": ("perf/log_probs_time",),
    "reference_s": ("perf/ref_log_probs_time",),
    "update_s": ("perf/actor_train_time",),
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
_SLEEP = ("perf/sleep_time", "perf/wake_up_time")
_SETTINGS = {
    "model": ("hf-checkpoint", "hf_checkpoint"),
    "workload.batch_groups": ("rollout-batch-size", "rollout_batch_size"),
    "workload.group_size": ("n-samples-per-prompt", "n_samples_per_prompt"),
    "workload.max_new_tokens": ("rollout-max-response-len", "rollout_max_response_len"),
    "cluster.tensor_parallel": ("rollout-num-gpus-per-engine", "rollout_num_gpus_per_engine"),
    "run.rollout_gpus": ("rollout-num-gpus", "rollout_num_gpus"),
    "run.nodes": ("actor-num-nodes", "actor_num_nodes"),
    "run.gpus_per_node": ("actor-num-gpus-per-node", "actor_num_gpus_per_node"),
    "run.colocated": ("colocate",),
    "run.mini_batch_rollouts": ("global-batch-size", "global_batch_size"),
    "run.over_sampling_groups": ("over-sampling-batch-size", "over_sampling_batch_size"),
    "run.partial_rollout": ("partial-rollout", "partial_rollout"),
    "run.filter_groups": ("dynamic-sampling-filter-path", "dynamic_sampling_filter_path"),
    "run.gpu_memory_share": ("sglang-mem-fraction-static", "sglang_mem_fraction_static"),
    "engine.max_seqs": ("sglang-max-running-requests", "sglang_max_running_requests"),
    "run.dynamic_batches": ("use-dynamic-batch-size", "use_dynamic_batch_size"),
    "run.max_pass_tokens": ("max-tokens-per-gpu", "max_tokens_per_gpu"),
    "run.algorithm": ("advantage-estimator", "advantage_estimator"),
    "run.temperature": ("rollout-temperature", "rollout_temperature"),
    "run.steps": ("num-rollout", "num_rollout"),
    "run.max_prompt_tokens": ("rollout-max-prompt-len", "rollout_max_prompt_len"),
}


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
    slept = [raw[key] for key in _SLEEP if key in raw]
    if slept:
        row["switch_s"] = sum(slept)
    if "checkpoint_s" in row:
        row["checkpoint_inside"] = 0.0
    if _BOTH in raw and _OWN in raw:
        row["mean_prompt_tokens"] = max(raw[_BOTH] - raw[_OWN], 0.0)
    if "perf/train_time" in raw and "update_s" not in row:
        row["update_s"] = raw["perf/train_time"]


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
            said = event.get("attrs")
            attrs = said if isinstance(said, Mapping) else {}
            yield Request(
                begun.pop(span),
                at,
                real(attrs.get("prompt_tokens")),
                real(attrs.get("cached_tokens")),
                real(attrs.get("completion_tokens")),
                real(attrs.get("queue_time")),
            )


_ADVICE = {
    "april": (
        "--partial-rollout with --over-sampling-batch-size at 1.5 times --rollout-batch- "
        "size"
    ),
    "over_sampling": (
        "--over-sampling-batch-size at 1.25 times --rollout-batch-size, without "
        "--partial-rollout"
    ),
    "by_group": "a --rollout-function-path of your own",
    "one_step_off": "train_async.py in the place of train.py, without --colocate",
    "split_more": "--rollout-num-gpus up, --actor-num-gpus-per-node down",
    "split_fewer": "--rollout-num-gpus down, --actor-num-gpus-per-node up",
    "packing": "--use-dynamic-batch-size with --max-tokens-per-gpu",
}  # fmt: skip
"""Our what-ifs in settings of theirs."""

STACK = Stack(
    "slime",
    _METRICS,
    marks=("perf/rollout_time", "perf/train_wait_time", "perf/actor_train_time",
           "rollout/response_len/mean"),
    settings=_SETTINGS,
    also=(*_SLEEP, "perf/train_time", _OWN, _BOTH),
    start=rb"\b(?:perf|rollout) \d{1,12}: ?\{'",
    cue=b"{'",
    console=_Lines,
    dumps=(Dump(_fits, _rollouts, one_file_a_step=True),),
    overlapped=_overlapped,
    derive=_derive,
    outside=frozenset({"sync_s", "switch_s"}),
    advice=_ADVICE,
    how={
        1: "the console, or --use-tensorboard, holds 'perf N: {...}' of rollout and trainer",
        2: "--save-debug-rollout-data FOLDER/{rollout_id}.pt dumps the rollouts",
        3: "slime 0.2.4 and later put a trace into each dumped sample",
    },
    tool_tokens_inside=True,
)  # fmt: skip
