"""What the trained rollouts push lengths by: theory, from rewards and lengths alone.

A policy gradient moves the mean of anything in proportion to its covariance with the advantages
(of the softmax policy without sharing between prompts, exactly). So while the share of right
answers p rises, the mean log length moves by

    dlog(length) / dp = sum of advantage * log length / sum of advantage * reward

over the trained rollouts: log length of right over wrong answers, as far as they were trained on.
Selection of rewards leaves it as it is; selection by length, and a cap, do not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def length_push(
    step: IntArray,
    group: IntArray,
    reward: FloatArray,
    tokens: FloatArray,
    steps: int,
    counts: NDArray[np.bool_] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Of the rollouts of updates: mean over them of advantage times log length, and of advantage
    times reward, each of shape (steps,); 0 for an update of none.

    step, group, reward, tokens: of each rollout, shape (rollouts,): the update that it is of, and
    its response's reward and length. counts: False where it has an advantage, but is masked in the
    loss. Advantages are (reward - mean of its group) / standard deviation.
    """
    keys = step.astype(np.int64) * (int(group.max(initial=0)) + 1) + group
    _, place = np.unique(keys, return_inverse=True)
    rows = np.bincount(place)
    mean = np.bincount(place, reward) / rows
    away = reward - mean[place]
    spread = np.sqrt(np.bincount(place, away**2) / rows)[place]
    advantage = np.where(spread > 1e-9, away / np.maximum(spread, 1e-9), 0.0)
    log = np.log(np.maximum(tokens, 1.0))
    if counts is not None:
        advantage = advantage * counts
    each = np.maximum(np.bincount(step, minlength=steps), 1)
    # Against the step's mean, as the advantages of what is masked are missing from their sum.
    level, share = (np.bincount(step, x, steps) / each for x in (log, reward))
    pushes = (
        np.bincount(step, advantage * (x - m[step]), steps) / each
        for x, m in ((log, level), (reward, share))
    )
    of_length, of_reward = pushes
    return of_length, of_reward
