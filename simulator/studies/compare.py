"""The same scenario under several policies: same prompts, lengths and rewards for each."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcast.simulator.core.spans import StepRecord
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.learning.answer import Progress
from rollcast.simulator.results import schema
from rollcast.simulator.results.figures import FIGURES
from rollcast.simulator.results.folder import is_ours
from rollcast.simulator.results.metrics import short
from rollcast.simulator.results.phases import said
from rollcast.simulator.results.steady import per_rollout, trained_a_step
from rollcast.simulator.results.write import write_rows, write_run
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.learned import add_learning
from rollcast.simulator.studies.ranking import Ranking
from rollcast.simulator.studies.sampling_error import TOO_FEW
from rollcast.simulator.studies.simulate import A_SCENARIO, Result, simulate
from rollcast.simulator.values.words import require

SAME = 0.01
"""Policies whose steps train on numbers of rollouts no further apart than this share are alike."""


def compare(
    scenarios: Sequence[Scenario], on_step: Callable[[StepRecord], None] | None = None
) -> dict[str, Result]:
    """Runs each scenario; results by policy, in order. Gives a Python warning (UserWarning) for
    every policy whose steps are too few, which would make a speed-up wrong.

    Raises as `run_each`.
    """
    require(Sequence, scenarios, "scenarios", f"a list, each {A_SCENARIO}")
    for scenario in scenarios:
        require(Scenario, scenario, "scenarios", f"a list, each {A_SCENARIO}")
    results = run_each(scenarios, on_step)
    for name, result in results.items():
        for text in short(result.run):
            warnings.warn(f"under {name}, {text}", stacklevel=2)
    return results


def run_each(
    scenarios: Sequence[Scenario], on_step: Callable[[StepRecord], None] | None = None
) -> dict[str, Result]:
    """Runs each scenario; results by policy, in order.

    Raises ScenarioError (``--policy``) for a policy given twice, RunError naming a policy that
    cannot go on.
    """
    names = [scenario.policy_name for scenario in scenarios]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError("--policy", f"{name} is given twice")
    results = {}
    for name, scenario in zip(names, scenarios, strict=True):
        try:
            results[name] = simulate(scenario, on_step, alone=False)
        except RunError as error:
            raise RunError(f"under {name}, {error}") from None
    add_learning(results)
    return results


def warnings_of(results: Mapping[str, Result]) -> list[str]:
    """The runs' warnings, each once; of "too few steps", the one that asks for the most."""
    told: list[str] = []
    few: list[tuple[int, str]] = []
    for name, result in results.items():
        for text in result.summary["warnings"]:
            if text.endswith(TOO_FEW):
                few.append(
                    (result.summary["sampling_error"]["enough_steps"], f"under {name}, {text}")
                )
            elif text not in told:
                told.append(text)
    return [*told, *([max(few)[1]] if few else ()), *_other_batches(results), *_other_gpus(results)]


def _other_batches(results: Mapping[str, Result]) -> list[str]:
    """That policies train on other numbers of rollouts, which a step time alone does not show."""
    trained = {name: trained_a_step(result.run) for name, result in results.items()}
    least, most = min(trained.values()), max(trained.values())
    if most <= (1.0 + SAME) * least:
        return []
    listed = ", ".join(f"{name} on {count:.4g}" for name, count in trained.items())
    text = (
        f"the policies train on different numbers of rollouts per step ({listed}): "
        "speed-ups compare the time per rollout before selection"
    )
    fewer = [results[name] for name, count in trained.items() if most > (1.0 + SAME) * count]
    if any(not isinstance(result.progress, Progress) for result in fewer):
        text += "; a simulation does not tell whether training on fewer learns as much"
    return [text]


def _other_gpus(results: Mapping[str, Result]) -> list[str]:
    """That a row has more GPUs, which its step time does not show."""
    held = {name: result.summary["gpus"] for name, result in results.items()}
    if len({*held.values()}) == 1:
        return []
    listed = ", ".join(f"{name} on {gpus}" for name, gpus in held.items())
    return [
        f"the rows hold different numbers of GPUs ({listed}): speed-ups compare seconds of a step, "
        "not GPU-hours"
    ]


def table(results: Mapping[str, Result], ranking: Ranking | None) -> list[dict[str, Any]]:
    """One row per policy: the figures saved of its run, what is said of its phases
    (`simulator.results.phases.said`), ``trained_rollouts_per_step``, ``speedup``
    (step time of the first over its own, per rollout taken in), ``throughput_gain`` (rollout
    tokens/s over the first's). With a ranking: ``speedup_low``, ``speedup_high`` (90 % interval),
    ``sure`` (share of draws in which it is faster than the next). With a law of learning:
    ``learning`` (`simulator.studies.learned.learned`, without its curve)."""
    rows = []
    first = next(iter(results.values())).summary
    factors = per_rollout([result.run for result in results.values()]).tolist()
    for (name, result), factor in zip(results.items(), factors, strict=True):
        summary = result.summary
        row: dict[str, Any] = {"policy": name}
        row["speedup"] = first["step_s"] / (summary["step_s"] * factor)
        if ranking is not None:
            row["speedup_low"], row["speedup_high"] = ranking.speedup(name)
            row["sure"] = ranking.sure_of_next(name)
        row["throughput_gain"] = _ratio(
            summary["rollout_tokens_per_s"], first["rollout_tokens_per_s"]
        )
        row["trained_rollouts_per_step"] = trained_a_step(result.run)
        row.update({figure.name: summary.get(figure.name) for figure in FIGURES if figure.saved})
        row.update(said(summary))
        if "learning" in summary:
            told = summary["learning"].items()
            row["learning"] = {key: value for key, value in told if key != "curve"}
        rows.append(row)
    return rows


def compared(results: Mapping[str, Result], ranking: Ranking | None) -> list[dict[str, Any]]:
    """One row per policy of all figures (`simulator.results.figures`): its summary, its row of
    `table`, ``trained_rollouts`` of the run, and whether it is the ``first``."""
    rows = zip(results.values(), table(results, ranking), strict=True)
    return [
        {
            **result.summary,
            **row,
            "trained_rollouts": sum(step.trained_rollouts for step in result.run.steps),
            "first": place == 0,
        }
        for place, (result, row) in enumerate(rows)
    ]


def _ratio(value: float, base: float) -> float:
    return value / base if base else float("nan")


def folder_names(policies: Iterable[str]) -> dict[str, str]:
    """A folder's name for each policy's: readable, safe in any file system, each its own."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for policy in policies:
        kept = "".join(c if c.isascii() and (c.isalnum() or c in "._+") else "-" for c in policy)
        base = re.sub("-*[+]-*", "+", re.sub("--+", "-", kept)).strip("-.+")[:100] or "policy"
        base = f"{base}-run" if is_ours(base) else base
        name, number = base, 2
        while name.lower() in taken:
            name, number = f"{base}-{number}", number + 1
        taken.add(name.lower())
        names[policy] = name
    return names


def write_comparison(
    folder: Path,
    results: Mapping[str, Result],
    ranking: Ranking | None,
    plot: bool,
    report: str | None = None,
) -> None:
    """Writes the table, the picture, the page and a folder per policy."""
    rows = table(results, ranking)
    write_rows(folder, schema.COMPARISON_CSV, schema.COMPARISON_JSON, rows)
    if report is not None:
        (folder / schema.REPORT.name).write_text(report, encoding="utf-8")
    folders = folder_names(results)
    for name, result in results.items():
        below = folder / folders[name]
        below.mkdir()
        description = {"name": name, "policy_spelt": name, "scenario": result.scenario.raw.data}
        write_run(below, result.run, result.summary, description, plot=False)
    if plot:
        from rollcast.simulator.results.learning_picture import draw_learning
        from rollcast.simulator.results.timeline import draw_comparison

        picture = folder / schema.COMPARISON_PICTURE.name
        draw_comparison({name: result.run for name, result in results.items()}, picture)
        summaries = {name: result.summary for name, result in results.items()}
        draw_learning(summaries, folder / schema.LEARNING_PICTURE.name)
