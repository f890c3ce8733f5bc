"""What moves a step most."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from rollcast.simulator.costs.scaled import PHASES, ScaledCost
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import load, simulate
from rollcast.simulator.studies.tornado import ASSUMED, Z, parse_keys, tornado
from tests.conftest import Cli
from tests.refusals import ran, refused

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ("steps=2", "workload.batch_groups=4", "cluster.replicas=2", "cluster.trainer_gpus=2")


def small(*more: str, example: str = "april") -> Scenario:
    return load(EXAMPLES / f"{example}.yaml", *SMALL, "policy=sync", *more)


def test_bars_are_runs_at_either_end() -> None:
    scenario = small()
    cost = ScaledCost(scenario.cost, dict.fromkeys(PHASES, 1.0), {"sync": 0.3, "decode": 0.05})
    scenario = replace(scenario, cost=cost)
    result = simulate(scenario)
    bars = {bar.input: bar for bar in tornado(scenario, result=result)}
    assert set(bars) >= {"sync", "decode", "median_tokens", "between_sd"}
    for sign, found in ((-1, bars["decode"].step_s_low), (1, bars["decode"].step_s_high)):
        factors = {**cost.factors, "decode": 2.718281828 ** (sign * 0.05 * Z)}
        there = simulate(replace(scenario, cost=ScaledCost(cost.inner, factors)))
        assert found == pytest.approx(there.summary["step_s"], rel=1e-6)
    spreads = [bar.spread_s for bar in tornado(scenario, result=result)]
    assert spreads == sorted(spreads, reverse=True)
    assert sum(bar.share for bar in bars.values()) == pytest.approx(1.0)
    assert not any(bar.assumed for bar in bars.values())
    decode = bars["decode"]
    hours = result.summary["makespan_s"] / 3600
    assert decode.hours_high / hours == pytest.approx(decode.step_s_high / decode.step_s)
    assert decode.usd_high is not None
    assert decode.usd_high / result.summary["cost_usd"] == pytest.approx(decode.hours_high / hours)


def test_what_is_given_exactly_is_assumed_to_be_known_within_a_tenth() -> None:
    scenario = load(EXAMPLES / "engine.yaml", "steps=2")
    bars = {bar.input: bar for bar in tornado(scenario)}
    median = bars["workload.lengths.median_tokens"]
    assert median.assumed
    assert float(median.low) == pytest.approx(57 * (1 - ASSUMED))
    assert float(median.high) == pytest.approx(57 * (1 + ASSUMED))
    assert "cost.linear.iteration_s" in bars
    assert all(bar.usd_low is None for bar in bars.values())


def test_any_key_can_be_asked_for_and_keeps_the_policy() -> None:
    scenario = small().with_policy("april(over_sampling=2)")
    asked = parse_keys(scenario, ["workload.group_size=±25%", "engine.max_seqs = 4, 256"])
    assert [(each.low, each.high) for each in asked] == [(6, 10), ("4", "256")]
    bars = {bar.input: bar for bar in tornado(scenario, asked)}
    group = bars["workload.group_size"]
    assert group.assumed
    bigger = simulate(small("workload.group_size=10").with_policy("april(over_sampling=2)"))
    assert group.step_s_high == pytest.approx(bigger.summary["step_s"], rel=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workload.group_size", "not of the form"),
        ("=20%", "not of the form"),
        ("gpu=20%", "there is no 20%"),
        ("workload.group_size=0%", "above 0 %"),
        ("workload.group_size=100%", "above 0 %"),
        ("workload.group_size=x%", "above 0 %"),
        ("workload.group_size=8", "LOW,HIGH"),
        ("workload.group_size=8,9,10", "LOW,HIGH"),
        ("workload.group_sise=8,9", "group_sise"),
        ("workload.group_size=0,9", "workload.group_size"),
    ],
)
def test_keys_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        parse_keys(small(), [text])


def test_a_key_given_twice() -> None:
    with pytest.raises(ScenarioError, match="given twice"):
        parse_keys(small(), ["steps=1,2", "steps=20%"])


def test_the_command_line_prints_and_writes_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = str(EXAMPLES / "april.yaml")
    options = [part for setting in (*SMALL, "policy=sync") for part in ("--set", setting)]
    options += ["--tornado", "--draws", "0"]
    out = tmp_path / "run"
    text = ran(cli("simulate", path, *options, "--out", str(out)))
    assert "each uncertain input changes the step time of" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    with (out / "tornado.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["input"] in text
    assert (out / "tornado.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(cli("simulate", path, *options, "--json")[1])
    assert [row["input"] for row in found["tornado"]] == [row["input"] for row in rows]
    assert cli("simulate", path, *options, "--out", str(out), "--force", "--no-plot")[0] == 0
    assert not (out / "tornado.png").exists()
    err = refused(cli("simulate", path, "--tornado-key", "steps=1,2"))
    assert "goes with --tornado" in err
