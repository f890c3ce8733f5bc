"""A real run on a GPU, piece by piece, against presets alone."""

from __future__ import annotations

import re

import pytest

from benchmarks.gpu import from_presets
from benchmarks.runner import ROOT
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import from_raw, simulate


def test_a_run_that_nothing_was_fitted_to_is_forecast_by_our_own_stack() -> None:
    """Each piece that takes time within a quarter, and a step within 10 %; an engine alone lacks
    our loop, and no stack at all assumes that GPUs change hands."""
    rows = dict(from_presets.rows())
    for name, (measured, alone, ours) in rows.items():
        if name != "switches and the rest, s a step":
            assert ours == pytest.approx(measured, rel=0.25), name
        if name.startswith("an iteration"):
            assert alone < ours
    measured, alone, ours = rows["all of it, s a step"]
    assert ours == pytest.approx(measured, rel=0.1)
    assert alone > 1.3 * measured


def test_the_loop_s_time_is_what_the_first_run_adds_to_an_engine_s() -> None:
    """Least squares of iterations less an engine's, over rollouts: what an iteration takes."""
    run = from_presets.RunFolder.open(from_presets.runs("gpu/runs") / "sync-0")
    alone, ours = (from_presets.cost_of(given) for given in from_presets.FORECASTS.values())
    table = run.iterations
    decodes = table["prefill_tokens"] == 0
    rest = (table["seconds"] - from_presets.iterations_s(alone, run))[decodes]
    rollouts = table["rollouts"][decodes]
    slope = ((rollouts - rollouts.mean()) * rest).sum() / ((rollouts - rollouts.mean()) ** 2).sum()
    assert rest.mean() - slope * rollouts.mean() == pytest.approx(ours.loop_s, rel=0.1)
    assert abs(slope) < 0.1 * alone.host_per_rollout_s


def test_the_scenario_of_the_page_takes_as_long_as_the_runs_did() -> None:
    page = (ROOT / "docs" / "gpus.md").read_text("utf-8")
    scenarios = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (text,) = [scenario for scenario in scenarios if "stack: rollcast" in scenario]
    makespan_s = simulate(from_raw(parse_scenario(text))).summary["makespan_s"]
    assert f"says {makespan_s:.1f} s of it" in page
    assert makespan_s == pytest.approx((19.51 + 19.89) / 2, rel=0.05)
