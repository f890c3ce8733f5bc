"""ROLL: ``metrics_tag: {...}`` on the console, TensorBoard, dumps of columns.

Keys: roll/pipeline/rlvr/rlvr_pipeline.py, agentic/ and utils/tracking.py (August 2026). Traps held
here: a dump is one line with a mapping of columns; its responses are text only;
``time/step_generate`` is a wait where ``async_generation_ratio`` is above 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from calibration.logs.formats.json_text import NotJsonError, parse
from calibration.logs.formats.numbers import scalar
from calibration.logs.readers.stack import (
    Dump,
    Metrics,
    OneLine,
    Origin,
    Raw,
    Record,
    RecordError,
    Rollout,
    Row,
    Stack,
    digest,
    number_in,
    real,
    whole,
)  # fmt: skip
from calibration.logs.settings import Setting, Settings, value
from calibration.logs.settings import whole as setting

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
_SETTINGS = {
    "model": ("pretrain", "actor_infer.model_args.model_name_or_path"),
    "workload.batch_groups": ("rollout_batch_size",),
    "workload.group_size": ("num_return_sequences_in_group",),
    "workload.max_new_tokens": ("response_length",),
    "run.max_prompt_tokens": ("prompt_length",),
    "run.max_staleness": ("async_generation_ratio",),
    "run.gpus_per_node": ("num_gpus_per_node",),
    "run.max_total_tokens": ("sequence_length",),
    "run.micro_batch_rollouts": (
        "actor_train.training_args.per_device_train_batch_size",),
    "run.gradient_accumulation": (
        "actor_train.training_args.gradient_accumulation_steps",),
    "cluster.tensor_parallel": (
        "actor_infer.strategy_args.strategy_config.tensor_parallel_size",),
    "run.gpu_memory_share": (
        "actor_infer.strategy_args.strategy_config.gpu_memory_utilization",),
    "run.engine": ("actor_infer.strategy_args.strategy_name",),
    "run.strategy": ("actor_train.strategy_args.strategy_name",),
    "run.algorithm": ("adv_estimator",),
    "run.steps": ("max_steps",),
    "run.trainer_devices": ("actor_train.device_mapping",),
    "run.rollout_devices": ("actor_infer.device_mapping",),
}  # fmt: skip

_RANGE = re.compile(r"list\(range\((?:(\d{1,6}),)?(\d{1,6})\)\)|\[([\d,]{1,5000})\]")


def _devices(text: object) -> frozenset[int]:
    """Of a ``device_mapping``, which is Python that is not run: ``list(range(0,8))``, a list of
    numbers, or a sum of these; none for any other."""
    found: set[int] = set()
    for part in str(text).replace(" ", "").replace("])", "]").replace("([", "[").split("+"):
        one = _RANGE.fullmatch(part)
        if one is None:
            return frozenset()
        if one[3] is None:
            found.update(range(int(one[1] or 0), int(one[2])))
        else:
            found.update(int(number) for number in one[3].split(",") if number)
    return frozenset(found)


def _implied(settings: Settings) -> Iterable[Setting]:
    """The device mappings name the GPUs of either role; nothing says how many nodes there are."""
    trainer, engines = (settings.get(f"run.{name}_devices") for name in ("trainer", "rollout"))
    if trainer is None or engines is None:
        return
    trains, rolls = _devices(trainer.value), _devices(engines.value)
    if not trains or not rolls:
        return
    tensor = setting(settings, "cluster.tensor_parallel") or 1
    yield engines.implies("cluster.replicas", max(len(rolls) // tensor, 1))
    yield engines.implies("run.rollout_gpus", len(rolls))
    yield trainer.implies("cluster.trainer_gpus", len(trains))
    yield engines.implies("run.colocated", not trains.isdisjoint(rolls))


_TAG = re.compile(r"metrics_tag: (?=\{)")


class _Lines(OneLine):
    """``metrics_tag: {"step": N, "metrics": {...}}``."""

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """The row of a line."""
        found = _TAG.search(text)
        if found is None:
            return ()
        try:
            said = parse(text[found.end() :])
        except NotJsonError as error:
            raise RecordError(str(error)) from None
        metrics = said.get("metrics") if isinstance(said, Mapping) else None
        if not isinstance(metrics, Mapping):
            raise RecordError("there are no metrics after metrics_tag")
        numbers = {key: scalar(item) for key, item in metrics.items()}
        values = {key: item for key, item in numbers.items() if item is not None}
        return (Metrics(whole(said.get("step"), "step"), values, line),)


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    ratio = value(settings, "run.max_staleness")
    return isinstance(ratio, int | float) and ratio > 0


def _derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    if overlapped and "generation_s" in row:
        row["wait_s"] = row.pop("generation_s")


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


_ADVICE = {
    "sync": "async_generation_ratio: 0",
    "one_step_off": "async_generation_ratio: 1",
}  # fmt: skip
"""Our what-ifs in settings of theirs."""

STACK = Stack(
    "roll",
    _METRICS,
    marks=(f"{_T}step_total", f"{_T}step_train", f"{_T}step_model_update"),
    settings=_SETTINGS,
    start=rb"metrics_tag: \{",
    cue=b"metrics_tag: ",
    console=_Lines,
    dumps=(Dump(_fits, _rollouts),),
    overlapped=_overlapped,
    implied=_implied,
    derive=_derive,
    advice=_ADVICE,
    how={
        1: "track_with: stdout or tensorboard holds time/*",
        2: "rollout_dump_dir dumps the rollouts",
        3: "ROLL writes no times of single requests",
    },
    tool_tokens_inside=True,
)
