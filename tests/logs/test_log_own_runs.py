"""Folders of our own runs, imported as the logs of other trainers are."""

from pathlib import Path

import numpy as np
import pytest

from rollcast.calibration.importing import outcome
from rollcast.calibration.judge.advice import Answer, runs_under
from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.gather import read_log
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.launches.parts import Part, given, replaced
from rollcast.simulator.policies import spell
from rollcast.simulator.results.write import write_run
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from tests.logs import written as tables
from tests.scenarios import TINY


def written(folder: Path, *changes: str) -> tuple[Result, RunLog]:
    result = simulate(from_raw(parse_scenario(TINY), "steps=12", *changes))
    folder.mkdir()
    said = {"policy_spelt": spell(result.scenario.policy), "scenario": result.scenario.raw.data}
    write_run(folder, result.run, result.summary, said, plot=False)
    return result, read_log([folder])


@pytest.mark.parametrize("policy", ["sync", "april(over_sampling=1.5)"])
def test_a_folder_is_the_run_that_it_is_of(tmp_path: Path, policy: str) -> None:
    placed = "cluster.placement=colocated"
    result, log = written(tmp_path / "run", f"policy={policy}", placed)
    run = result.run
    assert (log.stack, log.level, log.overlapped) == ("rollcast", 2, False)
    for column, own in (("step_s", "step_s"), ("generation_s", "rollout_s"), ("sync_s", "sync_s")):
        assert log.steps[column].tolist() == [getattr(record, own) for record in run.steps]
    trained = log.rollouts[log.rollouts["trained"] == 1]
    assert trained["new_tokens"].sum() == result.summary["trained_tokens"]
    assert len(trained) == sum(record.trained_rollouts for record in run.steps)
    parts = {part.key: part for part in draft(log)}
    assert parts["policy"].value == ([] if policy == "sync" else policy)
    for key in ("cluster.replicas", "workload.batch_groups", "workload.max_new_tokens"):
        section, name = key.split(".")
        assert parts[key].value == result.scenario.raw.data[section][name]
    assert not parts["cluster.placement"].assumed


def test_rollouts_beside_the_training_are_no_generation(tmp_path: Path) -> None:
    apart = ("cluster.placement=disaggregated", "cluster.trainer_gpus=2", "policy=one_step_off")
    _, log = written(tmp_path / "run", *apart)
    assert log.overlapped
    assert log.steps["generation_s"].isna().all()
    parts = {part.key: part.value for part in draft(log)}
    assert parts["cluster.placement"] == "disaggregated"
    assert parts["policy"] == "one_step_off"


def test_a_policy_of_ones_own_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    log = read_log([tables.verl_file(tmp_path / "run.jsonl", tables.run())])
    parts = replaced(draft(log, given("qwen3-8b", "h100-sxm")), [Part("policy", "mine:Mine", "")])
    [note] = [note for note in outcome(log, parts, advised=False).notes if "mine:Mine" in note]
    assert "an import runs no code that a log names" in note
    assert "trust" not in note


def test_turns_are_read_once_a_rollout(tmp_path: Path) -> None:
    turns = (
        "workload.turns={family: lognormal, median: 3, between_sd: 0.3, within_sd: 0.3, "
        "max_turns: 6, observation_tokens: 20}"
    )
    result, log = written(tmp_path / "run", turns, "environment.turn_s=0.2")
    assert not log.rollouts.duplicated(["step", "group", "index"]).any()
    trained = log.rollouts[log.rollouts["trained"] == 1]
    assert trained["new_tokens"].sum() == result.summary["trained_tokens"]


def test_its_last_third_is_forecast(tmp_path: Path) -> None:
    _, log = written(tmp_path / "run", "steps=30", "policy=sync")
    judged = outcome(log, draft(log), advised=False).judged
    assert [each.mode for each in judged] == ["predict", "replay"]
    assert np.all(judged[1].measured_s > 0)
    assert judged[1].median_error < 0.1


def test_a_policy_is_known_however_it_is_written() -> None:
    for policy in ("pods(keep=4)+april(over_sampling=2)", ["april"], [{"april": {}}]):
        assert runs_under(policy, "april")
        assert not runs_under(policy, "over_sampl")


@pytest.mark.parametrize(
    ("low", "high", "sure"),
    [(1.03, 1.2, "faster"), (0.8, 0.97, "slower"), (0.9, 1.1, "undecided"),
     (1.001, 1.004, "undecided"), (0.996, 0.999, "undecided")],
)  # fmt: skip
def test_a_gain_that_is_shown_as_none_is_called_none(low: float, high: float, sure: str) -> None:
    assert Answer("april", "", "", 1.0, low, high).sure == sure
