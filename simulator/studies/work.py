"""A finished run's work in short, to be repriced without another run.

Generation is a few points (rollouts, context, iterations) and prefilled tokens, training is the
batch of one step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.spans import TRAINED, Run
from rollcast.simulator.costs.base import CostModel, Iteration, TrainLoad
from rollcast.simulator.results.metrics import by_phase
from rollcast.simulator.results.over_time import context_over_time, running_over_time
from rollcast.simulator.results.phases import PHASES, PhaseName, phase_of
from rollcast.simulator.scenario.scenario import Scenario

FloatArray = NDArray[np.float64]

POINTS = 10  # of decoding, each of equal time, by rising number of rollouts
MOST_ROLLOUTS = 96  # of the batch whose training is priced
_MOST_REPLICAS = 3
_NOT_TRAINING = frozenset({"rollout", "sync", "switch"})

Prices = Mapping[PhaseName, float]
"""Seconds of each phase under a cost model over those under the run's own."""
SAME: Prices = dict.fromkeys(PHASES, 1.0)


@dataclass(frozen=True, slots=True)
class Point:
    """Decoding of ``rollouts`` over ``context_tokens`` for ``iterations``."""

    rollouts: int
    context_tokens: int
    iterations: float


class Work:
    """The work of ``run``, priced by ``cost``. by: where its seconds go."""

    def __init__(self, scenario: Scenario, run: Run) -> None:
        cost = self._cost = scenario.cost
        self.by = by_phase(run)
        self._points = _points(run, cost)
        self._in_tail = self._share_in_tail(cost)
        self._decode_s = self._decoding_s(cost)
        self._tail_s = self._decoding_s(cost, shares=self._in_tail)
        self._chunk, self._prefill_share = _prefill(run, cost, self._points, scenario)
        self._prefill_s = self._prefilling_s(cost)
        self._load = _load(run)
        self._begun, self._opening_share = _opening(run, cost)
        spent: Counter[str] = Counter()
        for phase in run.phases:
            if phase.kind not in _NOT_TRAINING:
                spent[phase.kind] += phase.seconds  # type: ignore[assignment]
        self._spent = dict(spent)
        self._train_s = self._training_s(cost)

    def prices(self, cost: CostModel) -> Prices:
        """By ``cost``, which may differ from the run's own in any figure."""
        decode = _ratio(self._decoding_s(cost), self._decode_s)
        prefill = _ratio(self._prefilling_s(cost), self._prefill_s)
        share, opens, own = self._prefill_share, self._opening_share, self._cost
        opening = _ratio(cost.opening_s(self._begun), own.opening_s(self._begun))
        switch_s, own_switch_s = (c.switch_to_train_s + c.switch_to_rollout_s for c in (cost, own))
        made = (1.0 - share) * decode + share * prefill
        return {
            **self._training(cost),
            "generation": (1.0 - opens) * made + opens * opening,
            "tail": _ratio(self._decoding_s(cost, shares=self._in_tail), self._tail_s),
            "sync": _ratio(cost.sync_s, own.sync_s),
            "switch": _ratio(switch_s, own_switch_s),
        }

    def at_context(self, factor: float) -> float:
        """Iteration time with contexts ``factor`` times as long, as a ratio."""
        return _ratio(self._decoding_s(self._cost, factor), self._decode_s)

    def _decoding_s(
        self, cost: CostModel, factor: float = 1.0, shares: Sequence[float] = (1.0,) * POINTS
    ) -> float:
        """Of ``shares`` of the points' iterations, with contexts ``factor`` times as long."""
        return sum(
            share
            * point.iterations
            * cost.decode_curve(point.rollouts).seconds(round(factor * point.context_tokens))
            for share, point in zip(shares, self._points, strict=False)
        )

    def _share_in_tail(self, cost: CostModel) -> list[float]:
        """Of each point, what belongs to the tail: those of the fewest rollouts."""
        tail_s, made_s = (float(self.by.seconds[n].sum()) for n in ("tail", "generation"))
        each_s = [
            point.iterations * cost.decode_curve(point.rollouts).seconds(point.context_tokens)
            for point in self._points
        ]
        left_s = sum(each_s) * (tail_s / made_s if made_s > 0 else 0.0)
        shares = []
        for seconds in each_s:
            part_s = min(seconds, left_s)
            shares.append(part_s / seconds if seconds > 0 else 0.0)
            left_s -= part_s
        return shares

    def _prefilling_s(self, cost: CostModel) -> float:
        """What a chunk of prompts adds to an iteration."""
        work = self._chunk
        if work is None:
            return 0.0
        decoding = work.rollouts - work.prefill_rollouts
        context = work.context_tokens - work.prefill_context_tokens
        beside = cost.decode_curve(decoding).seconds(context) if decoding else 0.0
        return cost.mixed_iteration_s(work) - beside

    def _training_s(self, cost: CostModel) -> dict[str, float]:
        if self._load is None:
            return {}
        by_phase: Counter[str] = Counter()
        for name, seconds in cost.train(self._load).phases_s:
            by_phase[name] += seconds  # type: ignore[assignment]
        return dict(by_phase)

    def _training(self, cost: CostModel) -> dict[PhaseName, float]:
        """Of each phase of the trainer, its kinds of work by their own ratios, for as long as each
        took in the run; what of a phase is no work of the trainer stays as it is."""
        now = self._training_s(cost)
        moved_s, work_s = defaultdict[PhaseName, float](float), defaultdict[PhaseName, float](float)
        for name, spent in self._spent.items():
            work_s[phase_of(name)] += spent
            ratio = _ratio(now.get(name, 0.0), self._train_s.get(name, 0.0))
            moved_s[phase_of(name)] += spent * ratio
        prices: dict[PhaseName, float] = {}
        for phase, seconds in self.by.seconds.items():
            other_s = max(float(seconds.sum()) - work_s[phase], 0.0)
            prices[phase] = _ratio(moved_s[phase] + other_s, work_s[phase] + other_s)
        return prices


def _ratio(value: float, base: float) -> float:
    return value / base if base > 0 else 1.0


def _points(run: Run, cost: CostModel) -> list[Point]:
    """Decoding on the replicas that the run waited for most often."""
    counts: list[FloatArray] = []
    contexts: list[FloatArray] = []
    spans: list[FloatArray] = []
    for replica in _waited_for(run):
        times, context = context_over_time(run, replica)
        changes, counted = running_over_time(run, replica)
        count = counted[np.searchsorted(changes, times, "right") - 1]
        busy = (count[:-1] > 0) & (context[:-1] > 0)
        counts.append(np.asarray(count[:-1][busy], dtype=np.float64))
        contexts.append(np.asarray((0.5 * (context[:-1] + context[1:]))[busy], dtype=np.float64))
        spans.append(np.diff(times)[busy])
    if not counts or not sum(map(len, counts)):
        return []
    running, context_tokens, span = map(np.concatenate, (counts, contexts, spans))
    order = np.argsort(running, kind="stable")
    running, context_tokens, span = running[order], context_tokens[order], span[order]
    past = np.cumsum(span) - 0.5 * span
    place = np.minimum((POINTS * past / span.sum()).astype(int), POINTS - 1)
    points = []
    for k in np.unique(place):
        here = place == k
        seconds = float(span[here].sum())
        rollouts = max(round(float(np.average(running[here], weights=span[here]))), 1)
        tokens = round(float(np.average(context_tokens[here], weights=span[here])))
        seconds_at = cost.decode_curve(rollouts).seconds(tokens)
        points.append(Point(rollouts, tokens, seconds / seconds_at if seconds_at > 0 else 0.0))
    return points


def _waited_for(run: Run) -> list[int]:
    """The replicas that ended the most steps, most often first."""
    on_one = run.segments["replica"] >= 0  # others ended away from the replicas
    step, replica, end = (run.segments[name][on_one] for name in ("step", "replica", "end_s"))
    order = np.lexsort((end, step))
    last = order[np.append(np.diff(step[order]) > 0, True)] if len(order) else order
    return [number for number, _ in Counter(replica[last].tolist()).most_common(_MOST_REPLICAS)]


def _prefill(
    run: Run, cost: CostModel, points: list[Point], scenario: Scenario
) -> tuple[Iteration | None, float]:
    """A typical prefill chunk, and the share of the replicas' time that prefill takes."""
    segments = run.segments
    tokens = segments["prefill_tokens"]
    some = tokens > 0
    if not some.any() or not points:
        return None, 0.0
    chunk = max(min(round(float(tokens[some].mean())), scenario.engine.max_batched_tokens), 1)
    middle = points[len(points) // 2]
    work = Iteration(
        middle.rollouts + 1,
        middle.context_tokens + chunk,
        chunk,
        chunk * (chunk + 1) // 2,
        1,
        chunk,
    )
    beside = cost.decode_curve(middle.rollouts).seconds(middle.context_tokens)
    added_s = max(cost.mixed_iteration_s(work) - beside, 0.0)
    busy_s = 0.0
    for replica in range(run.shape.replicas):
        times, running = running_over_time(run, replica)
        busy_s += float(np.diff(times)[running[:-1] > 0].sum())
    share = float(tokens.sum()) / chunk * added_s / busy_s if busy_s > 0 else 0.0
    return work, min(share, 0.9)


def _opening(run: Run, cost: CostModel) -> tuple[int, float]:
    """Rollouts that begin in a step, and the share of the rollout phases that passes before their
    first iteration."""
    spent = [phase.seconds for phase in run.phases if phase.kind == "rollout"]
    if not spent:
        return 0, 0.0
    keys = zip(run.segments["group"].tolist(), run.segments["index"].tolist(), strict=True)
    begun = round(len(set(keys)) / len(spent)) if cost.opening_s(1) else 0
    return begun, min(cost.opening_s(begun) * len(spent) / max(sum(spent), 1e-9), 1.0)


def _load(run: Run) -> TrainLoad | None:
    """The batch of the middle step, up to `MOST_ROLLOUTS`."""
    segments = run.segments
    trained = (segments["outcome"] == TRAINED) & (segments["finished"] == 1)
    steps = np.unique(segments["trained_step"][trained])
    if not len(steps):
        return None
    step = int(steps[len(steps) // 2])
    here = np.flatnonzero(trained & (segments["trained_step"] == step))
    group, prompt, new = (
        segments[name][here] for name in ("group", "prompt_tokens", "total_tokens")
    )
    groups: dict[int, tuple[int, list[int]]] = {}
    rows = zip(group.tolist(), prompt.tolist(), new.tolist(), strict=True)
    for number, prompt_tokens, new_tokens in rows:
        groups.setdefault(number, (prompt_tokens, []))[1].append(new_tokens)
    kept: list[tuple[int, list[int]]] = []
    for members in groups.values():
        if kept and sum(len(responses) for _, responses in kept) >= MOST_ROLLOUTS:
            break
        kept.append(members)
    layout = run.decisions[step].get("layout") if step < len(run.decisions) else None
    return TrainLoad(kept, shared_prefix=layout == "shared_prefix")
