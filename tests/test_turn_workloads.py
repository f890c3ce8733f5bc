"""Workloads of turns: drawn ones, traces, presets, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollcast.simulator.core.rollout import CUT
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.scenario.scenario import Scenario, build_scenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.workload.base import Trajectory
from rollcast.simulator.workload.traces import read_trace
from rollcast.simulator.workload.turn_presets import turn_presets
from rollcast.simulator.workload.turns import Caps, Patience, trajectory
from tests.refusals import refuses
from tests.scenarios import COST

TEXT = (
    """
cluster: {{replicas: 2}}
engine: {{kv_tokens: 400000}}
workload:
  batch_groups: 8
  group_size: 4
  max_new_tokens: 200
  {workload}
{more}
"""
    + f"{COST}steps: 2\n"
)
LENGTHS = "{family: lognormal, median_tokens: 40, between_sd: 0.3, within_sd: 0.3}"
TURNS = (
    "{family: lognormal, median: 6, between_sd: 0.5, within_sd: 0.3, max_turns: 20, "
    "observation_tokens: 30, length_sd: 0.4, difficulty_correlation: 0.8}"
)


def scenario(workload: str | None = None, more: str = "", folder: Path = Path()) -> Scenario:
    drawn = f"prompt_tokens: 100\n  lengths: {LENGTHS}\n  turns: {TURNS}"
    text = TEXT.format(workload=drawn if workload is None else workload, more=more)
    return build_scenario(parse_scenario(text, folder=folder))


def trajectories(built: Scenario, groups: int = 64, size: int = 4) -> list[Trajectory]:
    draws = (built.workload.draw(group, size) for group in range(groups))
    return [each for draw in draws for each in draw.trajectories or ()]


# Drawn turns


def test_draws_hang_on_their_address_alone() -> None:
    one, other = scenario().workload, scenario().workload
    wide = one.draw(7, 16)
    assert one.draw(3, 4) != wide
    narrow = other.draw(7, 4)
    assert narrow.trajectories == wide.trajectories[:4]  # type: ignore[index]
    assert narrow.rewards == wide.rewards[:4]
    assert one.draw(7, 4, attempt=1).trajectories != narrow.trajectories
    assert one.draw(9, 4, prompt=7).trajectories == narrow.trajectories


def test_turns_have_the_median_and_the_spreads_asked_for() -> None:
    counts = np.array([len(each.turns) for each in trajectories(scenario(), 800, 8)])
    assert np.median(counts) == pytest.approx(6, abs=1)
    assert np.log(counts).std() == pytest.approx(np.hypot(0.5, 0.3), rel=0.1)
    assert counts.max() == 20
    by_group = np.log(counts.reshape(800, 8)).mean(axis=1)
    assert by_group.std() == pytest.approx(np.hypot(0.5, 0.3 / np.sqrt(8)), rel=0.12)


def test_hard_prompts_take_more_turns() -> None:
    workload = scenario().workload
    draws = [workload.draw(group, 8) for group in range(400)]
    turns = [np.mean([len(t.turns) for t in draw.trajectories or ()]) for draw in draws]
    solved = [np.mean(draw.rewards) for draw in draws]
    assert np.corrcoef(turns, solved)[0, 1] < -0.4


def test_seconds_have_a_median_a_tail_and_failures() -> None:
    more = """
environment:
  turn_s: {family: lognormal, median_s: 3, sd: 1.2, hang: 0.01}
  timeout_s: 60
  failure: 0.1
  retry: 1
"""
    made = trajectories(scenario(more=more), 400)
    seconds = np.array([t.environment_s for each in made for t in each.turns[:-1]])
    assert np.median(seconds) == pytest.approx(3.2, rel=0.1)  # a tenth of calls come twice
    endings = [each.ending for each in made]
    calls = sum(len(each.turns) for each in made)
    assert endings.count("environment") / calls == pytest.approx(0.1**2, rel=0.4)
    timed_out = [each for each in made if each.ending == "timeout"]
    assert timed_out
    assert {each.turns[-1].environment_s for each in timed_out} == {60.0}
    drawn = scenario(more=more).workload.draw(0, 64)
    failed = [t.ending in ("timeout", "environment") for t in drawn.trajectories or ()]
    assert any(failed)
    assert all(r == 0 for r, f in zip(drawn.rewards, failed, strict=True) if f)


def test_the_context_cap_ends_rollouts_within_it() -> None:
    built = scenario(
        f"prompt_tokens: 100\n  lengths: {LENGTHS}\n  turns: {TURNS}\n  max_context_tokens: 400"
    )
    longest = 0
    for each in trajectories(built):
        longest = max(longest, 100 + sum(t.observation_tokens + t.new_tokens for t in each.turns))
    assert longest == 400
    assert any(each.ending == "context" for each in trajectories(built))


def test_a_turn_at_its_cap_and_a_rollout_at_its_turns_end() -> None:
    caps, patience = Caps(50, None), Patience()
    cut = trajectory(
        10, [(0, 20, 1.0, 0.5), (5, 80, 1.0, 0.5), (5, 9, 0.0, 0.5)], "stop", caps, patience
    )
    assert [turn.new_tokens for turn in cut.turns] == [20, 50]
    assert cut.ending == "length"
    assert cut.ending in CUT
    ended = trajectory(10, [(0, 20, 1.0, 0.5), (5, 30, 0.0, 0.5)], "turns", caps, patience)
    assert (len(ended.turns), ended.ending, ended.new_tokens) == (2, "turns", 50)


@pytest.mark.parametrize(
    ("u", "waited"), [(0.5, (2.0, None)), (0.15, (4.0, None)), (0.01, (4.0, "environment"))]
)
def test_failed_calls_are_made_again(u: float, waited: tuple[float, Any]) -> None:
    assert Patience(failure=0.2, retry=1).waits(2.0, u) == waited


@pytest.mark.parametrize("name", list(turn_presets()))
def test_presets_run_and_say_where_each_figure_is_from(name: str) -> None:
    built = scenario(
        f"prompt_tokens: 100\n  turns: {{preset: {name}}}\n  max_context_tokens: 8000",
        f"environment: {{turn_s: {{preset: {name}}}, timeout_s: 600}}",
    )
    made = trajectories(built, 40)
    preset = turn_presets()[name]
    assert np.median([len(t.turns) for t in made]) <= preset.turns["median"] * 1.4
    named = {key for names in preset.figures for key in names.split(", ")}
    wanted = {f"turns.{key}" for key in preset.turns if key != "family"}
    unnamed = {key for key in wanted if key not in named} if "turns" not in named else set()
    assert unnamed <= {"turns.runaway", "turns.between_sd", "turns.within_sd"}
    assert all(said.startswith(("published", "assumed")) for said in preset.figures.values())


def test_single_turns_with_a_judge_are_judged() -> None:
    built = scenario(f"prompt_tokens: 10\n  lengths: {LENGTHS}", "reward: {seconds: 20, slots: 16}")
    found = simulate(built)
    assert found.summary["turns"]["reward"]["calls"] == 64
    assert found.summary["turns"]["reward_s"] == 20


# Traces

TRACE = """group,index,turn,observation_tokens,new_tokens,environment_s,reward
0,0,0,100,20,3.5,
0,0,1,40,30,0,1
0,1,0,100,25,0,0
1,0,0,90,10,2,
1,0,1,0,10,1.25,
1,0,2,7,5,4,0.5
1,1,0,90,12,0,0
"""


def traced(tmp_path: Path, text: str, **more: Any) -> Scenario:
    (tmp_path / "turns.csv").write_text(text)
    workload = "lengths: {trace: turns.csv, repeat: true}\n  group_size: 2"
    body = TEXT.format(workload=workload, more=more.get("more", ""))
    body = body.replace("  group_size: 4\n", "").replace("batch_groups: 8", "batch_groups: 2")
    return build_scenario(parse_scenario(body, folder=tmp_path))


def test_a_trace_of_turns_is_replayed(tmp_path: Path) -> None:
    built = traced(tmp_path, TRACE)
    drawn = built.workload.draw(1, 2)
    assert (drawn.prompt_tokens, drawn.new_tokens, drawn.rewards) == (90, [25, 12], [0.5, 0.0])
    assert [tuple(turn) for turn in drawn.trajectories[0].turns] == [
        (0, 10, 2.0),
        (0, 10, 1.25),
        (7, 5, 4.0),
    ]
    found = simulate(built).run
    assert found.ledger.generated_tokens == 2 * (50 + 25 + 25 + 12)
    calls = sorted(float(s) for s in found.calls["end_s"] - found.calls["start_s"])
    assert calls == pytest.approx(sorted([3.5, 2, 1.25, 4] * 2))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0,0,1,40,30,0,1", "0,0,2,40,30,0,1", "turns count 0, 1, 2"),
        ("0,1,0,100,25,0,0", "0,1,0,101,25,0,0", "share one prompt"),
        ("0,0,1,40,30,0,1", "0,0,0,40,30,0,1", "repeats group 0, index 0, turn 0"),
        ("0,0,0,100,20,3.5,", "0,0,0,100,20,-1,", "environment_s is '-1'"),
        ("0,0,0,100,20,3.5,", "0,0,0,100,20,inf,", "environment_s is 'inf'"),
        ("0,0,0,100,20,3.5,", "0,0,0,100,20,3.5,2", "a reward of 1, an earlier line 2"),
        ("0,0,0,100,20,3.5,", "0,0,0,100,0,3.5,", "new_tokens is '0'"),
        ("0,0,0,100,20,3.5,", "0,0,0,0,20,3.5,", "observation_tokens is '0'"),
        ("1,1,0,90,12,0,0", "1,1,0,90,12,0,", "every one a reward, or none"),
        ("1,1,0,90,12,0,0", "1,2,0,90,12,0,0", "indices count 0, 1, 2"),
        (",environment_s", ",seconds", "lacks the column environment_s"),
    ],
)
def test_traces_that_contradict_themselves(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "turns.csv"
    path.write_text(TRACE.replace(old, new))
    with refuses("workload.lengths.trace", said):
        read_trace(path)


# What is refused


PROMPTS, CONTEXT, NONE = "prompt_tokens: 100\n", "max_context_tokens", "there are none"


@pytest.mark.parametrize(
    ("workload", "more", "field", "said"),
    [
        (f"{PROMPTS}  lengths: {LENGTHS}", "environment: {turn_s: 3}", "environment", NONE),
        (f"{PROMPTS}  lengths: {LENGTHS}\n  {CONTEXT}: 900", "", f"workload.{CONTEXT}", NONE),
        (
            f"{PROMPTS}  lengths: {LENGTHS}\n  turns: {TURNS}\n  {CONTEXT}: 100",
            *("", f"workload.{CONTEXT}", "make it larger"),
        ),
        (f"{PROMPTS}  turns: {TURNS}", "", "workload.lengths", "a turn's response"),
        (f"lengths: {LENGTHS}\n  turns: {TURNS}", "", "workload.prompt_tokens", "missing"),
        (
            f"{PROMPTS}  lengths: {{trace: x.csv}}\n  turns: {TURNS}",
            *("", "workload.turns", "a trace has its own"),
        ),
    ],
)
def test_workloads_that_cannot_be(workload: str, more: str, field: str, said: str) -> None:
    with refuses(field, said):
        scenario(workload, more)


def test_a_trace_has_its_own_answers(tmp_path: Path) -> None:
    with refuses("environment.turn_s", "has answers of its own"):
        traced(tmp_path, TRACE, more="environment: {turn_s: 3}")
    with refuses("environment.failure", "has failures of its own"):
        traced(tmp_path, TRACE, more="environment: {failure: 0.1}")


def test_a_context_beyond_the_pool_is_refused() -> None:
    text = TEXT.format(
        workload=f"prompt_tokens: 100\n  lengths: {LENGTHS}\n  turns: {TURNS}\n"
        "  max_context_tokens: 500000",
        more="",
    )
    with refuses("engine.kv_tokens", "cannot hold one rollout"):
        simulate(from_raw(parse_scenario(text)))
