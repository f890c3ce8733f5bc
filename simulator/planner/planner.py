"""Planning: a question about a scenario, searched, and answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
from rollcast.simulator.policy import Policy
from rollcast.simulator.scenario.file import RawScenario, read_scenario
from rollcast.simulator.scenario.plan_section import PlanSection
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.values import read


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
    """Searches and answers. out: the folder that the plan is to be written to: what an interrupted
    plan of the same question had found is taken from beside it, and left there if this one is
    interrupted; `forget` removes it.

    Raises ScenarioError where no choice can be run: the reason of the first.
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
            return Search(asked, crew, journal, on_progress or _silent).answer()
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


__all__ = ["Question", "answer", "by_cause", "forget", "plan", "question", "work_for"]
