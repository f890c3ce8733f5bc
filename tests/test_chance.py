"""Draws by name: all in order, or chosen inputs at chosen levels."""

import numpy as np
import pytest

from rollcast.simulator.costs import RooflineCost
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.scaled import PHASES, ScaledCost
from rollcast.simulator.values.chance import Drawn, Levels

COST = RooflineCost(load_model("qwen3-8b"), load_gpu("h100-sxm"))


def test_without_levels_costs_are_as_they_are() -> None:
    asked = Levels()
    same = COST.drawn(asked)
    assert same.decode_curve(9).ticks(9000) == COST.decode_curve(9).ticks(9000)
    assert same.sync_s == COST.sync_s
    assert "host time/host_s" in asked.names
    assert all("/" in name for name in asked.names)
    assert "rest/rest_s" not in asked.names  # none was given, so that nothing is uncertain


def test_one_input_moves_what_belongs_to_it_alone() -> None:
    low, high = (COST.drawn(Levels({"host time/host_s": z})) for z in (-1.645, 1.645))
    assert low.decode_curve(1).seconds(0) < high.decode_curve(1).seconds(0)
    assert low.sync_s == high.sync_s == COST.sync_s
    slow = COST.drawn(Levels({"sync/sync_fixed_s": 1.0}))
    assert slow.sync_s > COST.sync_s
    assert slow.decode_curve(4).ticks(5) == COST.decode_curve(4).ticks(5)


def test_levels_are_quantiles() -> None:
    factor = Levels({"a/b": 0.0}).factor("a/b", 0.25, 4.0)
    assert factor == pytest.approx(1.0)
    assert Levels({"a/b": 1.6448536}).factor("a/b", 1.0, np.e) == pytest.approx(np.exp(0.95))
    drawn = [Drawn(np.random.default_rng(s)).factor("a/b", 1.0, np.e) for s in range(500)]
    assert np.quantile(np.log(drawn), 0.95) == pytest.approx(0.95, abs=0.03)


def test_joint_normals_have_an_input_for_each_direction() -> None:
    covariance = np.array([[2.0, 1.0], [1.0, 2.0]])
    asked = Levels()
    assert not asked.normals("a/c", covariance).any()
    assert list(asked.names) == ["a/c 1", "a/c 2"]
    first, second = (Levels({f"a/c {k}": 1.0}).normals("a/c", covariance) for k in (1, 2))
    assert np.outer(first, first) + np.outer(second, second) == pytest.approx(covariance)
    assert not Levels({"a/c 1": 3.0}).normals("a/c", np.zeros((2, 2))).any()


def test_a_scale_that_says_how_sure_it_is_has_one_input_a_phase() -> None:
    cost = ScaledCost(COST, dict.fromkeys(PHASES, 1.0), {"decode": 0.1, "sync": 0.2})
    asked = Levels({"sync/sync": 1.0})
    assert cost.drawn(asked).sync_s == pytest.approx(COST.sync_s * np.exp(0.2))
    assert list(asked.names) == ["decode efficiency/decode", "sync/sync"]
