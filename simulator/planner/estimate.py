"""Estimates of a choice's step time without a simulation, to order choices for simulation.

The mean update is priced by the choice's costs. Rollouts run on one replica with its share: a fluid
that drains if a step waits for every rollout, a constant number in flight if rollouts carry over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.plan import AllDone, StepPlan
from rollcast.simulator.costs.base import CostModel, Iteration, TrainLoad
from rollcast.simulator.errors import RollcastError, ScenarioError
from rollcast.simulator.learning.answer import Needs, planned_needs
from rollcast.simulator.planner.choices import Choice, Held, Same
from rollcast.simulator.planner.measure import Failure, Setup, setup_of
from rollcast.simulator.planner.whole_run import RunCost, Work, run_cost
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import Scenario

SAMPLED_GROUPS = 128

HIDES = 1.1  # A longer update hides the rollouts of an overlapped step: step time over update time


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a mean step: rollouts, update, and syncs and switches between them. overlaps:
    whether rollouts and update overlap. taken, used, trained, needs: see `measure.Measured`; needs
    as if no token were older than its update. unasked: settings by key, without which the choice
    would not fit its memory."""

    setup: Setup
    rollout_s: float
    train_s: float
    between_s: float
    overlaps: bool
    taken: float
    used: float
    trained: float
    needs: Needs | None = None
    unasked: Mapping[str, Any] = field(default_factory=dict)

    def step_s(self, factor: float = 1.0) -> float:
        """Seconds of a step with rollouts ``factor`` times as long as estimated."""
        rollout_s = factor * self.rollout_s
        if self.overlaps:
            return max(rollout_s, self.train_s) + self.between_s
        return rollout_s + self.train_s + self.between_s

    def run_cost(self, work: Work, factor: float, quality: float) -> RunCost:
        """Hours and cost of the whole run, for rollouts ``factor`` times as long as estimated."""
        return run_cost(
            work,
            step_s=self.step_s(factor),
            taken=self.taken,
            used=self.used,
            trained=self.trained,
            gpus=self.setup.gpus,
            usd_per_gpu_hour=self.setup.usd_per_gpu_hour,
            quality=quality,
            level=None if self.needs is None else self.needs.level,
        )

    def factor(self, step_s: float) -> float | None:
        """The inverse of `step_s`; None if the update hides the rollouts."""
        left_s = step_s - self.between_s - (0.0 if self.overlaps else self.train_s)
        if self.overlaps and left_s < HIDES * self.train_s:
            return None
        return max(left_s / self.rollout_s, 0.0) if self.rollout_s > 0 else None


def estimate(raw: RawScenario, choice: Choice) -> Estimate | Failure:
    """The estimate of a choice, with settings that make it fit its memory where it does not by
    itself; or why it cannot run."""
    try:
        scenario = choice.scenario(raw)
        unasked = _unasked(Held((_in_memory(scenario), *choice.settings), (scenario, choice)))
        if unasked:
            scenario = choice.fitting(unasked).scenario(raw)
        return replace(estimated(scenario), unasked=unasked)
    except RollcastError as error:
        return Failure(str(error))


def _in_memory(scenario: Scenario) -> tuple[Same, object, bool]:
    """What the memory of a scenario depends on."""
    plan = scenario.policy.plan(scenario.plan, scenario.policy.init())
    return Same(scenario.cost), plan.batch, plan.layout == "shared_prefix"


@lru_cache(maxsize=64)
def _unasked(asked: Held) -> dict[str, Any]:
    scenario, choice = asked.held
    if scenario.ledger is None or scenario.ledger.fits:
        return {}
    from rollcast.simulator.scenario.remedies import unasked  # what fits never needs it

    return unasked(scenario, frozenset(choice.settings))


def estimated(scenario: Scenario, *, remedied: bool = True) -> Estimate:
    """The estimate of a scenario. Raises ScenarioError for what more likely does not fit, which
    names what would where ``remedied``."""
    plan = scenario.policy.plan(scenario.plan, scenario.policy.init())
    plan.check()
    batch, cost = plan.batch, scenario.cost
    shared = plan.layout == "shared_prefix"
    refused = _refused(Held((_in_memory(scenario), remedied), (scenario, remedied)))
    if refused is not None:
        raise refused
    prompts, lengths = _sample(scenario, batch.group_size)
    selected = plan.select[-1].keep if plan.select else batch.group_size
    train_s = _update_s(
        Held(
            (Same(cost), batch, selected, shared),
            (cost, batch.groups, prompts, lengths, selected, shared),
        )
    )
    begun = batch.groups * plan.launch.rollouts_per_group(batch.group_size)
    slots = scenario.shape.replicas * scenario.engine.max_seqs
    reading_s = cost.reading_s(begun, min(begun, slots))
    made_s = max(_rollout_s(scenario, plan, prompts, lengths), reading_s)
    rollout_s = cost.opening_s(begun) + made_s
    between_s = cost.sync_s / plan.sync_every
    if scenario.shape.colocated:
        between_s += cost.switch_to_train_s + cost.switch_to_rollout_s
    overlaps = plan.overlaps and not scenario.shape.colocated
    taken = float(batch.groups * batch.group_size)
    return Estimate(
        setup_of(scenario),
        rollout_s,
        train_s,
        between_s,
        overlaps,
        taken,
        float(batch.groups),
        float(batch.groups * selected),
        _needs(scenario, plan),
    )


def _needs(scenario: Scenario, plan: StepPlan) -> Needs | None:
    learning = scenario.learning
    if learning is None or learning.target is None:
        return None
    return _known_needs(Held((repr(plan), repr(learning)), (plan, learning)))


# Choices that differ in the policy alone share their costs (`Choice.scenario`), and mostly these:


@lru_cache(maxsize=64)
def _refused(asked: Held) -> ScenarioError | None:
    """Why a scenario more likely does not fit its memory than does."""
    scenario, remedied = asked.held
    try:
        scenario.check_memory(likely=True, remedied=remedied)
    except ScenarioError as error:
        return error
    return None


@lru_cache(maxsize=64)
def _known_needs(asked: Held) -> Needs:
    return planned_needs(*asked.held)


@lru_cache(maxsize=64)
def _update_s(trained: Held) -> float:
    """Seconds of an update on a batch, whose groups repeat."""
    cost, groups, prompts, lengths, keep, shared = trained.held
    drawn = (prompts, lengths, groups, keep, shared)
    key = (Same(prompts), Same(lengths), *drawn[2:])
    return float(cost.train(_trained_on(Held(key, drawn))).total_s)


@lru_cache(maxsize=4)
def _trained_on(drawn: Held) -> TrainLoad:
    """One load for all costs, which keeps how they deal it out."""
    prompts, lengths, groups, keep, shared = drawn.held
    rows = np.arange(groups) % len(lengths)
    return TrainLoad(
        [(int(prompts[row]), lengths[row, :keep].tolist()) for row in rows], shared_prefix=shared
    )


def _sample(scenario: Scenario, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompt tokens, shape (groups,), and response tokens, shape (groups, size)."""
    count = min(SAMPLED_GROUPS, max(32, scenario.plan.batch.groups))
    key = (repr(scenario.raw.data.get("workload")), str(scenario.raw.folder), scenario.seed)
    return _drawn(Held((key, count, size), scenario.workload), count, size)


@lru_cache(maxsize=16)
def _drawn(workload: Held, count: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    draws = []
    for group in range(count):
        try:
            draws.append(workload.held.draw(group, size))
        except RollcastError:  # a trace that is not repeated is at its end
            if not draws:
                raise
            break
    prompts = np.array([draw.prompt_tokens for draw in draws])
    return prompts, np.array([draw.new_tokens for draw in draws])


def _rollout_s(
    scenario: Scenario, plan: StepPlan, prompts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> float:
    """Seconds of the rollout phase of one replica's share."""
    replicas, engine = scenario.shape.replicas, scenario.engine
    size = plan.batch.group_size
    rollouts = plan.batch.groups * size
    per_replica = max(rollouts / replicas, 1.0)
    mean, prompt = float(lengths.mean()), float(prompts.mean())
    held = prompt / (size if engine.prefix_caching else 1) + mean / 2
    room = max(1.0, min(engine.max_seqs, engine.kv_tokens / held))
    speed = _Speed(scenario.cost, prompt + mean / 2, room)
    copies = 1 if engine.prefix_caching else size
    prefill_s = plan.batch.groups / replicas * copies * _prefill_s(scenario, prompt)
    carries = plan.keeps_running or plan.unfinished == "resume" or plan.launch.refill != "none"
    if carries and not isinstance(plan.stop, AllDone):
        in_flight = plan.launch.groups_in_wave(plan.batch) * size / replicas
        if plan.launch.refill == "none":
            in_flight = max(per_replica, in_flight - per_replica / 2)
        return per_replica * mean / speed.tokens_per_s(in_flight) + prefill_s
    wave = plan.launch.groups_in_wave(plan.batch)
    launched = lengths[np.arange(wave) % len(lengths)]
    return _drained_s(launched, plan, replicas, speed, room) + prefill_s


def _drained_s(
    wave: NDArray[np.int64], plan: StepPlan, replicas: int, speed: _Speed, room: float
) -> float:
    """Seconds until all of a wave, shape (groups, size), or enough groups are done. Rollouts beyond
    ``room`` run at the full replica's speed, the rest drain."""
    longest = np.sort(wave.max(axis=1))
    last = longest[min(plan.batch.groups, len(longest)) - 1]
    if isinstance(plan.stop, AllDone):
        last = longest[-1]
    drained = np.sort(np.minimum(wave.ravel(), last))[::-1][::replicas]
    crowd = int(min(room, len(drained)))
    bulk_s = (
        float(drained[crowd:].sum()) / speed.tokens_per_s(room) if len(drained) > crowd else 0.0
    )
    ends = np.sort(drained[:crowd])
    running = np.arange(len(ends), 0, -1)
    gained = np.diff(ends, prepend=0)
    return bulk_s + float(np.sum(gained * speed.iteration_s(running)))


def _prefill_s(scenario: Scenario, prompt: float) -> float:
    """Seconds to compute one prompt, in full iterations."""
    tokens = scenario.engine.max_batched_tokens
    whole = max(1, round(tokens / prompt)) if prompt < tokens else 1
    pairs = whole * int(min(prompt, tokens)) ** 2 // 2
    work = Iteration(whole, tokens, tokens, max(pairs, 1), whole, tokens)
    return scenario.cost.mixed_iteration_s(work) * prompt / tokens


class _Speed:
    """Decode iterations at a mean context, interpolated over the number of rollouts."""

    def __init__(self, cost: CostModel, context: float, most: float) -> None:
        points = np.unique(np.rint(np.geomspace(1, max(most, 1), 10)).astype(int))
        self._points = points
        self._seconds = np.array(
            [cost.decode_curve(int(n)).seconds(int(n * context)) for n in points]
        )

    def iteration_s(self, rollouts: NDArray[np.int64] | float) -> NDArray[np.float64]:
        """Seconds of an iteration."""
        return np.asarray(np.interp(rollouts, self._points, self._seconds))

    def tokens_per_s(self, rollouts: float) -> float:
        """Tokens per second with so many in flight, within ``room``."""
        running = float(min(max(rollouts, 1.0), self._points[-1]))
        return running / float(self.iteration_s(running))
