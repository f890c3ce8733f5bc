"""Rollouts that a log holds by themselves, as `calibration.fits.responses` fits them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rollcast.calibration.fits import groups as measured_groups
from rollcast.calibration.fits import responses
from rollcast.calibration.fits.batches import Batch
from rollcast.calibration.fits.steps import Steps
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.workload.measured import MeasuredGroups

if TYPE_CHECKING:
    import pandas as pd

FROM_LOG, FROM_TOKENIZER, FROM_CHARACTERS = "log", "tokenizer", "characters"
_GROUPS_PER_STEP = 256
_SOME = 768


@dataclass(frozen=True)
class Rollouts:
    """rollouts.csv with the tokens of every response. tokens_from: `FROM_LOG` and the like."""

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
    """Adds the end token, which dumps leave out, where the logged means include it."""
    logged = log.steps.set_index("step")["mean_new_tokens"]
    means = table.groupby("step")["new_tokens"].mean()
    off = (logged.reindex(means.index) - means).median()
    with_end = (table["new_tokens"] + 1).clip(upper=cap)
    return table.assign(new_tokens=with_end) if off > 0.5 else table


def _whole(table: pd.DataFrame, tokens_from: str) -> Rollouts | None:
    table = table[table["new_tokens"] >= 1]
    if table.empty:
        return None
    tokens = table["new_tokens"].round().astype("int64")
    return Rollouts(table.assign(new_tokens=tokens), tokens_from)


def batches_of(rollouts: Rollouts, steps: Steps, usual_prompt: int) -> list[Batch | None]:
    """The batch of each step; None for a step without rollouts."""
    table = rollouts.table
    step, group = (table[name].to_numpy(dtype=np.int64) for name in ("step", "group"))
    order = np.lexsort((group, step))  # stable: within a group, as they were launched
    step, group = step[order], group[order]
    tokens = table["new_tokens"].to_numpy(dtype=np.int64)[order]
    prompts = table["prompt_tokens"].fillna(usual_prompt).to_numpy(dtype=float)[order]
    new_step = np.flatnonzero(np.diff(step, prepend=step[0] - 1))
    new_group = np.flatnonzero(np.diff(step, prepend=step[0] - 1) | np.diff(group, prepend=0))
    new_group = np.union1d(new_group, new_step)
    by: dict[int, Batch] = {}
    for start, end in zip(new_step, [*new_step[1:], len(step)], strict=True):
        cuts = new_group[(new_group > start) & (new_group < end)] - start
        groups = tuple(tuple(part.tolist()) for part in np.split(tokens[start:end], cuts))
        asked = max(round(float(prompts[start:end].mean())), 1)
        by[int(step[start])] = Batch(asked, groups)
    return [by.get(int(number)) for number in steps.number]


def as_responses(
    rollouts: Rollouts, steps: Steps, cap: int, usual_prompt: int
) -> responses.Responses:
    """The rollouts of ``steps``, each launched as many updates before the last as its step is."""
    places = {int(number): place for place, number in enumerate(steps.number)}
    table = rollouts.table[rollouts.table["step"].isin(places)]
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

    @property
    def some(self) -> MeasuredGroups:
        """A few of the groups, evenly over them, for draws by the dozen."""
        groups = self.groups
        if len(groups) <= _SOME:
            return groups
        return groups.only(np.linspace(0, len(groups) - 1, _SOME).round().astype(int).tolist())


def fit_rollouts(
    collected: responses.Responses, steps_ahead: int, graded_too: bool = True
) -> Fitted | None:
    """None for too few groups. Groups are brought to the lengths of the log's end, and dealt evenly
    over the ``steps_ahead`` versions that a scenario has. graded_too: whether to fit rewards."""
    if collected.groups < 2 or not len(collected.tokens):
        return None
    notes: list[str] = []
    try:
        lengths = responses.lengths(collected)
    except ScenarioError as error:
        notes.append(f"no log-normal was fitted to the rollouts: {error.message}")
        lengths = {"lengths": {"drift_per_step": 0.0}, "standard_errors": {}}
    graded = np.isfinite(collected.reward)
    rewards = None
    if graded_too and graded.all() and "between_sd" in lengths["lengths"]:
        try:
            rewards = responses.rewards(collected, lengths["lengths"])
        except ScenarioError as error:
            notes.append(f"no rewards were fitted: {error.message}")
    if not graded.all():
        notes.append("some rollouts have no reward: they count as 0")
        collected = replace(collected, reward=np.where(graded, collected.reward, 0.0))
    drift = float(lengths["lengths"]["drift_per_step"])
    if drift:
        moved = np.rint(collected.tokens * np.exp(-drift * collected.launched))
        moved = moved.clip(1, collected.cap)
        collected = replace(collected, tokens=np.where(collected.capped, collected.cap, moved))
    groups = measured_groups.measured(collected)
    count = len(groups)
    rounds = max(min(math.ceil(count / _GROUPS_PER_STEP), steps_ahead), 1)
    groups = replace(groups, version=tuple(i % rounds for i in range(count)))
    return Fitted(lengths, rewards, groups, tuple(notes))
