"""ROLL: ``metrics_tag: {...}`` on the console, TensorBoard, dumps of columns.

Keys: roll/pipeline/rlvr/rlvr_pipeline.py, agentic/ and utils/tracking.py (August 2026). Traps held
here: a dump is one line with a mapping of columns; its responses are text only;
``time/step_generate`` is a wait where ``async_generation_ratio`` is above 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rollcast.simulator.stacks.log_format import (
    Dump,
    Metrics,
    OneLine,
    Origin,
    Raw,
    Record,
    RecordError,
    Rollout,
    StackLog,
    digest,
    number_in,
    real,
    whole,
)
from rollcast.simulator.stacks.settings import Settings, value
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, parse
from rollcast.simulator.stacks.syntax.numbers import scalar

_T = "time/"
_METRICS = {
    "step_s": (f"{_T}step_total",),
    "generation_s": (f"{_T}step_generate", f"{_T}step_rollout"),
    "log_prob_s": (f"{_T}old_log_probs", f"{_T}old_log_probs_values"),
    "reference_s": (f"{_T}ref_log_probs_values", f"{_T}ref_log_probs"),
    "advantage_s": (f"{_T}step_adv", f"{_T}adv"),
    "update_s": (f"{_T}step_train",),
    "sync_s": (f"{_T}step_model_update",),
    "switch_s": (f"{_T}step_stop_server",),
    "mean_new_tokens": ("tokens/response_length/mean",),
    "max_new_tokens": ("tokens/response_length/max",),
    "min_new_tokens": ("tokens/response_length/min",),
    "mean_prompt_tokens": ("tokens/prompt_length/mean",),
    "max_prompt_tokens": ("tokens/prompt_length/max",),
    "min_prompt_tokens": ("tokens/prompt_length/min",),
    "mean_reward": ("critic/score/mean", "critic/rewards/mean"),
    "mean_environment_s": ("env/traj_time_step/mean",),
    "max_environment_s": ("env/traj_time_step/max",),
}


_TAG = re.compile(r"metrics_tag: (?=\{)")


class _Lines(OneLine):
    """``metrics_tag: {"step": N, "metrics": {...}}``."""

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """The row of a line."""
        match = _TAG.search(text)
        if match is None:
            return ()
        try:
            line_data = parse(text[match.end() :])
        except NotJsonError as error:
            raise RecordError(str(error)) from None
        metrics = line_data.get("metrics") if isinstance(line_data, Mapping) else None
        if not isinstance(metrics, Mapping):
            raise RecordError("there are no metrics after metrics_tag")
        numbers = {key: scalar(item) for key, item in metrics.items()}
        values = {key: item for key, item in numbers.items() if item is not None}
        return (Metrics(whole(line_data.get("step"), "step"), values, line),)


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    ratio = value(settings, "run.max_staleness")
    return isinstance(ratio, int | float) and ratio > 0


def _fits(record: Record) -> bool:
    return "responses" in record and "scores" in record


def _rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    texts, scores = record["responses"], record["scores"]
    if not isinstance(texts, list) or not isinstance(scores, list) or len(texts) != len(scores):
        raise RecordError("responses and scores are no two lists of one length")
    asked = record.get("prompt")
    steps = record.get("global_step")
    for at, (text, score) in enumerate(zip(texts, scores, strict=True)):
        if not isinstance(text, str):
            raise RecordError("a response is no text")
        step = steps[at] if isinstance(steps, list) and at < len(steps) else number_in(origin.name)
        prompt = digest(asked[at]) if isinstance(asked, list) and at < len(asked) else None
        yield Rollout(
            whole(step, "global_step"),
            prompt,
            prompt=prompt,
            columns={"characters": float(len(text)), "reward": real(score), "trained": 1.0},
            text=text,
        )


LOG = StackLog(
    "roll",
    _METRICS,
    marks=(f"{_T}step_total", f"{_T}step_train", f"{_T}step_model_update"),
    start=rb"metrics_tag: \{",
    cue=b"metrics_tag: ",
    console=_Lines,
    dumps=(Dump(_fits, _rollouts),),
    overlapped=_overlapped,
    generation_waits=True,
    how={
        1: "track_with: stdout or tensorboard holds time/*",
        2: "rollout_dump_dir dumps the rollouts",
        3: "ROLL writes no times of single requests",
    },
    tool_tokens_inside=True,
)
