"""The search behind a plan: estimates, simulations and the race, and the answer made of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from rollcast.simulator.planner.whole_run import RunCost, quality_of, run_cost
from rollcast.simulator.planner.workers import Died, Workers
from rollcast.simulator.policies import parse_labelled, spell
from rollcast.simulator.studies.interval import ends

FINALISTS = 5
"""How many of the best are drawn anew, the best synchronous one beside them."""

BATCH = 8
"""Choices that the first rung tries at a time, whatever the number of workers."""

OnProgress = Callable[[str, int, int], None]
"""Called with what is done, how many of it are, and of how many."""


class Search:
    """One search: the effects (workers, journal, progress) around the pure parts."""

    def __init__(
        self, asked: Question, crew: Workers, journal: Journal, on_progress: OnProgress
    ) -> None:
        self.asked, self.crew, self.journal, self.said = asked, crew, journal, on_progress
        self.choices: list[Choice] = []
        self.estimates: list[Estimate] = []
        self.impossible: list[tuple[str, str]] = []  # (problem, choice)
        self.simulated = 0

    def answer(self) -> Planned:
        """The answer."""
        asked = self.asked
        self._estimate(enumerated(asked.cluster, asked.choose, asked.policies, asked.apart))
        if not self.choices:
            raise self._nothing()
        candidates = [self._candidate(i) for i in range(len(self.choices))]
        run_costs = [candidate.estimate(1.0) for candidate in candidates]
        for made in run_costs:
            asked.objective.value(made)  # a price that is missing is said before the work
        if asked.objective.limits.usd is not None and any(made.usd is None for made in run_costs):
            raise ScenarioError(
                "plan.limits.usd", "needs the price of every GPU; give gpu.usd_per_hour"
            )
        results = race(candidates, asked.objective, self._simulate_candidates, asked.rungs, BATCH)
        for i, problem in results.failed.items():
            self.impossible.append((problem, self.choices[i].said))
        if not results.measured:
            raise self._nothing()
        self._run_baseline(candidates, results)
        return self._answer(results)

    def _run_baseline(self, candidates: Sequence[Candidate], results: Results) -> None:
        """The best synchronous choice is held against the others exactly, even where it dropped out
        of the race; where it was never in it, by its estimate, off by as much as those of the
        synchronous ones that were."""
        objective = self.asked.objective
        ratios = [
            candidates[i].factor(m)
            for i, m in results.measured.items()
            if self.choices[i].policy == "sync"
        ]
        off = float(np.mean([ratio for ratio in ratios if ratio is not None] or [1.0]))

        def far(i: int) -> tuple[float, float, int]:
            m = results.measured.get(i)
            made = candidates[i].estimate(off) if m is None else candidates[i].run_cost(m)
            beyond = max(1.0, objective.excess(made), objective.violation(candidates[i].gpus, m))
            return beyond, objective.value(made), i

        listed = [
            far(i)
            for i, choice in enumerate(self.choices)
            if choice.policy == "sync" and i not in results.failed
        ]
        if not listed:
            return
        i = min(listed)[-1]
        if i not in results.final:
            [measured] = self._simulate_candidates([(i, self.asked.rungs.last)])
            if isinstance(measured, Measured):
                results.measured[i] = measured
                results.final.append(i)
                results.steps += measured.steps

    def _nothing(self) -> RollcastError:
        problem, choice = self.impossible[0]
        return RunError(f"none of {len(self.impossible)} choices can be run; {choice}: {problem}")

    # Estimates

    def _estimate(self, choices_or_refusals: Sequence[Choice | Refused]) -> None:
        choices = [choice for choice in choices_or_refusals if isinstance(choice, Choice)]
        results: list[Any] = [None] * len(choices)
        for number, (i, result) in enumerate(self.crew.results(choices)):
            results[i] = result
            self.said("estimates", number + 1, len(choices))
        done = iter(zip(choices, results, strict=True))
        for each in choices_or_refusals:
            if isinstance(each, Refused):
                label = ", ".join([*(f"{k} {v}" for k, v in each.chosen.items()), each.policy])
                self.impossible.append((each.problem, label))
                continue
            choice, result = next(done)
            if isinstance(result, Failure | Died):
                self.impossible.append((result.problem, choice.said))
            else:
                self.choices.append(choice)
                self.estimates.append(result)

    def _candidate(self, i: int) -> Candidate:
        estimate = self.estimates[i]

        def estimate_at(factor: float) -> RunCost:
            return self._run_cost(
                i, estimate.step_s(factor), 0.0, estimate.taken, estimate.used, estimate.trained
            )

        return Candidate(
            self.choices[i].policy,
            estimate.setup.gpus,
            estimate_at,
            lambda measured: estimate.factor(measured.step_s),
            partial(self._bill_of, i),
        )

    def _bill_of(self, i: int, m: Measured) -> RunCost:
        return self._run_cost(i, m.step_s, m.fill_s, m.taken, m.used, m.trained)

    def _run_cost(
        self, i: int, step_s: float, fill_s: float, taken: float, used: float, trained: float
    ) -> RunCost:
        setup = self.estimates[i].setup
        return run_cost(
            self.asked.work,
            step_s=step_s,
            fill_s=fill_s,
            taken=taken,
            used=used,
            trained=trained,
            gpus=setup.gpus,
            usd_per_gpu_hour=setup.usd_per_gpu_hour,
            quality=quality_of(self.choices[i].policy, self.asked.quality),
        )

    # Simulations

    def _simulate_candidates(
        self, wanted: Sequence[tuple[int, int]]
    ) -> Sequence[Measured | Failure]:
        return self.simulate("simulations", [Task(self.choices[i], n) for i, n in wanted])

    def simulate(self, what: str, tasks: Sequence[Task]) -> list[Measured | Failure]:
        """Does the tasks that the journal does not know."""
        keys = [_key(task) for task in tasks]
        outcomes: list[Measured | Failure | None] = [_known(self.journal.get(key)) for key in keys]
        todo = [i for i, result in enumerate(outcomes) if result is None]
        for number, (place, result) in enumerate(self.crew.results([tasks[i] for i in todo])):
            i = todo[place]
            done = Failure(result.problem) if isinstance(result, Died) else result
            outcomes[i] = done
            if not isinstance(result, Died):  # which is this machine's trouble, not the choice's
                self.journal.put(keys[i], _entry(done))
            self.said(what, number + 1, len(todo))
        return [outcome for outcome in outcomes if outcome is not None]

    # The answer

    def _answer(self, results: Results) -> Planned:
        rows = self._rows(results)
        asked, objective = self.asked, self.asked.objective
        allowed = [row for row in rows if not row.beyond]
        baseline = next((row for row in allowed if row.choice.policy == "sync" and row.exact), None)
        if baseline is None:
            baseline = next((row for row in rows if row.choice.policy == "sync"), None)
        rows = [_with_break_even(row, baseline, asked) for row in rows]
        allowed = [row for row in rows if not row.beyond]
        best = allowed[0] if allowed else None
        given_up: dict[str, Row] = {}
        closest = None
        if best is None:
            closest = min(rows, key=self._excess)
            given_up = self._given_up(rows)
        top = best or closest
        assert top is not None
        final = [row for row in (allowed or [top]) if row.exact][:FINALISTS]
        drawn = self._drawn(top, final, baseline)
        rows = [drawn.intervals.get(row.choice.said, row) for row in rows]
        top = drawn.intervals.get(top.choice.said, top)
        rivals = [
            Rival(
                drawn.intervals.get(row.choice.said, row),
                objective.value(row.run_cost) / objective.value(top.run_cost) - 1,
                drawn.wins.get(row.choice.said),
            )
            for row in final
            if row.choice.said != top.choice.said
        ]
        if best is not None:
            base = (
                None
                if baseline is None
                else next(row for row in rows if row.choice.said == baseline.choice.said)
            )
            sentences = words.recommendation(top, asked.work, rivals, objective.name, base)
        else:
            sentences = words.unmet(top, objective.limits, given_up)
        changes = what_would_change(self, asked, top, final, rows) if best is not None else ()
        simulated = {row.choice.said for row in rows}
        unrun = [
            Unrun(choice, self.estimates[i].setup, self._candidate(i).estimate(1.0))
            for i, choice in enumerate(self.choices)
            if choice.said not in simulated and i not in results.failed
        ]
        unrun.sort(key=lambda unrun_choice: objective.value(unrun_choice.estimate))
        return Planned(
            asked.name,
            asked.work,
            objective.name,
            objective.limits,
            top if best is not None else None,
            None if best is not None else top,
            given_up,
            rows,
            unrun,
            by_cause(self.impossible),
            rivals,
            baseline,
            sentences,
            tuple(changes),
            results.steps,
            len(self.choices) * asked.rungs.last,
            _resolved(asked, top),
        )

    def _rows(self, results: Results) -> list[Row]:
        """Those that were simulated: best first, those within the limits before the others."""
        asked = self.asked
        exact = set(results.final)
        rows = []
        for i, measured in results.measured.items():
            made = self._bill_of(i, measured)
            setup = self.estimates[i].setup
            beyond = tuple(
                sentence for _, sentence in asked.objective.beyond(setup, measured, made)
            )
            quality = quality_of(self.choices[i].policy, asked.quality)
            full = i in exact and measured.steps == asked.rungs.last
            rows.append(Row(self.choices[i], setup, measured, made, quality, full, beyond))
        may = [
            row.exact and asked.objective.violation(row.setup.gpus, row.measured) <= 1
            for row in rows
        ]
        front = on_front(
            [row.run_cost.hours if ok else np.inf for row, ok in zip(rows, may, strict=True)],
            [row.run_cost.cost if ok else np.inf for row, ok in zip(rows, may, strict=True)],
        )
        rows = [replace(row, on_front=bool(f)) for row, f in zip(rows, front, strict=True)]
        return sorted(
            rows,
            key=lambda row: (
                bool(row.beyond),
                not row.exact,
                asked.objective.value(row.run_cost),
                row.choice.said,
            ),
        )

    def _excess(self, row: Row) -> tuple[float, float]:
        objective = self.asked.objective
        return (
            max(objective.excess(row.run_cost), objective.violation(row.setup.gpus, row.measured)),
            objective.value(row.run_cost),
        )

    def _given_up(self, rows: Sequence[Row]) -> dict[str, Row]:
        """By limit, the best of the choices that break it alone."""
        objective, found = self.asked.objective, dict[str, Row]()
        for row in sorted(rows, key=lambda row: objective.value(row.run_cost)):
            broken = [name for name, _ in objective.beyond(row.setup, row.measured, row.run_cost)]
            if len(broken) == 1:
                found.setdefault(broken[0], row)
        return found

    def _drawn(self, top: Row, final: Sequence[Row], baseline: Row | None) -> _Drawn:
        """The rows of the finalists with intervals, and who wins how often."""
        asked = self.asked
        those = list(
            {
                row.choice.said: row for row in (top, *final, *([baseline] if baseline else []))
            }.values()
        )
        if not asked.intervals:
            return _Drawn({}, {})
        tasks = [
            Task(row.choice, row.measured.steps, whole=max(1, round(row.run_cost.updates)))
            for row in those
            if np.isfinite(row.run_cost.updates)
        ]
        results = {
            task.choice.said: result
            for task, result in zip(tasks, self.simulate("intervals", tasks), strict=True)
            if isinstance(result, Measured) and result.factors
        }
        factors = {label: result.factors for label, result in results.items()}
        rows, wins = {}, {}
        for row in those:
            ratios = factors.get(row.choice.said)
            if ratios is None:
                continue
            warnings = results[row.choice.said].warnings
            low, high = ends(ratios).tolist()
            low, high = min(low, 1.0), max(high, 1.0)
            rows[row.choice.said] = replace(
                row,
                measured=replace(row.measured, warnings=warnings),
                hours=Interval(low * row.run_cost.hours, high * row.run_cost.hours),
                usd=None
                if row.run_cost.usd is None
                else Interval(low * row.run_cost.usd, high * row.run_cost.usd),
            )
            mine, tops = np.array(ratios), factors.get(top.choice.said)
            if row is not top and tops is not None:
                power = 2.0 if asked.objective.name == "balanced" else 1.0
                a = asked.objective.value(row.run_cost) * mine**power
                b = asked.objective.value(top.run_cost) * np.array(tops) ** power
                wins[row.choice.said] = float(np.mean(a < b))
        return _Drawn(rows, wins)


@dataclass(frozen=True, slots=True)
class _Drawn:
    intervals: Mapping[str, Row]
    wins: Mapping[str, float]


def _with_break_even(row: Row, baseline: Row | None, asked: Question) -> Row:
    if baseline is None or row.choice.policy == "sync":
        return row
    objective = asked.objective
    ratio = objective.value(baseline.run_cost) / objective.value(row.run_cost) * row.quality
    if objective.name == "balanced":  # which goes with the square of the updates
        ratio = (
            objective.value(baseline.run_cost) / objective.value(row.run_cost)
        ) ** 0.5 * row.quality
    return replace(row, break_even=ratio)


def _resolved(asked: Question, row: Row) -> dict[str, Any]:
    """The scenario of a choice, as it was simulated."""
    data = row.choice.applied(asked.raw).data
    chain = parse_labelled(row.choice.policy, folder=asked.raw.modules)[1]
    return {**data, "policy": spell(chain), "steps": row.measured.steps}


def _key(task: Task) -> str:
    return digest(
        [dict(task.choice.settings), task.choice.policy, task.steps, task.more, task.whole]
    )


def _entry(result: Measured | Failure) -> dict[str, Any]:
    if isinstance(result, Failure):
        return {"problem": result.problem}
    return result.plain()


def _known(entry: Mapping[str, Any] | None) -> Measured | Failure | None:
    if entry is None:
        return None
    if "problem" in entry:
        return Failure(str(entry["problem"]))
    return Measured.from_plain(entry)


def by_cause(problems: Sequence[tuple[str, str]]) -> list[Impossible]:
    """(problem, choice) grouped by cause: problems that differ in nothing but figures and names of
    hardware share one, said as the first met it; the commonest first."""
    by_problem: dict[str, list[tuple[str, str]]] = {}
    for problem, choice in problems:
        cause = re.sub(r"\d[\d,.]*", "#", problem)
        cause = re.sub(r"[a-z0-9]+-(?:sxm|pcie|nvl)\S*", "#", cause)
        by_problem.setdefault(cause, []).append((problem, choice))
    grouped = [
        Impossible(refusals[0][0], tuple(choice for _, choice in refusals))
        for refusals in by_problem.values()
    ]
    return sorted(grouped, key=lambda group: -len(group.choices))
