"""How much longer wrong answers are than right ones, as a scenario's own workload draws them."""

from __future__ import annotations

import numpy as np

from rollcast.simulator.workload.base import Workload

_ASKED = 16384  # rollouts that are drawn, in a twentieth of a second
_SURE = 3.0  # standard errors that tell a ratio from 1


def drawn_ratio(workload: Workload, size: int) -> float | None:
    """Mean length of wrong over right answers among rollouts that are drawn in groups of ``size``.

    None where rewards are not right (1) or wrong (0), where all are alike, where rollouts have
    turns, and where the ratio is no further from 1 than chance takes it.
    """
    groups = max(_ASKED // size, 2)
    drawn = [workload.draw(group, size) for group in range(groups)]
    reward = np.array([one.rewards for one in drawn], dtype=float)
    if any(one.trajectories is not None for one in drawn) or not np.isin(reward, (0, 1)).all():
        return None
    tokens = np.array([one.new_tokens for one in drawn], dtype=float)
    right, wrong = tokens * reward, tokens * (1.0 - reward)
    counts = np.array([reward.sum(), (1.0 - reward).sum()])
    if not counts.all():
        return None
    means = np.array([right.sum(), wrong.sum()]) / counts
    # By group, since the rollouts of a prompt are alike in length.
    away = ((1 - reward) * (tokens - means[1])).sum(axis=1) / counts[1] / means[1]
    away -= (reward * (tokens - means[0])).sum(axis=1) / counts[0] / means[0]
    ratio = float(means[1] / means[0])
    return ratio if abs(np.log(ratio)) > _SURE * np.sqrt((away**2).sum()) else None
