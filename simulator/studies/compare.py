"""The same scenario under several policies: same prompts, lengths and rewards for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import RunError, ScenarioError
from simulator.results import schema
from simulator.results.folder import is_ours
from simulator.results.write import write_rows, write_run
from simulator.scenario.scenario import Scenario
from simulator.spans import StepRecord
from simulator.studies.luck import TOO_FEW
from simulator.studies.ranking import Ranking
from simulator.studies.simulate import Result, simulate

COLUMNS = (
    "step_s",
    "rollout_s",
    "train_s",
    "sync_s",
    "switch_s",
    "rollout_tokens_per_s",
    "trained_tokens_per_s",
    "bubble_fraction",
    "straggler_rate",
    "staleness_mean",
    "generated_tokens",
    "trained_tokens",
    "dropped_tokens",
    "reprefilled_tokens",
    "length_bias",
    "truncated_share",
    "makespan_s",
    "gpu_hours",
)


def compare(
    scenarios: Sequence[Scenario], on_step: Callable[[StepRecord], None] | None = None
) -> dict[str, Result]:
    """Runs each scenario; results by the policy's name, in the order given.

    Raises ScenarioError (``--policy``) where a policy is given twice, and RunError, naming the
    policy, where one cannot go on.
    """
    names = [scenario.policy_name for scenario in scenarios]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError("--policy", f"{name} is given twice")
    results = {}
    for name, scenario in zip(names, scenarios, strict=True):
        try:
            results[name] = simulate(scenario, on_step)
        except RunError as error:
            raise RunError(f"under {name}, {error}") from None
    return results


def warnings_of(results: Mapping[str, Result]) -> list[str]:
    """What is to be said of any of them, once each; of steps that are too few, the policy that
    needs the most."""
    found: list[str] = []
    few: list[tuple[int, str]] = []
    for name, result in results.items():
        for said in result.summary["warnings"]:
            if said.endswith(TOO_FEW):
                few.append((result.summary["luck"]["enough_steps"], f"under {name}, {said}"))
            elif said not in found:
                found.append(said)
    return [*found, *([max(few)[1]] if few else ())]


def table(results: Mapping[str, Result], ranking: Ranking | None) -> list[dict[str, Any]]:
    """One row a policy: its metrics, and ``speedup`` (mean step time of the first over its own) and
    ``throughput_gain`` (rollout tokens/s over the first's).

    With a ranking: ``speedup_low`` and ``speedup_high``, the ends of the 90 % interval, and
    ``sure``, the share of the draws in which it is faster than the policy ranked next.
    """
    rows = []
    first = next(iter(results.values())).summary
    for name, result in results.items():
        summary = result.summary
        row: dict[str, Any] = {"policy": name}
        row["speedup"] = first["step_s"] / summary["step_s"]
        if ranking is not None:
            row["speedup_low"], row["speedup_high"] = ranking.speedup(name)
            row["sure"] = ranking.sure_of_next(name)
        row["throughput_gain"] = _ratio(
            summary["rollout_tokens_per_s"], first["rollout_tokens_per_s"]
        )
        row.update({column: summary[column] for column in COLUMNS})
        rows.append(row)
    return rows


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
    """Writes the table, the picture, the page ``report`` where there is one, and a folder a
    policy."""
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
        from simulator.results.timeline import draw_comparison

        picture = folder / schema.COMPARISON_PICTURE.name
        draw_comparison({name: result.run for name, result in results.items()}, picture)
