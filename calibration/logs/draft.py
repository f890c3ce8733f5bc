"""The parts of a scenario that a log gives: a pure function of a `RunLog`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.parts import Part, nobody, setting_part
from rollcast.simulator.launches.run_parts import cluster_parts, model_part, policy_part
from rollcast.simulator.workload.known_lengths import KnownLengths, Sampled
from rollcast.simulator.workload.length_problem import solved
from rollcast.simulator.workload.length_specs import DrawnLengths

if TYPE_CHECKING:
    import pandas as pd


LENGTHS_FILE = "lengths.csv"
BETWEEN_SD, WITHIN_SD = 0.65, 0.30
"""Spreads of log lengths, assumed where no rollouts are dumped: about those of four runs with dumps
(between prompts 0.63 to 0.73, within 0.25 to 0.38)."""
_GROUP = 8
"""Rollouts of a prompt, as most logs have it."""
_REWARD_SD = 0.3
_MOST_STEPS = 60


def draft(log: RunLog, given: Iterable[Part] = ()) -> tuple[Part, ...]:
    """The parts of a scenario, in the order in which it is written; those that are ``given`` stand
    before what the log says. Every key that a scenario needs is there, with None where neither
    gives a value and none can be assumed honestly (``model``, ``gpu``)."""
    by_key = {part.key: part for part in given}
    poll_s = log.steps["poll_s"].median()
    parts = [
        Part("name", log.name, "of the log"),
        by_key.get("model") or model_part(log.settings, "log"),
        by_key.get("gpu") or setting_part(log.settings, "gpu") or nobody("gpu", "gpus", "log"),
        *cluster_parts(log.settings, log.overlapped, "log"),
        *(
            setting_part(log.settings, f"engine.{key}")
            for key in ("max_seqs", "max_batched_tokens", "kv_tokens", "prefix_caching")
        ),
        *_workload(log),
        policy_part(log.settings, log.overlapped, log.stack, log.fully_async),
        Part("poll_s", float(poll_s), f"polling interval of {log.stack}'s trainer")
        if poll_s > 0
        else None,
        Part("steps", min(max(len(log.steps), 1), _MOST_STEPS), f"the log holds {len(log.steps)}"),
        Part("seed", 0, "assumed", True),
    ]
    return tuple(part for part in parts if part is not None)


def lengths_table(log: RunLog) -> pd.DataFrame | None:
    """The trace of complete groups that were trained on: group, index, prompt_tokens, new_tokens,
    and reward where all have one. None where the tokens of some rollout are not known."""
    table = log.rollouts
    if not len(table) or table["new_tokens"].isna().any() or (table["new_tokens"] < 1).all():
        return None
    kept = table[(table["trained"] != 0) & (table["new_tokens"] >= 1)]
    sizes = kept.groupby("group")["index"].transform("size")
    size = int(sizes.mode().iloc[0]) if len(kept) else 0
    kept = kept[sizes == size]
    if kept.empty:
        return None
    prompt = kept["prompt_tokens"]
    kept = kept.assign(
        prompt_tokens=kept.groupby("group")["prompt_tokens"]
        .transform("first")
        .fillna(max(round(float(prompt.median())), 1) if prompt.notna().any() else _prompt(log)[0])
        .clip(lower=1)
        .round()
        .astype("int64"),
        new_tokens=kept["new_tokens"].round().astype("int64"),
    )
    columns = ["group", "index", "prompt_tokens", "new_tokens"]
    rewards = kept["reward"].notna().all()
    return kept[[*columns, "reward"] if rewards else columns].reset_index(drop=True)


# Parts


def _workload(log: RunLog) -> list[Part]:
    steps = log.steps
    size = setting_part(log.settings, "workload.group_size")
    if size is None and len(log.rollouts):
        sizes = log.rollouts.groupby("group").size()
        size = Part("workload.group_size", int(sizes.mode().iloc[0]), "the dumped groups")
    size = size or Part("workload.group_size", _divides(log), "assumed", True)
    cap, longest = (
        setting_part(log.settings, "workload.max_new_tokens"),
        steps["max_new_tokens"].max(),
    )
    if cap is None and math.isnan(longest):
        cap = Part("workload.max_new_tokens", 16384, "assumed", True)
    elif cap is None:
        tokens, source = max(math.ceil(longest), 1), "assumed: the longest response of the log"
        cap = Part("workload.max_new_tokens", tokens, source, True)
    parts = [_batch(log, int(size.value)), size, cap]
    table = lengths_table(log)
    if table is not None:
        source = f"{table['group'].nunique()} groups dumped by the run"
        parts.append(Part("workload.lengths.trace", LENGTHS_FILE, source))
        parts.append(Part("workload.lengths.repeat", True, "a longer run starts over"))
        return parts
    parts.append(Part("workload.prompt_tokens", *_prompt(log)))
    parts.extend(_drawn(log, int(cap.value)))
    reward = steps["mean_reward"].mean()
    if 0 < reward < 1:
        parts += [
            Part("workload.rewards.family", "beta_bernoulli", "assumed", True),
            Part("workload.rewards.mean", round(float(reward), 4), "mean reward of the steps"),
            Part("workload.rewards.between_sd", _reward_sd(float(reward)), "assumed", True),
        ]
    return parts


def _reward_sd(mean: float) -> float:
    """The scenario's default, where a share of so much can spread so far."""
    return round(min(_REWARD_SD, 0.6 * math.sqrt(mean * (1 - mean))), 4)


def _divides(log: RunLog) -> int:
    """A usual size of a group, or the largest below it of which the batch, if known, is a multiple:
    a batch of four is no group of eight."""
    batch = _rollouts(log) or _Rollouts(0, "")
    return next(size for size in range(_GROUP, 0, -1) if batch.number % size == 0)


class _Rollouts(NamedTuple):
    """Of a step, and where from."""

    number: int
    source: str


def _rollouts(log: RunLog) -> _Rollouts | None:
    """As a setting or the median step has them, or as many as the digits of mean lengths tell."""
    if (part := setting_part(log.settings, "run.batch_rollouts")) is not None:
        return _Rollouts(int(part.value), part.source)
    trained = log.steps["rollouts"].median()
    if not math.isnan(trained):
        return _Rollouts(round(trained), "rollouts of the median step")
    window = log.steps["logged_steps"].max()
    updates = 1 if math.isnan(window) else int(window)
    counted = responses_of_means(log.steps["mean_new_tokens"].to_numpy(dtype=float))
    if counted is None or counted % updates or counted < _FEWEST * updates:
        return None
    several = f" in {updates} updates" if updates > 1 else ""
    source = f"mean lengths in steps of 1/{counted} token: those of {counted} responses{several}"
    return _Rollouts(counted // updates, source)


def _batch(log: RunLog, size: int) -> Part:
    """Prompts of a step."""
    key = "workload.batch_groups"
    if (part := setting_part(log.settings, key)) is not None:
        return part
    groups = log.steps["groups"].median()
    if not math.isnan(groups) and "run.batch_rollouts" not in log.settings:
        return Part(key, max(round(groups), 1), "groups of the median step")
    if (rollouts := _rollouts(log)) is None:
        return Part(key, 32, "assumed", True)
    source = f"{rollouts.source}, over the group's size"
    return Part(key, max(round(rollouts.number / size), 1), source)


def _prompt(log: RunLog) -> tuple[int, str, bool]:
    """A prompt's tokens, where from, and whether assumed."""
    mean = log.steps["mean_prompt_tokens"].median()
    if not math.isnan(mean):
        return max(round(mean), 1), "mean of the median step", False
    return 512, "assumed", True


def _drawn(log: RunLog, cap: int) -> list[Part]:
    """Lengths of a log-normal distribution that have the run's mean once they are cut, with assumed
    spreads."""
    key = "workload.lengths"
    mean = float(log.steps["mean_new_tokens"].mean())
    source = f"the mean of the steps' means, {mean:.0f}, under the assumed spreads"
    if math.isnan(mean) or mean < 1:
        mean, source = cap / 4, "assumed: a quarter of the cap, at the mean"
    median = _median(mean, cap)
    return [
        Part(f"{key}.family", "lognormal", "assumed", True),
        Part(f"{key}.median_tokens", round(median, 1), source, "assumed:" in source),
        Part(f"{key}.between_sd", BETWEEN_SD, "assumed", True),
        Part(f"{key}.within_sd", WITHIN_SD, "assumed", True),
    ]


def _median(mean: float, cap: int) -> float:
    """Of lengths whose mean is this after the cut."""
    spread = math.hypot(BETWEEN_SD, WITHIN_SD)
    with suppress(ScenarioError):  # of a few tokens
        known = KnownLengths(
            mean_tokens=min(mean, cap - 0.5),
            sd=spread,
            between_share=(BETWEEN_SD / spread) ** 2,
            runaway=0.0,
        )
        lengths = solved(known, Sampled(cap, 1, 1)).lengths
        if isinstance(lengths, DrawnLengths):
            return lengths.median_tokens
    return max(mean * math.exp(-spread * spread / 2), 1.0)


FloatArray = NDArray[np.float64]

_MOST = 4096
_FEWEST_STEPS = 8
_FEWEST = 2  # responses of a step
_OFF = 0.02  # tokens of a sum
_SINGLE = 6e-8  # of it, in single precision
_COARSER = 4  # times the last printed digit


def responses_of_means(means: FloatArray) -> int | None:
    """The least number of responses that these mean lengths, shape (steps,), can be of; None where
    rounded or too few different means do not tell it."""
    means = np.unique(means[np.isfinite(means)])
    if len(means) < _FEWEST_STEPS:
        return None
    digits = max(
        len(np.format_float_positional(mean, trim="-").partition(".")[2]) for mean in means
    )
    most = min(_MOST, 10**digits // _COARSER)
    for count in range(1, most + 1):
        sums = means * count
        if np.all(np.abs(sums - np.rint(sums)) <= _OFF + _SINGLE * sums):
            return count
    return None
