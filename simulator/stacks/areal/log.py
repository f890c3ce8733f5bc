"""AReaL's console tables, rollout dumps and sessions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rollcast.simulator.stacks.consoles import Block
from rollcast.simulator.stacks.log_format import (
    Metrics,
    Origin,
    Raw,
    Record,
    RecordError,
    Request,
    Rollout,
    Row,
    Session,
    digest,
    real,
    tokens,
    whole,
)
from rollcast.simulator.stacks.settings import Settings, value
from rollcast.simulator.stacks.syntax.scalars import PLAIN

_INSIDE = (
    *("generation_s", "log_prob_s", "reference_s", "values_s", "advantage_s", "update_s"),
    *("sync_s", "data_s", "checkpoint_s", "validation_s"),
)
_CELLS = re.compile(rf"[│|]\s*([A-Za-z][\w./@ -]*?)\s*[│|]\s*({PLAIN})\s*(?=[│|])")


class Table(Block):
    """``... Train step 3/2330 done``, then a table of ``│ key │ 3.1e+01 │ key │ ... │``."""

    def more(self, text: str) -> bool:
        """Reads the cells of a line."""
        self.values.update((key, float(figure)) for key, figure in _CELLS.findall(text))
        return bool(self.values) and ("╰" in text or "└" in text or not text.strip())

    def end(self) -> Iterable[Metrics]:
        """Consoles count steps from 1, the other sinks from 0."""
        return [Metrics(row.step - 1, row.values, row.line) for row in super().end()]


def overlapped(rows: Iterable[Raw], settings: Settings) -> bool | None:
    """Whether staleness is allowed."""
    bound = value(settings, "run.max_staleness")
    return bound > 0 if isinstance(bound, int | float) else None


def derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    """Its loop times every part of a step, one after another, and not their sum."""
    if "update_s" in row:
        row["step_s"] = sum(row[name] for name in _INSIDE if name in row)


def rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    """``head_version`` of a dump is left out: it is -1, the filling of tokens not sampled."""
    prompt, both = (tokens(record[key], key) for key in ("prompt_len", "seqlen"))
    if prompt > both:
        raise RecordError("prompt_len is more than seqlen")
    tail = whole(record.get("tail_version"), "tail_version")
    index = record.get("sample_idx")
    yield Rollout(
        tail,
        str(record["task_id"]),
        None if index is None else whole(index, "sample_idx"),
        None if record.get("prompt") is None else digest(record["prompt"]),
        columns={
            "prompt_tokens": float(prompt),
            "new_tokens": float(both - prompt),
            "reward": real(record.get("reward")),
            "last_version": float(tail),
            "trained": 1.0,
        },
    )


def session(record: Record, origin: Origin) -> Iterable[Session]:
    """The requests and tool calls of an accepted session."""
    phases = record.get("phases")
    requests = []
    tools_s = 0.0
    for name, phase in phases.items() if isinstance(phases, Mapping) else ():
        for piece in phase if isinstance(phase, list) else ():
            if not isinstance(piece, Mapping):
                raise RecordError("a phase is no mapping")
            start, end = real(piece.get("start_ts")), real(piece.get("end_ts"))
            if start is None or end is None:
                continue
            if name == "generate":
                requests.append(Request(start, end))
            elif name == "toolcall":
                tools_s += end - start
    if record.get("status") not in (None, "accepted"):
        return
    yield Session(
        str(record["task_id"]),
        str(record["session_id"]).rjust(20, "0"),
        tuple(sorted(requests, key=lambda request: request.start_s)),
        {"environment_s": tools_s, "turns": float(len(requests)) if requests else None},
    )
