"""Lengths and rewards of a run's responses, as a workload that draws more like them.

Lengths follow the random-effects model of `simulator.workload.lengths`; an unfinished rollout is a
censored observation. Rewards follow `simulator.workload.rewards`, fitted by moments within and
between groups; their standard errors come from resampled groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rollcast.calibration.fits import turns
from rollcast.calibration.fits.lengths import fit_owned
from rollcast.calibration.fits.robust import FloatArray
from rollcast.calibration.fits.turns import Turned
from rollcast.calibration.folder import RunFolder
from rollcast.simulator.core.rollout import CUT, FAILED
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.workload.recorded_turns import RecordedTrajectory, context_tokens

MIN_GROUPS = 20
_NAME = ["group", "attempt", "index"]
_RESAMPLES = 200
_DRIFT_SIGNIFICANT = 3.0  # standard errors
_LARGEST_CORRELATION = 0.95
_LEAST_VARIANCE = 1e-9  # of log lengths: all are alike


@dataclass(frozen=True)
class Responses:
    """Rollouts of several runs, each once, as it last was. Arrays have shape (rollouts,).

    group: numbers groups of all runs through. launched: the version at its first token. turned:
    what each did turn by turn, of runs with turns, in which ``capped`` are those that failed too.
    """

    group: np.ndarray[Any, np.dtype[np.int64]]
    tokens: FloatArray
    prompt_tokens: FloatArray
    finished: np.ndarray[Any, np.dtype[np.bool_]]
    capped: np.ndarray[Any, np.dtype[np.bool_]]
    reward: FloatArray
    launched: FloatArray
    cap: int
    turned: Turned | None = None

    @property
    def groups(self) -> int:
        """Groups in all."""
        return int(self.group.max()) + 1 if len(self.group) else 0

    @property
    def contexts(self) -> FloatArray:
        """Tokens of prompt, responses and what environments said, shape (rollouts,)."""
        if self.turned is None:
            return self.prompt_tokens + self.tokens
        made = [
            context_tokens(rollout.prompt_tokens, rollout.trajectory)
            for rollout in self.turned.rollouts
        ]
        return np.array(made, dtype=float)


def collect(runs: Sequence[RunFolder]) -> Responses:
    """The runs' rollouts. Raises ScenarioError (``RUN_DIR``) for different caps or few groups."""
    caps = {run.cap for run in runs}
    if len(caps) > 1:
        raise ScenarioError(
            "RUN_DIR", f"the runs' max_new_tokens differ ({', '.join(map(str, sorted(caps)))})"
        )
    turns.check_alike(runs)
    rows = pd.concat([_rows(run).assign(run=number) for number, run in enumerate(runs)])
    group = rows.groupby(["run", "group"]).ngroup().to_numpy().astype(np.int64)
    names = ("total_tokens", "prompt_tokens", "finished", "cut_short", "reward", "launched")
    tokens, prompt, finished, capped, reward, launched = (
        rows[name].to_numpy(dtype=float) for name in names
    )
    [cap] = caps
    collected = Responses(
        group,
        tokens,
        prompt,
        finished > 0,
        capped > 0,
        reward,
        launched,
        cap,
        _turned(runs, rows, group),
    )
    if collected.groups < MIN_GROUPS:
        raise ScenarioError(
            "RUN_DIR",
            f"{runs[0].path}/rollouts.csv: {collected.groups} groups are too few to fit lengths; "
            f"at least {MIN_GROUPS} are needed",
        )
    return collected


def _rows(run: RunFolder) -> pd.DataFrame:
    """The last segment of each rollout, in order of their names. launched: the first one's version.
    cut_short: ended by a cap, or with turns by its environment."""
    table = pd.DataFrame(run.rollouts)
    first, last = (
        table.drop_duplicates(_NAME, keep=kept).sort_values(_NAME, ignore_index=True)
        for kept in ("first", "last")
    )
    cut = last["truncated"] if run.turned is None else last["ending"].isin(CUT | FAILED)
    return last.assign(launched=first["version"], cut_short=cut)


def _turned(runs: Sequence[RunFolder], rows: pd.DataFrame, group: Any) -> Turned | None:
    """Turn by turn; None for runs without turns."""
    turned: list[RecordedTrajectory] = []
    for number, run in enumerate(runs):
        of_run = run.turned
        if of_run is not None:
            names = rows.loc[rows["run"] == number, _NAME].astype(int)
            turned += [of_run[name] for name in names.itertuples(index=False, name=None)]
    if not turned:
        return None
    most = max(int(run.section("workload", "turns").get("max_turns") or 0) for run in runs)
    longest = max(len(rollout.trajectory.turns) for rollout in turned)
    return Turned(group, turned, runs[0].environment, most or longest)


def turn_lengths(collected: Responses, turned: Turned) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `lengths` gives, of a turn's response, and ``turns`` of a fitted file."""
    fit = turns.turn_lengths(turned)
    errors = {{"median": "median_tokens"}.get(k, k): v for k, v in fit.standard_errors.items()}
    errors.pop("sd", None)
    of_lengths = {
        "lengths": {
            "family": "lognormal",
            "median_tokens": fit.median,
            "between_sd": fit.between_sd,
            "within_sd": fit.within_sd,
            "runaway": 0.0,
            "drift_per_step": 0.0,
        },
        "standard_errors": errors,
        **_counted(collected),
    }
    return of_lengths, turns.sections(turned, fit)


def _counted(collected: Responses) -> dict[str, Any]:
    finished = collected.tokens[collected.finished]
    return {
        "groups": collected.groups,
        "rollouts": len(collected.tokens),
        "capped": int(collected.capped.sum()),
        "unfinished": int((~collected.finished).sum()),
        "mean_version": float(collected.launched.mean()),
        "measured_tokens": {f"p{q}": float(np.quantile(finished, q / 100)) for q in (50, 90, 99)},
    }


def lengths(collected: Responses) -> dict[str, Any]:
    """``workload.lengths`` that fits, under ``lengths``, with standard errors and what was
    measured.

    Drift is the slope of log length over the weights' version, taken out before the rest is fitted;
    it is left out where it lies within three standard errors of 0.
    """
    drift, drift_error = _drift(collected)
    kept = drift if abs(drift) > _DRIFT_SIGNIFICANT * drift_error else 0.0
    # A length of n tokens stands for (n - 1, n]; its middle is what scales.
    tokens = (collected.tokens - 0.5) * np.exp(-kept * collected.launched) + 0.5
    ended = collected.finished & ~collected.capped
    reached = np.where(collected.capped, collected.cap - 1.0, collected.tokens)
    reached = reached * np.exp(-kept * collected.launched)
    cut_off = collected.group[~ended], reached[~ended].clip(1.0)
    groups, owners = int(collected.group.max()) + 1, collected.group[ended]
    try:
        fit = fit_owned(groups, owners, tokens[ended].clip(1.0), 1 << 24, cut_off)
    except ValueError as error:
        raise ScenarioError("RUN_DIR", f"lengths cannot be fitted: {error}") from None
    errors = {**fit.standard_errors, "drift_per_step": drift_error}
    return {
        "lengths": {
            "family": "lognormal",
            "median_tokens": fit.median_tokens,
            "between_sd": fit.between_sd,
            "within_sd": fit.within_sd,
            "runaway": fit.runaway,
            "drift_per_step": kept,
        },
        "standard_errors": errors,
        **_counted(collected),
        "groups": fit.groups,
        "rollouts": fit.rollouts,
        "drift_measured": drift,
    }


def _drift(collected: Responses) -> tuple[float, float]:
    """Slope of a group's mean log length over the version it was launched at, and its error."""
    count = np.bincount(collected.group, collected.finished)
    logs = np.where(collected.finished, np.log(collected.tokens.clip(1) - 0.5), 0.0)
    some = count > 0
    y = (np.bincount(collected.group, logs) / np.maximum(count, 1))[some]
    x = (np.bincount(collected.group, collected.launched) / np.bincount(collected.group))[some]
    x = x - x.mean()
    if not x.any():
        return 0.0, 0.0
    slope = float(x @ (y - y.mean()) / (x @ x))
    residual = y - y.mean() - slope * x
    return slope, float(np.sqrt((x**2) @ (residual**2)) / (x @ x))


def rewards(collected: Responses, fitted_lengths: dict[str, Any]) -> dict[str, Any]:
    """``workload.rewards`` that fits, under ``rewards``, with standard errors.

    Raises ScenarioError where fewer than two groups have two rewards.
    """
    spreads = fitted_lengths["between_sd"], fitted_lengths["within_sd"]
    graded = collected.finished & np.isfinite(collected.reward)
    binary = bool(np.isin(collected.reward[graded], (0.0, 1.0)).all())
    overall = float(collected.reward[graded].mean()) if graded.any() else 0.0
    ended = graded & ~collected.capped
    if binary and (np.bincount(collected.group[ended]) > 1).sum() > 1:
        graded = ended  # what the cap cut short is wrong whatever it would have said
    tokens = (
        collected.tokens.clip(1)
        if collected.turned is None
        else collected.turned.mean_turn_tokens + 0.5
    )
    logs = np.log(tokens - 0.5) - fitted_lengths["drift_per_step"] * collected.launched
    moments = _group_moments(collected.group[graded], collected.reward[graded], logs[graded])
    if (moments[:, 0] > 1).sum() < 2:
        raise ScenarioError("RUN_DIR", "too few groups have two graded rollouts to fit rewards")
    best = _reward_parameters(moments, binary, *spreads)
    rng = np.random.default_rng(0)
    samples = (moments[rng.integers(len(moments), size=len(moments))] for _ in range(_RESAMPLES))
    drawn = [
        _reward_parameters(sample, binary, *spreads)
        for sample in samples
        if (sample[:, 0] > 1).any()
    ]
    errors = {name: float(np.std([draw[name] for draw in drawn])) for name in best}
    family = "beta_bernoulli" if binary else "normal"
    if binary and collected.capped.any() and collected.turned is None:
        best["mean"] = _mean_if_let_end(overall, best, fitted_lengths, collected.cap)
    return {
        "rewards": {"family": family, **best},
        "standard_errors": errors,
        "drift_per_step": _reward_drift(collected, graded),
    }


def _reward_drift(collected: Responses, graded: Any) -> float:
    """Slope of the mean reward over versions. The reward models have none: it is a warning."""
    x = collected.launched[graded] - collected.launched[graded].mean()
    return float(x @ collected.reward[graded] / (x @ x)) if x.any() else 0.0


def _group_moments(group: Any, reward: FloatArray, logs: FloatArray) -> FloatArray:
    """Per group: count, sums of r, r^2, l, l^2, r l. Shape (groups, 6); groups of none left out."""
    columns = [np.ones_like(reward), reward, reward**2, logs, logs**2, reward * logs]
    sums = np.column_stack([np.bincount(group, weights=column) for column in columns])
    return np.asarray(sums[sums[:, 0] > 0])


def _reward_parameters(
    moments: FloatArray, binary: bool, between_sd: float, within_sd: float
) -> dict[str, float]:
    """Parameters by the method of moments, the copula's correlations solved for.

    Rewards' slopes over log lengths, times the lengths' fitted spreads: a slope is not moved by
    responses that are left out for their length.
    """
    n, r, rr, length, squares, rl = moments[moments[:, 0] > 1].T
    mean = float(moments[:, 1].sum() / moments[:, 0].sum())
    freedom = float((n - 1).sum())
    within_var = float((rr - r**2 / n).sum()) / freedom
    means, log_means = r / n, length / n
    between_var = max(float(np.var(means, ddof=1) - (within_var / n).mean()), 0.0)
    own_cov = float((rl - r * length / n).sum()) / freedom
    own_var = float((squares - length**2 / n).sum()) / freedom
    within_cov = _scaled(own_cov, own_var, within_sd)
    between_cov = _scaled(
        float(np.cov(means, log_means)[0, 1] - (own_cov / n).mean()),
        float(np.var(log_means, ddof=1) - (own_var / n).mean()),
        between_sd,
    )
    if not binary:
        between, within = math.sqrt(between_var), math.sqrt(within_var)
        return {
            "mean": mean,
            "between_sd": between,
            "within_sd": within,
            "length_correlation": _clip(-within_cov, within * within_sd),
            "difficulty_length_correlation": _clip(-between_cov, between * between_sd),
        }
    between = min(math.sqrt(between_var), 0.98 * math.sqrt(mean * (1.0 - mean)))
    steepness, level_cov = _beta_moments(mean, between)
    return {
        "mean": mean,
        "between_sd": between,
        "length_correlation": _clip(-within_cov, steepness * within_sd),
        "difficulty_length_correlation": _clip(-between_cov, level_cov * between_sd),
    }


def _scaled(covariance: float, variance: float, sd: float) -> float:
    """A covariance with log lengths, were their standard deviation ``sd``."""
    return covariance / variance * sd**2 if variance > _LEAST_VARIANCE else 0.0


def _mean_if_let_end(
    overall: float, best: dict[str, float], lengths: dict[str, Any], cap: int
) -> float:
    """Mean success probability without a cap, given the share of right answers at this cap."""
    from rollcast.simulator.workload.length_specs import lengths_from_spec
    from rollcast.simulator.workload.rewards import rewards_from_spec
    from rollcast.simulator.workload.synthetic import SyntheticWorkload

    model = lengths_from_spec({**lengths, "drift_per_step": 0.0})
    # a spread of probabilities allows means up to where mean * (1 - mean) is its square
    spread = math.sqrt(max(0.25 - (best["between_sd"] / 0.98) ** 2, 0.0))
    mean = best["mean"]
    for _ in range(3):
        rewards = rewards_from_spec({"family": "beta_bernoulli", **best, "mean": mean})
        drawn = SyntheticWorkload(model, rewards, 1, cap)
        mean_reward = np.mean([drawn.draw(group, 8).rewards for group in range(1024)])
        mean = min(max(mean + overall - float(mean_reward), 0.5 - spread), 0.5 + spread)
    return mean


def _clip(covariance: float, scale: float) -> float:
    if scale <= 1e-9:
        return 0.0
    return min(max(covariance / scale, -_LARGEST_CORRELATION), _LARGEST_CORRELATION)


def _beta_moments(mean: float, between_sd: float) -> tuple[float, float]:
    """For Beta success probabilities p of difficulty d: E[phi(Phi^-1(p))], by which the covariance
    of a reward and its error falls short of -1, and -cov(p, d)."""
    from scipy.special import ndtri

    from rollcast.simulator.workload.rewards import BetaBernoulli

    u = (np.arange(2000) + 0.5) / 2000
    difficulty = np.asarray(ndtri(u))
    level = BetaBernoulli(mean, between_sd).prompt_level(difficulty)
    at = np.asarray(ndtri(np.clip(level, 1e-12, 1 - 1e-12)))
    steepness = float(np.mean(np.exp(-0.5 * at**2) / math.sqrt(2 * math.pi)))
    return steepness, -float(np.mean(level * difficulty))


def prompts(collected: Responses) -> int | dict[str, float]:
    """``workload.prompt_tokens`` that fits: a number where all prompts are equally long."""
    _, first = np.unique(collected.group, return_index=True)
    tokens = collected.prompt_tokens[first]
    if np.ptp(tokens) == 0:
        return int(tokens[0])
    logs = np.log(tokens - 0.5)
    return {
        "median_tokens": float(max(np.exp(np.median(logs)), 1.0)),
        "sd": float(np.std(logs)),
        "max_tokens": int(tokens.max()),
    }
