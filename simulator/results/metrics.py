"""The metrics of a run: throughput, bubbles, waste, staleness, bias.

**Bubble.** Idle over held GPU-seconds (`simulator.results.over_time.gpu_lanes`).
``underfilled_fraction`` adds the tail, in which few rollouts keep a replica "busy".

**Length bias.** Mean length of trained over launched rollouts; policies that drop unfinished ones
train on shorter ones. Unfinished rollouts are censored observations (`censored_mean`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollcast.simulator.core.spans import TRAINED, Run
from rollcast.simulator.results import RUN_SCHEMA
from rollcast.simulator.results.intervals import (
    NOTHING,
    FloatArray,
    between,
    total_s,
)
from rollcast.simulator.results.over_time import (
    CAUSES,
    GpuLane,
    gpu_lanes,
    underfilled_intervals,
)
from rollcast.simulator.results.phases import PHASE_COLUMNS, ByPhase
from rollcast.simulator.results.steady import Steady, mean_age, steady_of
from rollcast.simulator.results.timeouts import (
    mean,
    timeout_summary,
    timeout_warnings,
    turn_summary,
)
from rollcast.simulator.values.words import counted_are


def underfilled_fraction(run: Run, underfilled: Sequence[FloatArray]) -> float:
    """Underfilled share of all rollout phases' replica-seconds, of `underfilled_intervals`."""
    phases_s = math.fsum(phase.seconds for phase in run.phases if phase.kind == "rollout")
    few_s = math.fsum(total_s(intervals) for intervals in underfilled)
    return _ratio(few_s, run.shape.replicas * phases_s) or 0.0


def by_phase(run: Run) -> ByPhase:
    """Where the seconds of a run's steps go."""
    return ByPhase.of(run, underfilled_intervals(run))


# Bias of what is trained


def censored_mean(lengths: ArrayLike, complete: ArrayLike) -> float:
    """Mean length, with incomplete observations as lower bounds.

    The area under the Kaplan-Meier survival curve (J. Am. Stat. Assoc. 53, 1958) up to the longest
    observation. lengths, complete: shape (n,). nan for n = 0.
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
    """Mean length of trained over launched rollouts; only first attempts count as launched."""
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
    """Columns of steps.csv beside the fields of a `StepRecord`, shape (steps,), nan if absent:
    mean_staleness (versions, over trained tokens), truncated_share (of finished responses),
    accuracy, evaluation."""
    ended = run.segments["finished"] == 1
    return {
        "mean_staleness": np.array([mean_age(record) for record in run.steps], dtype=float),
        "truncated_share": _mean_by_step(run, run.segments["truncated"], ended),
        "accuracy": accuracy(run),
        "evaluation": np.array([run.evaluations.get(one.step, np.nan) for one in run.steps]),
    }


def phase_columns(run: Run) -> dict[str, FloatArray]:
    """Further columns of steps.csv: seconds by phase, shape (steps,)."""
    return {PHASE_COLUMNS[name]: seconds for name, seconds in by_phase(run).seconds.items()}


def accuracy(run: Run) -> FloatArray:
    """Mean reward of the rollouts that finished in each step, shape (steps,), nan for none."""
    rewards = run.segments["reward"]
    return _mean_by_step(run, rewards, ~np.isnan(rewards))


def _mean_by_step(run: Run, values: NDArray[Any], chosen: NDArray[np.bool_]) -> FloatArray:
    """The mean of ``values`` over the ``chosen`` segments of each step, shape (steps,)."""
    steps, count = run.segments["step"][chosen], len(run.steps)
    rows = np.bincount(steps, minlength=count)[:count]
    total = np.bincount(steps, weights=values[chosen], minlength=count)[:count]
    return np.where(rows > 0, total / np.maximum(rows, 1), np.nan)


# The summary


def run_summary(run: Run, scenario: str, policy: str, seed: int, **more: Any) -> dict[str, Any]:
    """The content of summary.json. more: further figures of the world."""
    return {
        "schema": RUN_SCHEMA,
        "scenario": scenario,
        "policy": policy,
        "world": run.world,
        "seed": seed,
        **summarise(run),
        **more,
        **(late := timeout_summary(run)),
        "warnings": [*run.warnings, *short(run), *_stale(run), *timeout_warnings(late)],
    }


def short(run: Run) -> list[str]:
    """A warning for a run without a steady state."""
    steady, count = steady_of(run), len(run.steps)
    if steady.known:
        return []
    return [
        f"{counted_are(count, 'step')} too few to tell the start-up from the steady state, "
        "because work is carried over between steps: step_s is the mean of "
        f"{steady.stop - steady.start}; simulate more (--set steps=N)"
    ]


def _stale(run: Run) -> list[str]:
    """A warning for groups beyond the staleness bound."""
    old = [decision for decision in run.decisions if decision.get("too_old")]
    if not old:
        return []
    groups = sum(len(decision["too_old"]) for decision in old)
    launched = max(sum(record.launched_groups for record in run.steps), 1)
    rule = old[-1]["plan"]["staleness"]
    dropped = rule["exceeded"] in ("drop", "window")
    lost = "dropped" if dropped else "started again from nothing"
    return [
        f"{groups} groups ({100 * groups / launched:.2g} % of those launched) exceeded the "
        f"staleness bound of {rule['max_versions']:g} versions and were {lost}; raise "
        "max_staleness of the policy to train on them"
    ]


def summarise(run: Run) -> dict[str, Any]:
    """The metrics of a run as JSON types, in a fixed order; None if not measured.

    Seconds: makespan_s; step_s, step_s_p50, step_s_p95 of the steady steps ``steady_steps[0]`` up
    to ``[1]`` (`simulator.results.steady`); startup_s and drain_s, of the steps before and after
    them; totals rollout_s, train_s, sync_s, switch_s; queue_s_mean, of segments.
    Tokens: the ledger; rollout_tokens_per_s over rollout time, trained_tokens_per_s over the
    makespan.

    bubble_fraction: idle over held GPU-seconds, split by bubble_by_cause (`gpu_lanes`).
    straggler_rate: complete groups whose longest response exceeds 1.25 medians (SAGC, arXiv
    2606.02218). staleness: trained tokens by versions behind, masked ones included.
    carried_token_share: trained tokens of earlier steps. length_bias: trained over launched length;
    unfinished work at the end of a run lowers it slightly. group_sizes: steps by group size. turns:
    `simulator.results.timeouts.turn_summary`.
    """
    segments = {name: run.segments[name] for name in run.segments.columns}
    steady, lanes, few = steady_of(run), gpu_lanes(run), underfilled_intervals(run)
    return {
        **_times(run, steady, segments),
        **_phases(run, steady, lanes, few),
        **_tokens(run),
        **_utilisation(run, lanes, few),
        **_learning(run, segments),
        **turn_summary(run, segments),
        "group_sizes": _group_sizes(run),
        "gpus": run.shape.held_gpus,
        "gpu_hours": run.shape.held_gpus * run.makespan_s / 3600,
    }


def _times(run: Run, steady: Steady, segments: dict[str, NDArray[Any]]) -> dict[str, Any]:
    step_s = [record.step_s for record in run.steps[steady.start : steady.stop]]
    p50, p95 = np.quantile(step_s, [0.5, 0.95]).tolist() if step_s else (None, None)
    return {
        "makespan_s": run.makespan_s,
        "steps": len(run.steps),
        "step_s": steady.step_s if step_s else None,
        "step_s_p50": p50,
        "step_s_p95": p95,
        "startup_s": steady.startup_s,
        "drain_s": steady.drain_s,
        "steady_steps": [steady.start, steady.stop],
        "rollout_s": math.fsum(record.rollout_s for record in run.steps),
        "train_s": math.fsum(record.train_s for record in run.steps),
        "sync_s": math.fsum(record.sync_s for record in run.steps),
        "switch_s": math.fsum(record.switch_s for record in run.steps),
        "queue_s_mean": mean(segments["start_s"] - segments["submitted_s"]),
    }


def _phases(
    run: Run, steady: Steady, lanes: Sequence[GpuLane], underfilled: Sequence[FloatArray]
) -> dict[str, Any]:
    """Of a mean steady step, its phases and what bounds it, and for how long the replicas' GPUs
    wait for the trainer and for environments."""
    found, steps = ByPhase.of(run, underfilled), slice(steady.start, steady.stop)
    gpus = run.shape.replicas * run.shape.gpus_per_replica

    def waited_s(cause: str) -> float:
        idle = [(lane.gpus, lane.idle.get(cause, NOTHING)) for lane in lanes if lane.replica >= 0]
        each = sum(count * between(when, found.edges)[steps] for count, when in idle)
        return float(np.mean(each)) / gpus if run.steps else 0.0

    held_s, away_s = waited_s("trainer"), waited_s("environment")
    return {
        **found.summary(steady.start, steady.stop, held_s, away_s),
        "replicas_wait_s": {"trainer": held_s, "environment": away_s},
    }


def _tokens(run: Run) -> dict[str, Any]:
    ledger = run.ledger
    rollout_s = math.fsum(record.rollout_s for record in run.steps)
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


def _utilisation(
    run: Run, lanes: Sequence[GpuLane], underfilled: Sequence[FloatArray]
) -> dict[str, Any]:
    held_s = run.shape.gpus * run.makespan_s
    idle = dict.fromkeys(CAUSES, 0.0)
    for lane in lanes:
        for cause, intervals in lane.idle.items():
            idle[cause] += lane.gpus * total_s(intervals)
    if not len(run.calls):  # nobody was away
        del idle["environment"]
    by_cause = {cause: _ratio(seconds, held_s) or 0.0 for cause, seconds in idle.items()}
    return {
        "bubble_fraction": math.fsum(by_cause.values()),
        "bubble_by_cause": by_cause,
        "underfilled_fraction": underfilled_fraction(run, underfilled),
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
        "versions_per_rollout_mean": mean(versions),
        "versions_per_rollout_max": int(versions.max()) if len(versions) else None,
        "carried_token_share": _ratio(int(segments["new_tokens"][carried].sum()), tokens),
        "length_bias": _length_bias(segments),
        "truncated_share": mean(segments["truncated"][finished]),
        "mean_reward": mean(segments["reward"][trained]),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
