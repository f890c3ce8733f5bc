"""Workloads that draw again from measured groups."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.workload.measured import (
    NEAR_GROUPS,
    MeasuredGroups,
    ResampledWorkload,
    measured_workload,
)
from tests.refusals import refuses

CAP = 400


def groups(count: int = 600, size: int = 6, seed: int = 0, per_version: int = 10) -> MeasuredGroups:
    """Lognormal groups whose lengths grow with the version, with rewards that name their tokens."""
    rng = np.random.default_rng(seed)
    versions = np.arange(count) // per_version
    middle = 40 * np.exp(0.01 * versions + 0.6 * rng.normal(size=count))
    tokens = np.clip(
        np.rint(middle[:, None] * np.exp(0.4 * rng.normal(size=(count, size)))), 1, CAP
    )
    return MeasuredGroups(
        tuple(versions.tolist()),
        tuple(rng.integers(3, 9, size=count).tolist()),
        tuple(map(tuple, tokens.astype(int).tolist())),
        tuple(map(tuple, (tokens / 1000).tolist())),
        CAP,
    )


MEASURED = groups()


@given(
    group=st.integers(0, 10_000),
    size=st.integers(1, 20),
    more=st.integers(0, 20),
    attempt=st.integers(0, 3),
    step=st.integers(0, 80),
    seed=st.integers(0, 5),
)
def test_a_draw_hangs_on_its_address_alone(
    group: int, size: int, more: int, attempt: int, step: int, seed: int
) -> None:
    """Larger groups begin as smaller ones do, whatever was drawn before."""
    workload = ResampledWorkload(MEASURED, CAP, seed)
    small = workload.draw(group, size, attempt, step)
    workload.draw(group + 1, 3)
    large = ResampledWorkload(MEASURED, CAP, seed).draw(group, size + more, attempt, step)
    assert list(large.new_tokens[:size]) == list(small.new_tokens)
    assert list(large.rewards[:size]) == list(small.rewards)
    assert large.prompt_tokens == small.prompt_tokens
    assert all(1 <= tokens <= CAP for tokens in large.new_tokens)


@given(group=st.integers(0, 500), attempt=st.integers(0, 3), step=st.integers(0, 80))
def test_a_group_is_a_measured_one_in_another_order(group: int, attempt: int, step: int) -> None:
    drawn = ResampledWorkload(MEASURED, CAP, 1).draw(group, 6, attempt, step)
    again = ResampledWorkload(MEASURED, CAP, 1).draw(group, 6, attempt + 1, step)
    assert tuple(sorted(drawn.new_tokens)) in {tuple(sorted(t)) for t in MEASURED.new_tokens}
    assert sorted(drawn.new_tokens) == sorted(again.new_tokens)  # a restart: the same prompt
    for tokens, reward in zip(drawn.new_tokens, drawn.rewards, strict=True):
        assert reward == tokens / 1000  # each keeps its own


def test_a_step_draws_from_the_versions_around_it() -> None:
    workload = ResampledWorkload(MEASURED, CAP, 0)
    reach = NEAR_GROUPS // 10 // 2 + 1
    where = {
        tuple(sorted(t)): v for t, v in zip(MEASURED.new_tokens, MEASURED.version, strict=True)
    }
    for step in (0, 30, 59, 500):
        found = [where[tuple(sorted(workload.draw(g, 6, 0, step).new_tokens))] for g in range(300)]
        nearest = min(step, 59)
        assert all(abs(v - nearest) <= (2 * reach if nearest in (0, 59) else reach) for v in found)
        assert len(set(found)) > reach


def test_larger_groups_have_longer_tails() -> None:
    """As many as were measured twice over, against groups that were measured so."""
    wide = groups(size=12, per_version=10)
    narrow = MeasuredGroups(
        wide.version,
        wide.prompt_tokens,
        tuple(t[:6] for t in wide.new_tokens),
        tuple(r[:6] for r in wide.rewards),
        CAP,
    )
    longest = {}
    for name, measured in (("wide", wide), ("narrow", narrow)):
        workload = ResampledWorkload(measured, CAP, 0)
        longest[name] = np.mean([max(workload.draw(i, 12, 0, 30).new_tokens) for i in range(3000)])
    six = np.mean([max(t[:6]) for t in wide.new_tokens])
    assert longest["narrow"] == pytest.approx(longest["wide"], rel=0.06)
    assert longest["narrow"] > 1.1 * six


def test_one_group_is_enough() -> None:
    one = MeasuredGroups((0,), (5,), ((3, 4),), ((0.0, 1.0),), CAP)
    assert set(ResampledWorkload(one, CAP, 0).draw(7, 9).new_tokens) == {3, 4}


def test_a_longer_cap_than_measured_is_warned_of() -> None:
    cut = MeasuredGroups((0,), (5,), ((CAP, 4),), ((0.0, 1.0),), CAP)
    assert ResampledWorkload(cut, CAP, 0).warnings == ()
    [warning] = ResampledWorkload(cut, 2 * CAP, 0).warnings
    assert "1 measured responses were cut at 400 tokens" in warning
    assert ResampledWorkload(cut, 10, 0).draw(0, 2).new_tokens.count(10) == 1


SCENARIO = """
cluster: {placement: colocated, replicas: 1}
engine: {kv_tokens: 100000}
workload:
  batch_groups: 4
  group_size: 4
  max_new_tokens: 400
  lengths: {file: fitted.json}
cost:
  linear: {iteration_s: 1e-3, per_rollout_s: 1e-5, per_context_token_s: 1e-7,
           per_prefill_token_s: 1e-6, train_per_token_s: 1e-5}
steps: 3
"""


def write(folder: Path, **changes: Any) -> Path:
    content = {"schema": "rollcast-fitted/1", "groups": MEASURED.to_mapping(), **changes}
    (folder / "fitted.json").write_text(json.dumps(content))
    (folder / "s.yaml").write_text(SCENARIO)
    return folder / "s.yaml"


def run(path: Path, *settings: str) -> Any:
    from rollcast.simulator.scenario.file import read_scenario

    return simulate(from_raw(read_scenario(path), *settings))


def test_a_scenario_uses_them(tmp_path: Path) -> None:
    result = run(write(tmp_path))
    assert result.summary["rollouts"] == 48
    assert set(result.run.segments["prompt_tokens"].tolist()) <= set(range(3, 9))


def one(**changes: Any) -> dict[str, Any]:
    """A file's mapping of one group of one rollout, with changes."""
    whole = {"version": [0], "prompt_tokens": [1], "new_tokens": [[1]], "rewards": [[1.0]]}
    return {**whole, "max_new_tokens": 4, **changes}


@pytest.mark.parametrize(
    ("groups_changed", "said"),
    [
        (None, "keeps no measured groups"),
        ([], "must be a mapping"),
        ({**MEASURED.to_mapping(), "version": 3}, "groups.version"),
        ({**MEASURED.to_mapping(), "version": [1]}, "differ in length"),
        ({**MEASURED.to_mapping(), "vers": [1]}, "groups.vers"),
        (one(version=[], prompt_tokens=[], new_tokens=[], rewards=[]), "there are none"),
        (one(new_tokens=[[0]]), "groups.new_tokens[0][0]"),
        (one(rewards=[[1.0, 2.0]]), "1 lengths and 2 rewards"),
        (one(rewards=[["x"]]), "groups.rewards[0][0]"),
        (one(new_tokens=[1]), "groups.new_tokens[0]: must be a list"),
    ],
)
def test_bad_groups_are_named(tmp_path: Path, groups_changed: Any, said: str) -> None:
    content = {"schema": "rollcast-fitted/1"}
    if groups_changed is not None:
        content["groups"] = groups_changed
    with pytest.raises(ScenarioError, match=r"fitted\.json") as error:
        measured_workload(content, "fitted.json", CAP, 0)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("workload.prompt_tokens=5", "workload.prompt_tokens"),
        (
            "workload.rewards={family: beta_bernoulli, mean: 0.5, between_sd: 0.2}",
            "workload.rewards",
        ),
        ("workload.lengths={file: none.json}", "workload.lengths.file"),
        ("workload.lengths={file: 3}", "workload.lengths.file"),
        ("workload.lengths={file: s.yaml}", "workload.lengths.file"),
        ("workload.lengths={file: fitted.json, sd: 3}", "workload.lengths.sd"),
    ],
)
def test_what_does_not_go_with_a_file(tmp_path: Path, setting: str, field: str) -> None:
    path = write(tmp_path)
    with refuses(field):
        run(path, setting)


def test_another_schema(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="rollcast-fitted/1"):
        run(write(tmp_path, schema="rollcast-fitted/9"))


def test_a_scenario_without_a_place_of_its_own() -> None:
    with pytest.raises(ScenarioError, match="cannot read"):
        from_raw(parse_scenario(SCENARIO))
