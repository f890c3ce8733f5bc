"""Our own schema: CSV or JSON lines with the columns of `calibration.logs.columns`.

Steps: ``step`` and any other column of steps.csv. Rollouts: ``step``, ``group`` and at least one of
``new_tokens``, ``characters``, ``reward``. Requests: ``step``, ``group``, ``index``, ``turn``,
``start_s``, ``end_s``. Settings: YAML with the keys of a scenario and of `settings.meanings`. An
exported Weights & Biases history of one of the stacks needs no change, as its keys are the stack's;
docs/importing.md brings in any other in ten lines.
"""

from __future__ import annotations

from collections.abc import Iterable

from rollcast.calibration.logs import columns as ours
from rollcast.simulator.stacks.keys import Key
from rollcast.simulator.stacks.launch import Launch
from rollcast.simulator.stacks.log_format import (
    Dump,
    Origin,
    Raw,
    Record,
    RecordError,
    Request,
    Rollout,
    Session,
    StackLog,
    real,
    whole,
)
from rollcast.simulator.stacks.settings import Settings, meanings

_KEYS = ("step", "file", "line")
_METRICS = {name: (name,) for name in ours.STEPS.names if name not in _KEYS}
_OWN = tuple(n for n in ours.ROLLOUTS.names if n not in ("step", "group", "index"))
_ENOUGH = ("new_tokens", "characters", "reward")
"""Columns of rollouts, of which a table has one at least."""


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    return any(row.get("overlapped") == 1 for row in rows)


def _rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    index = record.get("index")
    numbers = {name: real(record.get(name)) for name in _OWN}
    for name in ("new_tokens", "prompt_tokens", "characters"):
        if (numbers[name] or 0.0) < 0:
            raise RecordError(f"{name} is negative")
    group = record["group"]
    yield Rollout(
        whole(record["step"], "step"),
        group if isinstance(group, int | str) else str(group),
        None if index is None else whole(index, "index"),
        columns=numbers,
    )


def _request(record: Record, origin: Origin) -> Iterable[Session]:
    start, end = real(record["start_s"]), real(record["end_s"])
    if start is None or end is None or end < start:
        raise RecordError("start_s and end_s are no times in order")
    asked, cached, new, queue, version = (
        real(record.get(name))
        for name in ("prompt_tokens", "cached_tokens", "new_tokens", "queue_s", "version")
    )
    group = record["group"]
    yield Session(
        group if isinstance(group, int | str) else str(group),
        f"{whole(record['index'], 'index'):020d}",
        (Request(start, end, asked, cached, new, queue, version),),
    )


LAUNCH = Launch("key: value", {key: (Key(key=key),) for key in meanings()})

LOG = StackLog(
    "table",
    _METRICS,
    marks=("step_s", "generation_s", "update_s", "mean_new_tokens"),
    dumps=(
        Dump(("step", "group", "index", "turn", "start_s", "end_s"), _request),
        *(Dump(("step", "group", column), _rollouts, lacks=("turn",)) for column in _ENOUGH),
    ),
    overlapped=_overlapped,
    how={
        1: "a table with step and step_s",
        2: "a table with step, group and new_tokens",
        3: "a table with step, group, index, turn, start_s and end_s",
    },
)
