"""How far sampled and trainer's log-probabilities are apart, and the learning rate's course."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import build, make_groups

from rollcast.engine.errors import EngineError
from rollcast.engine.options import TrainerConfig
from rollcast.engine.sync_check import require_close
from rollcast.engine.trainer.mismatch import compared, figures
from rollcast.engine.trainer.trainer import Trainer
from tests.laws import examples
from tests.refusals import refuses

_TOKEN = st.tuples(st.floats(-20, -1e-3), st.floats(-3, 3), st.booleans())


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(_TOKEN, min_size=1, max_size=200), st.integers(1, 5))
def test_figures_are_those_of_all_tokens_however_they_are_split(
    tokens: list[tuple[float, float, bool]], parts: int
) -> None:
    sampled = np.array([token[0] for token in tokens])
    ours = sampled + np.array([token[1] for token in tokens])
    trained = np.array([float(token[2]) for token in tokens])
    pieces = zip(*(np.array_split(x, parts) for x in (ours, sampled, trained)), strict=True)
    sums = sum(compared(*map(torch.tensor, piece)).numpy() for piece in pieces if len(piece[0]))
    mean, p99, divergence, entropy = figures(sums)
    off = (ours - sampled)[trained > 0]
    if not len(off):
        assert (mean, p99, divergence, entropy) == (0, 0, 0, 0)
        return
    assert mean == pytest.approx(np.abs(off).mean())
    assert divergence == pytest.approx((np.expm1(off) - off).mean(), rel=1e-9, abs=1e-12)
    assert divergence >= 0
    assert entropy == pytest.approx(-ours[trained > 0].mean())
    exact = np.sort(np.abs(off))[math.ceil(0.99 * len(off)) - 1]
    assert exact <= p99 * (1 + 1e-9) or exact < 1e-6
    assert p99 <= max(exact * 1.13, 1e-6)


def test_a_step_tells_how_far_the_engine_was_off() -> None:
    trainer = Trainer(build("llama"), TrainerConfig(learning_rate=1e-9, minibatches=2))
    groups = make_groups([(5, [3, 4]), (4, [2, 6])], seed=1)
    metrics = trainer.step(groups, shared_prefix=False, version=0)
    assert 0 < metrics.mismatch_mean <= metrics.mismatch_p99
    assert metrics.entropy > 0
    assert not metrics.equal_rewards
    assert metrics.tokens_per_s_per_rank > 0


def test_a_step_without_anything_to_learn_says_so() -> None:
    from dataclasses import replace

    trainer = Trainer(build("llama"), TrainerConfig())
    groups = [
        replace(
            group,
            rollouts=[replace(rollout, reward=1.0) for rollout in group.rollouts],
            baseline_rewards=[1.0] * len(group.rollouts),
        )
        for group in make_groups([(5, [3, 4]), (4, [2, 6])], seed=1)
    ]
    assert trainer.step(groups, shared_prefix=False, version=0).equal_rewards


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25, 0]),
        ("cosine", [0.5, 1, 1, 0.5 + math.sqrt(0.5) / 2, 0.5, 0.5 - math.sqrt(0.5) / 2, 0]),
    ],
)
def test_the_learning_rates_course(schedule: str, expected: list[float]) -> None:
    config = TrainerConfig(warmup_updates=2, schedule=schedule, schedule_updates=6)  # type: ignore[arg-type]
    assert [config.rate_factor(n) for n in range(7)] == pytest.approx(expected)


def test_each_update_has_its_rate_and_a_resumed_one_too(tmp_path: object) -> None:
    from pathlib import Path

    from saves import saved

    assert isinstance(tmp_path, Path)
    config = TrainerConfig(
        learning_rate=1e-3, warmup_updates=1, schedule="linear", schedule_updates=5
    )
    groups = make_groups([(5, [3, 4])], seed=1)
    first, rates = Trainer(build("llama"), config), []
    for version in range(2):
        rates.append(first.step(groups, shared_prefix=False, version=version).learning_rate)
    other = Trainer(build("llama"), config)
    other.load(saved(first, tmp_path / "save"))
    for version in range(2, 4):
        rates.append(other.step(groups, shared_prefix=False, version=version).learning_rate)
    assert rates == pytest.approx([1e-3, 1e-3, 7.5e-4, 5e-4])


def test_bfloat16_weights_need_a_rate_that_moves_them() -> None:
    with refuses("engine.trainer.learning_rate", r"make engine\.trainer\.dtype float32"):
        TrainerConfig(dtype="bfloat16", learning_rate=1e-6)
    TrainerConfig(dtype="bfloat16", learning_rate=1e-4)


def test_one_token_that_is_off_is_no_other_model() -> None:
    rows = [[-1.0] * 200]
    off = [[-1.0] * 199 + [-9.0]]
    found = require_close(rows, off, 0.1)
    assert (found.worst, found.p99) == (8.0, 0.0)
    with pytest.raises(EngineError, match="in the mean after a weight sync"):
        require_close(rows, [[-2.0] * 200], 0.1)
    with pytest.raises(EngineError):
        require_close(rows, [[float("nan")] * 200], 0.1)
