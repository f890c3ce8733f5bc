"""What the roofline is off by for a kind of case, beyond its figures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rollcast.simulator.costs import RooflineCost, TrainLoad
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.presets.precision import Precision
from rollcast.simulator.costs.roofline.residuals import (
    APART,
    DENSE,
    DENSE_EIGHT_BIT,
    FOUR_BITS,
    MIXTURE,
    MIXTURE_EIGHT_BIT,
    SMALL,
    TENSOR_PARALLEL,
    UPDATE,
    PhaseErrors,
    engine_errors,
    residual_spreads,
)
from rollcast.simulator.values.chance import Drawn

GPU = load_gpu("h100-sxm")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3-8b", DENSE),
        ("qwen3-0.6b", SMALL),
        ("qwen3-30b-a3b", MIXTURE),
        ("deepseek-v3", MIXTURE_EIGHT_BIT),
        ("gpt-oss-120b", FOUR_BITS),
    ],
)
def test_a_model_is_of_its_kind(name: str, expected: PhaseErrors) -> None:
    assert engine_errors(load_model(name)) == expected


def test_weights_in_eight_bit_are_a_kind_of_their_own() -> None:
    model = replace(load_model("qwen3-8b"), precision=Precision.of_layers("fp8"))
    assert engine_errors(model) == DENSE_EIGHT_BIT


@pytest.mark.parametrize("apart", [False, True])
def test_draws_have_the_spread_of_their_kind(apart: bool) -> None:
    """Of the factors beyond the figures: those of a GPU set apart differ once more."""
    cost = RooflineCost(
        load_model("qwen3-30b-a3b"),
        GPU,
        2,
        trainer_gpus=8,
        placement="disaggregated" if apart else "colocated",
    )
    spreads = residual_spreads(cost.model, several_gpus=True)
    assert spreads["decode"] == pytest.approx(math.hypot(MIXTURE.decode, TENSOR_PARALLEL))
    rng = np.random.default_rng(0)
    drawn = [cost.drawn(Drawn(rng)).factors for _ in range(600)]
    for phase, own in (("decode", spreads["decode"]), ("update", UPDATE)):
        logs = np.log([factors[phase] for factors in drawn])
        assert logs.std() == pytest.approx(math.hypot(own, APART if apart else 0.0), rel=0.1)
    assert all(factors["sync"] == 1.0 for factors in drawn)


def test_a_draw_moves_what_it_is_of() -> None:
    cost = RooflineCost(load_model("qwen3-8b"), GPU, trainer_gpus=8)
    load = TrainLoad([(100, [1000] * 8)])
    drawn = [cost.drawn(Drawn(np.random.default_rng(seed))) for seed in range(40)]
    decode = np.log([each.decode_curve(64).seconds(100_000) for each in drawn])
    assert 0.08 < decode.std() < 0.3
    assert np.log([each.train(load).total_s for each in drawn]).std() > 0.2
