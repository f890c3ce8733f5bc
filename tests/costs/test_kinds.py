"""What the roofline is off by for a kind of case beyond its figures, and their sources."""

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from rollcast.simulator.costs import RooflineCost, TrainLoad
from rollcast.simulator.costs.presets.gpus import Gpu, load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.presets.provenance import Kind, read_presets
from rollcast.simulator.costs.roofline.draws import (
    case_errors,
    model_errors,
    of_the_case,
    residual_spreads,
    spreads,
)
from rollcast.simulator.costs.stacks import STACKS
from rollcast.simulator.costs.trainer.trainer import RooflineTrainer
from rollcast.simulator.values.chance import Drawn

GPU, CASES = load_gpu("h100-sxm"), case_errors()


def test_every_figure_has_a_kind_and_a_source() -> None:
    for part in read_presets("figures.yaml").values():
        for name, figure in part.items():
            assert figure["kind"] in get_args(Kind), name
            assert len(figure["source"]) > 10, name


def test_every_spread_is_of_figures_that_there_are() -> None:
    """And holds the figure itself."""
    holders = {"gpu": Gpu, "gpu_assumed": Gpu, "roofline": RooflineCost, "trainer": RooflineTrainer}
    for part, holder in holders.items():
        for spread in spreads(part):
            assert set(spread.names) <= set(holder.__dataclass_fields__)
            assert spread.low <= 1 <= spread.high


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3-8b", "dense"),
        ("qwen3-0.6b", "small"),
        ("qwen3-30b-a3b", "mixture"),
        ("deepseek-v3", "mixture_eight_bit"),
        ("gpt-oss-120b", "four_bits"),
        ({"preset": "qwen3-8b", "precision": "fp8"}, "dense_eight_bit"),
    ],
)
def test_a_model_is_of_its_kind(name: str, kind: str) -> None:
    assert model_errors(load_model(name)) == read_presets("spreads.yaml")["model_errors"][kind]


@pytest.mark.parametrize("placement", ["colocated", "disaggregated"])
def test_draws_have_the_spread_of_their_kind(placement: str) -> None:
    """Of the factors beyond the figures: those of a GPU set apart differ once more."""
    model = load_model("qwen3-30b-a3b")
    cost = RooflineCost(model, GPU, 2, trainer_gpus=8, placement=placement)  # type: ignore[arg-type]
    known = residual_spreads(model, several_gpus=True)
    assert known["decode"] == math.hypot(model_errors(model)["decode"], CASES["tensor_parallel"])
    rng = np.random.default_rng(0)
    drawn = [cost.drawn(Drawn(rng)).factors for _ in range(600)]
    apart = CASES["apart"] if placement == "disaggregated" else 0.0
    for phase in ("decode", "update"):
        logs = np.log([factors[phase] for factors in drawn])
        assert logs.std() == pytest.approx(math.hypot(known[phase], apart), rel=0.1)
    assert all(factors["sync"] == 1.0 for factors in drawn)
    if placement == "colocated":
        of_phases = np.log(
            [[factors[p] for p in ("log_prob", "update", "decode")] for factors in drawn]
        )
        together = np.corrcoef(of_phases.T)
        assert together[0, 1] == pytest.approx(
            read_presets("spreads.yaml")["trainer_correlation"], abs=0.07
        )
        assert np.abs(together[2, :2]).max() < 0.13


@pytest.mark.parametrize(
    ("name", "gpu", "kind"),
    [
        ("qwen3-8b", "h100-sxm", None),
        ("qwen3-30b-a3b", "h100-sxm", "models"),
        ("qwen3.5-9b", "h100-sxm", "models"),
        ("qwen3-8b", "mi300x", "gpus"),
        ("qwen3-30b-a3b", "mi300x", "both"),
    ],
)
def test_unusual_models_and_gpus_add_to_the_spread_of_their_stack(
    name: str, gpu: str, kind: str | None
) -> None:
    """But not to one that is given."""
    model, its, added = load_model(name), load_gpu(gpu), read_presets("spreads.yaml")["unusual"]
    own = STACKS["verl"].phase_factors
    wider = of_the_case(own, "verl", model, its)
    for key in ("decode", "log_prob", "update"):
        more = added[kind][key] if kind else 0.0
        stacks = getattr(own, f"{key}_sd")
        assert getattr(wider, f"{key}_sd") == pytest.approx(math.hypot(stacks, more))
        given = replace(own, **{f"{key}_sd": 0.011})
        assert getattr(of_the_case(given, "verl", model, its), f"{key}_sd") == 0.011
    assert of_the_case(own, None, model, its) == own
    cost = RooflineCost(model, its, 2, trainer_gpus=8, stack="verl", cuda_graphs=True)
    rng = np.random.default_rng(0)
    logs = np.log([cost.drawn(Drawn(rng)).factors["update"] for _ in range(300)])
    assert logs.std() == pytest.approx(wider.update_sd, rel=0.12)


def test_a_draw_moves_what_it_is_of() -> None:
    cost = RooflineCost(load_model("qwen3-8b"), GPU, trainer_gpus=8)
    load = TrainLoad([(100, [1000] * 8)])
    drawn = [cost.drawn(Drawn(np.random.default_rng(seed))) for seed in range(40)]
    decode = np.log([each.decode_curve(64).seconds(100_000) for each in drawn])
    assert 0.08 < decode.std() < 0.3
    assert np.log([each.train(load).total_s for each in drawn]).std() > 0.2
