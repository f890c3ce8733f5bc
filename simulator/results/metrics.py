"""What a run comes to: throughput, bubbles, waste, staleness and bias, from one `Run`'s tables.

**Bubble.** A GPU is busy while its replica has a rollout running or waiting, or while the trainer,
a sync or a switch works on it; the rest of the time it is held for nothing. `gpu_lanes` says which
GPU was idle when, and what it waited for. Idle time alone flatters a cluster of few replicas, whose
last rollout keeps everything "busy": ``underfilled_fraction`` measures that tail.

**Length bias.** Policies that throw away what is unfinished train on the rollouts that were quick.
``length_bias`` is the mean length of what was trained over the mean length of what was launched,
where unfinished rollouts count as censored observations (`censored_mean`), not as missing or short.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollcast.simulator.results.schema import RUN_SCHEMA
from rollcast.simulator.results.steady import mean_age, steady_of
from rollcast.simulator.results.turns import turn_summary
from rollcast.simulator.spans import TRAINED, Run

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

CAUSES = ("environment", "stragglers", "trainer", "rollouts", "other")
WAITED_FOR = {
    "environment": "environments",
    "stragglers": "stragglers",
    "trainer": "the trainer",
    "rollouts": "rollouts",
    "other": "nothing",
}
"""Each cause in words."""
UNDERFILLED_BELOW = 0.25  # of a replica's peak in the phase

_CONTEXT_SAMPLES = 1000  # over a run, beside those where a segment begins or ends
_NOTHING: FloatArray = np.empty((0, 2))


@dataclass(frozen=True, slots=True)
class GpuLane:
    """GPUs that are always in the same state, and what they did when.

    replica is -1 for GPUs of the trainer alone; where a trainer covers only part of a replica, the
    replica has two lanes. busy maps ``rollout``, ``train``, ``sync`` (switches included), and idle
    each of `CAUSES`, to intervals, shape (n, 2), in seconds. All of them together cover the run
    exactly once.
    """

    replica: int
    gpus: int
    busy: dict[str, FloatArray] = field(default_factory=dict)
    idle: dict[str, FloatArray] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``replica 3``, or ``trainer``."""
        return f"replica {self.replica}" if self.replica >= 0 else "trainer"


# Sets of intervals: arrays of shape (n, 2) of starts and ends, sorted and disjoint


def merged(starts: ArrayLike, ends: ArrayLike) -> FloatArray:
    """The union of any intervals, empty ones left out; those that touch become one."""
    start, end = np.asarray(starts, dtype=float), np.asarray(ends, dtype=float)
    real = end > start
    order = np.argsort(start[real], kind="stable")
    start, end = start[real][order], end[real][order]
    if not len(start):
        return _NOTHING
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.column_stack((start[first], reach[last]))


def total_s(intervals: FloatArray) -> float:
    """Seconds covered."""
    return float(np.sum(intervals[:, 1] - intervals[:, 0]))


def _union(*sets: FloatArray) -> FloatArray:
    every = np.concatenate(sets)
    return merged(every[:, 0], every[:, 1])


def _without(intervals: FloatArray, other: FloatArray) -> FloatArray:
    """What of ``intervals`` lies outside ``other``."""
    cuts = np.unique(np.concatenate((intervals.ravel(), other.ravel())))
    middle = (cuts[:-1] + cuts[1:]) / 2
    kept = _covers(intervals, middle) & ~_covers(other, middle)
    return merged(cuts[:-1][kept], cuts[1:][kept])


def intersection(intervals: FloatArray, other: FloatArray) -> FloatArray:
    """What of ``intervals`` lies inside ``other``."""
    return _without(intervals, _without(intervals, other))


def _covers(intervals: FloatArray, instants: FloatArray) -> NDArray[np.bool_]:
    return np.searchsorted(intervals[:, 0], instants, "right") > np.searchsorted(
        intervals[:, 1], instants, "right"
    )


# Time lines of a run


def phase_intervals(run: Run) -> dict[str, FloatArray]:
    """When the run was in ``rollout``, ``train`` (every kind of trainer work), ``sync`` and
    ``switch``: intervals of shape (n, 2), in seconds, sorted and disjoint."""
    times: dict[str, list[tuple[float, float]]] = {
        "rollout": [],
        "train": [],
        "sync": [],
        "switch": [],
    }
    for phase in run.phases:
        kind = phase.kind if phase.kind in times else "train"
        times[kind].append((phase.start_s, phase.end_s))
    return {
        kind: merged(*np.array(spans).T) if spans else _NOTHING for kind, spans in times.items()
    }


def running_over_time(run: Run, replica: int | None = None) -> tuple[FloatArray, IntArray]:
    """How many rollouts are being computed, on one replica or on all.

    Returns times, shape (n,), rising from the run's start, and counts, shape (n,): ``counts[i]``
    from ``times[i]`` until ``times[i + 1]``; the last is 0. A rollout counts from the first
    iteration that computes it to its end, preemptions between them included.
    """
    start, end = run.segments["start_s"], run.segments["end_s"]
    if replica is not None:
        here = run.segments["replica"] == replica
        start, end = start[here], end[here]
    return _step_function(run, start, end)


def away_over_time(run: Run) -> tuple[FloatArray, IntArray]:
    """How many rollouts are in their environments, with a judge, or wait for either; as
    `running_over_time`. What works on for a rollout that is suspended counts too."""
    return _step_function(run, run.calls["asked_s"], run.calls["end_s"])


def _step_function(run: Run, start: FloatArray, end: FloatArray) -> tuple[FloatArray, IntArray]:
    computed = end > start
    start, end = np.sort(start[computed]), np.sort(end[computed])
    times = np.unique(np.concatenate(([run.start_s], start, end)))
    counts = np.searchsorted(start, times, "right") - np.searchsorted(end, times, "right")
    return times, counts


def context_over_time(run: Run, replica: int) -> tuple[FloatArray, IntArray]:
    """Context tokens of the rollouts that a replica computes: prompts and responses so far.

    Returns times, shape (n,), rising from the run's start, and tokens, shape (n,), at those times;
    the last is 0. A response grows evenly from where the segment began to where it ended, which is
    not quite so where iterations slow down or the rollout was preempted.
    """
    segments = run.segments
    here = (segments["replica"] == replica) & (segments["end_s"] > segments["start_s"])
    start, end = segments["start_s"][here] - run.start_s, segments["end_s"][here] - run.start_s
    new = segments["new_tokens"][here]
    base = segments["prompt_tokens"][here] + segments["total_tokens"][here] - new
    base = base + segments["observation_tokens"][here]
    times = np.unique(np.concatenate(([0.0], start, end)))
    grid = np.linspace(0.0, times[-1], _CONTEXT_SAMPLES + 1)
    longest = np.diff(times, append=np.inf)[np.searchsorted(times, grid, "right") - 1]
    times = np.union1d(times, grid[longest > times[-1] / _CONTEXT_SAMPLES])
    rate = new / (end - start)  # tokens: base + rate (t - start) from start until end
    tokens = np.zeros(len(times))
    count = np.zeros(len(times), dtype=np.int64)
    for edge, sign in ((start, 1), (end, -1)):
        order = np.argsort(edge, kind="stable")
        level = np.concatenate(([0.0], np.cumsum((base - rate * start)[order])))
        slope = np.concatenate(([0.0], np.cumsum(rate[order])))
        past = np.searchsorted(edge[order], times, "right")
        tokens += sign * (level[past] + slope[past] * times)
        count += sign * past
    tokens[count == 0] = 0.0  # but for rounding it is
    return times + run.start_s, np.rint(np.maximum(tokens, 0.0)).astype(np.int64)


def gpu_lanes(run: Run) -> list[GpuLane]:
    """Every GPU that the run held, and what it did or waited for.

    In a rollout phase, rollout GPUs wait for the ``environment`` while one answers or judges a
    rollout, or a rollout waits for a slot of one; else for ``stragglers`` while rollouts run on
    other replicas, else for the ``trainer`` while it works. Trainer GPUs wait for ``rollouts``, or
    for the ``environment`` where no replica has any. ``other`` is time in which nothing was under
    way (0 in a simulated world). Syncs occupy all GPUs.
    """
    shape, phases = run.shape, phase_intervals(run)
    held = merged([run.start_s], [run.end_s])
    sync = intersection(_union(phases["sync"], phases["switch"]), held)
    train = intersection(phases["train"], held)
    replica, submitted, end = (run.segments[name] for name in ("replica", "submitted_s", "end_s"))
    order = np.argsort(replica, kind="stable")
    bounds = np.searchsorted(replica[order], np.arange(shape.replicas + 1))
    rollouts = []
    for number in range(shape.replicas):
        rows = order[bounds[number] : bounds[number + 1]]
        rollouts.append(intersection(merged(submitted[rows], end[rows]), held))
    anywhere = _union(_NOTHING, *rollouts)
    environments: tuple[tuple[str, FloatArray], ...] = ()
    if len(run.calls):
        away = merged(run.calls["asked_s"], run.calls["end_s"])
        away = intersection(away, intersection(phases["rollout"], held))
        environments = (("environment", away),)
    lanes = []
    for number, busy in enumerate(rollouts):
        first = number * shape.gpus_per_replica
        shared = min(max(shape.trainer_gpus - first, 0), shape.gpus_per_replica)
        if not shape.colocated:
            shared = 0
        for gpus, trains in ((shared, train), (shape.gpus_per_replica - shared, _NOTHING)):
            if gpus:
                lane = GpuLane(number, gpus, *_uses(held, busy, trains, sync))
                waits = (*environments, ("stragglers", anywhere), ("trainer", train))
                _blame(lane, waits)
                lanes.append(lane)
    alone = shape.gpus - shape.replicas * shape.gpus_per_replica
    if alone:
        lane = GpuLane(-1, alone, *_uses(held, _NOTHING, train, sync))
        _blame(lane, (("rollouts", anywhere), *environments))
        lanes.append(lane)
    return lanes


def _uses(
    held: FloatArray, rollout: FloatArray, train: FloatArray, sync: FloatArray
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Busy and idle intervals of GPUs on which these go on; what comes first counts."""
    sync = _without(sync, rollout)
    train = _without(train, _union(rollout, sync))
    busy = {"rollout": rollout, "train": train, "sync": sync}
    return busy, {"other": _without(held, _union(*busy.values()))}


def _blame(lane: GpuLane, waits: tuple[tuple[str, FloatArray], ...]) -> None:
    """Divides a lane's idle time among causes, the first that holds."""
    left = lane.idle["other"]
    for cause, intervals in waits:
        lane.idle[cause] = intersection(left, intervals)
        left = _without(left, intervals)
    lane.idle["other"] = left


def underfilled_intervals(run: Run) -> list[FloatArray]:
    """For each replica, when in a rollout phase it computes fewer than a quarter of the rollouts
    that it computes at its peak in that phase; all of the phase, if it computes none.

    That includes its idle time. Intervals of shape (n, 2), in seconds.
    """
    spans = [(p.start_s, p.end_s) for p in run.phases if p.kind == "rollout" and p.seconds > 0]
    if not spans:
        return [_NOTHING] * run.shape.replicas
    starts, ends = np.array(sorted(spans)).T
    replica, begin, end = (run.segments[name] for name in ("replica", "start_s", "end_s"))
    underfilled = []
    for number in range(run.shape.replicas):
        here = replica == number
        times, counts = _step_function(run, begin[here], end[here])
        cuts = np.unique(np.concatenate((times, starts, ends)))
        middle = (cuts[:-1] + cuts[1:]) / 2
        phase = np.searchsorted(starts, middle, "right") - 1
        inside = (phase >= 0) & (middle < ends[phase])
        running = counts[np.searchsorted(times, middle, "right") - 1]
        peak = np.zeros(len(starts), dtype=np.int64)
        np.maximum.at(peak, phase[inside], running[inside])
        few = inside & ((running < UNDERFILLED_BELOW * peak[phase]) | (peak[phase] == 0))
        underfilled.append(merged(cuts[:-1][few], cuts[1:][few]))
    return underfilled


def underfilled_fraction(run: Run) -> float:
    """Share of the replica-seconds of all rollout phases that are underfilled
    (`underfilled_intervals`)."""
    phases_s = sum(phase.seconds for phase in run.phases if phase.kind == "rollout")
    few_s = sum(total_s(intervals) for intervals in underfilled_intervals(run))
    return _ratio(few_s, run.shape.replicas * phases_s) or 0.0


# Bias of what is trained


def censored_mean(lengths: ArrayLike, complete: ArrayLike) -> float:
    """Mean length where incomplete observations say only "at least this long".

    The area under the Kaplan-Meier survival curve (J. Am. Stat. Assoc. 53, 1958) up to the longest
    observation: the plain mean where everything is complete, a lower bound of it where the longest
    is not. lengths, complete: shape (n,). nan for n = 0.
    """
    length = np.asarray(lengths, dtype=float)
    if not len(length):
        return float("nan")
    ended = np.asarray(complete, dtype=bool)
    points, position = np.unique(length, return_inverse=True)
    deaths = np.bincount(position[ended], minlength=len(points))
    leaving = np.bincount(position, minlength=len(points))
    at_risk = len(length) - np.concatenate(([0], np.cumsum(leaving)[:-1]))
    survival = np.concatenate(([1.0], np.cumprod(1.0 - deaths / at_risk)[:-1]))
    return float(np.sum(survival * np.diff(points, prepend=0.0)))


def _length_bias(segments: dict[str, NDArray[Any]]) -> float | None:
    """Mean length of trained rollouts over that of launched ones. Of a prompt that is tried again
    only the first attempt counts as launched, lest the retries of slow prompts move the mean."""
    ended = segments["finished"] == 1
    trained = ended & (segments["outcome"] == TRAINED)
    first = np.flatnonzero(segments["attempt"] == 0)
    if not trained.any() or not len(first):
        return None
    group, index = segments["group"][first], segments["index"][first]
    key = group * (int(index.max()) + 1) + index
    order = np.argsort(key, kind="stable")  # a rollout's segments are in order of time
    last = np.concatenate((np.diff(key[order]) > 0, [True]))
    rows = first[order[last]]
    launched = censored_mean(segments["total_tokens"][rows], ended[rows])
    return float(segments["total_tokens"][trained].mean()) / launched if launched else None


# By step


def step_columns(run: Run) -> dict[str, FloatArray]:
    """What steps.csv says beside the fields of a `StepRecord`, by column; each of shape (steps,),
    nan where a step had none: mean_staleness (versions behind, mean over the tokens trained on);
    truncated_share (of the responses that finished in the step, those at the cap); accuracy."""
    ended = run.segments["finished"] == 1
    return {
        "mean_staleness": np.array([mean_age(record) for record in run.steps], dtype=float),
        "truncated_share": _mean_by_step(run, run.segments["truncated"], ended),
        "accuracy": accuracy(run),
    }


def accuracy(run: Run) -> FloatArray:
    """Per step, the mean reward of the rollouts that finished in it, whether trained on or not;
    shape (steps,), nan where none did."""
    rewards = run.segments["reward"]
    return _mean_by_step(run, rewards, ~np.isnan(rewards))


def _mean_by_step(run: Run, values: NDArray[Any], chosen: NDArray[np.bool_]) -> FloatArray:
    """The mean of a column of segments over the ``chosen`` rows of each step, shape (steps,)."""
    steps, count = run.segments["step"][chosen], len(run.steps)
    rows = np.bincount(steps, minlength=count)[:count]
    total = np.bincount(steps, weights=values[chosen], minlength=count)[:count]
    return np.where(rows > 0, total / np.maximum(rows, 1), np.nan)


# The summary


def run_summary(run: Run, scenario: str, policy: str, seed: int, **more: Any) -> dict[str, Any]:
    """What summary.json holds: whose run it is, its metrics, what one world knows ``more``, and
    the run's warnings."""
    return {
        "schema": RUN_SCHEMA,
        "scenario": scenario,
        "policy": policy,
        "world": run.world,
        "seed": seed,
        **summarise(run),
        **more,
        "warnings": [*run.warnings, *_short(run), *_stale(run)],
    }


def _short(run: Run) -> list[str]:
    """What is to be said of a run that is too short for its steady state to show."""
    steady, count = steady_of(run), len(run.steps)
    if steady.known:
        return []
    return [
        f"{count} steps are too few to tell the start-up from the steady state: step_s is the mean "
        f"of {steady.stop - steady.start}, while work goes over from step to step; run more"
    ]


def _stale(run: Run) -> list[str]:
    """That groups grew too old, and which setting lets them live."""
    old = [decision for decision in run.decisions if decision.get("too_old")]
    if not old:
        return []
    groups = sum(len(decision["too_old"]) for decision in old)
    launched = max(sum(record.launched_groups for record in run.steps), 1)
    rule = old[-1]["plan"]["staleness"]
    lost = "dropped" if rule["exceeded"] == "drop" else "started again from nothing"
    return [
        f"{groups} groups ({100 * groups / launched:.2g} % of those launched) exceeded the "
        f"staleness bound of {rule['max_versions']:g} versions and were {lost}; raise "
        "max_staleness of the policy to train on them"
    ]


def summarise(run: Run) -> dict[str, Any]:
    """The metrics of a run as plain JSON types, in a fixed order. None where nothing was measured.

    Seconds: makespan_s; step_s, the mean of the steady state from one step's end to the next, and
    step_s_p50 and step_s_p95 of its steps, which are ``steady_steps[0]`` to ``steady_steps[1]``
    (left out; `simulator.results.steady`); fill_s, what the start-up took beyond so many steady
    steps, and drain_s the steps after the last rollouts (below 0 where they are short), so that
    makespan_s is steps * step_s + fill_s + drain_s; the totals of rollout_s, train_s, sync_s,
    switch_s; queue_s_mean, of a segment, from submit to first computed. Tokens: the ledger;
    rollout_tokens_per_s is generated tokens over rollout time, the wait for aborted rollouts
    included; trained_tokens_per_s is over the makespan.

    bubble_fraction is idle over held GPU-seconds, and bubble_by_cause splits it (`gpu_lanes`);
    underfilled_fraction is the tail, as a share of rollout time. straggler_rate: share of complete
    groups whose longest response exceeds 1.25 medians (SAGC, arXiv 2606.02218). staleness: share of
    the tokens of trained rollouts, masked ones included, by versions behind ("0" is on-policy), and
    its mean.
    versions_per_rollout_mean and _max: of trained rollouts. carried_token_share: of their tokens,
    those sampled in an earlier step. length_bias: 1 where what is trained is as long as what was
    launched (see the module's head); a run that resumes also shows a little less than 1 for what it
    still carries at its end. truncated_share: of finished rollouts, those at the cap. group_sizes:
    steps by the size of their groups. turns: of a run whose rollouts have any
    (`simulator.results.turns.turn_summary`).
    """
    segments = {name: run.segments[name] for name in run.segments.columns}
    return {
        **_times(run, segments),
        **_tokens(run),
        **_utilisation(run),
        **_learning(run, segments),
        **turn_summary(run, segments),
        "group_sizes": _group_sizes(run),
        "gpus": run.shape.held_gpus,
        "gpu_hours": run.shape.held_gpus * run.makespan_s / 3600,
    }


def _times(run: Run, segments: dict[str, NDArray[Any]]) -> dict[str, Any]:
    steady = steady_of(run)
    step_s = [record.step_s for record in run.steps[steady.start : steady.stop]]
    p50, p95 = np.quantile(step_s, [0.5, 0.95]).tolist() if step_s else (None, None)
    return {
        "makespan_s": run.makespan_s,
        "steps": len(run.steps),
        "step_s": steady.step_s if step_s else None,
        "step_s_p50": p50,
        "step_s_p95": p95,
        "fill_s": steady.fill_s,
        "drain_s": steady.drain_s,
        "steady_steps": [steady.start, steady.stop],
        "rollout_s": sum((record.rollout_s for record in run.steps), 0.0),
        "train_s": sum((record.train_s for record in run.steps), 0.0),
        "sync_s": sum((record.sync_s for record in run.steps), 0.0),
        "switch_s": sum((record.switch_s for record in run.steps), 0.0),
        "queue_s_mean": _mean(segments["start_s"] - segments["submitted_s"]),
    }


def _tokens(run: Run) -> dict[str, Any]:
    ledger = run.ledger
    rollout_s = sum(record.rollout_s for record in run.steps)
    return {
        "generated_tokens": ledger.generated_tokens,
        "trained_tokens": ledger.trained_tokens,
        "masked_tokens": ledger.masked_tokens,
        "dropped_tokens": ledger.dropped_tokens,
        "carried_tokens": ledger.carried_tokens,
        "prefill_tokens": ledger.prefill_tokens,
        "reprefilled_tokens": ledger.reprefilled_tokens,
        "rollout_tokens_per_s": _ratio(ledger.generated_tokens, rollout_s),
        "trained_tokens_per_s": _ratio(ledger.trained_tokens, run.makespan_s),
    }


def _group_sizes(run: Run) -> dict[str, int]:
    sizes = Counter(record.group_size for record in run.steps)
    return {str(size): sizes[size] for size in sorted(sizes)}


def _utilisation(run: Run) -> dict[str, Any]:
    held_s = run.shape.gpus * run.makespan_s
    idle = dict.fromkeys(CAUSES, 0.0)
    for lane in gpu_lanes(run):
        for cause, intervals in lane.idle.items():
            idle[cause] += lane.gpus * total_s(intervals)
    if not len(run.calls):  # nobody was away
        del idle["environment"]
    by_cause = {cause: _ratio(seconds, held_s) or 0.0 for cause, seconds in idle.items()}
    return {
        "bubble_fraction": sum(by_cause.values()),
        "bubble_by_cause": by_cause,
        "underfilled_fraction": underfilled_fraction(run),
    }


def _learning(run: Run, segments: dict[str, NDArray[Any]]) -> dict[str, Any]:
    finished = segments["finished"] == 1
    of_trained = segments["outcome"] == TRAINED
    trained = finished & of_trained
    behind: dict[int, int] = {}
    for record in run.steps:
        for versions, tokens in record.staleness.items():
            behind[versions] = behind.get(versions, 0) + tokens
    tokens = sum(behind.values())
    carried = of_trained & (segments["step"] < segments["trained_step"])
    complete = sum(record.complete_groups for record in run.steps)
    versions = segments["versions"][trained]
    return {
        "rollouts": int(finished.sum()),
        "preemptions": run.ledger.preemptions,
        "straggler_rate": _ratio(sum(record.stragglers for record in run.steps), complete),
        "staleness": {str(age): behind[age] / tokens for age in sorted(behind) if tokens},
        "staleness_mean": _ratio(sum(age * count for age, count in behind.items()), tokens),
        "versions_per_rollout_mean": _mean(versions),
        "versions_per_rollout_max": int(versions.max()) if len(versions) else None,
        "carried_token_share": _ratio(int(segments["new_tokens"][carried].sum()), tokens),
        "length_bias": _length_bias(segments),
        "truncated_share": _mean(segments["truncated"][finished]),
        "mean_reward": _mean(segments["reward"][trained]),
    }


def _mean(values: Any) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
