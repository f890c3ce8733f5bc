"""Low-rank adapters: what leaves the trainer is the model with them merged, and they alone are
trained and saved. Over several ranks: `test_ranks`."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("peft", reason="peft is not installed (rollcast[lora])")

from saves import read_tensors, saved
from tiny_models import adapt, build, make_groups, response_log_probs, weights
from transformers import AutoModelForCausalLM

from rollcast.engine.adapter_options import LoraConfig
from rollcast.engine.config import trainer_config
from rollcast.engine.options import GRPO, TrainerConfig
from rollcast.engine.trainer.adapters import inject, without
from rollcast.engine.trainer.reference import of_its_own
from rollcast.engine.trainer.trainer import Trainer
from tests.refusals import refuses

GROUPS = make_groups([(5, [4, 6, 2]), (3, [5, 3])])
LORA = LoraConfig(rank=3)
CONFIG = TrainerConfig(lora=LORA, learning_rate=1e-2)


def trained(kind: str, shared: bool = False, config: TrainerConfig = CONFIG) -> Trainer:
    model = build(kind)
    adapt(model, LORA)
    trainer = Trainer(model, config)
    for _ in range(2):
        trainer.step(GROUPS, shared_prefix=shared, version=0)
    return trainer


def log_probs(trainer: Trainer) -> list[float]:
    return [x for group in response_log_probs(trainer, GROUPS) for row in group for x in row]


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_merged_weights_are_the_adapted_model(kind: str, shared: bool) -> None:
    trainer, plain = trained(kind, shared), build(kind)
    start = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    weights = trainer.weights()
    assert weights.keys() == start.keys()
    moved = {name for name in start if not torch.equal(weights[name], start[name])}
    linear = ("q_proj", "k_proj", "v_proj", "o_proj")
    assert {name for name in start if name.split(".")[-2] in linear} <= moved
    assert not any("norm" in name or "embed" in name or "lm_head" in name for name in moved)
    plain.load_state_dict(weights)
    merged = Trainer(plain, dataclasses.replace(CONFIG, lora=None))
    assert log_probs(trainer) == pytest.approx(log_probs(merged), abs=1e-9)
    fresh = build(kind)
    with without(trainer.model):
        untrained = log_probs(trainer)
    assert untrained == pytest.approx(log_probs(Trainer(fresh, TrainerConfig())), abs=1e-12)


def test_the_gradient_is_that_of_the_merged_weights() -> None:
    """By the chain rule, from a trainer of the whole weights: dA = s B' dW, dB = s dW A'."""
    found: dict[str, Any] = {}

    def watched(trainer: Trainer) -> dict[str, Any]:
        def keep(*_: Any) -> None:
            for name, parameter in trainer.model.named_parameters():
                if parameter.grad is not None:
                    found[name] = parameter.grad.clone()

        found.clear()
        trainer._optimizer.register_step_pre_hook(keep)
        trainer.step(GROUPS, shared_prefix=False, version=0)
        return dict(found)

    config = dataclasses.replace(CONFIG, max_grad_norm=None)
    model, plain = build("llama"), build("llama")
    adapt(model, LORA)
    trainer = Trainer(model, config)
    plain.load_state_dict({n: t.clone() for n, t in trainer.weights().items()})
    before = weights(model)
    ours = watched(trainer)
    whole = watched(Trainer(plain, dataclasses.replace(config, lora=None)))
    layer = "model.layers.1.mlp.up_proj"
    down, up = (f"{layer}.lora_{which}.default.weight" for which in "AB")
    scale = LORA.scale / LORA.rank
    gradient = whole[f"{layer}.weight"]
    assert torch.allclose(ours[down], scale * before[up].T @ gradient, atol=1e-12)
    assert torch.allclose(ours[up], scale * gradient @ before[down].T, atol=1e-12)
    assert set(ours) == {name for name in before if ".lora_" in name}


def test_the_model_is_kept_merged_and_the_save_has_the_adapters_alone(tmp_path: Path) -> None:
    trainer = trained("llama")
    trainer.export(tmp_path / "model", "float64")
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float64)
    for name, tensor in kept.state_dict().items():
        assert torch.equal(tensor, trainer.weights()[name]), name
    save = saved(trainer, tmp_path / "save")
    names = [n for n in read_tensors(save.folder) if n.startswith("model/")]
    assert names
    assert all(".lora_" in name for name in names)
    model = build("llama")
    inject(model, LORA, torch.float64)
    other = Trainer(model, CONFIG)
    other.load(save)
    for one in (trainer, other):
        one.step(GROUPS, shared_prefix=False, version=0)
    assert log_probs(other) == log_probs(trainer)


def test_the_reference_is_the_model_without_them() -> None:
    loss = dataclasses.replace(GRPO, kl_coefficient=0.3)
    config = dataclasses.replace(CONFIG, loss=loss)
    ours = trained("qwen3", config=config)
    model = build("qwen3")
    adapt(model, LORA)
    theirs = Trainer(model, config, reference=of_its_own(build("qwen3"), config))
    for _ in range(2):
        metrics = theirs.step(GROUPS, shared_prefix=False, version=0)
    assert metrics.reference_kl is not None
    assert metrics.reference_kl > 1e-3
    assert log_probs(ours) == pytest.approx(log_probs(theirs), abs=1e-12)


def test_layers_that_there_are_not_are_refused() -> None:
    with refuses("engine.trainer.lora.targets", "nowhere"):
        inject(build("llama"), LoraConfig(targets=["nowhere"]), torch.float64)
    with refuses("engine.trainer.lora.targets", "list of names of layers"):
        trainer_config({"lora": {"targets": 3}}, 0)
