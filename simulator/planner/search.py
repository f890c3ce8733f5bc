"""The search behind a plan: estimates, the race of simulations, and the answer from them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from rollcast.simulator.errors import RollcastError, RunError, ScenarioError
from rollcast.simulator.planner import words
from rollcast.simulator.planner.answer import Impossible, Interval, Planned, Rival, Row, Unrun
from rollcast.simulator.planner.changes import what_would_change
from rollcast.simulator.planner.choices import Choice, Refused, enumerated
from rollcast.simulator.planner.estimate import Estimate
from rollcast.simulator.planner.frontier import on_front
from rollcast.simulator.planner.journal import Journal, digest
from rollcast.simulator.planner.measure import Failure, Measured, Task
from rollcast.simulator.planner.question import Question
from rollcast.simulator.planner.race import Candidate, Results, race
from rollcast.simulator.planner.refine import refined
from rollcast.simulator.planner.whole_run import RunCost
from rollcast.simulator.planner.workers import Died, Workers
from rollcast.simulator.policies import parse_labelled, spell
from rollcast.simulator.studies.drawn import ends

SURE = 0.9  # chance of meeting each limit at which a choice counts as sure
FURTHER = 3  # choices beyond the finalists that are tried for such a chance
FINALISTS = 5  # the best choices that get intervals, beside the best synchronous one
BATCH = 8  # choices that the first rung simulates at a time, for any number of workers
OnProgress = Callable[[str, int, int], None]
"""Called with the stage, and how many of its tasks are done, of how many."""


class Search:
    """One search: workers, journal and progress around the pure parts."""

    def __init__(
        self, asked: Question, crew: Workers, journal: Journal, on_progress: OnProgress
    ) -> None:
        self.asked, self.objective = asked, asked.objective
        self.crew, self.journal, self.on_progress = crew, journal, on_progress
        self.choices: list[Choice] = []
        self.estimates: list[Estimate] = []
        self.impossible: list[tuple[str, str]] = []  # (problem, choice)

    def answer(self) -> Planned:
        """Searches. Raises RunError if no choice can run, ScenarioError for a missing price."""
        asked = self.asked
        self._estimate(enumerated(asked.cluster, asked.choose, asked.policies, asked.apart))
        if not self.choices:
            raise self._none_possible()
        candidates = [self._candidate(i) for i in range(len(self.choices))]
        run_costs = [candidate.estimate(1.0) for candidate in candidates]
        for run_cost in run_costs:
            self.objective.value(run_cost)  # raises for a missing price, before the work
        if self.objective.limits.usd is not None and any(cost.usd is None for cost in run_costs):
            raise ScenarioError(
                "plan.limits.usd", "needs the price of every GPU; give gpu.usd_per_hour"
            )
        results = race(candidates, self.objective, self._simulate_candidates, asked.rungs, BATCH)
        for i, problem in results.failed.items():
            self.impossible.append((problem, self.choices[i].name))
        if not results.measured:
            raise self._none_possible()
        self._run_baseline(candidates, results)
        told = self._refine(results) if asked.open_policies else ()
        return self._answer(results, told)

    def _refine(self, results: Results) -> tuple[str, ...]:
        """Adds the best choice with better numbers in its policies, simulated for the last rung;
        sentences on numbers that are faster and learn from something else."""
        best = next((row for row in self._rows(results) if row.exact and not row.beyond), None)
        if best is None:
            return ()
        found = refined(self, self.asked, best)
        choice = None if found.policy is None else replace(best.choice, policy=found.policy)
        if choice is not None and choice not in self.choices:
            self._estimate([choice])
            if self.choices[-1] == choice:
                i = len(self.choices) - 1
                [outcome] = self._simulate_candidates([(i, self.asked.rungs.last)])
                if isinstance(outcome, Measured):
                    results.measured[i] = outcome
                    results.final.append(i)
                    results.steps += outcome.steps
        return found.sentences

    def _run_baseline(self, candidates: Sequence[Candidate], results: Results) -> None:
        """Simulates the best synchronous choice for the last rung, if the race did not. One that
        was never simulated counts by its estimate, corrected by the other synchronous ones'."""
        sync = [i for i, choice in enumerate(self.choices) if choice.synchronous]
        measured = results.measured
        ratios = [candidates[i].factor(measured[i]) for i in measured if i in sync]
        off = float(np.mean([ratio for ratio in ratios if ratio is not None] or [1.0]))

        def rank(i: int) -> tuple[float, float, int]:
            m = measured.get(i)
            run_cost = candidates[i].estimate(off) if m is None else candidates[i].run_cost(m)
            return (
                max(1.0, self.objective.beyond_by(candidates[i].gpus, m, run_cost)),
                self.objective.value(run_cost),
                i,
            )

        possible = [i for i in sync if i not in results.failed]
        if not possible:
            return
        best = min(possible, key=rank)
        if best not in results.final:
            [outcome] = self._simulate_candidates([(best, self.asked.rungs.last)])
            if isinstance(outcome, Measured):
                measured[best] = outcome
                results.final.append(best)
                results.steps += outcome.steps

    def _none_possible(self) -> RollcastError:
        most, count = by_cause(self.impossible)[0], len(self.impossible)
        some = f"; {most.choices[0]}" if 2 * len(most.choices) <= count else ""
        return RunError(f"none of {count} choices can be run{some}: {most.problem}")

    def _checked(self, choice: Choice | Refused) -> Choice | Refused:
        """Refused where the stack does not take what it sets."""
        if self.asked.check is None or isinstance(choice, Refused):
            return choice
        try:
            self.asked.check(choice.settings)
        except ScenarioError as error:
            return Refused(choice.chosen, choice.policy, str(error))
        return choice

    def _estimate(self, listed: Sequence[Choice | Refused]) -> None:
        choices_or_refusals = [self._checked(choice) for choice in listed]
        choices = [choice for choice in choices_or_refusals if isinstance(choice, Choice)]
        results: list[Any] = [None] * len(choices)
        for number, (i, result) in enumerate(self.crew.results(choices)):
            results[i] = result
            self.on_progress("estimates", number + 1, len(choices))
        done = iter(results)
        for choice in choices_or_refusals:
            outcome = choice if isinstance(choice, Refused) else next(done)
            if isinstance(outcome, Refused | Failure | Died):
                self.impossible.append((outcome.problem, choice.name))
            elif (unknown := self.asked.unknown(choice.policy, outcome)) is not None:
                self.impossible.append((unknown, choice.name))
            else:
                assert isinstance(choice, Choice)
                fitting = self._checked(choice.fitting(outcome.unasked))
                if isinstance(fitting, Refused):
                    self.impossible.append((fitting.problem, choice.name))
                    continue
                self.choices.append(fitting)
                self.estimates.append(outcome)

    def _candidate(self, i: int) -> Candidate:
        estimate, policy = self.estimates[i], self.choices[i].policy
        quality = self.asked.quality_for(policy, estimate)
        return Candidate(
            policy,
            estimate.setup.gpus,
            lambda factor: estimate.run_cost(self.asked.work, factor, quality),
            lambda measured: estimate.factor(measured.step_s),
            lambda measured: self._run_cost(i, measured),
        )

    def _run_cost(self, i: int, measured: Measured) -> RunCost:
        setup = self.estimates[i].setup
        quality = self.asked.quality_for(self.choices[i].policy, measured)
        return measured.run_cost(self.asked.work, setup.gpus, setup.usd_per_gpu_hour, quality)

    def _simulate_candidates(
        self, wanted: Sequence[tuple[int, int]]
    ) -> Sequence[Measured | Failure]:
        return self.simulate(
            "simulations",
            [Task(self.choices[i], steps, whole=self._whole(i, steps)) for i, steps in wanted],
        )

    def _whole(self, i: int, steps: int) -> int | None:
        """Updates of the whole run, to draw a choice of the last rung for; None for no draws."""
        updates = self._candidate(i).estimate(1.0).updates
        if not self.asked.intervals or steps < self.asked.rungs.last or not math.isfinite(updates):
            return None
        return max(1, round(updates))

    def simulate(self, what: str, tasks: Sequence[Task]) -> list[Measured | Failure]:
        """Results of tasks, in order; of those in the journal without a simulation."""
        keys = [_key(task) for task in tasks]
        outcomes: list[Measured | Failure | None] = [_known(self.journal.get(key)) for key in keys]
        todo = [i for i, result in enumerate(outcomes) if result is None]
        for number, (place, result) in enumerate(self.crew.results([tasks[i] for i in todo])):
            i = todo[place]
            outcomes[i] = Failure(result.problem) if isinstance(result, Died) else result
            if not isinstance(result, Died):  # a fault of the machine, not of the choice
                self.journal.put(keys[i], asdict(result))
            self.on_progress(what, number + 1, len(todo))
        return [
            self._answered(task, outcome)
            for task, outcome in zip(tasks, outcomes, strict=True)
            if outcome is not None
        ]

    def _answered(self, task: Task, outcome: Measured | Failure) -> Measured | Failure:
        """The outcome up to an accuracy, if that is the length of the run; a failure where the law
        of learning says nothing of it."""
        if isinstance(outcome, Failure) or self.asked.work.accuracy is None:
            return outcome
        unknown = self.asked.unknown(task.choice.policy, outcome)
        return outcome.up_to_target() if unknown is None else Failure(unknown)

    # The answer

    def _answer(self, results: Results, told: tuple[str, ...]) -> Planned:
        asked, objective = self.asked, self.objective
        rows = self._with_intervals(self._rows(results))
        sync = [row for row in rows if row.choice.synchronous]
        exact = (row for row in sync if row.exact and not row.beyond)
        baseline = next(exact, next(iter(sync), None))
        rows = [_with_break_even(row, baseline, asked) for row in rows]
        allowed = [row for row in rows if not row.beyond]
        top = allowed[0] if allowed else min(rows, key=self._rank)
        rows = [self._with_chances(row, top) for row in rows]
        allowed = [row for row in rows if not row.beyond]
        final = [row for row in (allowed or [top]) if row.exact][:FINALISTS]
        by_name = {row.choice.name: row for row in rows}
        top = by_name[top.choice.name]
        wins = self._wins(top, final)
        sure = self._sure(top, rows) if allowed else None
        if sure is not None:
            rows = [sure if row.choice.name == sure.choice.name else row for row in rows]
            by_name[sure.choice.name] = sure
        rivals = [
            Rival(
                by_name[row.choice.name],
                objective.value(row.run_cost) / objective.value(top.run_cost) - 1,
                wins.get(row.choice.name),
            )
            for row in final
            if row.choice.name != top.choice.name
        ]
        give_up: dict[str, Row] = {}
        changes: tuple[str, ...] = ()
        if allowed:
            base = None if baseline is None else by_name[baseline.choice.name]
            sentences = words.recommendation(top, asked.work, rivals, objective.name, base)
            sentences = (
                *sentences[:2],
                *words.chances(top, objective.limits, sure),
                *sentences[2:],
            )
            changes = (*told, *what_would_change(self, asked, top, final, rows))
        else:
            give_up = self._give_up(rows)
            sentences = words.unmet(top, objective.limits, give_up)
        return Planned(
            asked.name,
            asked.work,
            objective.name,
            objective.limits,
            top if allowed else None,
            None if allowed else top,
            give_up,
            rows,
            self._unrun(by_name, results),
            by_cause(self.impossible),
            rivals,
            baseline,
            (*sentences, *asked.told),
            changes,
            results.steps,
            len(self.choices) * asked.rungs.last,
            _resolved(asked, top),
            asked.narrowed,
        )

    def _rows(self, results: Results) -> list[Row]:
        """The simulated choices, best first; those beyond a limit last."""
        asked, objective = self.asked, self.objective
        rows, points = [], []
        for i, measured in results.measured.items():
            setup, run_cost = self.estimates[i].setup, self._run_cost(i, measured)
            beyond = tuple(text for _, text in objective.beyond(setup, measured, run_cost))
            quality = asked.quality_for(self.choices[i].policy, measured)
            exact = i in results.final and measured.steps == asked.rungs.last
            rows.append(Row(self.choices[i], setup, measured, run_cost, quality, exact, beyond))
            counts = exact and objective.violation(setup.gpus, measured) <= 1
            points.append((run_cost.hours, run_cost.cost) if counts else (np.inf, np.inf))
        front = on_front(*zip(*points, strict=True))
        rows = [replace(row, on_front=bool(f)) for row, f in zip(rows, front, strict=True)]

        def rank(row: Row) -> tuple[bool, bool, float, str]:
            value = objective.value(row.run_cost)
            return bool(row.beyond), not row.exact, value, row.choice.name

        return sorted(rows, key=rank)

    def _unrun(self, simulated: Mapping[str, Row], results: Results) -> list[Unrun]:
        unrun = [
            Unrun(choice, self.estimates[i].setup, self._candidate(i).estimate(1.0))
            for i, choice in enumerate(self.choices)
            if choice.name not in simulated and i not in results.failed
        ]
        return sorted(unrun, key=lambda choice: self.objective.value(choice.estimate))

    def _rank(self, row: Row) -> tuple[float, float]:
        beyond_by = self.objective.beyond_by(row.setup.gpus, row.measured, row.run_cost)
        return beyond_by, self.objective.value(row.run_cost)

    def _give_up(self, rows: Sequence[Row]) -> dict[str, Row]:
        """By limit, the best choice that breaks no other."""
        best: dict[str, Row] = {}
        for row in sorted(rows, key=lambda row: self.objective.value(row.run_cost)):
            broken = [
                name for name, _ in self.objective.beyond(row.setup, row.measured, row.run_cost)
            ]
            if len(broken) == 1:
                best.setdefault(broken[0], row)
        return best

    def _with_intervals(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, with intervals and chances where they have draws."""
        return [
            self._with_interval(row, row.measured) if row.measured.factors else row for row in rows
        ]

    def _wins(self, top: Row, final: Sequence[Row]) -> dict[str, float]:
        """By choice, the share of draws in which it is better than ``top``."""
        power = 2.0 if self.objective.name == "balanced" else 1.0
        values = {
            row.choice.name: self.objective.value(row.run_cost)
            * np.array(row.measured.factors) ** power
            for row in (top, *final)
            if row.measured.factors
        }
        best = values.pop(top.choice.name, None)
        if best is None:
            return {}
        return {name: float(np.mean(value < best)) for name, value in values.items()}

    def _sure(self, top: Row, rows: Sequence[Row]) -> Row | None:
        """The best choice that meets every limit with the chance `SURE`, with its intervals; None
        where that is the best one, or none is found."""
        if not top.chances or min(top.chances.values()) >= SURE:
            return None
        likely = [
            row for row in rows if not row.beyond and min(row.chances.values(), default=0) >= SURE
        ]
        for row in likely:  # best first; those of the last rung have their draws
            if row.measured.factors:
                return row
        further = [row for row in likely if np.isfinite(row.run_cost.updates)][:FURTHER]
        tasks = [
            Task(row.choice, row.measured.steps, whole=max(1, round(row.run_cost.updates)))
            for row in further
        ]
        for row, drawn in zip(further, self.simulate("intervals", tasks), strict=True):
            if isinstance(drawn, Measured) and drawn.factors:
                known = self._with_interval(row, drawn)
                if min(known.chances.values()) >= SURE:
                    return known
        return None

    def _with_chances(self, row: Row, top: Row) -> Row:
        """A row without draws of its own, with its chances if it spreads like the best one."""
        if row.measured.factors:
            return row
        return replace(row, chances=self.objective.chances(row.run_cost, top.measured.factors))

    def _with_interval(self, row: Row, drawn: Measured) -> Row:
        low, high = ends(drawn.factors).tolist()
        low, high = min(low, 1.0), max(high, 1.0)

        def around(value: float) -> Interval:
            return Interval(low * value, high * value)

        return replace(
            row,
            measured=drawn,
            hours=around(row.run_cost.hours),
            usd=None if row.run_cost.usd is None else around(row.run_cost.usd),
            chances=self.objective.chances(row.run_cost, drawn.factors),
        )


def _with_break_even(row: Row, baseline: Row | None, asked: Question) -> Row:
    if baseline is None or row.choice.synchronous:
        return row
    ratio = asked.objective.value(baseline.run_cost) / asked.objective.value(row.run_cost)
    if asked.objective.name == "balanced":  # the square of the updates
        ratio = ratio**0.5
    return replace(row, break_even=ratio * row.quality)


def _resolved(asked: Question, row: Row) -> dict[str, Any]:
    """The scenario of a choice, as simulated, with the updates of its whole run (``plan.run``)."""
    data = row.choice.applied(asked.raw).data
    chain = parse_labelled(row.choice.policy, folder=asked.raw.modules)[1]
    resolved = {**data, "policy": spell(chain), "steps": row.measured.steps}
    if asked.learning is not None:
        resolved["learning"] = asked.learning
    updates = row.run_cost.updates
    if math.isfinite(updates):
        resolved["plan"] = {"run": {"steps": max(1, math.ceil(updates))}}
    return resolved


def _key(task: Task) -> str:
    return digest(
        [dict(task.choice.settings), task.choice.policy, task.steps, task.more, task.whole]
    )


def _known(entry: Mapping[str, Any] | None) -> Measured | Failure | None:
    if entry is None:
        return None
    if "problem" in entry:
        return Failure(str(entry["problem"]))
    return Measured.from_plain(entry)


def by_cause(problems: Sequence[tuple[str, str]]) -> list[Impossible]:
    """(problem, choice) pairs grouped by the problem's text without numbers, names of hardware and
    what fills the memory, the most common first; a group shows its first problem."""
    by_problem: dict[str, list[tuple[str, str]]] = {}
    for problem, choice in problems:
        cause = re.sub(r"\d[\d,.]*", "#", problem.partition(", of which")[0])
        cause = re.sub(r"^[\w.]+: (?=out of memory)", "", cause)  # the key that would lift it
        cause = re.sub(r"[a-z0-9]+-(?:sxm|pcie|nvl)\S*", "#", cause)
        by_problem.setdefault(cause, []).append((problem, choice))
    grouped = [
        Impossible(refusals[0][0], tuple(choice for _, choice in refusals))
        for refusals in by_problem.values()
    ]
    return sorted(grouped, key=lambda group: -len(group.choices))
