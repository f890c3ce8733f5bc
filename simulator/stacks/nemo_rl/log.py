"""NeMo-RL: TensorBoard, console blocks, ``train_data_step*.jsonl``.

Keys: nemo_rl/algorithms/grpo.py (0.2 to 0.7). Traps held here:

- asynchronous runs time ``exposed_generation``, which is a wait;
- the dump is written in microbatches of one: every value is a list of length one;
- no group is named: the rollouts of a prompt follow each other;
- ``input_lengths`` is prompt and response; the response is where ``token_loss_mask`` is set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rollcast.simulator.stacks.log_format import (
    Dump,
    Metrics,
    Origin,
    Raw,
    Record,
    RecordError,
    Rollout,
    StackLog,
    digest,
    length,
    number_in,
    of_validation,
    real,
    tokens,
    total,
)
from rollcast.simulator.stacks.settings import Settings, value

_T = "timing/train/"
_METRICS = {
    "step_s": (f"{_T}total_step_time",),
    "generation_s": (f"{_T}generation",),
    "wait_s": (f"{_T}exposed_generation",),
    "reward_s": (f"{_T}reward_calculation",),
    "log_prob_s": (f"{_T}policy_and_reference_logprobs",),
    "advantage_s": (f"{_T}advantage_calculation",),
    "update_s": (f"{_T}policy_training",),
    "data_s": (f"{_T}data_processing",),
    "sync_s": (
        f"{_T}prepare_for_generation/transfer_and_update_weights",
        f"{_T}weight_sync",
        f"{_T}prepare_for_generation/total",
        f"{_T}prepare_for_generation",
    ),
    "checkpoint_s": (f"{_T}checkpointing",),
    "mean_new_tokens": ("train/mean_gen_tokens_per_sample", "mean_gen_tokens_per_sample"),
    "max_new_tokens": ("train/max_gen_tokens_per_sample",),
    "truncated_share": ("train/truncation_rate",),
    "mean_tool_tokens": ("train/mean_env_tokens_per_sample",),
    "mean_turns": ("train/avg_turns_per_sample",),
    "mean_reward": ("train/mean_total_reward", "train/reward"),
    "mean_staleness": ("train/avg_trajectory_age",),
    "total_tokens": ("train/total_num_tokens",),
}
_PREPARING = (f"{_T}data_processing", f"{_T}logprob_inference_prep", f"{_T}training_prep")
_SWITCHING = f"{_T}prepare_for_generation/total"
_SENDING = f"{_T}prepare_for_generation/transfer_and_update_weights"

_HEADER = re.compile(r"={3,} Step (\d{1,12})/\d+ ?={3,}")
_ENTRY = re.compile(
    r"\W{0,8}([A-Za-z][\w ./-]{0,100}): (-?[\d.]+(?:e[-+]?\d+)?|nan)(s(?: \(.*\))?)?\s*"
)
_WORDS = {
    "Total step time": f"{_T}total_step_time",
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
    "Avg Total Reward": "train/mean_total_reward",
    "Avg Reward": "train/mean_total_reward",
}


class _Blocks:
    """``=== Step 3/100 ===``, results, then ``Timing:`` with ``name: 12.34s (x%)``, one a line."""

    def __init__(self) -> None:
        self.open = False
        self._step = self._line = 0
        self._values: dict[str, float] = {}
        self._timing = False

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """A step, with the first line after its times."""
        match = _HEADER.search(text)
        if match:
            done = self._done()
            self.open, self._step, self._line = True, int(match[1]), line
            return done
        if not self.open:
            return ()
        if "Timing:" in text:
            self._timing = True
            return ()
        entry = _ENTRY.fullmatch(text)
        if entry is None:
            return self._done() if self._timing and text.strip() else ()
        name, figure, seconds = entry[1], entry[2], entry[3]
        if name in _WORDS:
            self._values[_WORDS[name]] = _figure(figure)
        elif self._timing and seconds:
            self._values[_T + name] = _figure(figure)
        elif self._timing:
            return self._done()
        return ()

    def close(self) -> Iterable[Metrics]:
        """The last block."""
        return self._done()

    def _done(self) -> Iterable[Metrics]:
        values, self._values = self._values, {}
        timed, self._timing = self._timing, False
        self.open = self.open and not timed
        return (Metrics(self._step, values, self._line),) if timed and values else ()


def _figure(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RecordError(f"{text} is no number") from None


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    return value(settings, "run.asynchronous") is True or any(
        f"{_T}exposed_generation" in row for row in rows
    )


def _fits(record: Record) -> bool:
    return "input_lengths" in record and "rewards" in record


def _rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    if of_validation(origin):
        return
    step = number_in(origin.name)
    if step is None:
        raise RecordError("no step in the file's name, as in train_data_step12.jsonl")
    lengths = _listed(record["input_lengths"])
    for at, inside in enumerate(lengths):
        mask, ids = _entry(record, "token_loss_mask", at), _entry(record, "token_ids", at)
        probs = _entry(record, "generation_logprobs", at)
        both = tokens(inside, "input_lengths")
        made = tool = None
        prompt = None
        if isinstance(mask, list):
            made = total(mask)
            first = next((i for i, flag in enumerate(mask) if flag), length(mask))
            tool = max(both - first - made, 0)
            if isinstance(ids, list):
                prompt = digest(ids[:first])
        elif isinstance(probs, list):
            made = sum(1 for p in probs if p)
        yield Rollout(
            step,
            prompt=prompt,
            columns={
                "new_tokens": None if made is None else float(made),
                "tool_tokens": None if tool is None else float(tool),
                "prompt_tokens": None if made is None else float(max(both - made - (tool or 0), 0)),
                "reward": real(_entry(record, "rewards", at)),
                "trained": real(_entry(record, "sample_loss_mask", at)),
            },
        )


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _entry(record: Record, key: str, at: int) -> Any:
    """Of the rollout ``at`` in the record; None where the record lacks it."""
    value = record.get(key)
    if not isinstance(value, list):
        return value
    return value[at] if at < len(value) else None


LOG = StackLog(
    "nemo_rl",
    _METRICS,
    marks=(_T, "train/mean_gen_tokens_per_sample"),
    sums={"data_s": _PREPARING},
    differences={"switch_s": (_SWITCHING, _SENDING)},
    start=rb"={3,} Step \d{1,12}/\d+ ?={3,}",
    cue=b"= Step ",
    console=_Blocks,
    dumps=(Dump(_fits, _rollouts, one_file_a_step=True),),
    overlapped=_overlapped,
    generation_waits=True,
    inside={"checkpoint": True},
    how={
        1: "logger.tensorboard_enabled=true, or the console, holds the phases",
        2: "train_data_step*.jsonl lies in the log folder, with token_loss_mask from 0.6 on",
        3: "NeMo-RL writes no times of single requests",
    },
)
