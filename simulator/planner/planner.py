"""Planning: a question about a scenario, searched, and answered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import RollcastError, RunError, ScenarioError
from simulator.options import keys as keys_of
from simulator.options import nearest, read
from simulator.planner import auto, words
from simulator.planner.answer import Impossible, Interval, Planned, Rival, Row, Unrun
from simulator.planner.changes import what_would_change
from simulator.planner.choices import Choice, Cluster, Refused, cluster_of, enumerated
from simulator.planner.estimate import Estimate, estimate
from simulator.planner.frontier import on_front
from simulator.planner.goal import Aim, objective_of
from simulator.planner.journal import Journal, digest, journal_path
from simulator.planner.measure import Failure, Measured, Task, run_task
from simulator.planner.race import Entrant, Rungs, Standing, race
from simulator.planner.whole_run import Bill, Work, bill, quality_of, work_of
from simulator.planner.workers import Died, Workers, local
from simulator.policies import label, parse_labelled, spell
from simulator.policies.registry import SYNCHRONOUS
from simulator.policy import Policy
from simulator.scenario.file import RawScenario, override, read_scenario
from simulator.scenario.plan_section import CLUSTER_KEYS, PlanSection, check_cluster_choice
from simulator.scenario.scenario import Outline, Scenario, outline, overlapping
from simulator.scenario.sections import ScenarioModel, validate
from simulator.studies.interval import ends

FINALISTS = 5
"""How many of the best are drawn anew, the best synchronous one beside them."""

BATCH = 8
"""Choices that the first rung tries at a time, whatever the number of workers."""

OnProgress = Callable[[str, int, int], None]
"""Called with what is done, how many of it are, and of how many."""


@dataclass(frozen=True)
class Question:
    """What is asked: a scenario, how much is trained, what there is to choose, limits, objective.

    apart: of the policies, those whose trainer needs GPUs of its own. quality: updates to the
    target by policy, as a multiple of synchronous ones. intervals: whether
    it is said how sure that is.
    """

    raw: RawScenario
    name: str
    work: Work
    choose: Mapping[str, Sequence[Any]]
    policies: Sequence[str]
    aim: Aim
    cluster: Cluster
    apart: frozenset[str] = frozenset()
    quality: Mapping[str, float] = field(default_factory=dict)
    rungs: Rungs = field(default_factory=Rungs)
    intervals: bool = True

    def plain(self) -> dict[str, Any]:
        """As plain data, from which a digest is made."""
        return {
            "scenario": self.raw.data,
            "folder": str(self.raw.folder.resolve()),
            "work": asdict(self.work),
            "choose": self.choose,
            "policies": list(self.policies),
            "objective": self.aim.objective,
            "limits": asdict(self.aim.limits),
            "quality": dict(self.quality),
            "rungs": asdict(self.rungs),
            "intervals": self.intervals,
            "cluster": asdict(self.cluster),
        }


def question(
    raw: RawScenario,
    section: PlanSection | None = None,
    policies: Sequence[str] = (),
    intervals: bool = True,
) -> Question:
    """The question of a scenario's ``plan`` section, or of another; what it leaves open is chosen
    sensibly (`simulator.planner.auto`).

    policies: instead of those that it lists. Raises ScenarioError for what makes no sense.
    """
    asked = section or validate(raw.data).plan or PlanSection()
    plain = RawScenario(
        {key: value for key, value in raw.data.items() if key != "plan"},
        raw.lines, raw.name, raw.folder, raw.overridden, raw.modules,
    )  # fmt: skip
    scenario = outline(plain)
    limits = asked.limits
    cluster = cluster_of(scenario, asked.gpus_per_node)
    choose: dict[str, Any] = dict(asked.choose or {})
    check_cluster_choice(choose)
    place = "--policy" if policies else "plan.choose.policy"
    listed = [text.strip() for text in policies or choose.get("policy", ())]
    choose.pop("policy", None)
    listed += _policies_of_settings(plain, choose, listed)
    if not choose and not listed:
        choose.update(auto.choose(scenario, cluster, limits.gpus))
        listed = auto.policies(scenario, limits.staleness)
    elif not listed:
        listed = [auto.own_policy(scenario)]
    apart = frozenset(_apart(scenario, listed, place))
    _check_keys(plain, choose)
    batch = scenario.plan.batch
    quality = {str(name): float(value) for name, value in (asked.quality or {}).items()}
    for name in quality:
        _check_quality(name, listed)
    aim = Aim(objective_of(asked.objective, limits), limits)
    return Question(
        plain, scenario.name, work_of(asked.run, batch.groups * batch.group_size), choose, listed,
        aim, cluster, apart, quality, Rungs(), intervals,
    )  # fmt: skip


def _policies_of_settings(
    raw: RawScenario, choose: dict[str, Any], listed: Sequence[str]
) -> list[str]:
    """Where keys of the scenario's policy are chosen (``policy.april.over_sampling``), the policies
    that follow; the keys are taken out of ``choose``. Raises ScenarioError (``plan.choose.KEY``)
    where policies are chosen too."""
    keys = [key for key in choose if key.startswith("policy.")]
    if not keys:
        return []
    if listed:
        raise ScenarioError(
            f"plan.choose.{keys[0]}",
            "is of the scenario's own policy, and policies are chosen too; "
            "write it into them, as in policy: [april(over_sampling=1.5)]",
        )
    values = [choose.pop(key) for key in keys]
    found = []
    for each in product(*values):
        texts = [f"{key}={json.dumps(value)}" for key, value in zip(keys, each, strict=True)]
        found.append(auto.own_policy(outline(override(raw, texts, option="plan.choose"))))
    return list(dict.fromkeys(found))


def _apart(scenario: Outline, listed: Sequence[str], place: str) -> Iterator[str]:
    """Those of the policies that let training overlap with rollout. Raises ScenarioError
    (``place``) for one that there is not, or that is given twice."""
    names: dict[str, str] = {}
    for text in listed:
        try:
            name, chain = parse_labelled(
                text, seed=scenario.sections.seed, folder=scenario.raw.modules
            )
            overlaps = overlapping(chain, scenario.plan) is not None
        except ScenarioError as error:
            raise scenario.raw.locate(ScenarioError(place, str(error))) from None
        if name in names:
            raise scenario.raw.locate(
                ScenarioError(place, f"{text!r} is the same as {names[name]!r}; give one of them")
            )
        names[name] = text
        if overlaps:
            yield text


def _check_keys(raw: RawScenario, choose: Mapping[str, Sequence[Any]]) -> None:
    """Every key chosen is one of a scenario's. Raises ScenarioError (``plan.choose.KEY``)."""
    for keys in choose:
        for key in keys.split("="):
            if key in CLUSTER_KEYS:
                if "=" in keys:
                    raise ScenarioError(f"plan.choose.{keys}", f"{key} cannot go with other keys")
                continue
            top = key.split(".")[0].split("[")[0]
            valid = [k for k in keys_of(ScenarioModel) if k not in _NOT_CHOSEN]
            valid += [*CLUSTER_KEYS, "policy"]
            if top not in valid:
                raise ScenarioError(
                    f"plan.choose.{keys}", f"{key} names no key to choose; {nearest(key, valid)}"
                )


_NOT_CHOSEN = ("plan", "steps", "seed", "name", "modules")


def _check_quality(name: str, listed: Sequence[str]) -> None:
    if name == SYNCHRONOUS:
        raise ScenarioError(f"plan.quality.{name}", "is what the others are held against; it is 1")
    if not any(quality_of(policy, {name: 2.0}) != 1.0 for policy in listed):
        raise ScenarioError(
            f"plan.quality.{name}", f"names no policy that is chosen from; {nearest(name, listed)}"
        )


def plan(
    scenario: Scenario | str | Path,
    section: PlanSection | Mapping[str, Any] | None = None,
    policies: Sequence[str | Policy] = (),
    *,
    workers: int | Workers | None = None,
    intervals: bool = True,
    on_progress: OnProgress | None = None,
) -> Planned:
    """Which GPUs, split how, under which policy, for a whole run of a scenario.

    scenario: or its file, of which nothing need fit the GPUs that it names. section: the question,
    in place of the scenario's ``plan``: a mapping of the same keys will do.
    policies: to choose among. workers: how many processes; None is one a core. intervals: whether
    it is said how sure that is.

    Raises ScenarioError for a question that makes no sense, and where no choice can be run.
    """
    if isinstance(section, Mapping):
        section = read(PlanSection, section, PlanSection.FIELD)
    texts = [each if isinstance(each, str) else label(each) for each in policies]
    raw = scenario.raw if isinstance(scenario, Scenario) else read_scenario(Path(scenario))
    return answer(question(raw, section, texts, intervals), workers, on_progress=on_progress)


def answer(
    asked: Question,
    workers: int | Workers | None = None,
    *,
    out: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Planned:
    """Searches and answers. out: the folder that the plan is to be written to: what an interrupted
    plan of the same question had found is taken from beside it, and left there if this one is
    interrupted; `forget` removes it.

    Raises ScenarioError where no choice can be run: the reason of the first.
    """
    crew = workers if not isinstance(workers, int | None) else local(partial(_work, asked.raw),
                                                                    workers)  # fmt: skip
    path = None if out is None else journal_path(out)
    try:
        journal = Journal(path, digest(asked.plain()))
    except OSError as error:
        raise ScenarioError("--out", f"cannot write beside {out}: {error.strerror}") from None
    try:
        with crew:
            return _Search(asked, crew, journal, on_progress or _silent).answer()
    finally:
        journal.close(done=False)


def forget(out: Path) -> None:
    """Removes what `answer` left beside a folder that is now written."""
    journal_path(out).unlink(missing_ok=True)


def _silent(what: str, done: int, of: int) -> None:
    pass


def _work(raw: RawScenario, job: Choice | Task) -> Estimate | Measured | Failure:
    """What a worker does."""
    return run_task(raw, job) if isinstance(job, Task) else estimate(raw, job)


def work_for(asked: Question) -> Callable[[Choice | Task], Estimate | Measured | Failure]:
    """What workers of one's own have to do with a task."""
    return partial(_work, asked.raw)


class _Search:
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
        entrants = [self._entrant(i) for i in range(len(self.choices))]
        bills = [entrant.estimate(1.0) for entrant in entrants]
        for made in bills:
            asked.aim.value(made)  # a price that is missing is said before the work
        if asked.aim.limits.usd is not None and any(made.usd is None for made in bills):
            raise ScenarioError(
                "plan.limits.usd", "needs the price of every GPU; give gpu.usd_per_hour"
            )
        standing = race(entrants, asked.aim, self._simulate_entrants, asked.rungs, BATCH)
        for i, problem in standing.failed.items():
            self.impossible.append((problem, self.choices[i].said))
        if not standing.measured:
            raise self._nothing()
        self._run_baseline(entrants, standing)
        return self._answer(standing)

    def _run_baseline(self, entrants: Sequence[Entrant], standing: Standing) -> None:
        """The best synchronous choice is held against the others exactly, even where it dropped out
        of the race; where it was never in it, by its estimate, off by as much as those of the
        synchronous ones that were."""
        aim = self.asked.aim
        told = [entrants[i].factor(m) for i, m in standing.measured.items()
                if self.choices[i].policy == "sync"]  # fmt: skip
        off = float(np.mean([each for each in told if each is not None] or [1.0]))

        def far(i: int) -> tuple[float, float, int]:
            m = standing.measured.get(i)
            made = entrants[i].estimate(off) if m is None else entrants[i].bill(m)
            beyond = max(1.0, aim.excess(made), aim.barred(entrants[i].gpus, m))
            return beyond, aim.value(made), i

        listed = [far(i) for i, choice in enumerate(self.choices)
                  if choice.policy == "sync" and i not in standing.failed]  # fmt: skip
        if not listed:
            return
        i = min(listed)[-1]
        if i not in standing.final:
            [found] = self._simulate_entrants([(i, self.asked.rungs.last)])
            if isinstance(found, Measured):
                standing.measured[i] = found
                standing.final.append(i)
                standing.steps += found.steps

    def _nothing(self) -> RollcastError:
        problem, choice = self.impossible[0]
        return RunError(f"none of {len(self.impossible)} choices can be run; {choice}: {problem}")

    # Estimates

    def _estimate(self, found: Sequence[Choice | Refused]) -> None:
        choices = [each for each in found if isinstance(each, Choice)]
        results: list[Any] = [None] * len(choices)
        for number, (i, result) in enumerate(self.crew.results(choices)):
            results[i] = result
            self.said("estimates", number + 1, len(choices))
        done = iter(zip(choices, results, strict=True))
        for each in found:
            if isinstance(each, Refused):
                said = ", ".join([*(f"{k} {v}" for k, v in each.chosen.items()), each.policy])
                self.impossible.append((each.problem, said))
                continue
            choice, result = next(done)
            if isinstance(result, Failure | Died):
                self.impossible.append((result.problem, choice.said))
            else:
                self.choices.append(choice)
                self.estimates.append(result)

    def _entrant(self, i: int) -> Entrant:
        found = self.estimates[i]

        def estimate_at(factor: float) -> Bill:
            return self._bill(i, found.step_s(factor), 0.0, found.taken, found.used, found.trained)

        return Entrant(
            self.choices[i].policy,
            found.setup.gpus,
            estimate_at,
            lambda measured: found.factor(measured.step_s),
            partial(self._bill_of, i),
        )

    def _bill_of(self, i: int, m: Measured) -> Bill:
        return self._bill(i, m.step_s, m.fill_s, m.taken, m.used, m.trained)

    def _bill(
        self, i: int, step_s: float, fill_s: float, taken: float, used: float, trained: float
    ) -> Bill:
        setup = self.estimates[i].setup
        return bill(
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

    def _simulate_entrants(self, wanted: Sequence[tuple[int, int]]) -> Sequence[Measured | Failure]:
        return self.simulate("simulations", [Task(self.choices[i], n) for i, n in wanted])

    def simulate(self, what: str, tasks: Sequence[Task]) -> list[Measured | Failure]:
        """Does the tasks that the journal does not know."""
        keys = [_key(task) for task in tasks]
        found: list[Measured | Failure | None] = [_known(self.journal.get(key)) for key in keys]
        todo = [i for i, result in enumerate(found) if result is None]
        for number, (place, result) in enumerate(self.crew.results([tasks[i] for i in todo])):
            i = todo[place]
            done = Failure(result.problem) if isinstance(result, Died) else result
            found[i] = done
            if not isinstance(result, Died):  # which is this machine's trouble, not the choice's
                self.journal.put(keys[i], _entry(done))
            self.said(what, number + 1, len(todo))
        return [each for each in found if each is not None]

    # The answer

    def _answer(self, standing: Standing) -> Planned:
        rows = self._rows(standing)
        asked, aim = self.asked, self.asked.aim
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
                aim.value(row.bill) / aim.value(top.bill) - 1,
                drawn.wins.get(row.choice.said),
            )
            for row in final
            if row.choice.said != top.choice.said
        ]
        if best is not None:
            base = None if baseline is None else next(
                row for row in rows if row.choice.said == baseline.choice.said
            )  # fmt: skip
            sentences = words.recommendation(top, asked.work, rivals, aim.objective, base)
        else:
            sentences = words.unmet(top, aim.limits, given_up)
        changes = what_would_change(self, asked, top, final, rows) if best is not None else ()
        simulated = {row.choice.said for row in rows}
        unrun = [
            Unrun(choice, self.estimates[i].setup, self._entrant(i).estimate(1.0))
            for i, choice in enumerate(self.choices)
            if choice.said not in simulated and i not in standing.failed
        ]
        unrun.sort(key=lambda each: aim.value(each.estimate))
        return Planned(
            asked.name, asked.work, aim.objective, aim.limits,
            top if best is not None else None, None if best is not None else top, given_up, rows,
            unrun, by_cause(self.impossible), rivals, baseline, sentences, tuple(changes),
            standing.steps, len(self.choices) * asked.rungs.last,
            _resolved(asked, top),
        )  # fmt: skip

    def _rows(self, standing: Standing) -> list[Row]:
        """Those that were simulated: best first, those within the limits before the others."""
        asked = self.asked
        exact = set(standing.final)
        rows = []
        for i, found in standing.measured.items():
            made = self._bill_of(i, found)
            setup = self.estimates[i].setup
            beyond = tuple(said for _, said in asked.aim.beyond(setup, found, made))
            quality = quality_of(self.choices[i].policy, asked.quality)
            full = i in exact and found.steps == asked.rungs.last
            rows.append(Row(self.choices[i], setup, found, made, quality, full, beyond))
        may = [row.exact and asked.aim.barred(row.setup.gpus, row.measured) <= 1 for row in rows]
        front = on_front(
            [row.bill.hours if ok else np.inf for row, ok in zip(rows, may, strict=True)],
            [row.bill.cost if ok else np.inf for row, ok in zip(rows, may, strict=True)],
        )
        rows = [replace(row, on_front=bool(f)) for row, f in zip(rows, front, strict=True)]
        return sorted(
            rows,
            key=lambda row: (
                bool(row.beyond),
                not row.exact,
                asked.aim.value(row.bill),
                row.choice.said,
            ),
        )

    def _excess(self, row: Row) -> tuple[float, float]:
        aim = self.asked.aim
        return (
            max(aim.excess(row.bill), aim.barred(row.setup.gpus, row.measured)),
            aim.value(row.bill),
        )

    def _given_up(self, rows: Sequence[Row]) -> dict[str, Row]:
        """By limit, the best of the choices that break it alone."""
        aim, found = self.asked.aim, dict[str, Row]()
        for row in sorted(rows, key=lambda row: aim.value(row.bill)):
            broken = [name for name, _ in aim.beyond(row.setup, row.measured, row.bill)]
            if len(broken) == 1:
                found.setdefault(broken[0], row)
        return found

    def _drawn(self, top: Row, final: Sequence[Row], baseline: Row | None) -> _Drawn:
        """The rows of the finalists with intervals, and who wins how often."""
        asked = self.asked
        those = list({row.choice.said: row for row in (top, *final, *([baseline] if baseline else
                                                                      []))}.values())  # fmt: skip
        if not asked.intervals:
            return _Drawn({}, {})
        tasks = [
            Task(row.choice, row.measured.steps, whole=max(1, round(row.bill.updates)))
            for row in those
            if np.isfinite(row.bill.updates)
        ]
        found = {
            task.choice.said: result
            for task, result in zip(tasks, self.simulate("intervals", tasks), strict=True)
            if isinstance(result, Measured) and result.factors
        }
        factors = {said: result.factors for said, result in found.items()}
        rows, wins = {}, {}
        for row in those:
            ratios = factors.get(row.choice.said)
            if ratios is None:
                continue
            warnings = found[row.choice.said].warnings
            low, high = ends(ratios).tolist()
            low, high = min(low, 1.0), max(high, 1.0)
            rows[row.choice.said] = replace(
                row,
                measured=replace(row.measured, warnings=warnings),
                hours=Interval(low * row.bill.hours, high * row.bill.hours),
                usd=None if row.bill.usd is None else Interval(
                    low * row.bill.usd, high * row.bill.usd
                ),
            )  # fmt: skip
            mine, tops = np.array(ratios), factors.get(top.choice.said)
            if row is not top and tops is not None:
                power = 2.0 if asked.aim.objective == "balanced" else 1.0
                a = asked.aim.value(row.bill) * mine**power
                b = asked.aim.value(top.bill) * np.array(tops) ** power
                wins[row.choice.said] = float(np.mean(a < b))
        return _Drawn(rows, wins)


@dataclass(frozen=True, slots=True)
class _Drawn:
    intervals: Mapping[str, Row]
    wins: Mapping[str, float]


def _with_break_even(row: Row, baseline: Row | None, asked: Question) -> Row:
    if baseline is None or row.choice.policy == "sync":
        return row
    aim = asked.aim
    ratio = aim.value(baseline.bill) / aim.value(row.bill) * row.quality
    if aim.objective == "balanced":  # which goes with the square of the updates
        ratio = (aim.value(baseline.bill) / aim.value(row.bill)) ** 0.5 * row.quality
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
    found: dict[str, list[tuple[str, str]]] = {}
    for problem, choice in problems:
        cause = re.sub(r"\d[\d,.]*", "#", problem)
        cause = re.sub(r"[a-z0-9]+-(?:sxm|pcie|nvl)\S*", "#", cause)
        found.setdefault(cause, []).append((problem, choice))
    grouped = [Impossible(each[0][0], tuple(choice for _, choice in each))
               for each in found.values()]  # fmt: skip
    return sorted(grouped, key=lambda group: -len(group.choices))


__all__ = ["Question", "answer", "by_cause", "forget", "plan", "question", "work_for"]
