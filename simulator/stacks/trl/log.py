"""TRL's GRPOTrainer: ``trainer_state.json``, completions in parquet, TensorBoard, trackio, console.

Keys: trl/trainer/grpo_trainer.py and trl/extras/profiling.py (0.15 to 1.16), transformers'
``TrainerState``. Traps held here:

- ``step_time`` holds generation, forward and backward, not the optimiser; there are no phases but
  in trackio and wandb (``profiling/...``), which nest: they are taken apart, not added up;
- with several updates a generation, those that do not generate have no lengths;
- with ``logging_steps`` above 1, a row is the mean of a window (a mean of maxima);
- ``num_tokens`` is cumulative: prompts follow from its differences (`calibration.logs.gather`);
- an update is padded to the longest completion of the generation batch
  (``_generate_and_score_completions``);
- the same completions are written again for each update on them;
- profiling rows carry the number of updates done before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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
    real,
    whole,
)
from rollcast.simulator.stacks.settings import Settings
from rollcast.simulator.stacks.settings import whole as setting
from rollcast.simulator.stacks.syntax.python_text import flat

PROFILE = "profiling/Time taken: GRPOTrainer."
_GENERATE = tuple(
    f"{PROFILE}{name}"
    for name in ("vLLM.generate", "transformers.generate_batch", "transformers.generate")
)
_PREPARE, _LOSS = f"{PROFILE}_prepare_inputs", f"{PROFILE}compute_loss"
_METRICS = {
    "step_s": ("step_time", "perf/step_s"),
    "generation_s": _GENERATE,
    "wait_s": ("perf/rollout_wait_s", "queue_wait_time_s"),
    "reward_s": (f"{PROFILE}_calculate_rewards",),
    "sync_s": (f"{PROFILE}sync_weights", "perf/weight_sync_s", "weight_sync_time_s"),
    "update_s": ("perf/fwd_bwd_s",),
    "validation_s": ("eval_runtime",),
    "mean_new_tokens": ("completions/mean_length", "completion_length"),
    "max_new_tokens": ("completions/max_length",),
    "min_new_tokens": ("completions/min_length",),
    "mean_finished_tokens": ("completions/mean_terminated_length",),
    "truncated_share": ("completions/clipped_ratio",),
    "mean_reward": ("reward",),
    "reward_sd": ("reward_std",),
    "zero_spread_share": ("frac_reward_zero_std",),
    "mean_staleness": ("sample/staleness_mean",),
    "max_staleness": ("sample/staleness_max",),
}


_ROW = re.compile(r"\{'loss': ")


class _Lines(OneLine):
    """``{'loss': ..., 'reward': ...}``, which name no step: the rows are counted."""

    def __init__(self) -> None:
        self._step = 0

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """The row of a line."""
        match = _ROW.search(text)
        if match is None:
            return ()
        values, complete = flat(text[match.start() :])
        if not complete:
            raise RecordError("a printed mapping has no end")
        self._step += 1
        return (Metrics(self._step, values, line),)


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    return any("perf/rollout_wait_s" in row or "queue_wait_time_s" in row for row in rows)


def _derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    if overlapped:
        row.pop("generation_s", None)
    if _PREPARE in raw and "step_s" in row:
        # forward and backward are what step_time holds beside the inputs
        row["update_s"] = max(row["step_s"] - raw[_PREPARE], 0.0)
        inside = [row.get(name, 0.0) for name in ("generation_s", "reward_s", "sync_s")]
        row["log_prob_s"] = max(raw[_PREPARE] - sum(inside), 0.0)
    window = setting(settings, "run.logging_steps")
    if window is not None:
        row["logged_steps"] = float(window)
    if "step_s" in row and not overlapped:
        row["generates"] = float("mean_new_tokens" in row)
    batch = setting(settings, "run.batch_rollouts")
    if batch is None:
        parts = [
            setting(settings, f"run.{key}") for key in ("micro_batch_rollouts", "generation_every")
        ]
        one = setting(settings, "run.nodes") == 1
        batch = parts[0] * parts[1] if one and parts[0] and parts[1] else None
    if batch is not None and "mean_new_tokens" in row:
        row["rollouts"] = float(batch)


def _follow(rows: Sequence[tuple[Row, Raw]], settings: Settings) -> None:
    """Prompts, from the tokens seen so far, where each generation was logged."""
    if setting(settings, "run.logging_steps") not in (None, 1):
        return
    before = 0.0 if rows and rows[0][1].get("num_tokens", 0.0) and _starts(rows) else None
    for row, raw in rows:
        if "num_tokens" not in raw:
            continue
        rollouts, mean = row.get("rollouts"), row.get("mean_new_tokens")
        if before is not None and rollouts and mean is not None:
            prompt = (raw["num_tokens"] - before) / rollouts - mean
            if prompt >= 0:
                row["mean_prompt_tokens"] = prompt
        before = raw["num_tokens"]


def _starts(rows: Sequence[tuple[Row, Raw]]) -> bool:
    """Whether the first row is the run's first: its count is no more than the next one adds."""
    seen = [raw["num_tokens"] for _, raw in rows if "num_tokens" in raw]
    return len(seen) > 1 and seen[0] <= 3 * (seen[1] - seen[0])


def _fits(record: Record) -> bool:
    return {"step", "prompt", "completion"} <= record.keys()


_NO_REWARD = {"step", "prompt", "completion", "advantage", "completion_tokens", "images"}


def _rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    text, asked = record["completion"], record["prompt"]
    if isinstance(text, list):  # a conversation
        text = "".join(str(m.get("content") or "") for m in text if isinstance(m, dict))
    if not isinstance(text, str):
        raise RecordError("completion is no text")
    rewards = [real(item) for key, item in record.items() if key not in _NO_REWARD]
    known = [item for item in rewards if item is not None]
    columns = {
        "characters": float(len(text)),
        "new_tokens": real(record.get("completion_tokens")),
        "reward": sum(known) if known else None,
        "trained": 1.0,
    }
    yield Rollout(whole(record["step"], "step"), prompt=digest(asked), columns=columns, text=text)


LOG = StackLog(
    "trl",
    _METRICS,
    marks=(
        "completions/mean_length",
        "completions/clipped_ratio",
        "step_time",
        "sample/",
        "completion_length",
        PROFILE + "_prepare_inputs",
        *_GENERATE,
    ),
    also=(_PREPARE, _LOSS, "num_tokens"),
    start=rb"\{'loss': ",
    cue=b"{'loss': ",
    console=_Lines,
    dumps=(Dump(_fits, _rollouts, one_file_a_step=True),),
    overlapped=_overlapped,
    inside={"validation": False},
    derive=_derive,
    follow=_follow,
    console_counts=True,
    dumps_again=True,
    pads=True,
    exceeded="drop",
    how={
        1: "step_time is logged by TRL 0.26 and later; report_to=['trackio'] adds the phases",
        2: "log_completions=True with logging_steps=1 writes completions/*.parquet",
        3: "TRL writes no times of single requests",
    },
)
