"""How many turns the rollouts of runs took, what their environments said, and how long that took,
as sections of a scenario that draw more like them.

What was stopped is a censored observation: of a turn's tokens, of the seconds of an answer, and of
the number of turns, which a cap, a failure and a timeout cut off too. Times that ended by a retry
count as one; where slots are held for a call, a boot is part of the first answer, which then says
nothing of answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.fit_counts import fit_counts
from calibration.fit_nested import Nested, NestedFit, fit_nested
from calibration.folder import RunFolder
from calibration.robust import FloatArray
from simulator.errors import ScenarioError
from simulator.rollout import FAILED
from simulator.workload.environment import EnvironmentSection
from simulator.workload.recorded_turns import RecordedTrajectory

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
        means = [own.trajectory.new_tokens / len(own.trajectory.turns) for own in self.rollouts]
        return np.asarray(np.maximum(np.array(means), 0.5))


def check_alike(runs: Sequence[RunFolder]) -> None:
    """Raises ScenarioError (``RUN_DIR``) for runs of which only some have turns, or whose
    environments are not the same."""
    first = runs[0]
    for run in runs[1:]:
        for key, told in (("turns", _has_turns), ("environment.turn_s", _stated)):
            if told(run) != told(first):
                raise ScenarioError(
                    "RUN_DIR",
                    f"{first.path} and {run.path} differ in {key} ({told(first)} and "
                    f"{told(run)}); calibrate each kind of run by itself",
                )


def _has_turns(run: RunFolder) -> bool:
    return run.environments is not None


def _stated(run: RunFolder) -> Any:
    return run.section("environment").get("turn_s")


def sections(found: Turned, tokens: NestedFit) -> dict[str, Any]:
    """``turns`` of a fitted file: sections ``turns``, ``environment`` and ``reward`` of a scenario,
    with the standard errors of what was fitted, by section and key, and how much there was.
    tokens: `turn_lengths`. Raises ScenarioError (``RUN_DIR``) where there is too little."""
    try:
        counts = fit_counts(*_counts(found), found.max_turns)
    except ValueError as error:
        raise ScenarioError("RUN_DIR", f"turns cannot be fitted: {error}") from None
    answers = _seconds(found)
    environment, errors = _environment(found, answers)
    return {
        "turns": {
            "family": "lognormal",
            "median": counts.median,
            "between_sd": counts.between_sd,
            "within_sd": counts.within_sd,
            "runaway": counts.runaway,
            "max_turns": found.max_turns,
            "observation_tokens": _observations(found),
            "length_sd": tokens.sd,
        },
        "environment": environment,
        "reward": _judges(found),
        "standard_errors": {
            "turns": {**counts.standard_errors, "length_sd": tokens.standard_errors.get("sd")},
            "environment": errors,
        },
        "rollouts": len(found.rollouts),
        "cut_off": sum(own.cut is not None for own in found.rollouts),
        "answers": len(answers.value),
        "answers_cut_off": len(answers.reached),
    }


def turn_lengths(found: Turned) -> NestedFit:
    """The tokens of a turn. Raises ScenarioError (``RUN_DIR``) where there is too little."""
    try:
        return fit_nested(_tokens(found))
    except ValueError as error:
        raise ScenarioError("RUN_DIR", f"tokens of turns cannot be fitted: {error}") from None


def _tokens(found: Turned) -> Nested:
    value, owner, reached, cut_owner = [], [], [], []
    for number, own in enumerate(found.rollouts):
        made = own.trajectory
        cut = own.cut in ("model", "budget") or made.ending in ("length", "context")
        asked = made.ending == "context" and made.turns[-1].environment_s > 0
        whole = len(made.turns) - (cut and not asked) if own.cut != "boot" else 0
        for turn in made.turns[:whole]:
            value.append(math.log(max(turn.new_tokens, 1) - 0.5))
            owner.append(number)
        if own.cut != "boot" and whole < len(made.turns) and made.turns[-1].new_tokens > 0:
            reached.append(math.log(made.turns[-1].new_tokens))
            cut_owner.append(number)
    return _nested(found, value, owner, reached, cut_owner)


def _seconds(found: Turned) -> Nested:
    """Of answers."""
    given = found.environment
    first = 1 if given.held == "call" and given.boot_s else 0
    value, owner, reached, cut_owner = [], [], [], []
    for number, own in enumerate(found.rollouts):
        made, last = own.trajectory, len(own.trajectory.turns) - 1
        for i, turn in enumerate(made.turns):
            seconds = turn.environment_s
            if i < first or seconds <= 0:
                continue
            if i == last and (own.cut == "environment" or made.ending == "timeout"):
                reached.append(math.log(seconds))
                cut_owner.append(number)
            else:
                failed = i == last and made.ending == "environment"
                times = given.retry + 1 if failed else 1
                value.append(math.log(seconds / times))
                owner.append(number)
    return _nested(found, value, owner, reached, cut_owner)


def _nested(
    found: Turned,
    value: list[float],
    owner: list[int],
    reached: list[float],
    cut_owner: list[int],
) -> Nested:
    return Nested(
        found.group,
        np.array(value),
        np.array(owner, dtype=np.int64),
        np.array(reached),
        np.array(cut_owner, dtype=np.int64),
    )


def _counts(found: Turned) -> tuple[Any, Any, Any]:
    """Group, turns and whether they are all, of each rollout that began."""
    group, turns, whole = [], [], []
    for owner, own in zip(found.group.tolist(), found.rollouts, strict=True):
        if own.cut == "boot":
            continue
        made = own.trajectory
        count, ended = len(made.turns), own.cut in (None, "reward") and made.ending == "stop"
        asked = own.cut == "environment" or (
            own.cut is None
            and (made.ending in (*FAILED, "turns") or made.turns[-1].environment_s > 0)
        )
        group.append(owner)
        turns.append(count if ended or asked else count - 1)
        whole.append(ended)
    return np.array(group), np.array(turns, dtype=np.int64), np.array(whole)


def _environment(found: Turned, answers: Nested) -> tuple[dict[str, Any], dict[str, float]]:
    if not len(answers.value):
        return {"turn_s": 0.0, "boot_s": 0.0, "failure": 0.0}, {}
    given = found.environment
    turn_s, errors = _drawn(answers)
    firsts = [own.trajectory.turns[0].environment_s for own in found.rollouts
              if len(own.trajectory.turns) > 1]  # fmt: skip
    boots = [own.trajectory.boot_s for own in found.rollouts if own.trajectory.boot_s > 0
             and own.cut != "boot"]  # fmt: skip
    boot_s = 0.0
    if boots:
        boot_s = float(np.mean(boots))
    elif given.boot_s and firsts:
        boot_s = max(float(np.mean(firsts) - np.mean(np.exp(answers.value))), 0.0)
    failed = sum(own.trajectory.ending == "environment" for own in found.rollouts)
    asked = sum(turn.environment_s > 0 for own in found.rollouts for turn in own.trajectory.turns)
    failure = (failed / max(asked, 1)) ** (1.0 / (given.retry + 1)) if failed else 0.0
    return {"turn_s": turn_s, "boot_s": boot_s, "failure": failure}, errors


def _judges(found: Turned) -> dict[str, Any] | None:
    """``reward``; None where nobody was judged."""
    seconds = [
        own.trajectory.reward_s
        for own in found.rollouts
        if own.cut is None and own.trajectory.reward_s is not None
    ]
    known = np.log(np.array([each for each in seconds if each > 0]))
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


def _observations(found: Turned) -> int | dict[str, float]:
    """``observation_tokens``: a number where all answers are equally long, or as good as none."""
    tokens = np.array([turn.observation_tokens for own in found.rollouts
                       for turn in own.trajectory.turns[1:]])  # fmt: skip
    if not len(tokens) or np.ptp(tokens) == 0 or np.median(tokens) < 1:
        return int(np.median(tokens)) if len(tokens) else 0
    logs = np.log(np.maximum(tokens, 1) - 0.5)
    return {
        "median_tokens": float(max(np.exp(np.median(logs)), 1.0)),
        "sd": float(np.std(logs)),
        "max_tokens": int(tokens.max()),
    }
