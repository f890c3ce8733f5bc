"""Planning: a question about a scenario, its search and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rollcast.simulator.core.policy import Policy
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.planner.answer import Planned
from rollcast.simulator.planner.choices import Choice
from rollcast.simulator.planner.estimate import Estimate, estimate
from rollcast.simulator.planner.journal import Journal, digest, journal_path
from rollcast.simulator.planner.measure import Failure, Measured, Task, run_task
from rollcast.simulator.planner.question import Question, question
from rollcast.simulator.planner.search import OnProgress, Search, by_cause
from rollcast.simulator.planner.workers import Workers, local
from rollcast.simulator.policies import label
from rollcast.simulator.scenario.file import RawScenario, read_scenario
from rollcast.simulator.scenario.plan_section import PlanSection
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import A_SCENARIO
from rollcast.simulator.values import read
from rollcast.simulator.values.words import A_MAPPING, require


def plan(
    scenario: Scenario | str | Path,
    section: PlanSection | Mapping[str, Any] | None = None,
    policies: Sequence[str | Policy] = (),
    *,
    workers: int | Workers | None = None,
    intervals: bool = True,
    on_progress: OnProgress | None = None,
) -> Planned:
    """The best GPUs, split and policy for a whole run of a scenario.

    scenario: or its file, which need not fit its GPUs. section: replaces the scenario's ``plan``.
    policies: to choose among. workers: processes; default one per core. intervals: whether to
    compute intervals.

    Raises ScenarioError for an invalid question, or if no choice can run.
    """
    require((Scenario, str, Path), scenario, "scenario", f"{A_SCENARIO}, or its file")
    if section is not None:
        require((PlanSection, Mapping), section, PlanSection.FIELD, A_MAPPING)
    require(Sequence, policies, "policies", "a list of policies")
    if isinstance(section, Mapping):
        section = read(PlanSection, section, PlanSection.FIELD)
    texts = [policy if isinstance(policy, str) else label(policy) for policy in policies]
    raw = scenario.raw if isinstance(scenario, Scenario) else read_scenario(Path(scenario))
    return answer(question(raw, section, texts, intervals), workers, on_progress=on_progress)


def answer(
    asked: Question,
    workers: int | Workers | None = None,
    *,
    out: Path | None = None,
    on_progress: OnProgress | None = None,
) -> Planned:
    """Searches and answers. out: the plan's folder, beside which results of an interrupted plan are
    read and kept until `forget`.

    Raises ScenarioError if no choice can run.
    """
    crew = (
        workers
        if not isinstance(workers, int | None)
        else local(partial(_work, asked.raw), workers)
    )
    path = None if out is None else journal_path(out)
    try:
        journal = Journal(path, digest(asked.plain()))
    except OSError as error:
        raise ScenarioError("--out", f"cannot write beside {out}: {error.strerror}") from None
    try:
        with crew:
            return Search(asked, crew, journal, on_progress or (lambda *_: None)).answer()
    finally:
        journal.close(done=False)


def forget(out: Path) -> None:
    """Removes what `answer` left beside a folder."""
    journal_path(out).unlink(missing_ok=True)


def _work(raw: RawScenario, job: Choice | Task) -> Estimate | Measured | Failure:
    """What a worker does."""
    return run_task(raw, job) if isinstance(job, Task) else estimate(raw, job)


def work_for(asked: Question) -> Callable[[Choice | Task], Estimate | Measured | Failure]:
    """The work of workers, as a function of a task."""
    return partial(_work, asked.raw)


__all__ = ["Question", "answer", "by_cause", "forget", "plan", "question", "work_for"]
