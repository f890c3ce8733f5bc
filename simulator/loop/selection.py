"""Rules over one group: which rollouts to train on, whether to train on it, whether it straggles.

PODS' four rules (arXiv 2504.13818, section 3) keep ``m`` of ``n`` rollouts and return their
positions, rising; of equal rewards the earliest are kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, NamedTuple

import numpy as np

from rollcast.simulator.errors import ScenarioError

STRAGGLER_RATIO = 1.25  # SAGC's tau (p)


def _check(rewards: Sequence[float], keep: int) -> None:
    if not 1 <= keep <= len(rewards):
        raise ScenarioError(
            "policy.pods.keep",
            f"cannot keep {keep} of a group of {len(rewards)}; "
            f"it must be from 1 to the group size, {len(rewards)}",
        )
    for reward in rewards:
        if not math.isfinite(reward):
            raise ScenarioError("workload.rewards", f"a reward is {reward}; it must be finite")


def _as_integers(rewards: Sequence[float]) -> list[int]:
    """The rewards times a power of two that makes all whole: sums and squares are then exact."""
    ratios = [float(reward).as_integer_ratio() for reward in rewards]
    scale = max(denominator for _, denominator in ratios)
    return [numerator * (scale // denominator) for numerator, denominator in ratios]


def _earliest(rewards: Sequence[float], lowest: int, highest: int) -> list[int]:
    """Positions of the ``lowest`` smallest and ``highest`` largest rewards, earliest of equals."""
    rising = sorted(range(len(rewards)), key=rewards.__getitem__)
    ends = rising[:lowest] + rising[len(rising) - highest :]
    wanted: dict[float, int] = {}
    for position in ends:
        wanted[rewards[position]] = wanted.get(rewards[position], 0) + 1
    kept = []
    for position, reward in enumerate(rewards):
        if wanted.get(reward, 0):
            wanted[reward] -= 1
            kept.append(position)
    return kept


def max_variance(rewards: Sequence[float], keep: int) -> list[int]:
    """The ``keep`` positions whose rewards vary most: some highest and the rest lowest.

    A subset of greatest variance consists of the k highest and keep - k lowest rewards for some k;
    prefix sums give every k in O(n log n). Of equally good ones, that with the fewest high rewards.
    """
    _check(rewards, keep)
    values = sorted(_as_integers(rewards))
    sums = list(accumulate(values, initial=0))
    squares = list(accumulate((value * value for value in values), initial=0))
    count = len(values)

    def spread(highest: int) -> int:
        """keep^2 times the variance."""
        low, high = keep - highest, count - highest
        total = sums[low] + sums[count] - sums[high]
        return keep * (squares[low] + squares[count] - squares[high]) - total * total

    highest = max(range(keep + 1), key=spread)  # max() returns the first of equals
    return _earliest(rewards, keep - highest, highest)


def max_reward(rewards: Sequence[float], keep: int) -> list[int]:
    """The positions of the ``keep`` highest rewards."""
    _check(rewards, keep)
    return _earliest(rewards, 0, keep)


def percentile(rewards: Sequence[float], keep: int) -> list[int]:
    """The positions at the quantiles 0.5/m, 1.5/m, ..., (m - 0.5)/m of the sorted rewards: the
    index is floor((j - 0.5) n / m) for j = 1..m, as the paper defines no rounding."""
    _check(rewards, keep)
    rising = sorted(range(len(rewards)), key=rewards.__getitem__)
    return sorted(rising[(2 * j - 1) * len(rewards) // (2 * keep)] for j in range(1, keep + 1))


def random_subset(rewards: Sequence[float], keep: int, key: Sequence[int]) -> list[int]:
    """``keep`` positions drawn without replacement, every subset equally likely. ``key``: whole
    numbers from 0 that address the draw. Uses Philox's raw bits, whose stream NumPy guarantees."""
    _check(rewards, keep)
    count = len(rewards)
    bits = np.random.Philox(np.random.SeedSequence([*key, count, keep])).random_raw(count)
    return sorted(int(position) for position in np.argsort(bits, kind="stable")[:keep])


def is_straggler(new_tokens: Sequence[int], ratio: float = STRAGGLER_RATIO) -> bool:
    """Whether a group's longest response exceeds ``ratio`` times its median (arXiv 2606.02218); the
    median of an even number is the mean of the middle two."""
    rising = sorted(new_tokens)
    middle = len(rising) // 2
    median = (rising[middle] + rising[~middle]) / 2
    return rising[-1] > ratio * median


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage of ``StepPlan.select``; ``keep`` rollouts remain of a group."""

    FIELD: ClassVar = "policy.pods.keep"

    keep: int


class MaxVariance(_Stage):
    """`max_variance` as a stage."""

    __slots__ = ()

    def __call__(self, rewards: Sequence[float], group: int) -> list[int]:
        """The positions kept, rising. Raises ScenarioError where ``keep`` exceeds the group."""
        return max_variance(rewards, self.keep)


class MaxReward(_Stage):
    """`max_reward` as a stage."""

    __slots__ = ()

    def __call__(self, rewards: Sequence[float], group: int) -> list[int]:
        """See `MaxVariance`."""
        return max_reward(rewards, self.keep)


class Percentile(_Stage):
    """`percentile` as a stage."""

    __slots__ = ()

    def __call__(self, rewards: Sequence[float], group: int) -> list[int]:
        """See `MaxVariance`."""
        return percentile(rewards, self.keep)


@dataclass(frozen=True, slots=True)
class RandomSubset(_Stage):
    """`random_subset` as a stage, keyed by (seed, step, group)."""

    seed: int
    step: int

    def __call__(self, rewards: Sequence[float], group: int) -> list[int]:
        """See `MaxVariance`."""
        return random_subset(rewards, self.keep, (self.seed, self.step, group))


@dataclass(frozen=True, slots=True)
class ZeroVariance:
    """DAPO's filter (arXiv 2503.14476): a group whose rewards are all equal has no gradient. A
    group of one is kept, as in verl."""

    def __call__(self, rewards: Sequence[float]) -> bool:
        """Whether to keep a group with these rewards."""
        return len(rewards) == 1 or any(reward != rewards[0] for reward in rewards)


class Due(NamedTuple):
    """What a batch must take. taken: positions of ready groups. missing: groups needed that are not
    ready. until: the latest deadline a missing one may have."""

    taken: list[int]
    missing: int
    until: float


def due(ready: Sequence[float], unready: Sequence[float], step: int, batch: int, slots: int) -> Due:
    """What the batch of ``step`` must take, at most ``slots`` groups.

    ready, unready: per group the last step whose batch may hold it, infinite for any; the ready
    ones in the order wanted. batch: groups that each later step takes.

    Of groups with deadlines up to d, the steps between can take ``batch * (d - step)``; the others
    are due now. If that holds for every d, later steps take all of them in time (Jackson's rule of
    earliest deadlines, Management Science Research Project 43, 1955).
    """
    by_deadline = Counter(last for last in ready if last != math.inf)
    by_deadline.update(last for last in unready if last != math.inf)
    taken: list[int] = []
    chosen: set[int] = set()
    outstanding = missing = 0
    until = -math.inf
    for last in sorted(by_deadline):
        outstanding += by_deadline[last]
        must = min(outstanding - batch * max(last - step, 0), slots)
        wanted = int(must) - len(taken) - missing
        if wanted <= 0:
            continue
        early = (i for i, deadline in enumerate(ready) if deadline <= last and i not in chosen)
        chosen_now = [i for i, _ in zip(early, range(wanted), strict=False)]
        taken += chosen_now
        chosen.update(chosen_now)
        if len(chosen_now) < wanted:
            missing += wanted - len(chosen_now)
            until = last
    return Due(taken, missing, until)
