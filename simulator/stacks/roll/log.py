"""ROLL's console lines, and its dumps: lines with a mapping of columns, responses as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rollcast.simulator.stacks.consoles import Parsed
from rollcast.simulator.stacks.log_format import (
    Origin,
    Raw,
    Record,
    RecordError,
    Rollout,
    digest,
    number_in,
    real,
    whole,
)
from rollcast.simulator.stacks.settings import Settings, value
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, parse
from rollcast.simulator.stacks.syntax.scalars import scalar


def row(text: str) -> Parsed:
    """``metrics_tag: {"step": N, "metrics": {...}}``."""
    try:
        data = parse(text)
    except NotJsonError as error:
        raise RecordError(str(error)) from None
    metrics = data.get("metrics") if isinstance(data, Mapping) else None
    if not isinstance(metrics, Mapping):
        raise RecordError("there are no metrics after metrics_tag")
    numbers = {key: scalar(item) for key, item in metrics.items()}
    values = {key: item for key, item in numbers.items() if item is not None}
    return whole(data.get("step"), "step"), values


def overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    """Whether staleness is allowed."""
    ratio = value(settings, "run.max_staleness")
    return isinstance(ratio, int | float) and ratio > 0


def rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    """One rollout an entry of the columns."""
    texts, scores = record["responses"], record["scores"]
    if not isinstance(texts, list) or not isinstance(scores, list) or len(texts) != len(scores):
        raise RecordError("responses and scores are no two lists of one length")
    prompts, steps = record.get("prompt"), record.get("global_step")
    for at, (text, score) in enumerate(zip(texts, scores, strict=True)):
        if not isinstance(text, str):
            raise RecordError("a response is no text")
        step = steps[at] if isinstance(steps, list) and at < len(steps) else number_in(origin.name)
        prompt = digest(prompts[at]) if isinstance(prompts, list) and at < len(prompts) else None
        yield Rollout(
            whole(step, "global_step"),
            prompt,
            prompt=prompt,
            columns={"characters": float(len(text)), "reward": real(score), "trained": 1.0},
            text=text,
        )
