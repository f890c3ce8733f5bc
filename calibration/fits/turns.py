"""Turns of rollouts, answers of environments and their seconds, as sections of a scenario.

What was stopped is a censored observation: of a turn's tokens, of the seconds of an answer, and of
the number of turns. Times that ended by a retry count as one; where slots are held for a call, a
boot is part of the first answer, which then says nothing of answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollcast.calibration.fits.random_effects import Nested, NestedFit, fit_counts, fit_nested
from rollcast.calibration.fits.robust import FloatArray
from rollcast.calibration.folder import RunFolder
from rollcast.simulator.core.rollout import FAILED
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.workload.environment import EnvironmentSection
from rollcast.simulator.workload.recorded_turns import RecordedTrajectory

_LEAST = 20  # answers or judgements, to fit more than their mean


@dataclass(frozen=True)
class Turned:
    """Rollouts of several runs, each once. group: of each, shape (rollouts,). environment: that the
    runs were made with; max_turns: at which a rollout was ended."""

    group: np.ndarray[Any, np.dtype[np.int64]]
    rollouts: Sequence[RecordedTrajectory]
    environment: EnvironmentSection
    max_turns: int

    @property
    def mean_turn_tokens(self) -> FloatArray:
        """Tokens that each sampled in a turn, at least half of one; shape (rollouts,)."""
        means = [
            rollout.trajectory.new_tokens / len(rollout.trajectory.turns)
            for rollout in self.rollouts
        ]
        return np.asarray(np.maximum(np.array(means), 0.5))


def check_alike(runs: Sequence[RunFolder]) -> None:
    """Raises ScenarioError (``RUN_DIR``) where turns or environments differ between runs."""
    first = runs[0]
    for run in runs[1:]:
        for key, describe_section in (("turns", _has_turns), ("environment.turn_s", _stated)):
            if describe_section(run) != describe_section(first):
                raise ScenarioError(
                    "RUN_DIR",
                    f"{first.path} and {run.path} differ in {key} ({describe_section(first)} and "
                    f"{describe_section(run)}); calibrate each kind of run by itself",
                )


def _has_turns(run: RunFolder) -> bool:
    return run.environments is not None


def _stated(run: RunFolder) -> Any:
    return run.section("environment").get("turn_s")


def sections(turned: Turned, tokens: NestedFit) -> dict[str, Any]:
    """``turns`` of a fitted file: sections ``turns``, ``environment`` and ``reward`` of a scenario,
    with the standard errors of what was fitted, by section and key, and how much there was.
    tokens: `turn_lengths`. Raises ScenarioError (``RUN_DIR``) where there is too little."""
    try:
        counts = fit_counts(*_counts(turned), turned.max_turns)
    except ValueError as error:
        raise ScenarioError("RUN_DIR", f"turns cannot be fitted: {error}") from None
    answers = _seconds(turned)
    environment, errors = _environment(turned, answers)
    return {
        "turns": {
            "family": "lognormal",
            "median": counts.median,
            "between_sd": counts.between_sd,
            "within_sd": counts.within_sd,
            "runaway": counts.runaway,
            "max_turns": turned.max_turns,
            "observation_tokens": _observations(turned),
            "length_sd": tokens.sd,
        },
        "environment": environment,
        "reward": _judges(turned),
        "standard_errors": {
            "turns": {**counts.standard_errors, "length_sd": tokens.standard_errors.get("sd")},
            "environment": errors,
        },
        "rollouts": len(turned.rollouts),
        "cut_off": sum(rollout.cut is not None for rollout in turned.rollouts),
        "answers": len(answers.value),
        "answers_cut_off": len(answers.reached),
    }


def turn_lengths(turned: Turned) -> NestedFit:
    """The tokens of a turn. Raises ScenarioError (``RUN_DIR``) where there is too little."""
    try:
        return fit_nested(_tokens(turned))
    except ValueError as error:
        raise ScenarioError("RUN_DIR", f"tokens of turns cannot be fitted: {error}") from None


def _tokens(turned: Turned) -> Nested:
    value, owner, reached, cut_owner = [], [], [], []
    for number, rollout in enumerate(turned.rollouts):
        made = rollout.trajectory
        cut = rollout.cut in ("model", "budget") or made.ending in ("length", "context")
        asked = made.ending == "context" and made.turns[-1].environment_s > 0
        whole = len(made.turns) - (cut and not asked) if rollout.cut != "boot" else 0
        for turn in made.turns[:whole]:
            value.append(math.log(max(turn.new_tokens, 1) - 0.5))
            owner.append(number)
        if rollout.cut != "boot" and whole < len(made.turns) and made.turns[-1].new_tokens > 0:
            reached.append(math.log(made.turns[-1].new_tokens))
            cut_owner.append(number)
    return _nested(turned, value, owner, reached, cut_owner)


def _seconds(turned: Turned) -> Nested:
    """Of answers."""
    given = turned.environment
    first = 1 if given.held == "call" and given.boot_s else 0
    value, owner, reached, cut_owner = [], [], [], []
    for number, rollout in enumerate(turned.rollouts):
        made, last = rollout.trajectory, len(rollout.trajectory.turns) - 1
        for i, turn in enumerate(made.turns):
            seconds = turn.environment_s
            if i < first or seconds <= 0:
                continue
            if i == last and (rollout.cut == "environment" or made.ending == "timeout"):
                reached.append(math.log(seconds))
                cut_owner.append(number)
            else:
                failed = i == last and made.ending == "environment"
                times = given.retry + 1 if failed else 1
                value.append(math.log(seconds / times))
                owner.append(number)
    return _nested(turned, value, owner, reached, cut_owner)


def _nested(
    turned: Turned, value: list[float], owner: list[int], reached: list[float], cut_owner: list[int]
) -> Nested:
    return Nested(
        turned.group,
        np.array(value),
        np.array(owner, dtype=np.int64),
        np.array(reached),
        np.array(cut_owner, dtype=np.int64),
    )


def _counts(turned: Turned) -> tuple[Any, Any, Any]:
    """Group, turns and whether they are all, of each rollout that began."""
    group, turns, whole = [], [], []
    for owner, rollout in zip(turned.group.tolist(), turned.rollouts, strict=True):
        if rollout.cut == "boot":
            continue
        made = rollout.trajectory
        count, ended = len(made.turns), rollout.cut in (None, "reward") and made.ending == "stop"
        asked = rollout.cut == "environment" or (
            rollout.cut is None
            and (made.ending in (*FAILED, "turns") or made.turns[-1].environment_s > 0)
        )
        group.append(owner)
        turns.append(count if ended or asked else count - 1)
        whole.append(ended)
    return np.array(group), np.array(turns, dtype=np.int64), np.array(whole)


def _environment(turned: Turned, answers: Nested) -> tuple[dict[str, Any], dict[str, float]]:
    if not len(answers.value):
        return {"turn_s": 0.0, "boot_s": 0.0, "failure": 0.0}, {}
    given = turned.environment
    turn_s, errors = _drawn(answers)
    firsts = [
        rollout.trajectory.turns[0].environment_s
        for rollout in turned.rollouts
        if len(rollout.trajectory.turns) > 1
    ]
    boots = [
        rollout.trajectory.boot_s
        for rollout in turned.rollouts
        if rollout.trajectory.boot_s > 0 and rollout.cut != "boot"
    ]
    boot_s = 0.0
    if boots:
        boot_s = float(np.mean(boots))
    elif given.boot_s and firsts:
        boot_s = max(float(np.mean(firsts) - np.mean(np.exp(answers.value))), 0.0)
    failed = sum(rollout.trajectory.ending == "environment" for rollout in turned.rollouts)
    asked = sum(
        turn.environment_s > 0 for rollout in turned.rollouts for turn in rollout.trajectory.turns
    )
    failure = (failed / max(asked, 1)) ** (1.0 / (given.retry + 1)) if failed else 0.0
    return {"turn_s": turn_s, "boot_s": boot_s, "failure": failure}, errors


def _judges(turned: Turned) -> dict[str, Any] | None:
    """``reward``; None where nobody was judged."""
    seconds = [
        rollout.trajectory.reward_s
        for rollout in turned.rollouts
        if rollout.cut is None and rollout.trajectory.reward_s is not None
    ]
    known = np.log(np.array([duration_s for duration_s in seconds if duration_s > 0]))
    if not len(known):
        return None
    sd = float(np.std(known)) if len(known) >= _LEAST else 0.0
    if sd < 1e-3:
        return {"seconds": float(np.exp(known.mean()))}
    return {"seconds": {"family": "lognormal", "median_s": float(np.exp(known.mean())), "sd": sd}}


def _drawn(data: Nested) -> tuple[dict[str, Any] | float, dict[str, float]]:
    """Seconds as a scenario has them, and their standard errors."""
    if len(data.value) < _LEAST or float(np.ptp(data.value)) < 1e-3:
        return float(np.exp(np.mean(data.value))), {}
    fit = fit_nested(data)
    errors = dict(fit.standard_errors)
    if "median" in errors:
        errors["median_s"] = errors.pop("median")
    return {
        "family": "lognormal",
        "median_s": fit.median,
        "sd": fit.sd,
        "between_sd": fit.between_sd,
        "within_sd": fit.within_sd,
    }, errors


def _observations(turned: Turned) -> int | dict[str, float]:
    """``observation_tokens``: a number where all answers are equally long, or as good as none."""
    tokens = np.array(
        [
            turn.observation_tokens
            for rollout in turned.rollouts
            for turn in rollout.trajectory.turns[1:]
        ]
    )
    if not len(tokens) or np.ptp(tokens) == 0 or np.median(tokens) < 1:
        return int(np.median(tokens)) if len(tokens) else 0
    logs = np.log(np.maximum(tokens, 1) - 0.5)
    return {
        "median_tokens": float(max(np.exp(np.median(logs)), 1.0)),
        "sd": float(np.std(logs)),
        "max_tokens": int(tokens.max()),
    }
