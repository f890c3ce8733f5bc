"""Low-rank adapters in a model, by peft. The names of its own weights are those of the hub where
they leave the trainer, with the adapters merged into them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rollcast.engine.adapter_options import ALL_LINEAR, LoraConfig
from rollcast.simulator.errors import ScenarioError

_BASE, _DOWN, _UP = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """A weight with its adapter: ``base + scale * up @ down``, each perhaps a shard."""

    base: Tensor
    down: Tensor
    up: Tensor
    scale: float


def inject(model: Any, config: LoraConfig, dtype: torch.dtype) -> None:
    """Puts adapters of that type into the model, which alone are trained; they change nothing yet.
    Raises ScenarioError where peft is missing, or finds no such layer."""
    try:
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model
    except ImportError:
        message = "needs peft, which is not installed: pip install 'rollcast[lora]'"
        raise ScenarioError(config.FIELD, message) from None
    asked = PeftConfig(
        r=config.rank,
        lora_alpha=config.scale,
        target_modules=_targets(model, config),
        task_type="CAUSAL_LM",
    )
    inject_adapter_in_model(asked, model)
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            parameter.data = parameter.data.to(dtype)


def _targets(model: Any, config: LoraConfig) -> list[str]:
    """Whole names: by parts of them peft would take a mixture's experts as well."""
    head = model.get_output_embeddings()
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    ]
    if config.targets == ALL_LINEAR:
        return layers
    known = {name.rpartition(".")[2] for name in layers}
    for name in config.targets:
        if name not in known:
            raise ScenarioError(
                f"{config.FIELD}.targets",
                f"names {name}, which is no linear layer of {type(model).__name__}; it has "
                f"{', '.join(sorted(known))}",
            )
    return [name for name in layers if name.rpartition(".")[2] in config.targets]


def is_adapter(name: str) -> bool:
    """Whether a parameter is an adapter's."""
    return ".lora_" in name


@contextmanager
def without(model: nn.Module) -> Iterator[None]:
    """Within, the model computes as if it had no adapters."""
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "lora_A")]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def published(model: nn.Module) -> dict[str, Tensor | Merged]:
    """The model's tensors by their names on the hub."""
    tensors = model.state_dict(keep_vars=True)
    named: dict[str, Tensor | Merged] = {}
    for name, tensor in tensors.items():
        if is_adapter(name):
            continue
        layer, found, rest = name.rpartition(_BASE)
        if not found or rest != "weight":
            named[name.replace(_BASE, ".")] = tensor
            continue
        module: Any = model.get_submodule(layer)
        scale = float(module.scaling["default"])
        merged = Merged(tensor, tensors[layer + _DOWN], tensors[layer + _UP], scale)
        named[f"{layer}.{rest}"] = merged
    return named
