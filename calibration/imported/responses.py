"""Rollouts that a log holds by themselves, as `calibration.responses` fits them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration import groups as measured_groups
from calibration import responses
from calibration.imported.batches import Batch
from calibration.imported.steps import Steps
from calibration.logs.run_log import RunLog
from simulator.errors import ScenarioError
from simulator.workload.measured import MeasuredGroups

if TYPE_CHECKING:
    import pandas as pd

FROM_LOG, FROM_TOKENIZER, FROM_CHARACTERS = "log", "tokenizer", "characters"
_GROUPS_PER_STEP = 256


@dataclass(frozen=True)
class Rollouts:
    """rollouts.csv with tokens of every response. tokens_from: `FROM_LOG`, or how text became
    tokens."""

    table: pd.DataFrame
    tokens_from: str

    def __len__(self) -> int:
        return len(self.table)


def rollouts_of(log: RunLog, steps: Steps, cap: int) -> Rollouts | None:
    """The rollouts trained on, with tokens. Where only text was kept, each response has as many
    tokens as its characters times what brings its step's mean to the logged one; None where that is
    not logged either, or lengths are missing."""
    table = log.rollouts
    if not len(table):
        return None
    table = table[table["trained"] != 0]
    known = table["new_tokens"].notna()
    if len(table) and known.all():
        if log.tokenized and table["characters"].notna().all():
            return _whole(_ended(table, log, cap), FROM_TOKENIZER)
        return _whole(table, FROM_LOG)
    if table.empty or not (known | table["characters"].notna()).all():
        return None
    logged = log.steps.set_index("step")["mean_new_tokens"]
    means = table.groupby("step")["characters"].mean()
    ratio = (logged.reindex(means.index) / means).replace([np.inf, 0.0], np.nan)
    if ratio.isna().all():
        return None
    ratio = ratio.fillna(ratio.median())
    scaled = table["characters"] * table["step"].map(ratio)
    tokens = table["new_tokens"].where(known, scaled.clip(upper=cap))
    return _whole(table.assign(new_tokens=tokens), FROM_CHARACTERS)


def _ended(table: pd.DataFrame, log: RunLog, cap: int) -> pd.DataFrame:
    """With the token that ends a response, which dumps leave out: where the logged means hold
    it."""
    logged = log.steps.set_index("step")["mean_new_tokens"]
    means = table.groupby("step")["new_tokens"].mean()
    off = (logged.reindex(means.index) - means).median()
    with_end = (table["new_tokens"] + 1).clip(upper=cap)
    return table.assign(new_tokens=with_end) if off > 0.5 else table


def _whole(table: pd.DataFrame, tokens_from: str) -> Rollouts | None:
    table = table[table["new_tokens"] >= 1]
    if table.empty:
        return None
    return Rollouts(
        table.assign(new_tokens=table["new_tokens"].round().astype("int64")), tokens_from
    )


def batches_of(found: Rollouts, steps: Steps, usual_prompt: int) -> list[Batch | None]:
    """The batch of each step; None for a step without rollouts."""
    by: dict[int, Batch] = {}
    prompts = found.table["prompt_tokens"].fillna(usual_prompt)
    for step, rows in found.table.groupby(found.table["step"].astype(int), sort=True):
        groups = rows.groupby("group")["new_tokens"].agg(tuple)
        asked = float(prompts.loc[rows.index].mean())
        by[int(str(step))] = Batch(max(round(asked), 1), tuple(groups))
    return [by.get(int(number)) for number in steps.number]


def as_responses(found: Rollouts, steps: Steps, cap: int, usual_prompt: int) -> responses.Responses:
    """The rollouts of ``steps``, each launched as many updates before the last as its step is."""
    places = {int(number): place for place, number in enumerate(steps.number)}
    table = found.table[found.table["step"].isin(places)]
    _, group = np.unique(table["group"].to_numpy(), return_inverse=True)
    tokens = table["new_tokens"].to_numpy(dtype=float)
    capped = (tokens >= cap) | (table["truncated"] == 1).to_numpy()
    launched = np.array([places[int(step)] for step in table["step"]], dtype=np.float64)
    launched -= len(steps) - 1
    return responses.Responses(
        group.astype(np.int64),
        tokens,
        table["prompt_tokens"].fillna(usual_prompt).clip(lower=1).to_numpy(dtype=float),
        np.ones(len(table), dtype=bool),
        capped,
        table["reward"].to_numpy(dtype=float),
        launched,
        cap,
    )


@dataclass(frozen=True)
class Fitted:
    """Lengths, rewards and groups that fit, as a fitted file holds them. notes: for the user."""

    lengths: dict[str, Any]
    rewards: dict[str, Any] | None
    groups: MeasuredGroups
    notes: tuple[str, ...]


def fit_rollouts(
    found: responses.Responses, steps_ahead: int, graded_too: bool = True
) -> Fitted | None:
    """None for too few groups. Groups are brought to the lengths of the log's end, and dealt evenly
    over the ``steps_ahead`` versions that a scenario has. graded_too: whether to fit rewards."""
    if found.groups < 2 or not len(found.tokens):
        return None
    notes: list[str] = []
    try:
        lengths = responses.lengths(found)
    except ScenarioError as error:
        notes.append(f"no log-normal was fitted to the rollouts: {error.message}")
        lengths = {"lengths": {"drift_per_step": 0.0}, "standard_errors": {}}
    graded = np.isfinite(found.reward)
    rewards = None
    if graded_too and graded.all() and "between_sd" in lengths["lengths"]:
        try:
            rewards = responses.rewards(found, lengths["lengths"])
        except ScenarioError as error:
            notes.append(f"no rewards were fitted: {error.message}")
    if not graded.all():
        notes.append("some rollouts have no reward: they count as 0")
        found = replace(found, reward=np.where(graded, found.reward, 0.0))
    drift = float(lengths["lengths"]["drift_per_step"])
    if drift:
        moved = np.rint(found.tokens * np.exp(-drift * found.launched)).clip(1, found.cap)
        found = replace(found, tokens=np.where(found.capped, found.cap, moved))
    groups = measured_groups.measured(found)
    count = len(groups)
    rounds = max(min(math.ceil(count / _GROUPS_PER_STEP), steps_ahead), 1)
    groups = replace(groups, version=tuple(i % rounds for i in range(count)))
    return Fitted(lengths, rewards, groups, tuple(notes))
