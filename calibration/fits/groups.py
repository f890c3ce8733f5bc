"""Measured groups for `simulator.workload.measured`, made whole: the unfinished filled in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.fits.responses import Responses
from rollcast.calibration.fits.robust import FloatArray
from rollcast.simulator.workload.base import Trajectory
from rollcast.simulator.workload.measured import MeasuredGroups, MeasuredTurns
from rollcast.simulator.workload.recorded_turns import continued

MOST_GROUPS = 6000
MOST_TURNS = 200_000
_DONORS = 20


def measured(collected: Responses) -> MeasuredGroups:
    """The groups of a calibration's runs.

    A rollout that was never finished takes length and reward of a finished one that is longer than
    it got, from one of the groups nearest to its own in mean log length (hot-deck imputation;
    Andridge and Little, Int. Stat. Rev. 78, 2010); where none is, it runs to the cap. Groups in
    which nothing finished are left out, as they say nothing of rewards. Of more than
    ``MOST_GROUPS`` groups as many are kept, evenly over the run. A rollout of several turns keeps
    those that it had, and goes on as the other did.
    """
    graded = collected.finished & np.isfinite(collected.reward)
    means = _mean_logs(collected, graded)
    tokens, rewards, turned = _filled(collected, graded, means[collected.group])
    owners = np.flatnonzero(np.isfinite(means))
    most = MOST_GROUPS
    if turned is not None:
        turns = sum(len(made.turns) for made in turned)
        most = min(most, max(1, len(owners) * MOST_TURNS // max(turns, 1)))
    if len(owners) > most:
        owners = owners[np.linspace(0, len(owners) - 1, most).round().astype(int)]
    order = np.argsort(collected.group, kind="stable")
    starts = np.searchsorted(collected.group[order], np.arange(collected.groups + 1))
    rows = [order[starts[owner] : starts[owner + 1]] for owner in owners.tolist()]
    rows.sort(key=lambda row: collected.launched[row[0]])
    return MeasuredGroups(
        tuple(int(collected.launched[row].min()) for row in rows),
        tuple(int(collected.prompt_tokens[row[0]]) for row in rows),
        tuple(tuple(tokens[row].astype(np.int64).tolist()) for row in rows),
        tuple(tuple(rewards[row].tolist()) for row in rows),
        collected.cap,
        None
        if turned is None
        else tuple(tuple(MeasuredTurns.of(turned[i]) for i in row.tolist()) for row in rows),
    )


def _filled(
    collected: Responses, graded: NDArray[np.bool_], logs: FloatArray
) -> tuple[FloatArray, FloatArray, list[Trajectory] | None]:
    """Tokens, rewards and turns of each rollout. logs: mean log length of its group."""
    rng = np.random.default_rng(0)
    tokens, rewards = collected.tokens.copy(), collected.reward.copy()
    of_turns = [] if collected.turned is None else collected.turned.rollouts
    turned = None if collected.turned is None else [rollout.trajectory for rollout in of_turns]
    for i in np.flatnonzero(~graded & np.isfinite(logs)).tolist():
        able, donor = np.flatnonzero(graded & _further(collected, turned, i)), i
        if len(able):
            nearest = able[np.argsort(np.abs(logs[able] - logs[i]), kind="stable")[:_DONORS]]
            donor = int(rng.choice(nearest))
        tokens[i] = collected.tokens[donor] if donor != i else collected.cap
        rewards[i] = collected.reward[donor] if donor != i else 0.0
        if turned is not None:
            turned[i] = continued(of_turns[i], turned[donor])
            tokens[i] = turned[i].new_tokens
    return tokens, rewards, turned


def _further(
    collected: Responses, turned: Sequence[Trajectory] | None, i: int
) -> NDArray[np.bool_]:
    """Which rollouts came further than one: in tokens, and in turns if there are any."""
    longer = np.asarray(collected.tokens > collected.tokens[i])
    if turned is None:
        return longer
    turns = np.array([len(made.turns) for made in turned])
    return np.asarray((turns > turns[i]) | ((turns == turns[i]) & longer))


def _mean_logs(collected: Responses, graded: NDArray[np.bool_]) -> FloatArray:
    """Mean log length of each group's finished rollouts; not a number where there are none."""
    count = np.bincount(collected.group, graded, minlength=collected.groups)
    logs = np.where(graded, np.log(np.maximum(collected.tokens, 1.0)), 0.0)
    total = np.bincount(collected.group, logs, minlength=collected.groups)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
