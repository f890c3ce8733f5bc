"""A batch that comes to the trainer in parts: the update of the whole batch at once."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from saves import saved
from tiny_models import build, make_groups, weights

from rollcast.engine.errors import NonFiniteLoss
from rollcast.engine.options import DAPO, GRPO, GSPO, TrainerConfig
from rollcast.engine.trainer.trainer import Trainer

GROUPS = make_groups([(6, [5, 1, 8, 3]), (11, [2, 7, 4]), (3, [6, 6]), (5, [9, 2])], seed=2)
LOSSES = {"grpo": GRPO, "dapo": DAPO, "gspo": dataclasses.replace(GSPO, clip_low=0.2, clip_high=9)}


def feed(trainer: Trainer, parts: list[Any], shared: bool = False, version: int = 0) -> Any:
    """Trains on one batch in parts; the metrics of the last one."""
    for place, part in enumerate(parts):
        final = place == len(parts) - 1
        metrics = trainer.step(part, shared_prefix=shared, version=version, final=final)
        assert metrics.updates == int(final)
    return metrics


def trained(config: TrainerConfig, parts: list[Any], shared: bool = False) -> tuple[Any, Any]:
    """The weights after these parts of one batch, and what the last of them reported."""
    trainer = Trainer(build("llama"), config)
    metrics = feed(trainer, parts, shared)
    return weights(trainer.model), metrics


def largest_difference(a: Any, b: Any) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("old", ["sampled", "trainer"])
def test_parts_make_the_update_of_the_whole(name: str, shared: bool, old: Any) -> None:
    config = TrainerConfig(
        loss=LOSSES[name], learning_rate=1e-2, max_grad_norm=0.1, old_log_probs=old
    )
    whole, told = trained(config, [GROUPS], shared)
    assert largest_difference(whole, weights(build("llama"))) > 1e-3
    for parts in ([GROUPS[:1], GROUPS[1:]], [GROUPS[:2], GROUPS[2:3], GROUPS[3:]]):
        found, metrics = trained(config, parts, shared)
        assert largest_difference(found, whole) < 1e-9
        assert metrics.loss == pytest.approx(told.loss, rel=1e-9, abs=1e-12)
        assert metrics.grad_norm == pytest.approx(told.grad_norm, rel=1e-9)


def test_the_batch_after_one_in_parts_is_as_ever() -> None:
    config = TrainerConfig(learning_rate=1e-2)
    found = []
    for parts in ([GROUPS], [GROUPS[:2], GROUPS[2:]]):
        trainer = Trainer(build("llama"), config)
        feed(trainer, parts)
        feed(trainer, [GROUPS], version=1)
        found.append(weights(trainer.model))
    assert largest_difference(*found) < 1e-9


def test_a_part_that_fails_drops_what_came_before() -> None:
    config = TrainerConfig(learning_rate=1e-2)
    model = build("llama")
    trainer = Trainer(model, config)
    before = weights(model)
    trainer.step(GROUPS[:1], shared_prefix=False, version=0, final=False)
    broken = GROUPS[1].rollouts[0]
    nan = dataclasses.replace(broken, log_probs=[float("nan")] * len(broken.response))
    group = dataclasses.replace(GROUPS[1], rollouts=[nan, *GROUPS[1].rollouts[1:]])
    with pytest.raises(NonFiniteLoss):
        trainer.step([group], shared_prefix=False, version=0)
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())
    feed(trainer, [GROUPS])
    assert largest_difference(weights(model), trained(config, [GROUPS])[0]) < 1e-9


def test_a_state_is_taken_up_without_the_parts_since(tmp_path: Path) -> None:
    config = TrainerConfig(learning_rate=1e-2)
    model = build("llama")
    trainer = Trainer(model, config)
    save = saved(trainer, tmp_path / "save")
    trainer.step(GROUPS[:1], shared_prefix=False, version=0, final=False)
    trainer.load(save)
    feed(trainer, [GROUPS])
    assert largest_difference(weights(model), trained(config, [GROUPS])[0]) < 1e-9


@pytest.mark.parametrize("options", [{"minibatches": 2}, {"epochs": 2}])
def test_several_updates_of_a_batch_need_it_whole(options: dict[str, int]) -> None:
    trainer = Trainer(build("llama"), TrainerConfig(**options))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in one update: minibatches and epochs of 1"):
        trainer.step(GROUPS[:1], shared_prefix=False, version=0, final=False)


def test_memory_is_handed_back_between_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each update and each look at the weights, where somebody shares the GPU."""
    handed_back: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: handed_back.append("memory"))
    for shares in (False, True):
        trainer = Trainer(build("llama"), TrainerConfig(), hands_back=shares)
        for step in range(2):
            feed(trainer, [GROUPS], version=step)
        trainer.log_probs([[3, 4, 5]])
        assert len(handed_back) == 3 * shares


@pytest.mark.parametrize("parts", [[GROUPS], [GROUPS[:1], GROUPS[1:3], GROUPS[3:]]])
def test_the_peak_of_memory_is_that_of_one_update(
    monkeypatch: pytest.MonkeyPatch, parts: list[Any]
) -> None:
    """Of all its parts, and of nothing before them."""
    resets: list[None] = []
    monkeypatch.setattr(Trainer, "_reset_peak", lambda self: resets.append(None))
    trainer = Trainer(build("llama"), TrainerConfig(learning_rate=1e-2))
    for version in range(2):
        feed(trainer, parts, version=version)
        assert len(resets) == version + 1
