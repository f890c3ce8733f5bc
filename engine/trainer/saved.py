"""A trainer's state as named tensors and plain data, and back. Names are ``model/NAME``,
``optimizer/PARAMETER/NAME`` and ``random/DEVICE``. Loading checks them against model and optimiser,
as they may come from a file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from rollcast.engine.trainer.shards import split_as

MODEL, OPTIMIZER, RANDOM = "model", "optimizer", "random"


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers of the model, tied ones once."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[f"{MODEL}/{name}"] = tensor
    return tensors


def load_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Loads weights and buffers. Raises ValueError for another model's."""
    expected = model_tensors(model)
    given = _of(MODEL, tensors)
    _require_names({name.partition("/")[2] for name in expected}, given)
    for name, tensor in given.items():
        _require_like(f"{MODEL}/{name}", tensor, expected[f"{MODEL}/{name}"])
    with torch.no_grad():
        for name, tensor in given.items():
            mine = expected[f"{MODEL}/{name}"]
            mine.copy_(split_as(tensor, mine))


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by the parameter's number, without settings."""
    state: Mapping[int, Mapping[str, Tensor]] = optimizer.state_dict()["state"]
    return {
        f"{OPTIMIZER}/{number}/{name}": tensor
        for number, values in state.items()
        for name, tensor in values.items()
    }


def load_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Loads AdamW's moments. Raises ValueError for those of other parameters."""
    state: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in _of(OPTIMIZER, tensors).items():
        number, _, name = key.partition("/")
        if not number.isdecimal() or int(number) >= len(parameters):
            raise ValueError(f"the optimiser's tensor {key} belongs to no parameter")
        moment, parameter = name in ("exp_avg", "exp_avg_sq"), parameters[int(number)]
        if tensor.shape != (parameter.shape if moment else torch.Size()):
            raise ValueError(f"the optimiser's tensor {key} is not of its parameter's shape")
        # A copy, for the optimiser goes on in it, and a part of a whole would keep all of that.
        state[int(number)][name] = (split_as(tensor, parameter) if moment else tensor).clone()
    for values in state.values():
        _require_names({"step", "exp_avg", "exp_avg_sq"}, values)
    whole = optimizer.state_dict() | {"state": dict(state)}
    optimizer.load_state_dict(whole)


def random_tensors() -> dict[str, Tensor]:
    """States of torch's generators, of the CPU and of every GPU."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    named = {f"{RANDOM}/cuda:{number}": state for number, state in enumerate(gpus)}
    return {f"{RANDOM}/cpu": torch.get_rng_state(), **named}


def load_random(tensors: Mapping[str, Tensor]) -> None:
    """Loads them, except of GPUs that are missing. Raises ValueError."""
    given = _of(RANDOM, tensors)
    try:
        torch.set_rng_state(given.pop("cpu"))
        here = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for number in range(here):
            if (state := given.get(f"cuda:{number}")) is not None:
                torch.cuda.set_rng_state(state, number)
    except (KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"the state of torch's random generator is of no use: {error}") from None


def shuffle(random: Random) -> list[Any]:
    """A Python generator's state as plain data."""
    version, words, gauss = random.getstate()
    return [version, list(words), gauss]


def load_shuffle(random: Random, state: Any) -> None:
    """Loads it. Raises ValueError."""
    try:
        version, words, gauss = state
        random.setstate((version, tuple(words), gauss))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the state of the random generator is of no use: {error}") from None


def _of(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of one kind, by the rest of their names."""
    return {
        name.partition("/")[2]: tensor
        for name, tensor in tensors.items()
        if name.partition("/")[0] == kind
    }


def _require_names(expected: set[str], given: Mapping[str, Tensor]) -> None:
    if missing := sorted(expected - given.keys()):
        raise ValueError(f"the tensor {missing[0]} is missing")
    if unknown := sorted(given.keys() - expected):
        raise ValueError(f"the tensor {unknown[0]} is none of this model's")


def _require_like(name: str, tensor: Tensor, mine: Tensor) -> None:
    if tensor.shape != mine.shape or tensor.dtype != mine.dtype:
        raise ValueError(
            f"the tensor {name} is {list(tensor.shape)} in {tensor.dtype}, and the model's is "
            f"{list(mine.shape)} in {mine.dtype}"
        )
