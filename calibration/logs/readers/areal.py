"""AReaL: console tables, TensorBoard, rollout dumps and the session tracer.

Keys: areal/trainer/rl_trainer.py, utils/stats_logger.py, infra/workflow_executor.py and
utils/perf_tracer.py (0.5 to 1.0). Traps held here:

- ``timeperf/rollout`` is the wait for a batch wherever rollouts run ahead;
- ``head_version`` of the dump is the least over tokens that are filled with -1: it says nothing;
- the console counts steps from 1, the other sinks from 0;
- rows whose last token is not trained on are not dumped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from calibration.logs.formats.numbers import PLAIN
from calibration.logs.readers.stack import (
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
    Stack,
    digest,
    real,
    tokens,
    whole,
)  # fmt: skip
from calibration.logs.settings import Setting, Settings, value

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
_INSIDE = ("generation_s", "log_prob_s", "reference_s", "values_s", "advantage_s", "update_s",
           "sync_s", "data_s", "checkpoint_s", "validation_s")  # fmt: skip
_BOTH = "ppo_actor/seq_len/avg"
_SETTINGS = {
    "model": ("actor.path", "tokenizer_path"),
    "workload.batch_groups": ("train_dataset.batch_size",),
    "workload.group_size": ("gconfig.n_samples",),
    "workload.max_new_tokens": ("gconfig.max_new_tokens",),
    "run.max_staleness": ("rollout.max_head_offpolicyness",),
    "run.nodes": ("cluster.n_nodes",),
    "run.gpus_per_node": ("cluster.n_gpus_per_node",),
    "run.mode": ("allocation_mode",),
    "run.max_pass_tokens": ("actor.mb_spec.max_tokens_per_mb",),
    "run.iterations": ("actor.ppo_n_minibatches",),
    "run.temperature": ("gconfig.temperature",),
    "run.steps": ("total_train_steps",),
    "engine.max_seqs": ("sglang.max_running_requests", "vllm.max_num_seqs"),
}

_PART = re.compile(r"(?:[a-z]+[.:])?\(?(?:attn:)?((?:[dtpce]\d{1,5})+)(?:\|ffn:[a-z\d]+)?\)?")


def _implied(settings: Settings) -> Iterable[Setting]:
    """What ``allocation_mode`` says (areal/api/alloc_mode.py): ``sglang:d4t2+fsdp:d8`` is four
    engines of two GPUs, and a trainer on eight others; with ``|`` in the place of ``+``, on the
    same."""
    mode = settings.get("run.mode")
    found = re.fullmatch(
        rf"({_PART.pattern})([+|])({_PART.pattern})", str(value(settings, "run.mode"))
    )
    if mode is None or found is None:
        return
    engines, trainer = _sizes(found[2]), _sizes(found[5])
    yield mode.implies("cluster.replicas", engines["d"])
    yield mode.implies("cluster.tensor_parallel", engines["t"])
    yield mode.implies("cluster.trainer_gpus", math.prod(trainer[kind] for kind in "dtpc"))
    yield mode.implies("run.rollout_gpus", math.prod(engines[kind] for kind in "dtp"))
    yield mode.implies("run.colocated", found[3] == "|")


def _sizes(dims: str) -> dict[str, int]:
    return dict.fromkeys("dtpce", 1) | {k: int(n) for k, n in re.findall(r"([dtpce])(\d+)", dims)}


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
        found = _HEADER.search(text)
        if found:
            done = self._done()
            self.open, self._step, self._line = True, int(found[1]) - 1, line
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
    phases = [row[name] for name in _INSIDE if name in row]
    if "update_s" in row:
        row["step_s"] = sum(phases)  # its loop times every part of a step, one after another
    for flag in ("checkpoint", "validation"):
        if f"{flag}_s" in row:
            row[f"{flag}_inside"] = 1.0
    if overlapped and "generation_s" in row:
        row["wait_s"] = row.pop("generation_s")
    if _BOTH in raw and "mean_prompt_tokens" in row:
        row["mean_new_tokens"] = max(raw[_BOTH] - row["mean_prompt_tokens"], 0.0)


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
    for name, each in phases.items() if isinstance(phases, Mapping) else ():
        for piece in each if isinstance(each, list) else ():
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


_ADVICE = {
    "sync": "rollout.max_head_offpolicyness=0",
    "one_step_off": "rollout.max_head_offpolicyness=1",
}  # fmt: skip
"""Our what-ifs in settings of theirs."""

STACK = Stack(
    "areal",
    _METRICS,
    marks=(_T,),
    settings=_SETTINGS,
    also=(_BOTH,),
    start=rb"Train step \d{1,12}/\d+ done",
    cue=b"Train step ",
    console=_Tables,
    dumps=(Dump(_fits, _rollouts), Dump(_is_session, _session)),
    overlapped=_overlapped,
    implied=_implied,
    derive=_derive,
    advice=_ADVICE,
    how={
        1: "the console's tables, or stats_logger.tensorboard, hold timeperf/*",
        2: "rollout.dump_to_file=true dumps the rollouts",
        3: "perf_tracer.session_tracer.enabled=true dumps the times of sessions",
    },
)
