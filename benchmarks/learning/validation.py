"""What the law says of runs that it was not fitted to.

Within a task, whole policies are held out: every second one of the table, then the others; the law
is fitted to the rest of the task's runs and to the prior of the *other* tasks. Between tasks, one
task is left out whole, and the law is the prior of the others, which knows only where a run starts.
Times are in updates. An interval is of what would be measured, so it holds the noise of the
evaluations, too. A pair of policies counts where the measured times differ by more than seeds do.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.learning import public, tables, whole
from benchmarks.learning.arms import ARMS, EDGES, LONG_SEED, Arm
from benchmarks.learning.means import by_policy, means
from rollcast.calibration.fits.learning import Fit, LearningRun, fit, known_from, law_of
from rollcast.calibration.fits.learning_prior import over_tasks
from rollcast.calibration.judge.learning import Judged, judge, time_to
from rollcast.simulator.learning.data import prior
from rollcast.simulator.learning.law import PARAMETERS, Law

TARGETS = (0.5, 0.6, 0.7)
BEYOND = 2.0  # standard deviations of the difference of two runs


def seed_noise(runs: Sequence[LearningRun]) -> float:
    """Standard deviation of the log time to a target between runs that differ in seed alone."""
    groups: dict[tuple[str, str, float], list[float]] = {}
    for run, target in itertools.product(runs, TARGETS):
        time = time_to(run.updates, run.accuracy, target)
        if 0 < time < np.inf:
            groups.setdefault((run.origin, run.policy, target), []).append(float(np.log(time)))
    again = [np.array(times) for times in groups.values() if len(times) > 1]
    freedom = sum(len(times) - 1 for times in again)
    squares = sum(float(((times - times.mean()) ** 2).sum()) for times in again)
    return float(np.sqrt(squares / max(freedom, 1)))


def task_of(run: LearningRun) -> str:
    """The task's name."""
    return run.origin.rpartition("-w")[0]


def start_of(runs: Sequence[LearningRun], origin: str) -> float:
    """Mean accuracy of an origin's first evaluations."""
    return float(np.mean([run.accuracy[0] for run in runs if run.origin == origin]))


OUTSIDE = "MaxReward"
"""A selection that the law is not fitted to, and abstains from: it teaches from the few groups that
have fewer right answers than are kept, and its runs stall."""


def within_reach(runs: Sequence[LearningRun]) -> list[LearningRun]:
    """Runs that the law is fitted to."""
    return [r for r in runs if not r.signals.first_come and r.signals.selection != OUTSIDE]


def fits_by_task(runs: Sequence[LearningRun]) -> dict[str, Fit]:
    """Each task by itself, as far as the law reaches."""
    runs = within_reach(runs)
    tasks = sorted({task_of(run) for run in runs})
    return {task: fit([run for run in runs if task_of(run) == task]) for task in tasks}


def prior_of(fits: dict[str, Fit], words: str = "", but: str = "") -> Law:
    """The prior of these tasks but one, with speed and slowing as they are in public runs, too."""
    kept = {name: fitted for name, fitted in fits.items() if name != but}
    return over_tasks(kept, words, public.fits(fits).values())


def policies_held_out(runs: Sequence[LearningRun], fits: dict[str, Fit]) -> list[Judged]:
    """Every policy but the synchronous one, held out once."""
    names = sorted({run.policy for run in runs} - {"sync"})
    judged = []
    for task in fits:
        before = prior_of(fits, but=task)
        own = [run for run in runs if task_of(run) == task]
        for half in (0, 1):
            out = {*names[half::2]}
            kept = [run for run in within_reach(own) if run.policy not in out]
            fitted = fit(kept, *known_from(before))
            laws = {origin: law_of(fitted, origin, "", before) for origin in fitted.origins}
            for run in own:
                if run.policy in out and run.origin in laws:
                    start, factor = start_of(own, run.origin), run.rate / fitted.rate
                    judged += judge(laws[run.origin], run, start, factor, TARGETS)
    return judged


def tasks_held_out(runs: Sequence[LearningRun], fits: dict[str, Fit]) -> dict[str, list[Judged]]:
    """Each task, by the prior of the others."""
    judged: dict[str, list[Judged]] = {}
    for task in fits:
        law = prior_of(fits, but=task)
        own = [run for run in runs if task_of(run) == task]
        judged[task] = [
            one
            for run in own
            for one in judge(law, run, start_of(own, run.origin), run.rate, TARGETS)
        ]
    return judged


def ends(runs: Sequence[LearningRun]) -> list[dict[str, Any]]:
    """Where policies end: the long runs of each task, against a law that has seen no more than the
    first third of their length. One row a task and policy: mean of the last three evaluations of
    the short runs and of the long ones, and the law's forecast of these."""
    long = [run for run in runs if run.seed == LONG_SEED]
    short = [run for run in runs if run.seed != LONG_SEED]
    table = []
    for task, fitted in fits_by_task(short).items():
        laws = {name: law_of(fitted, name, "", prior()) for name in fitted.origins}
        judged = [
            one
            for run in long
            if run.origin in laws
            for one in judge(
                laws[run.origin], run, start_of(runs, run.origin), run.rate / fitted.rate, ()
            )
            if one.what == "last"
        ]
        for policy, own in by_policy(judged).items():
            origins = {one.run.origin for one in own}
            before = [r for r in short if r.policy == policy and r.origin in origins]
            table.append(
                {
                    "task": task,
                    "policy": policy,
                    "updates": int(own[0].run.updates[-1]),
                    "short": float(np.mean([run.accuracy[-3:].mean() for run in before])),
                    **means(own, "last"),
                }
            )
    return table


def edges(runs: Sequence[LearningRun], fits: dict[str, Fit]) -> list[dict[str, Any]]:
    """Arms that may no longer learn, against the law of the other runs from their warm starts: mean
    over runs of their last three evaluations, as they were and as the law says, how many runs fell
    on the way, and whether the law abstains. runs: of the campaign, whose synchronous ones stand
    beside."""
    judged = [
        one
        for run in tables.curves(tables.rows(tables.EDGE))
        for fitted in (fits[task_of(run)],)
        for one in judge(
            law_of(fitted, run.origin, "", prior()),
            run,
            start_of(runs, run.origin),
            run.rate / fitted.rate,
            (),
        )
        if one.what == "last"
    ]
    origins = {one.run.origin for one in judged}
    sync = [
        float(run.accuracy[-3:].mean())
        for run in runs
        if (run.policy, run.seed) == ("sync", 0) and run.origin in origins
    ]
    named = {arm.name: arm for arm in EDGES}
    return [
        {
            "settings": settings(named[name]),
            "sync": float(np.mean(sync)),
            "fell": sum(fall(one.run) > FELL for one in own),
            "age": float(np.mean([one.run.signals.age.mean() for one in own])),
            "abstains": all(one.said for one in own),
            **means(own, "last"),
        }
        for name, own in by_policy(judged).items()
    ]


FELL = 0.1
"""A fall in accuracy from one evaluation to a later one that chance does not make."""


def fall(run: LearningRun) -> float:
    """The most that an evaluation of a run is below an earlier one."""
    return float((np.maximum.accumulate(run.accuracy) - run.accuracy).max())


def figures(judged: Sequence[Judged], noise: float) -> dict[str, Any]:
    """Error, coverage, ranking and abstentions of judgements."""
    areas = [one for one in judged if one.what == "area" and one.said is None]
    lasts = [one for one in judged if one.what == "last" and one.said is None]
    judged = [one for one in judged if one.what == "time"]
    told = [one for one in judged if one.said is None]
    both = [one for one in told if max(one.measured, one.predicted) < np.inf and one.measured > 0]
    errors = [abs(one.predicted / one.measured - 1.0) for one in both]
    inside = [one.inside for one in told]
    right, pairs = ranking(told, noise, {one.run: one.predicted for one in lasts})
    return {
        "times": len(judged),
        "abstained": len(judged) - len(told),
        "not_reached": sum(one.measured == np.inf for one in told),
        "median_error": float(np.median(errors)) if errors else None,
        "coverage": float(np.mean(inside)) if inside else None,
        "pairs": pairs,
        "ranked_right": right / pairs if pairs else None,
        "area_error": float(np.median([abs(o.predicted - o.measured) for o in areas])),
        "last_error": float(np.median([abs(o.predicted - o.measured) for o in lasts])),
        "area_coverage": float(np.mean([one.inside for one in areas])),
        "last_coverage": float(np.mean([one.inside for one in lasts])),
    }


def source(runs: Sequence[LearningRun]) -> str:
    """What the prior is of, for readers."""
    tasks = sorted({task_of(run) for run in runs})
    policies, starts = len({r.policy for r in runs}), len({r.origin for r in runs})
    return (
        f"{len(runs)} runs of {policies} set-ups on {len(tasks)} small tasks ({', '.join(tasks)}) "
        f"from {starts} warm starts, by models of 60,000 parameters, with speeds as wide as those "
        f"of {len(public.set_ups())} public set-ups"
    )


def results(runs: Sequence[LearningRun]) -> dict[str, Any]:
    """Everything that the documents show."""
    fits = fits_by_task(runs)
    noise = seed_noise(runs)
    within = policies_held_out(runs, fits)
    between = tasks_held_out(runs, fits)
    return {
        "runs": len(runs),
        "set_ups": len({run.policy for run in runs}),
        "origins": len({run.origin for run in runs}),
        "seed_noise": noise,
        "within": {
            "all": figures(within, noise),
            **{task: figures(of_task(within, task), noise) for task in fits},
        },
        "between": {task: figures(judged, noise) for task, judged in between.items()},
        "public": public.rows(fits),
        "policies": by_set_up(runs, within),
        "parameters": {task: parameters(fitted) for task, fitted in fits.items()},
        "ends": ends(runs),
        "edges": edges(runs, fits),
        "whole": whole.table(whole.judged(fits[whole.TASK])),
    }


def of_task(judged: Sequence[Judged], task: str) -> list[Judged]:
    """Those of one task."""
    return [one for one in judged if task_of(one.run) == task]


def parameters(fitted: Fit) -> dict[str, tuple[float, float]]:
    """Mean over warm starts and standard error of each of the law's parameters."""
    found = [fitted.of(origin) for origin in fitted.origins]
    mean = np.mean([values for values, _ in found], axis=0)
    error = np.sqrt(np.mean([np.diag(covariance) for _, covariance in found], axis=0))
    return {n: (float(m), float(e)) for n, m, e in zip(PARAMETERS, mean, error, strict=True)}


def by_set_up(runs: Sequence[LearningRun], judged: Sequence[Judged]) -> dict[str, dict[str, Any]]:
    """Of each set-up but the synchronous one: updates to the middle target over the synchronous
    run's of the same warm start and seed 0 (geometric mean and extremes of those that reached it;
    None where most did not; missed: how many), and the forecast over the measurement, less one,
    where it was held out (median; None where the law abstains)."""
    middle = TARGETS[1]
    base = {
        run.origin: time_to(run.updates, run.accuracy, middle)
        for run in runs
        if run.policy == "sync" and run.seed == 0
    }
    base = {origin: time for origin, time in base.items() if np.isfinite(time)}
    found: dict[str, dict[str, Any]] = {}
    for arm in ARMS:
        own = [run for run in runs if run.policy == arm.name and run.origin in base]
        if not own or arm.name == "sync":
            continue
        ratios = [time_to(r.updates, r.accuracy, middle) / base[r.origin] for r in own]
        times = [one for one in judged if one.what == "time" and one.said is None]
        told = [one for one in times if one.run.policy == arm.name]
        errors = [
            o.predicted / o.measured - 1 for o in told if 0 < o.measured < np.inf > o.predicted
        ]
        finite = [ratio for ratio in ratios if np.isfinite(ratio)]
        reached = 2 * len(finite) > len(ratios)
        found[arm.name] = {
            "settings": settings(arm),
            "runs": len(own),
            "ratio": float(np.exp(np.log(finite).mean())) if reached else None,
            "low": float(min(finite)) if reached else None,
            "high": float(max(finite)) if reached else None,
            "missed": len(ratios) - len(finite),
            "error": float(np.median(errors)) if errors else None,
        }
    return found


def settings(arm: Arm) -> str:
    """What an arm changes, in words."""
    words = [f"`{arm.policy}`"]
    if (arm.groups, arm.size) != (12, 8):
        words.append(f"{arm.groups} groups of {arm.size}")
    if arm.rate != 1.0:
        words.append(f"{arm.rate:g} x learning rate")
    if arm.minibatches > 1:
        words.append(f"{arm.minibatches} minibatches")
    if arm.prompts is not None:
        words.append(f"{arm.prompts} prompts")
    return ", ".join(words)


def ranking(
    judged: Sequence[Judged], noise: float, ends: Mapping[LearningRun, float] | None = None
) -> tuple[int, int]:
    """Pairs of policies in the right order, and pairs that differ by more than noise: of one warm
    start and target. ends: accuracies that are forecast for the ends of runs, which say which is
    sooner where neither is forecast to reach the target as long as it runs."""
    ends = ends or {}

    def forecast(one: Judged) -> tuple[float, float]:
        return one.predicted, -ends.get(one.run, 0.0)

    groups: dict[tuple[str, float], list[Judged]] = {}
    for one in judged:
        groups.setdefault((one.run.origin, one.target), []).append(one)
    right = pairs = 0
    least = BEYOND * np.sqrt(2.0) * noise
    for group in groups.values():
        for a, b in itertools.combinations(group, 2):
            if a.run.policy == b.run.policy or min(a.measured, b.measured) <= 0:
                continue
            if np.inf in (a.measured, b.measured):
                apart = a.measured != b.measured
            else:
                apart = abs(np.log(a.measured / b.measured)) > least
            if apart:
                pairs += 1
                right += (a.measured < b.measured) == (forecast(a) < forecast(b))
    return right, pairs
