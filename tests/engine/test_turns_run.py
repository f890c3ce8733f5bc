"""``rollcast run`` with rollouts of several turns, on real vLLM."""

import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from run_homes import Home, kill_myself, save_at_once

from rollcast.engine.config import build_run
from rollcast.engine.tasks.tokenizer import END_ID, encode
from rollcast.simulator.scenario.file import override, read_scenario
from tests.refusals import refuses

EXAMPLE = Path(__file__).parents[2] / "examples" / "engine_agent.yaml"
ENDS = [END_ID, *encode("0123456789>= !")]
"""Tokens with which the model that nobody trained ends its turns: it soon says one of them."""
SCENARIO = """\
cluster: {placement: colocated, replicas: 1}
engine:
  model: model
  max_seqs: 8
  max_batched_tokens: 512
  kv_tokens: 8192
  block_tokens: 32
  task: {prompts: prompts.jsonl, environment: "run_environments:Parrot"}
  trainer: {learning_rate: 1.0e-3, minibatches: 2}
workload:
  batch_groups: 3
  group_size: 4
  max_new_tokens: 16
  max_context_tokens: 120
  turns: {preset: search, max_turns: 4}
environment: {slots: 6, timeout_s: 5}
policy:
  - april: {over_sampling: 2.0}
steps: 3
seed: 7
"""


@pytest.fixture
def home(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    (home.folder / "scenario.yaml").write_text(SCENARIO)
    monkeypatch.setattr(home.replica, "stop_token_ids", ENDS)
    return home


def table(home: Home, name: str) -> list[dict[str, str]]:
    with (home.out / name).open() as file:
        return list(csv.DictReader(file))


def test_a_run_of_several_turns_with_an_environment_of_ones_own(home: Home) -> None:
    assert home.run() == 0
    rows, calls = table(home, "rollouts.csv"), table(home, "environments.csv")
    summary = json.loads((home.out / "summary.json").read_text())
    endings = Counter(row["ending"] for row in rows)
    assert endings["stop"] > 3
    assert endings["turn"] > endings["stop"]
    assert {row["replica"] for row in rows if row["ending"] == "stop"} == {"-1"}
    assert {row["ended"] for row in calls} >= {"answered", "failed"}
    began: dict[tuple[str, ...], float] = {}
    for row in calls:  # one that went on while its rollout was suspended has two rows
        key = tuple(row[name] for name in ("group", "index", "attempt", "turn"))
        began.setdefault(key, float(row["start_s"]))
        if row["ended"] == "answered":  # as long as it slept, at least
            assert float(row["end_s"]) - began[key] > 0.002 * (1 + int(row["index"])) - 1e-4
    failures = table(home, "failures.csv")
    assert {(row["index"], row["turn"]) for row in failures} == {("3", "1")}
    assert {row["reason"] for row in failures} == {"KeyError: 'the cage is empty'"}
    assert any("the cage is empty" in warning for warning in summary["warnings"])
    assert summary["turns"]["endings"]["environment"] == endings["environment"]
    failed = {(row["group"], row["index"]) for row in failures}
    ended = {(row["group"], row["index"]) for row in rows if row["ending"] == "environment"}
    assert len(failed) == len(failures)
    assert ended <= failed
    last = {(row["group"], row["index"]): row["ending"] for row in rows}
    # a rollout that was suspended when the run ended is not told of its failure any more
    assert {last[key] for key in failed - ended} <= {"turn", "aborted", "interrupted"}
    assert endings["environment"] == len(ended) > 3
    assert summary["sync_log_prob_difference"] < 1e-4
    check_what_was_trained(home, {(row["group"], row["index"]): row for row in rows})


def check_what_was_trained(home: Home, last: dict[tuple[str, str], dict[str, str]]) -> None:
    """Tokens as they were sampled, and between them what the parrot said, masked."""
    from rollcast.engine.tasks.tokenizer import UNKNOWN, VOCABULARY

    letters = {token: letter for letter, token in VOCABULARY.items()}
    silent = (END_ID, 0, VOCABULARY[UNKNOWN])  # special tokens, of which a text has nothing
    heard = 0
    for _, groups in home.trained:
        for rollout in (r for group in groups for r in group.rollouts):
            if not rollout.observed:
                continue
            assert rollout.response[-1] in ENDS or len(rollout.response) > 16
            assert not rollout.observed[-1]
            said, text = "", ""
            for token, seen, log_prob in zip(
                rollout.response, rollout.observed, rollout.log_probs, strict=True
            ):
                assert log_prob == 0 if seen else log_prob < 0
                letter = "" if token in silent else letters[token]
                if seen:
                    text += letter
                    continue
                if text:
                    assert text == said[::-1] + ">"
                    heard, said, text = heard + 1, "", ""
                said += letter
    assert heard > 20


def test_a_killed_run_of_several_turns_goes_on(home: Home) -> None:
    """Environments die with their process; what they had been asked is asked again."""
    with pytest.MonkeyPatch.context() as patch:
        save_at_once(patch)
        status, _ = home.in_child(before=lambda: kill_in_rollout(home, patch))
    assert os.WIFSIGNALED(status)
    assert home.steps_saved == 1
    assert home.run("--resume") == 0
    assert [int(row["step"]) for row in table(home, "steps.csv")] == [0, 1, 2]
    summary = json.loads((home.out / "summary.json").read_text())
    ended = ("trained", "masked", "dropped", "carried")
    assert summary["generated_tokens"] == sum(summary[f"{name}_tokens"] for name in ended)
    rows = table(home, "rollouts.csv")
    finished = Counter((r["group"], r["index"], r["attempt"]) for r in rows if r["finished"] == "1")
    assert set(finished.values()) == {1}
    resumed = [r for r in rows if r["step"] == "1" and r["resumed"] == "1" and r["turn"] != "0"]
    assert resumed, "some were in their environment, or between two turns, at the save"


def kill_in_rollout(home: Home, patch: pytest.MonkeyPatch) -> None:
    """In the second step, when a few rollouts have come to their end."""
    step, done = home.replica.step, [0]

    def counted() -> Any:
        found = step()
        done[0] += len(found)
        if home.trained and done[0] > 80:
            kill_myself()
        return found

    patch.setattr(home.replica, "step", counted)


@pytest.mark.parametrize("slow", ["0.0", "{family: lognormal, median_s: 0.01, sd: 1.0}"])
def test_the_example_runs(home: Home, slow: str) -> None:
    text = EXAMPLE.read_text().replace("seed: 0", "seed: 3")
    (home.folder / "scenario.yaml").write_text(text)
    settings = [
        "engine.model=model",
        "steps=2",
        "workload.batch_groups=2",
        "workload.group_size=4",
        "workload.max_context_tokens=240",
        "workload.max_new_tokens=24",
        f"environment.turn_s={slow}",
        "environment.failure=0.1",
    ]
    assert home.run(*(part for setting in settings for part in ("--set", setting))) == 0
    rows = table(home, "rollouts.csv")
    assert len(table(home, "environments.csv")) > 10
    assert sum(row["finished"] == "1" for row in rows) == 16


WRONG = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text("utf-8"))["turns"]


@pytest.mark.parametrize(("field", "message", "settings"), [(f, m, s) for f, m, *s in WRONG])
def test_a_wrong_scenario_names_its_key(
    settings: list[str], field: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    with refuses(field, message):
        build_run(override(read_scenario(EXAMPLE), settings))


def test_a_context_beyond_the_models_is_refused(home: Home, capsys: Any) -> None:
    assert home.run("--set", "workload.max_context_tokens=257") == 2
    said = capsys.readouterr().err
    assert "workload.max_context_tokens" in said
    assert "is 257, but the model's context" in said
