"""Turns, answers and judgements of simulated runs are recovered, stopped ones too."""

from typing import Any

import numpy as np
import pytest

from rollcast.calibration.fits.turns import Turned, sections, turn_lengths
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import build_scenario
from rollcast.simulator.values import read
from rollcast.simulator.workload.base import Trajectory, Turn
from rollcast.simulator.workload.environment import EnvironmentSection
from rollcast.simulator.workload.recorded_turns import RecordedTrajectory, recorded_trajectories
from tests.running import run

LENGTHS = {"median_tokens": 12, "between_sd": 0.3, "within_sd": 0.3}
TURNS = {"median": 4.0, "between_sd": 0.3, "within_sd": 0.35, "length_sd": 0.4}
ANSWERS = {"median_s": 0.5, "sd": 0.8, "between_sd": 0.3, "within_sd": 0.2}
LINEAR = {
    "iteration_s": 5e-3,
    "per_rollout_s": 1e-5,
    "per_context_token_s": 1e-8,
    "per_prefill_token_s": 1e-6,
    "train_per_token_s": 1e-6,
    "sync_s": 0.1,
}


def turned(seed: int, policy: str, **environment: Any) -> Turned:
    """What a calibration sees of a simulated run."""
    given = {"turn_s": {"family": "lognormal", **ANSWERS}, **environment}
    data = {
        "cluster": {"replicas": 1},
        "engine": {"max_seqs": 64, "max_batched_tokens": 512, "kv_tokens": 60000},
        "workload": {
            "batch_groups": 12,
            "group_size": 4,
            "prompt_tokens": 30,
            "max_new_tokens": 120,
            "max_context_tokens": 700,
            "lengths": {"family": "lognormal", **LENGTHS},
            "turns": {
                "family": "lognormal",
                **TURNS,
                "max_turns": 12,
                "observation_tokens": {"median_tokens": 20, "sd": 0.5, "max_tokens": 200},
            },
        },
        "environment": given,
        "reward": {"seconds": 0.25},
        "policy": policy,
        "cost": {"linear": LINEAR},
        "steps": 8,
        "seed": seed,
    }
    scenario = build_scenario(RawScenario(data))
    result = run(scenario.world(), scenario.policy, scenario.plan, scenario.steps)
    found = recorded_trajectories(result.segments, result.calls, scenario.environment)
    _, group = np.unique([name[0] for name in found], return_inverse=True)
    section = read(EnvironmentSection, given, "environment")
    return Turned(group, [*found.values()], section, 12)


def off(found: Turned) -> dict[str, float]:
    """Of each parameter, fitted less true, in standard errors."""
    tokens = turn_lengths(found)
    fitted = sections(found, tokens)
    errors = fitted["standard_errors"]
    differences = {}
    for name, value in TURNS.items():
        differences[name] = (fitted["turns"][name] - value) / errors["turns"][name]
    for name, value in ANSWERS.items():
        fit = fitted["environment"]["turn_s"][name]
        differences[f"answers {name}"] = (fit - value) / errors["environment"][name]
    named = {"median": 12, "between_sd": 0.3, "within_sd": 0.3}
    for name, value in named.items():
        differences[f"tokens {name}"] = (getattr(tokens, name) - value) / tokens.standard_errors[
            name
        ]
    return differences


POLICIES = ("sync", "april(over_sampling=2)", "partial_rollout", "token_budget(tokens=40,turns=2)")


@pytest.fixture(scope="module")
def runs() -> list[Turned]:
    seeds = [(p, s) for s, p in enumerate([*POLICIES, "april(over_sampling=2)"])]
    return [turned(seed, policy, timeout_s=6) for policy, seed in seeds]


def test_intervals_hold_the_truth(runs: list[Turned]) -> None:
    """Nominal 90 % intervals of eleven parameters in five runs that differ by chance and policy."""
    distances = np.array([[*off(each).values()] for each in runs])
    assert np.mean(np.abs(distances) < 1.645) >= 0.75  # of 55 fewer happen once in 500 times
    assert np.abs(distances).max() < 4.5
    assert np.abs(distances.mean(axis=0)).max() < 1.5  # none is off to one side


def test_what_was_stopped_counts_as_longer(runs: list[Turned]) -> None:
    """Without the turns and answers that were cut off, both would seem shorter."""
    stopped = runs[1]
    assert sum(own.cut is not None for own in stopped.rollouts) >= 10
    ended = [own.cut is None for own in stopped.rollouts]
    group = np.unique(stopped.group[ended], return_inverse=True)[1]
    whole = [own for own in stopped.rollouts if own.cut is None]
    alone = Turned(group, whole, stopped.environment, 12)
    told, naive = (sections(each, turn_lengths(each)) for each in (stopped, alone))
    assert naive["turns"]["median"] < told["turns"]["median"]


@pytest.mark.parametrize("held", ["call", "rollout"])
def test_boots_and_failures_are_told_from_answers(held: str) -> None:
    fitted = sections(
        found := turned(3, "sync", boot_s=2.0, failure=0.1, held=held), turn_lengths(found)
    )
    assert fitted["environment"]["boot_s"] == pytest.approx(2.0, rel=0.15)
    assert fitted["environment"]["failure"] == pytest.approx(0.1, rel=0.35)
    assert fitted["environment"]["turn_s"]["median_s"] == pytest.approx(0.5, rel=0.25)
    assert fitted["reward"] == {"seconds": pytest.approx(0.25)}


def test_an_answer_that_never_came_in_time_is_longer_than_that() -> None:
    found = turned(5, "sync", timeout_s=1.0)
    fitted = sections(found, turn_lengths(found))
    assert fitted["answers_cut_off"] > 50
    assert fitted["environment"]["turn_s"]["median_s"] == pytest.approx(0.5, rel=0.25)
    assert fitted["environment"]["turn_s"]["sd"] == pytest.approx(0.8, rel=0.2)


def test_answers_of_one_time_stay_a_number() -> None:
    found = turned(0, "sync", turn_s=0.3)
    assert sections(found, turn_lengths(found))["environment"]["turn_s"] == pytest.approx(0.3)


def test_too_little_is_said_so() -> None:
    own = RecordedTrajectory(3, Trajectory((Turn(0, 5, 0.0),)), "model", 0.0)
    one = Turned(np.array([0]), [own], EnvironmentSection(), 4)
    with pytest.raises(ScenarioError, match="tokens of turns cannot be fitted"):
        turn_lengths(one)
