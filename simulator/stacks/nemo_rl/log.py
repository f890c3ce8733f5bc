"""NeMo-RL's console blocks and rollout dumps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from rollcast.simulator.stacks.consoles import Block
from rollcast.simulator.stacks.log_format import (
    Metrics,
    Origin,
    Raw,
    Record,
    RecordError,
    Rollout,
    Row,
    digest,
    length,
    number_in,
    real,
    tokens,
    total,
)
from rollcast.simulator.stacks.settings import Settings, whole_number

_ENTRY = re.compile(
    r"\W{0,8}([A-Za-z][\w ./-]{0,100}): (-?[\d.]+(?:e[-+]?\d+)?|nan)(s(?: \(.*\))?)?\s*"
)
_WORDS = {
    "Total step time": "timing/train/total_step_time",
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
    "Avg Total Reward": "train/mean_total_reward",
    "Avg Reward": "train/mean_total_reward",
    "Total validation time": "timing/train/validation",
}


class Timing(Block):
    """``=== Step 3/100 ===``, results, then ``Timing:`` with ``name: 12.34s (x%)``, one a line."""

    def __init__(self, start: str) -> None:
        super().__init__(start)
        self._timing = False

    def more(self, text: str) -> bool:
        """The first line after the times ends the block."""
        if "Timing:" in text and "Validation" not in text:  # a validation's come before
            self._timing = True
            return False
        entry = _ENTRY.fullmatch(text)
        if entry is None:
            return self._timing and bool(text.strip())
        name, figure, seconds = entry[1], entry[2], entry[3]
        if name in _WORDS:
            self.values[_WORDS[name]] = _number(figure)
        elif self._timing and seconds:
            self.values[f"timing/train/{name}"] = _number(figure)
        else:
            return self._timing
        return False

    def end(self) -> Iterable[Metrics]:
        """A block without times is no row."""
        timed, self._timing = self._timing, False
        if not timed:
            self.values = {}
        return super().end()

    def close(self) -> Iterable[Metrics]:
        """The last block."""
        return self.end()


def derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    """A mean response where only the tokens trained on are logged: those of the model."""
    trained, rollouts = raw.get("train/global_valid_toks"), raw.get("train/global_valid_seqs")
    if trained and rollouts:
        row.setdefault("mean_new_tokens", trained / rollouts)


_MODELS = {"qwen35_397b_grpo": "Qwen/Qwen3.5-397B-A17B"}
"""By benchmark (mlcommons/training, llm_post_training)."""
_SPLIT = "policy.generation.colocated"


def of_mlperf(said: Record, first: Raw, systems: int | None) -> Record:
    """GPUs by the throughput of each, those of the trainer by its layout and its passes: such runs
    generate on the others. Megatron trains."""
    found: dict[str, Any] = {"policy.megatron_cfg.enabled": True}
    if (model := _MODELS.get(str(said.get("submission_benchmark")))) is not None:
        found["policy.model_name"] = model
    each = first.get("valid_tokens_per_sec_per_gpu", 0.0) * first.get("train_step_time", 0.0)
    gpus = round(first.get("global_valid_toks", 0.0) / each) if each else 0
    if not gpus or not systems or gpus % systems:
        return found
    found |= {"cluster.num_nodes": systems, "cluster.gpus_per_node": gpus // systems}
    names = ("tensor_parallelism", "pipeline_parallelism", "context_parallelism")
    counts = [whole_number(said.get(name)) or 0 for name in names]
    batch = whole_number(said.get("global_batch_size")) or 0
    passes = whole_number(said.get("gradient_accumulation_steps")) or 0
    rows = passes * (whole_number(said.get("micro_batch_size")) or 0)
    trainer = batch // rows * math.prod(counts) if rows else 0
    if not trainer:
        return found
    beside, left = divmod(gpus - trainer, gpus // systems)
    if beside > 0 and not left:
        found |= {
            f"{_SPLIT}.enabled": False,
            f"{_SPLIT}.resources.num_nodes": beside,
            f"{_SPLIT}.resources.gpus_per_node": gpus // systems,
            "grpo.async_grpo.enabled": True,
        }
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RecordError(f"{text} is no number") from None


def rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    """Rollouts of a record, mostly lists of length one. No group is named. ``input_lengths`` is
    prompt and response; the response is where ``token_loss_mask`` is set."""
    if origin.of_validation:
        return
    step = number_in(origin.name)
    if step is None:
        raise RecordError("no step in the file's name, as in train_data_step12.jsonl")
    lengths = record["input_lengths"]
    for at, inside in enumerate(lengths if isinstance(lengths, list) else [lengths]):
        mask, ids = _entry(record, "token_loss_mask", at), _entry(record, "token_ids", at)
        probs = _entry(record, "generation_logprobs", at)
        both = tokens(inside, "input_lengths")
        new = tool = prompt = None
        if isinstance(mask, list):
            new = total(mask)
            first = next((i for i, flag in enumerate(mask) if flag), length(mask))
            tool = max(both - first - new, 0)
            if isinstance(ids, list):
                prompt = digest(ids[:first])
        elif isinstance(probs, list):
            new = sum(1 for p in probs if p)
        yield Rollout(
            step,
            prompt=prompt,
            columns={
                "new_tokens": None if new is None else float(new),
                "tool_tokens": None if tool is None else float(tool),
                "prompt_tokens": None if new is None else float(max(both - new - (tool or 0), 0)),
                "reward": real(_entry(record, "rewards", at)),
                "trained": real(_entry(record, "sample_loss_mask", at)),
            },
        )


def _entry(record: Record, key: str, at: int) -> Any:
    """The value of the rollout ``at``; None where the record lacks it."""
    value = record.get(key)
    if not isinstance(value, list):
        return value
    return value[at] if at < len(value) else None
