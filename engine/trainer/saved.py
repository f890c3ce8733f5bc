"""A trainer's state as named tensors and plain data, and back. Names are ``model/NAME``,
``optimizer/PARAMETER/NAME`` and ``random/DEVICE``. Loading checks them against model and optimiser,
as they come from files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from rollcast.engine.trainer import shard_files
from rollcast.engine.trainer.adapters import is_adapter

MODEL, OPTIMIZER, RANDOM = "model", "optimizer", "random"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers of the model, tied ones once; with adapters, theirs alone."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    known = model.state_dict(keep_vars=True)
    adapted = any(map(is_adapter, known))
    for name, tensor in known.items():
        if id(tensor) not in seen and is_adapter(name) == adapted:
            seen.add(id(tensor))
            tensors[f"{MODEL}/{name}"] = tensor
    return tensors


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by the parameter's number, without settings."""
    state: Mapping[int, Mapping[str, Tensor]] = optimizer.state_dict()["state"]
    return {
        f"{OPTIMIZER}/{number}/{name}": tensor
        for number, values in state.items()
        for name, tensor in values.items()
    }


def load(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    folder: Path,
    group: Any = None,
) -> None:
    """Reads weights, moments and random states, each rank its shards. Raises ValueError for those
    of another model or optimiser; what is read before a file that cannot be is in the model."""
    known = shard_files.described(folder)
    if unknown := [n for n in known if n.partition("/")[0] not in (MODEL, OPTIMIZER, RANDOM)]:
        raise ValueError(f"the tensor {unknown[0]} is none of a trainer's")
    mine = model_tensors(model)
    _require_names(set(mine), {name for name in known if name.startswith(f"{MODEL}/")})
    for name, tensor in mine.items():
        _require_like(name, known[name], tensor)
    state = _moments(known, parameters)
    moments = {
        f"{OPTIMIZER}/{number}/{name}": tensor
        for number, values in state.items()
        for name, tensor in values.items()
    }
    random = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in known.items()
        if name.startswith(f"{RANDOM}/")
    }
    into = {name: tensor.detach() for name, tensor in mine.items()}
    shard_files.read_into({**into, **moments, **random}, folder, group)
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    load_random(random)


def _moments(known: Mapping[str, Any], parameters: Sequence[Tensor]) -> dict[int, dict[str, Any]]:
    """Room for AdamW's state. Raises ValueError for that of other parameters."""
    state: dict[int, dict[str, Any]] = defaultdict(dict)
    for key, entry in known.items():
        kind, _, rest = key.partition("/")
        if kind != OPTIMIZER:
            continue
        number, _, name = rest.partition("/")
        if not number.isdecimal() or int(number) >= len(parameters):
            raise ValueError(f"the optimiser's tensor {rest} belongs to no parameter")
        parameter = parameters[int(number)].detach()
        if entry.size != (parameter.shape if name in _MOMENTS else torch.Size()):
            raise ValueError(f"the optimiser's tensor {rest} is not of its parameter's shape")
        state[int(number)][name] = (
            torch.zeros_like(parameter, dtype=entry.properties.dtype)
            if name in _MOMENTS
            else torch.zeros((), dtype=entry.properties.dtype)
        )
    for values in state.values():
        _require_names({"step", *_MOMENTS}, set(values))
    return dict(state)


def random_tensors() -> dict[str, Tensor]:
    """States of torch's generators, of the CPU and of every GPU."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    named = {f"{RANDOM}/cuda:{number}": state for number, state in enumerate(gpus)}
    return {f"{RANDOM}/cpu": torch.get_rng_state(), **named}


def load_random(tensors: Mapping[str, Tensor]) -> None:
    """Loads them, except of GPUs that are missing. Raises ValueError."""
    given = {name.partition("/")[2]: tensor for name, tensor in tensors.items()}
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


def whole_number(value: Any) -> int:
    """A count. Raises ValueError for anything else."""
    if type(value) is not int or value < 0:
        raise ValueError(f"the number of updates is {value!r}")
    return value


def _require_names(expected: set[str], given: set[str]) -> None:
    if missing := sorted(expected - given):
        raise ValueError(f"the tensor {missing[0]} is missing")
    if unknown := sorted(given - expected):
        raise ValueError(f"the tensor {unknown[0]} is none of this model's")


def _require_like(name: str, entry: Any, mine: Tensor) -> None:
    dtype = entry.properties.dtype
    if entry.size != mine.shape or dtype != mine.dtype:
        raise ValueError(
            f"the tensor {name} is {list(entry.size)} in {dtype}, and the model's is "
            f"{list(mine.shape)} in {mine.dtype}"
        )
