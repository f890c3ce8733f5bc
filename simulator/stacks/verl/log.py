"""verl: console, ``file`` logger, TensorBoard, ``rollout_data_dir``; V0, V1, one step off, fully
async.

Keys: verl/trainer/ppo/metric_utils.py, ray_trainer.py, v1/trainer_base.py and
experimental/fully_async_policy/detach_utils.py (releases 0.2 to 0.9.1, mid-2026). Traps held here:

- where rollouts are made beside the training, ``timing_s/gen`` is the trainer's wait;
- before ``update_weights`` was timed (0.7.1), the weights' way to the engine lies inside ``gen``;
- V0's step holds validation, V1's does not; both hold the checkpoint;
- ``response_length/clip_ratio`` counts those as long as the batch's longest, which is the cap only
  where a response reached it; ``response_length`` holds what tools wrote;
- V1 looks every two seconds whether its rollouts are done, from when its trainer waits for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rollcast.simulator.stacks.log_format import (
    Dump,
    Metrics,
    OneLine,
    Origin,
    Raw,
    Record,
    RecordError,
    Rollout,
    Row,
    StackLog,
    digest,
    number_in,
    of_validation,
    real,
    whole,
)
from rollcast.simulator.stacks.settings import Settings, value
from rollcast.simulator.stacks.settings import whole as setting
from rollcast.simulator.stacks.syntax.numbers import VALUE, number

_OFF = "training/off_policy/"
_AGENT = "timing_s/agent_loop/"
_METRICS = {
    "step_s": ("timing_s/step", "perf/time_per_step"),
    "generation_s": ("timing_s/gen", "timing/gen"),
    "engine_s": ("timing_s/generate_sequences",),
    "wait_s": ("timing_s/wait_for_enough_samples", "timing_s/wait_prev_gen"),
    "reward_s": ("timing_s/reward", "timing/reward"),
    "log_prob_s": ("timing_s/old_log_prob", "timing/old_log_prob"),
    "reference_s": ("timing_s/ref", "timing/ref"),
    "values_s": ("timing_s/values", "timing/values"),
    "advantage_s": ("timing_s/adv", "timing/adv"),
    "update_s": ("timing_s/update_actor", "timing/update_actor"),
    "critic_update_s": ("timing_s/update_critic", "timing/update_critic"),
    "sync_s": (
        "timing_s/update_weights",
        "timing_s/sync_rollout_weights",
        "timing_s/param_sync",
        "timing_s/timing_s/param_sync",
    ),
    "validation_s": ("timing_s/testing", "timing/testing"),
    "checkpoint_s": ("timing_s/save_checkpoint", "timing/save_checkpoint"),
    "mean_new_tokens": ("response_length/mean",),
    "max_new_tokens": ("response_length/max",),
    "min_new_tokens": ("response_length/min",),
    "truncated_share": ("response_length/clip_ratio",),
    "mean_prompt_tokens": ("prompt_length/mean",),
    "max_prompt_tokens": ("prompt_length/max",),
    "min_prompt_tokens": ("prompt_length/min",),
    "total_tokens": ("perf/total_num_tokens",),
    "mean_reward": ("critic/score/mean", "critic/rewards/mean"),
    "mean_turns": ("num_turns/mean", "training/num_turns/mean"),
    "max_turns": ("num_turns/max", "training/num_turns/max"),
    "mean_staleness": (f"{_OFF}trajectory_staleness/mean",),
    "max_staleness": (f"{_OFF}trajectory_staleness/max",),
    "mean_versions": (f"{_OFF}trajectory_spans/mean",),
    "dropped_rollouts": (f"{_OFF}evicted_samples", "fully_async/count/dropped_stale_samples"),
    "mean_request_s": (f"{_AGENT}generate_sequences/mean", "fully_async/processing_time/avg"),
    "max_request_s": (f"{_AGENT}generate_sequences/max", "fully_async/processing_time/max"),
    "min_request_s": (f"{_AGENT}generate_sequences/min", "fully_async/processing_time/min"),
    "slowest_request_s": (f"{_AGENT}slowest/generate_sequences",),
    "slowest_new_tokens": (f"{_AGENT}slowest/response_length",),
    "mean_environment_s": (f"{_AGENT}tool_calls/mean",),
    "max_environment_s": (f"{_AGENT}tool_calls/max",),
    "trainer_idle_share": ("fully_async/trainer/idle_ratio",),
    "rollout_idle_share": ("fully_async/rollouter/idle_ratio",),
    "tokens_per_gpu_s": ("perf/throughput",),
    "trainer_flop_share": ("perf/mfu/actor",),
}
_POLL_S = 2.0
"""V1's replay buffer (verl/trainer/ppo/v1/replay_buffer.py, ``poll_interval``, which no setting
changes)."""
_TURNS = ("timing_s/switch_to_trainer", "timing_s/switch_wait", "timing_s/switch_to_rollout")
_SIGNS = (
    "fully_async/count/current_param_version",
    "timing_s/generate_async",
    "timing_s/wait_prev_gen",
    "timing_s/wait_for_enough_samples",
    f"{_OFF}trajectory_spans/max",
    *_TURNS,
)

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"

_STEP = re.compile(r"\bstep:(\d{1,12}) - ")
_PAIR = re.compile(rf"(?P<key>\S.*?):\s*(?P<value>{VALUE}|None|True|False)\s*")


class _Lines(OneLine):
    """``step:N - key:value - key:value``."""

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """The row of a line."""
        match = _STEP.search(text)
        if match is None:
            return ()
        values, wrong = {}, ""
        for piece in text[match.end() :].split(" - "):
            pair = _PAIR.fullmatch(piece)
            plain = number(pair["value"]) if pair else None
            if pair and plain is not None:
                values[pair["key"]] = plain
            elif pair is None and ":" in piece and "/" in piece.partition(":")[0]:
                wrong = wrong or piece.partition(":")[0]
        if wrong in LOG.keys:
            raise RecordError(f"{wrong} is no number")
        return (Metrics(int(match[1]), values, line),) if values else ()


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    mode = value(settings, "run.mode")
    if value(settings, "run.v1") is not False and mode in ("colocate_async", "separate_async"):
        return True
    return any(
        row.get(f"{_OFF}trajectory_staleness/mean", 0) > 0
        or row.get(f"{_OFF}trajectory_spans/max", 0) > 1
        or any(key in row for key in _SIGNS if not key.startswith(_OFF))
        for row in rows
    )


def _derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    if overlapped:
        row.pop("engine_s", None)
    elif "generation_s" in row:
        row["sync_inside_generation"] = float("sync_s" not in row)
    v1 = any(key.startswith(_OFF) for key in raw)
    if v1:
        row["poll_s"] = _POLL_S
    if "validation_s" in row:
        row["validation_inside"] = float(
            not v1 and row["validation_s"] <= row.get("step_s", float("inf"))
        )
    tokens = row.get("mean_new_tokens", 0.0) + row.get("mean_prompt_tokens", 0.0)
    if "total_tokens" in row and "mean_prompt_tokens" in row and tokens > 0:
        row["rollouts"] = float(round(row["total_tokens"] / tokens))
    cap = setting(settings, "workload.max_new_tokens")
    if "truncated_share" in row and "max_new_tokens" in row:
        if cap is None:
            row["truncated_share_unsure"] = 1.0
        elif row["max_new_tokens"] < cap:
            row["truncated_share"] = 0.0
    if row.get("slowest_new_tokens", 0) < 0:
        del row["slowest_new_tokens"]


def _fits(record: Record) -> bool:
    return {"input", "output", "score"} <= record.keys() and "step" in record


def _rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    if of_validation(origin):
        return
    text, asked = record["output"], record["input"]
    if not isinstance(text, str) or not isinstance(asked, str):
        raise RecordError("input or output is no text")
    uid = record.get("uid")
    at = record["step"] if record["step"] is not None else number_in(origin.name)
    parts = uid.rsplit("_", 2) if isinstance(uid, str) else []
    prompt = digest(asked)
    columns = {"characters": float(len(text)), "reward": real(record["score"]), "trained": 1.0}
    yield Rollout(
        whole(at, "step"),
        parts[0] if len(parts) == 3 else prompt,
        int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() and len(parts[1]) < 9 else None,
        prompt,
        columns=columns,
        text=text,
    )


LOG = StackLog(
    "verl",
    _METRICS,
    marks=(
        "timing_s/gen",
        "timing_s/update_actor",
        "timing/gen",
        "timing/update_actor",
        "timing_s/step",
        "response_length/mean",
        "fully_async/",
    ),
    also=_SIGNS,
    start=rb"\bstep:\d{1,12} - ",
    cue=b"step:",
    console=_Lines,
    dumps=(Dump(_fits, _rollouts, one_file_a_step=True),),
    overlapped=_overlapped,
    sums={"switch_s": _TURNS},
    generation_waits=True,
    inside={"checkpoint": True},
    derive=_derive,
    how={
        1: "trainer.logger=['console','file'] writes the phases of each step",
        2: "trainer.rollout_data_dir=FOLDER dumps the rollouts",
        3: "verl writes no times of single requests",
    },
    tool_tokens_inside=True,
    exceeded="capacity",
)
