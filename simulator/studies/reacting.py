"""Updates whose time follows the accuracy: responses change length, and a filter rejects others.

How much a step's time follows is seen in another run: with lengths as they are at the target, or
with the rewards of an accuracy at which the filter rejects other shares.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np

from rollcast.simulator.core.spans import Run
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.learning.answer import Progress, Recorded
from rollcast.simulator.learning.build import Learning
from rollcast.simulator.learning.group_signal import at_mean, concentration_of, groups_needed
from rollcast.simulator.learning.lengths import (
    length_law,
    lengths_of,
    mean_length,
    reacting,
    slowed,
)
from rollcast.simulator.runs.drive import drive
from rollcast.simulator.scenario.scenario import Scenario, outline
from rollcast.simulator.workload.base import ScaledWorkload
from rollcast.simulator.workload.rewards import BetaBernoulli
from rollcast.simulator.workload.section import build_workload

_SHORT, _LONG = 0.25, 4.0  # factors on lengths that are tried
_SAME = 0.02  # of the log of one: not worth another run
_ALIKE, _MORE = 0.1, 2.0  # groups a batch needs: log of a factor that changes nothing; one tried
_PART = 10  # of the steps are run again with other rewards
_QUARTER = 4  # of the steady steps are run again with other lengths
_LEAST = 64  # groups of them, so that their time is not that of a few long responses


def reacted(scenario: Scenario, run: Run, progress: Progress) -> Progress:
    """The progress of a run in which the time of an update follows the accuracy, as far as the
    scenario asks for it (`with_lengths`) or its policy filters (`with_filter`)."""
    learning, recorded = scenario.learning, progress.recorded
    assert learning is not None
    assert recorded is not None
    if recorded.signals.filtered:
        progress = with_filter(scenario, run, progress, learning, recorded)
    if learning.lengths:
        progress = with_lengths(scenario, run, progress, learning, recorded)
    return progress


def with_lengths(
    scenario: Scenario, run: Run, progress: Progress, learning: Learning, recorded: Recorded
) -> Progress:
    """The progress of a run whose lengths react to accuracy."""
    steady = recorded.steady
    first, stop = np.searchsorted(progress.numbers, (steady.start, steady.stop)).tolist()
    first = min(first, len(progress.accuracy) - 2)
    steps = slice(first, max(first + 1, min(stop, len(progress.accuracy) - 1)))
    own = mean_length(lengths_of(length_law(learning)), learning.start, progress.accuracy)
    last = _target_at(progress, learning)
    longer = float(np.clip(own[last] / np.exp(np.mean(np.log(own[steps]))), _SHORT, _LONG))
    power = 1.0
    if abs(math.log(longer)) > _SAME and isinstance(scenario.workload, ScaledWorkload):
        other = replace(scenario, workload=scenario.workload.scaled(longer))
        part = max(math.ceil((steady.stop - steady.start) / _QUARTER), _least_steps(recorded))
        count = min(steady.start + part, len(run.steps))
        with suppress(RollcastError):
            again = drive(other, other.world(), count)
            times = [_seconds(one, min(steady.start, count - 1), count) for one in (again, run)]
            power = math.log(times[0] / times[1]) / math.log(longer)
    return reacting(progress, learning, scenario.seed, steps, power, own)


def with_filter(
    scenario: Scenario, run: Run, progress: Progress, learning: Learning, recorded: Recorded
) -> Progress:
    """The progress of a run whose policy rejects groups with equal rewards: how many it must sample
    for a batch follows the accuracy, and is simulated at the rewards of the scenario."""
    section = outline(scenario.raw).sections
    rewards = section.workload.rewards
    if not isinstance(rewards, BetaBernoulli) or not 0.0 < rewards.mean < 1.0:
        return progress
    size = round(float(np.median(recorded.signals.group_size)))
    usual, spread = np.array([rewards.mean]), concentration_of(rewards)
    own, drawn = (
        groups_needed(accuracy, size, spread) / groups_needed(usual, size, spread)
        for accuracy in (progress.accuracy, progress.drawn)
    )
    logs = np.log(own[: _target_at(progress, learning) + 1])
    if np.abs(logs).max() < _ALIKE:
        return progress
    within = np.where(np.abs(logs) <= math.log(_MORE), np.abs(logs), -1.0)
    tried = int(np.argmax(within))
    power = 1.0
    count = min(max(len(run.steps) // _PART, _least_steps(recorded)), len(run.steps))
    if within[tried] >= _ALIKE:
        changed = replace(
            section.workload, rewards=at_mean(rewards, float(progress.accuracy[tried]))
        )
        workload = build_workload(
            changed, scenario.seed, scenario.raw.folder, section.environment, section.reward
        )
        other = replace(scenario, workload=workload)
        with suppress(RollcastError):
            again = drive(other, other.world(), count)
            longer = _seconds(again, 0, count) / _seconds(run, 0, count)
            power = float(np.clip(math.log(longer) / logs[tried], 0.0, 1.0))
    return slowed(progress, own**power, drawn**power, 0)


def _least_steps(recorded: Recorded) -> int:
    """Steps of as many groups as `_LEAST`."""
    return math.ceil(_LEAST / max(float(np.median(recorded.signals.groups)), 1.0))


def _seconds(run: Run, start: int, stop: int) -> float:
    """Of the steps from ``start`` to ``stop`` (exclusive)."""
    return run.steps[stop - 1].end_s - (run.steps[start - 1].end_s if start else run.start_s)


def _target_at(progress: Progress, learning: Learning) -> int:
    """The place of the target in the curve; its end where it is not reached, or without one."""
    last = len(progress.accuracy) - 1
    if learning.target is None:
        return last
    return min(int(np.argmax(progress.accuracy >= learning.target)) or last, last)
