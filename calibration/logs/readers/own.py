"""Folders of our own runs, as ``rollcast run --out`` and ``simulate --out`` write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rollcast.simulator.results.phases import PHASE_COLUMNS
from rollcast.simulator.stacks.keys import Key
from rollcast.simulator.stacks.launch import Launch
from rollcast.simulator.stacks.log_format import (
    Dump,
    Origin,
    Raw,
    Record,
    Rollout,
    Row,
    StackLog,
    real,
    whole,
)
from rollcast.simulator.stacks.settings import Settings, meanings

_UPDATE = (PHASE_COLUMNS["update"], PHASE_COLUMNS["optimiser"])
_ROUNDING_S = 2e-6  # tables may be kept to the microsecond


def _overlapped(rows: Iterable[Raw], settings: Settings) -> bool:
    """Whether rollouts of a step began before the step before it had ended."""
    ends_s = 0.0
    for row in rows:
        if row.get("rollout_start_s", ends_s) < ends_s - _ROUNDING_S:
            return True
        ends_s = row.get("end_s", ends_s)
    return False


def _derive(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    """Takes what is no update out of updates, and of generation and wait the one
    that is not in a step's sum."""
    if _UPDATE[0] in raw:
        row["update_s"] = sum(raw[name] for name in _UPDATE)
    elif "log_prob_s" in row and "update_s" in row:
        row["update_s"] -= row["log_prob_s"]
    row.pop("generation_s" if overlapped else "wait_s", None)


def _first(rows: Sequence[tuple[Row, Raw]], settings: Settings) -> None:
    """The first step warms up."""
    if rows and rows[0][1].get("step_s") is not None:
        rows[0][0]["first"] = 1.0


def _rollout(record: Record, origin: Origin) -> Iterable[Rollout]:
    """Of a rollout's segments the last, which says what it came to."""
    if not record["finished"]:
        return
    trained = bool(record["trained"])
    numbers = {
        "prompt_tokens": real(record.get("prompt_tokens")),
        "new_tokens": real(record["total_tokens"]),
        "tool_tokens": real(record.get("observation_tokens")),
        "reward": real(record.get("reward")),
        "truncated": real(record.get("truncated")),
        "trained": float(trained),
    }
    yield Rollout(
        whole(record["trained_step" if trained else "step"], "step"),
        f"{whole(record['group'], 'group')}/{whole(record['attempt'], 'attempt')}",
        whole(record["index"], "index"),
        columns=numbers,
    )


LAUNCH = Launch(
    "key: value",
    {
        **{key: (Key(key=f"scenario.{key}"),) for key in meanings() if not key.startswith("run.")},
        "policy": (Key(key="policy_spelt"),),
    },
)

LOG = StackLog(
    "rollcast",
    {
        "step_s": ("step_s",),
        "generation_s": ("rollout_s",),
        "update_s": ("train_s",),
        "log_prob_s": (PHASE_COLUMNS["log_prob"], "log_prob_s"),
        **{
            f"{name}_s": (PHASE_COLUMNS[name],)
            for name in ("wait", "reward", "reference", "values")
        },
        "sync_s": ("sync_s",),
        "switch_s": ("switch_s",),
        "rollouts": ("trained_rollouts",),
        "groups": ("trained_groups",),
        "mean_reward": ("mean_reward",),
        "mean_staleness": ("mean_staleness",),
        "truncated_share": ("truncated_share",),
    },
    marks=("rollout_start_s", "computed_tokens"),
    also=("rollout_start_s", "end_s", "computed_tokens", *_UPDATE),
    dumps=(
        Dump(("trained_step", "attempt", "total_tokens", "submitted_s"), _rollout),
        Dump(("asked_s", "ended"), lambda record, origin: ()),  # environments.csv
    ),
    overlapped=_overlapped,
    derive=_derive,
    follow=_first,
    how={
        1: "steps.csv of a run's folder",
        2: "rollouts.csv of a run's folder",
        3: "rollcast calibrate reads the times of iterations",
    },
)
