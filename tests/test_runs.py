"""One door for every run: nothing that a scenario says of its runs is left out."""

from pathlib import Path

import numpy as np
import pytest

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.loop.recorded import RecordedWorld
from rollcast.simulator.results import schema
from rollcast.simulator.results.write import write_json, write_lines
from rollcast.simulator.runs.drive import drive
from rollcast.simulator.runs.replay import replay
from rollcast.simulator.scenario.file import RawScenario, parse_scenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.studies.uncertainty import add_intervals

SCENARIO = """
cluster: {placement: disaggregated, replicas: 2, trainer_gpus: 1}
engine: {max_seqs: 8, kv_tokens: 100000}
workload:
  batch_groups: 4
  group_size: 4
  prompt_tokens: 50
  max_new_tokens: 400
  lengths: {family: lognormal, median_tokens: 100, between_sd: 0.5, within_sd: 0.5}
  turns:
    {family: lognormal, median: 2, between_sd: 0.3, within_sd: 0.3, max_turns: 5,
     observation_tokens: 10}
environment: {turn_s: 0.2, failure: 0.3, failed: restart}
cost:
  linear:
    iteration_s: 5.0e-3
    per_rollout_s: 1.0e-4
    per_context_token_s: 0.0
    per_prefill_token_s: 1.0e-6
    train_per_token_s: 1.0e-5
    sync_s: 0.1
policy: fully_async(max_staleness=2)
steps: 4
"""


def test_a_run_that_restarts_failed_rollouts_is_replayed(tmp_path: Path) -> None:
    scenario = from_raw(parse_scenario(SCENARIO))
    world = scenario.world()
    record = RecordedWorld([], world, world.shape, world.name)
    result = drive(scenario, record, scenario.steps)
    assert any(
        segment.ending == "environment" for entry in record.entries for segment in entry.segments
    )
    write_json(tmp_path / schema.SCENARIO.name, {"scenario": scenario.raw.data})
    write_lines(tmp_path, schema.DECISIONS, result.decisions)
    write_lines(tmp_path, schema.EVENTS, (entry.to_plain() for entry in record.entries))
    assert replay(tmp_path).differs is None


def test_intervals_are_of_a_trainer_that_polls() -> None:
    """Short runs that forgot ``poll_s`` made steps of half the length, and intervals of them."""
    data = {**from_raw(parse_scenario(SCENARIO)).raw.data, "policy": "sync", "poll_s": 60.0}
    data["workload"] = {k: v for k, v in data["workload"].items() if k != "turns"}
    del data["environment"]
    data["cluster"] = {"placement": "colocated", "replicas": 2}
    result = simulate(from_raw(RawScenario(data), "steps=3"))
    draws = add_intervals(result).draws["step_s"] / result.summary["step_s"]
    assert float(np.median(draws)) == pytest.approx(1.0, abs=0.05)
    assert draws.std() < 0.02


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        (["policy=dynamic_sampling(refill_groups=1000000000)"], "refill_groups", "at once"),
        (["workload.batch_groups=500000", "workload.group_size=16"], "group_size", "more than"),
        (["policy=april(over_sampling=100)", "workload.batch_groups=500000"], "policy", "at once"),
        (
            ["steps=1000000", "workload.batch_groups=16000"],
            "steps",
            "about 889 h and 48,000 GB of memory",
        ),
    ],
)
def test_what_no_machine_holds_is_refused(settings: list[str], field: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        from_raw(parse_scenario(SCENARIO), "policy=sync", *settings)
    assert field in caught.value.field
