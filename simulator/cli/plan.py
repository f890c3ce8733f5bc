"""``rollcast plan``: which set-up for a whole run, asked and answered."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rollcast.simulator.cli import arguments as args
from rollcast.simulator.cli.arguments import TrustModules, trust
from rollcast.simulator.cli.console import print_where
from rollcast.simulator.cli.stopping import keep_on, stages
from rollcast.simulator.errors import ScenarioError

if TYPE_CHECKING:
    from rollcast.simulator.planner.answer import Planned
    from rollcast.simulator.planner.question import Check
    from rollcast.simulator.scenario.file import RawScenario
    from rollcast.simulator.studies.tornado import Bar

NOTHING_MEETS = 3
"""Exit code of a plan whose limits nothing meets."""


def plan(
    scenario: args.ScenarioOrLaunch,
    run: args.PlanRun = None,
    steps: args.RunSteps = None,
    target: args.PlanTarget = None,
    choose: args.Choose = None,
    policy: args.Policies = None,
    limit: args.Limits = None,
    objective: args.PlanObjective = None,
    quality: args.Quality = None,
    workers: args.Workers = None,
    ray: args.Ray = None,
    out: args.PlanOut = None,
    settings: args.Settings = None,
    seed: args.Seed = None,
    trust_modules: TrustModules = False,
    force: args.Force = False,
    as_json: args.Json = False,
    intervals: args.Intervals = True,
    tornado: args.Tornado = False,
    gpu: args.LaunchGpu = None,
    gpus: args.PlanGpus = None,
    host_memory: args.HostMemory = None,
    model: args.LaunchModel = None,
    mean_tokens: args.MeanTokens = None,
    prompt_tokens: args.PromptTokens = None,
    turns: args.LaunchTurns = None,
    stack: args.LaunchStack = None,
    environment: args.Variables = None,
) -> None:
    """Find the GPUs, their split and the policy for a whole run.

    Takes a scenario, or a launch as rollcast check does, with the options of one (--gpu, --model to
    --env).

    The question is the scenario's section plan, changed by these options; what neither says gets a
    sensible default. Exits with 3 if no choice meets the limits, and names the nearest one.
    """
    from rollcast.simulator.cli.launching import (
        LaunchOptions,
        batch_note,
        gpus_to_choose,
        lines_of,
        scenario_or_launch,
    )
    from rollcast.simulator.cli.plan_flags import run_of_steps, with_flags
    from rollcast.simulator.cli.plan_table import show_plan
    from rollcast.simulator.results.folder import check_target
    from rollcast.simulator.scenario.file import override

    if out is not None:
        check_target(out, force)
    options = LaunchOptions(
        *(gpu, None, model, mean_tokens, prompt_tokens, None, stack),
        *(environment or (), host_memory, turns),
    )
    held = gpus_to_choose(gpus)
    found, dealt, launch = scenario_or_launch(scenario, options, held, trust(trust_modules))
    if launch is not None:
        for note in filter(None, (*launch.launch.notes, batch_note(launch, held))):
            print(f"note: {note}", file=sys.stderr)
    raw = override(found, settings or (), seed)
    raw = with_flags(
        raw,
        run_of_steps(steps, run),
        choose or (),
        limit or (),
        objective,
        quality or (),
        held,
        target,
    )
    planned = _answer(raw, policy or (), dealt, intervals, workers, ray, out)
    bars = _tornado(planned, raw) if tornado else None
    if out is not None:
        _write(planned, raw, out, force, policy or (), bars or ())
    best = planned.chosen
    lines = () if launch is None or best is None else lines_of(launch, best.choice.unasked)
    show_plan(planned, as_json, bars, lines)
    print_where(out)
    if planned.recommended is None:
        raise typer.Exit(NOTHING_MEETS)


def _answer(
    raw: RawScenario,
    policies: Sequence[str],
    dealt: Check | None,
    intervals: bool,
    workers: int | None,
    ray: str | None,
    out: Path | None,
) -> Planned:
    """The plan. Raises ScenarioError for it, and for ``--workers``."""
    from rollcast.simulator.planner import planner
    from rollcast.simulator.planner.workers import MOST_WORKERS

    if workers is not None and (workers < 1 or (ray is None and workers > MOST_WORKERS)):
        raise ScenarioError("--workers", f"is {workers}; give 1 to {MOST_WORKERS:,}")
    try:
        asked = planner.question(raw, None, policies, intervals, dealt)
        crew: Any = workers
        if ray is not None:
            from rollcast.simulator.planner.on_ray import OnRay

            crew = OnRay(planner.work_for(asked), ray, workers)
        with stages() as on_progress:
            return planner.answer(asked, crew, out=out, on_progress=on_progress)
    except ScenarioError as error:
        raise raw.locate(error) from None


def _write(
    planned: Planned,
    raw: RawScenario,
    out: Path,
    force: bool,
    policies: Sequence[str],
    bars: Sequence[Bar],
) -> None:
    from rollcast.simulator.planner.planner import forget
    from rollcast.simulator.planner.write import write_plan
    from rollcast.simulator.report.plan_page import plan_page, shown
    from rollcast.simulator.results.folder import write_folder
    from rollcast.simulator.results.schema import REPORT
    from rollcast.simulator.studies.tornado import write_tornado

    report = plan_page(planned, shown(planned, raw), raw, policies)

    def fill(folder: Path) -> None:
        write_plan(folder, planned, raw.folder, out)
        write_tornado(folder, bars)
        (folder / REPORT.name).write_text(report, encoding="utf-8")

    write_folder(out, fill, force)
    forget(out)


def _tornado(planned: Planned, raw: RawScenario) -> list[Bar]:
    """The tornado of a plan's chosen row."""
    from rollcast.simulator.studies.simulate import simulate
    from rollcast.simulator.studies.tornado import tornado

    row = planned.chosen
    if row is None:
        return []
    chosen = replace(row.choice.scenario(raw), steps=row.measured.steps)
    result = simulate(chosen, keep_on)
    return tornado(result.scenario, (), result=result, on_step=keep_on)
