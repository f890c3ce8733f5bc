"""Published training steps against the trainer: roles, what fused kernels move, bounds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.validation import training_steps
from benchmarks.validation.files import PUBLISHED
from benchmarks.validation.trainer_baselines import drawn_s
from rollcast.simulator.costs.roofline.draws import trainer_spreads
from rollcast.simulator.costs.trainer.options import FUSED_SHARE
from rollcast.simulator.errors import ScenarioError

STEPS = training_steps.read_steps(PUBLISHED / training_steps.FILE)
DENSE = [step for step in STEPS if step.kind == "dense"]
TRAFFIC = 5.74


def errors(steps: list[training_steps.Step], share: float = FUSED_SHARE) -> np.ndarray:  # type: ignore[type-arg]
    found = []
    for step in steps:
        traffic = TRAFFIC * share / FUSED_SHARE
        trainer = replace(step.trainer, traffic_per_activation_byte=traffic)
        found.append(trainer.train(step.load).total_s / step.step_s - 1)
    return np.abs(found)


def test_every_second_row_of_a_kind_is_held_out() -> None:
    for kind in ("dense", "mixture"):
        roles = [step.role for step in STEPS if step.kind == kind]
        assert roles == ["calibrated", "held out"] * (len(roles) // 2) + ["calibrated"] * (
            len(roles) % 2
        )


def test_a_step_is_its_tokens_over_the_published_rate() -> None:
    step = STEPS[0]
    assert step.step_s == pytest.approx(128 * 8192 / (37_556 * 8))
    assert step.load.rollouts == 128
    cost = step.trainer.train(step.load)
    assert cost.microbatches == 128 / 8 / 2


def test_the_share_of_fused_kernels_is_that_of_the_calibrated_rows() -> None:
    seen = [step for step in DENSE if step.role == "calibrated"]
    at = errors(seen).mean()
    assert at < 0.1
    assert at < errors(seen, 0.5 * FUSED_SHARE).mean()
    assert at < errors(seen, 2 * FUSED_SHARE).mean()


def test_dense_models_held_out() -> None:
    """On GPUs of four kinds, in fp8, with tensor, context and pipeline parallelism."""
    held = [step for step in DENSE if step.role == "held out"]
    assert len({step.gpu for step in held}) == 4
    assert errors(held).mean() < 0.08


def test_what_fused_kernels_move_is_known_less_well() -> None:
    step = DENSE[-1]
    low, high = drawn_s(step.trainer, step.load, draws=20)
    fewer = drawn_s(replace(step.trainer, kernels="eager"), step.load, draws=20)
    assert low < step.step_s < high < fewer[1]
    eager, fused = (trainer_spreads(kernels)[0] for kernels in ("eager", "fused"))  # type: ignore[arg-type]
    assert fused.names == eager.names
    assert fused.high / fused.low > eager.high / eager.low


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("precision", "fp4", "precision"),
        ("sharding", "zero3", "sharding"),
        ("parallel", "2x2", "parallel"),
        ("tokens_per_gpu_s", "0", "tokens_per_gpu_s"),
    ],
)
def test_a_row_that_is_wrong_names_its_place(
    tmp_path: Path, column: str, value: str, said: str
) -> None:
    head, row, *_ = (PUBLISHED / training_steps.FILE).read_text("utf-8").splitlines()
    cells = dict(zip(head.split(","), row.split(","), strict=False))
    cells[column] = value
    path = tmp_path / "training_steps.csv"
    path.write_text(head + "\n" + ",".join(cells[name] for name in head.split(",")) + "\n")
    with pytest.raises(ScenarioError, match=f"line 2, {said}"):
        training_steps.read_steps(path)
