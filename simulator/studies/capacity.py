"""Capacity planning: one scenario over a grid of settings and policies, and what pays.

The choices that are worth looking at are those that no other beats in both time and GPU time of a
step (the Pareto front). A choice that cannot be run, because the weights do not fit, say, stays in
the table with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from simulator.errors import RollcastError, ScenarioError
from simulator.policies import label
from simulator.policy import Policy
from simulator.results import schema
from simulator.results.write import write_rows
from simulator.scenario.file import RawScenario, override
from simulator.scenario.scenario import Scenario
from simulator.spans import StepRecord
from simulator.studies.redrawn import intervals
from simulator.studies.simulate import from_raw, simulate

Aim = Literal["step_s", "gpu_s", "usd"]
MOST_CHOICES = 10_000
COLUMNS = ("gpus", "step_s", "step_s_low", "step_s_high", "gpu_s_per_step", "usd_per_step",
           "rollout_tokens_per_s", "trained_tokens_per_gpu_s", "bubble_fraction",
           "staleness_mean")  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """One combination. settings: what was varied, by key (``key=key`` together). figures:
    `COLUMNS`, empty where it cannot be run, and then ``problem`` says why. best: whether no other
    choice is at least as good in both time and GPU time of a step, and better in one."""

    settings: Mapping[str, Any]
    policy: str
    figures: Mapping[str, Any]
    problem: str = ""
    best: bool = False

    def row(self) -> dict[str, Any]:
        """As one flat row of a table."""
        figures = {name: self.figures.get(name) for name in COLUMNS}
        return {**self.settings, "policy": self.policy, **figures, "best": self.best,
                "problem": self.problem}  # fmt: skip


def parse_vary(texts: Sequence[str]) -> dict[str, list[Any]]:
    """``key=value,value,...`` as lists of values read as YAML; ``key=key=value,value,...`` for keys
    that take each value together. Raises ScenarioError (``--vary``)."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        *keys, values = text.split("=")
        key = "=".join(part.strip() for part in keys)
        if not all(key.split("=")):
            raise ScenarioError("--vary", f"{text!r} is not of the form key=value,value")
        if key in found:
            raise ScenarioError("--vary", f"{key} is given twice")
        if "policy" in key.split("="):
            raise ScenarioError("--vary", "give each policy with a --policy of its own")
        try:
            listed = yaml.safe_load(f"[{values}]")
        except yaml.YAMLError:
            raise ScenarioError("--vary", f"{values!r} is not a list of values") from None
        if not isinstance(listed, list) or not listed:
            raise ScenarioError("--vary", f"{key} has no values")
        found[key] = listed
    return found


def combinations(vary: Mapping[str, Sequence[Any]], policies: Sequence[str | Policy]) -> int:
    """How many choices there are. Raises ScenarioError (``--vary``) for more than can be run."""
    count = len(policies)
    for values in vary.values():
        count *= len(values)
    if count > MOST_CHOICES:
        raise ScenarioError("--vary", f"{count} choices are too many; {MOST_CHOICES} at most")
    return count


def explore(
    raw: RawScenario,
    vary: Mapping[str, Sequence[Any]],
    policies: Sequence[str | Policy],
    on_choice: Callable[[], None] | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    draws: int = 0,
) -> list[Choice]:
    """Simulates every combination of settings and policies, in order.

    policies: chains, as objects or as on the command line. draws: further runs of each, drawn alike
    for all, for the 90 % interval of its step time (`simulator.studies.redrawn`). Raises
    ScenarioError or RunError where none of them can be run: the reason of the first.
    """
    found: list[Choice] = []
    first: RollcastError | None = None
    for settings, policy in _grid(vary, policies):
        try:
            found.append(_choice(raw, settings, policy, on_step, draws))
        except RollcastError as error:
            first = first or error
            name = policy if isinstance(policy, str) else label(policy)
            found.append(Choice(settings, name, {}, str(error)))
        if on_choice is not None:
            on_choice()
    if first is not None and not any(choice.figures for choice in found):
        raise first
    return _marked(found)


def _grid(
    vary: Mapping[str, Sequence[Any]], policies: Sequence[str | Policy]
) -> Iterator[tuple[dict[str, Any], str | Policy]]:
    for values in product(*vary.values()):
        for policy in policies:
            yield dict(zip(vary, values, strict=True)), policy


def _choice(
    raw: RawScenario,
    settings: Mapping[str, Any],
    policy: str | Policy,
    on_step: Callable[[StepRecord], None] | None,
    draws: int,
) -> Choice:
    texts = [f"{key}={json.dumps(value, default=str)}"
             for keys, value in settings.items() for key in keys.split("=")]  # fmt: skip
    scenario = from_raw(override(raw, texts, option="--vary")).with_policy(policy)
    result = simulate(scenario, on_step)
    summary = result.summary
    low, high = intervals(result, draws, on_step)["step_s"] if draws else (None, None)
    steps, gpus = max(summary["steps"], 1), summary["gpus"]
    gpu_s = gpus * summary["makespan_s"] / steps
    figures = {
        "gpus": gpus,
        "step_s": summary["step_s"],
        "step_s_low": low,
        "step_s_high": high,
        "gpu_s_per_step": gpu_s,
        "usd_per_step": summary["cost_usd"] / steps if "cost_usd" in summary else None,
        "rollout_tokens_per_s": summary["rollout_tokens_per_s"],
        "trained_tokens_per_gpu_s": summary["trained_tokens"] / steps / gpu_s if gpu_s else None,
        "bubble_fraction": summary["bubble_fraction"],
        "staleness_mean": summary["staleness_mean"],
    }
    return Choice(dict(settings), scenario.policy_name, figures)


def _marked(choices: Sequence[Choice]) -> list[Choice]:
    """The choices, those on the Pareto front marked."""
    points = {
        i: (choice.figures["step_s"], choice.figures["gpu_s_per_step"])
        for i, choice in enumerate(choices)
        if choice.figures
    }

    def beaten(i: int) -> bool:
        a, b = points[i]
        return any(c <= a and d <= b and (c, d) != (a, b) for c, d in points.values())

    return [replace(choice, best=i in points and not beaten(i)) for i, choice in enumerate(choices)]


def check_aim(aim: str) -> None:
    """Raises ScenarioError (``--by``) for what cannot be ranked by."""
    if aim not in get_args(Aim):
        raise ScenarioError("--by", f"{aim!r} is not one of {', '.join(get_args(Aim))}")


def ranked(choices: Sequence[Choice], aim: str) -> list[Choice]:
    """The choices, best first by ``aim``; what cannot be run comes last.

    Raises ScenarioError (``--by``) for another aim, and for ``usd`` where no GPU has a price.
    """
    check_aim(aim)
    key = {"step_s": "step_s", "gpu_s": "gpu_s_per_step", "usd": "usd_per_step"}[aim]
    if not any(choice.figures.get(key) is not None for choice in choices):
        raise ScenarioError("--by", "no GPU has a price; give gpu.usd_per_hour")

    def order(choice: Choice) -> tuple[bool, float]:
        value = choice.figures.get(key)
        return value is None, 0.0 if value is None else value

    return sorted(choices, key=order)


def plan(
    scenario: Scenario,
    vary: Mapping[str, Sequence[Any]],
    policies: Sequence[str | Policy] = (),
    by: Aim = "step_s",
) -> list[Choice]:
    """A scenario under every combination of settings and policies, best first; what cannot be run
    comes last, with the reason.

    vary: the values that each key takes, such as ``{"workload.group_size": [8, 16]}``. policies:
    chains, as objects or as on the command line; none is the scenario's own. by: what to rank by,
    per step.

    Raises ScenarioError or RunError where none can be run, or the grid has too many combinations.
    """
    chains = policies or [scenario.policy]
    check_aim(by)
    combinations(vary, chains)
    return ranked(explore(scenario.raw, vary, chains), by)


def by_cause(choices: Sequence[Choice]) -> list[list[Choice]]:
    """The choices that cannot be run, those that share a cause together, in order of the first.

    Two share it where what is said of them differs in nothing but figures and the values varied.
    """
    found: dict[str, list[Choice]] = {}
    for choice in choices:
        if choice.problem:
            found.setdefault(_cause(choice), []).append(choice)
    return list(found.values())


def _cause(choice: Choice) -> str:
    """What is said of a choice, without what tells it from its neighbours."""
    said = choice.problem
    values = [value for value in choice.settings.values() if isinstance(value, str)]
    for value in sorted(values, key=len, reverse=True):
        said = said.replace(value, "#")
    return re.sub(r"\d[\d,.]*", "#", said)


def write_plan(folder: Path, choices: Sequence[Choice]) -> None:
    """Writes plan.csv and plan.json."""
    rows = [choice.row() for choice in choices]
    write_rows(folder, schema.PLAN_CSV, schema.PLAN_JSON, rows)
