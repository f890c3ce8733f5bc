"""AReaL: console tables, TensorBoard, rollout dumps and the session tracer.

Keys: areal/trainer/rl_trainer.py, utils/stats_logger.py, infra/workflow_executor.py and
utils/perf_tracer.py (0.5 to 1.0). Traps held here:

- ``timeperf/rollout`` is the wait for a batch wherever rollouts run ahead;
- ``head_version`` of the dump is the least over tokens that are filled with -1: it says nothing;
- the console counts steps from 1, the other sinks from 0;
- rows whose last token is not trained on are not dumped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rollcast.simulator.stacks.log_format import (
    Dump,
    Metrics,
    Origin,
    Raw,
    Record,
    RecordError,
    Request,
    Rollout,
    Row,
    Session,
    StackLog,
    digest,
    real,
    tokens,
    whole,
)
from rollcast.simulator.stacks.settings import Settings, value
from rollcast.simulator.stacks.syntax.numbers import PLAIN

_T = "timeperf/"
_METRICS = {
    "generation_s": (f"{_T}rollout",),
    "log_prob_s": (f"{_T}recompute_logp",),
    "reference_s": (f"{_T}ref_logp",),
    "values_s": (f"{_T}critic_values",),
    "advantage_s": (f"{_T}compute_advantage",),
    "update_s": (f"{_T}train_step",),
    "sync_s": (f"{_T}update_weights", f"{_T}sync_weights"),
    "checkpoint_s": (f"{_T}save",),
    "validation_s": (f"{_T}eval",),
    "data_s": (f"{_T}clear_batches",),
    "mean_reward": ("rollout/reward", "ppo_actor/task_reward/avg", "ppo_actor/reward/avg"),
    "mean_prompt_tokens": ("ppo_actor/prompt_len/avg",),
    "max_prompt_tokens": ("ppo_actor/prompt_len/max",),
    "min_prompt_tokens": ("ppo_actor/prompt_len/min",),
    "truncated_share": ("ppo_actor/no_eos_ratios/avg",),
    "rollouts": ("ppo_actor/n_seqs",),
}
_INSIDE = (
    "generation_s",
    "log_prob_s",
    "reference_s",
    "values_s",
    "advantage_s",
    "update_s",
    "sync_s",
    "data_s",
    "checkpoint_s",
    "validation_s",
)


_HEADER = re.compile(r"Train step (\d{1,12})/\d+ done")
_CELLS = re.compile(rf"[│|]\s*([A-Za-z][\w./@ -]*?)\s*[│|]\s*({PLAIN})\s*(?=[│|])")


class _Tables:
    """``... Train step 3/2330 done``, then a table of ``│ key │ 3.1e+01 │ key │ ... │``."""

    def __init__(self) -> None:
        self.open = False
        self._step = self._line = 0
        self._values: dict[str, float] = {}

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """A step, with the end of its table."""
        match = _HEADER.search(text)
        if match:
            done = self._done()
            self.open, self._step, self._line = True, int(match[1]) - 1, line
            return done
        if not self.open:
            return ()
        for key, figure in _CELLS.findall(text):
            self._values[key] = float(figure)
        ended = self._values and ("╰" in text or "└" in text or not text.strip())
        return self._done() if ended else ()

    def close(self) -> Iterable[Metrics]:
        """A table without its end is none."""
        self.open = False
        return ()

    def _done(self) -> Iterable[Metrics]:
        values, self._values, self.open = self._values, {}, False
        return (Metrics(self._step, values, self._line),) if values else ()


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool | None:
    bound = value(settings, "run.max_staleness")
    return bound > 0 if isinstance(bound, int | float) else None


def _derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    if "update_s" in row:  # its loop times every part of a step, one after another
        row["step_s"] = sum(row[name] for name in _INSIDE if name in row)


def _fits(record: Record) -> bool:
    return {"task_id", "seqlen", "prompt_len"} <= record.keys()


def _rollouts(record: Record, origin: Origin) -> Iterable[Rollout]:
    asked, both = (tokens(record[key], key) for key in ("prompt_len", "seqlen"))
    if asked > both:
        raise RecordError("prompt_len is more than seqlen")
    tail = whole(record.get("tail_version"), "tail_version")
    index = record.get("sample_idx")
    yield Rollout(
        tail,
        str(record["task_id"]),
        None if index is None else whole(index, "sample_idx"),
        None if record.get("prompt") is None else digest(record["prompt"]),
        columns={
            "prompt_tokens": float(asked),
            "new_tokens": float(both - asked),
            "reward": real(record.get("reward")),
            "last_version": float(tail),
            "trained": 1.0,
        },
    )


def _is_session(record: Record) -> bool:
    return {"task_id", "session_id", "submit_ts"} <= record.keys()


def _session(record: Record, origin: Origin) -> Iterable[Session]:
    phases = record.get("phases")
    requests = []
    spent = 0.0
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
                spent += end - start
    if record.get("status") not in (None, "accepted"):
        return
    yield Session(
        str(record["task_id"]),
        str(record["session_id"]).rjust(20, "0"),
        tuple(sorted(requests, key=lambda request: request.start_s)),
        {"environment_s": spent, "turns": float(len(requests)) if requests else None},
    )


LOG = StackLog(
    "areal",
    _METRICS,
    marks=(_T,),
    differences={"mean_new_tokens": ("ppo_actor/seq_len/avg", "ppo_actor/prompt_len/avg")},
    start=rb"Train step \d{1,12}/\d+ done",
    cue=b"Train step ",
    console=_Tables,
    dumps=(Dump(_fits, _rollouts), Dump(_is_session, _session)),
    overlapped=_overlapped,
    generation_waits=True,
    inside={"checkpoint": True, "validation": True},
    derive=_derive,
    exceeded="capacity",
    how={
        1: "the console's tables, or stats_logger.tensorboard, hold timeperf/*",
        2: "rollout.dump_to_file=true dumps the rollouts",
        3: "perf_tracer.session_tracer.enabled=true dumps the times of sessions",
    },
)
