"""Linear costs: the formula, and every coefficient checked."""

import math

import pytest

from rollcast.simulator.costs import Iteration, LinearCost, TrainLoad
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import read
from tests.refusals import refuses
from tests.scenarios import LINEAR


def test_train_counts_tokens_of_the_layout() -> None:
    cost = LinearCost(**{**LINEAR, "train_fixed_s": 0.5, "train_per_rollout_s": 0.1})
    groups = [(100, [10, 20]), (50, [5])]
    assert cost.train(TrainLoad(groups)).phases_s == (("train", 0.5 + 285e-5 + 0.3),)
    shared = cost.train(TrainLoad(groups, shared_prefix=True))
    assert shared.total_s == pytest.approx(0.5 + 185e-5 + 0.3)
    padded = LinearCost(**{**LINEAR, "padded": True, "log_prob_per_token_s": 1.0})
    phases = dict(padded.train(TrainLoad([*groups, (900, [])])).phases_s)
    assert phases["log_prob"] == 3.0 * (100 + 20)  # longest prompt and response, three rollouts
    assert padded.train(TrainLoad([])).total_s == 0


def test_a_prefill_adds_to_the_curve() -> None:
    cost = LinearCost(**LINEAR)
    mixed = cost.mixed_iteration_s(Iteration(9, 5000, 1000))
    assert mixed == pytest.approx(cost.decode_curve(9).seconds(5000) + 4e-3)


@pytest.mark.parametrize("name", [*LINEAR, "switch_to_train_s", "log_prob_per_token_s"])
@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf, "fast", True])
def test_bad_coefficients_name_themselves(name: str, bad: object) -> None:
    with refuses(f"cost.linear.{name}"):
        read(LinearCost, {**LINEAR, name: bad}, "cost.linear")


def test_yaml_strings_are_numbers() -> None:
    assert read(LinearCost, {**LINEAR, "sync_s": "2e0"}, "cost.linear").sync_s == 2.0


def test_iterations_take_time() -> None:
    with pytest.raises(ScenarioError, match=r"cost\.linear\.iteration_s: an iteration takes no"):
        LinearCost(**{**LINEAR, "iteration_s": 0.0, "per_rollout_s": 0.0})
    assert LinearCost(**{**LINEAR, "iteration_s": 0.0}).decode_curve(1).seconds(0) > 0


def test_missing_and_unknown_coefficients() -> None:
    with pytest.raises(ScenarioError, match=r"per_rollout_s: missing"):
        read(LinearCost, {k: v for k, v in LINEAR.items() if k != "per_rollout_s"}, "cost.linear")
    with pytest.raises(ScenarioError, match=r"sync: unknown key; did you mean sync_s"):
        read(LinearCost, {**LINEAR, "sync": 1.0}, "cost.linear")
