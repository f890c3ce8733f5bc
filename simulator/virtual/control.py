"""Control planes beside policies: ``rollcast compare --control module:function``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollcast.simulator.errors import RollcastError, RunError, ScenarioError
from rollcast.simulator.learning.answer import progress_of
from rollcast.simulator.results.metrics import run_summary
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import Result
from rollcast.simulator.values.words import visible
from rollcast.simulator.virtual.errors import VirtualError
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.report import line_of, of_exception
from rollcast.simulator.virtual.trial import Training, training_of, try_control

Function = Callable[..., Any]
_HOW = (
    "`async def rollout(engine, prompts)` that returns the groups of a batch, or "
    "`async def main(training)` that drives the run"
)


def load_control(spec: str) -> Function:
    """The function ``module:name``, looked for on the Python path and in the working directory.
    Raises ScenarioError."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise ScenarioError("--control", f"is {spec!r}; give module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ScenarioError("--control", f"cannot import {module_name}: {error}") from None
    found = getattr(module, name, None)
    if not callable(found):
        raise ScenarioError("--control", f"{module_name} has no function {name}; give {_HOW}")
    function: Function = found
    return function


def run_control(scenario: Scenario, function: Function, label: str) -> Result:
    """Runs a control plane for the scenario's steps: a row of a comparison. Raises VirtualError
    where it trains too few steps, and what the code raises."""
    takes = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
    ]
    if len(takes) not in (1, 2):
        raise ScenarioError("--control", f"{label} takes {len(takes)} parameters; give {_HOW}")

    async def main(fleet: Fleet) -> None:
        training = training_of(fleet)
        if len(takes) == 1:
            await _awaited(function(training))
        else:
            await _steps(training, function)

    try:
        tried = try_control(main, scenario)
    except RollcastError as error:
        if type(error) not in (VirtualError, RunError):  # the others say where
            raise
        raise VirtualError(f"under {label}, {error}{line_of(error)}") from error
    except Exception as error:
        raise VirtualError(f"{label} raised {of_exception(error)}") from error
    run = tried.run
    if len(run.steps) < scenario.steps:
        raise VirtualError(
            f"{label} trained {len(run.steps)} steps, and the scenario asks for {scenario.steps}"
        )
    run.warnings += [*scenario.whatever, *tried.warnings]
    shown = replace(scenario, policy_name=visible(label))
    summary = run_summary(run, scenario.name, shown.policy_name, scenario.seed)
    price = scenario.usd_per_gpu_hour
    if price is not None:
        summary["cost_usd"] = summary["gpu_hours"] * price
    progress = None
    if scenario.learning is not None:
        progress = progress_of(run, scenario.learning, scenario.seed)
    return Result(shown, run, summary, progress, again=False)


async def _awaited(given: Any) -> Any:
    if not inspect.isawaitable(given):
        raise VirtualError(f"it is no async function; give {_HOW}")
    return await given


async def _steps(training: Training, function: Function) -> None:
    for step in range(training.steps):
        groups = await _awaited(function(training.engine, training.prompts))
        if not groups:
            raise VirtualError(f"it returned no groups in step {step}")
        if not isinstance(groups, Collection):
            raise VirtualError(f"it returned {groups!r} in step {step}; give a list of groups")
        await training.train(groups)
        await training.sync()
