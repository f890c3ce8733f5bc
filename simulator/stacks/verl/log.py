"""verl's console lines and dumps, and what its keys do not say by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rollcast.simulator.stacks.consoles import Parsed
from rollcast.simulator.stacks.log_format import (
    Origin,
    Raw,
    Record,
    RecordError,
    Rollout,
    Row,
    digest,
    number_in,
    real,
    whole,
)
from rollcast.simulator.stacks.settings import Settings, value
from rollcast.simulator.stacks.settings import whole as setting
from rollcast.simulator.stacks.syntax.scalars import VALUE, number

_OFF = "training/off_policy/"
_OF_A_STEP = ("response_length/", "critic/score/")
"""Keys that stand before the times."""
_TIMED = ("timing_s/", "timing/")
_POLL_S = 2.0
"""V1's replay buffer (verl/trainer/ppo/v1/replay_buffer.py, ``poll_interval``, which no setting
changes; an exported sampler logs its own)."""
_PAIR = re.compile(rf"(?P<key>\S.*?):\s*(?P<value>{VALUE}|None|True|False)\s*")


def row(text: str) -> Parsed:
    """``step:N - key:value - key:value``. Raises RecordError where the line ends before its times:
    some sinks cut lines, of Weights & Biases at 4,096 characters."""
    values: dict[str, float | str] = {}
    last = ":"
    for piece in text.split(" - "):
        pair = _PAIR.fullmatch(piece)
        plain = number(pair["value"]) if pair else None
        if pair and plain is not None:
            values[pair["key"]] = plain
        elif pair is None and ":" in piece and "/" in piece.partition(":")[0]:
            values[piece.partition(":")[0]] = piece
        last = piece
    timed = any(key.startswith(_TIMED) for key in values)
    if not timed and (":" not in last or any(key.startswith(_OF_A_STEP) for key in values)):
        raise RecordError(f"it is cut off after {len(text)} characters, before its times")
    return (None, values) if values else None


def overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    """By the mode of V1's trainer, and by staleness."""
    mode = value(settings, "run.mode")
    if value(settings, "run.v1") is not False and mode in ("colocate_async", "separate_async"):
        return True
    return any(
        row.get(f"{_OFF}trajectory_staleness/mean", 0) > 0
        or row.get(f"{_OFF}trajectory_spans/max", 0) > 1
        for row in rows
    )


def derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    """What `log.yaml` lists as differing between releases and trainers."""
    if overlapped:
        row.pop("engine_s", None)
    elif "generation_s" in row:
        row["sync_inside_generation"] = float("sync_s" not in row)
    v1 = any(key.startswith(_OFF) for key in raw)
    if v1:
        row.setdefault("poll_s", _POLL_S)
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


def rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    """A rollout, whose ``uid``, if any, is ``prompt_index_attempt``."""
    if origin.of_validation:
        return
    text, prompt_text = record["output"], record["input"]
    if not isinstance(text, str) or not isinstance(prompt_text, str):
        raise RecordError("input or output is no text")
    uid = record.get("uid")
    step = record["step"] if record["step"] is not None else number_in(origin.name)
    parts = uid.rsplit("_", 2) if isinstance(uid, str) else []
    prompt = digest(prompt_text)
    columns = {"characters": float(len(text)), "reward": real(record["score"]), "trained": 1.0}
    yield Rollout(
        whole(step, "step"),
        parts[0] if len(parts) == 3 else prompt,
        int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() and len(parts[1]) < 9 else None,
        prompt,
        columns=columns,
        text=text,
    )
