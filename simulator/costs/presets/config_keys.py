"""Keys of a Hugging Face config, read one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import Between, short, whole

Config = Mapping[str, Any]
Keys = dict[str, Any]

_LAYERS = Between(1, 100_000)  # as `simulator.costs.presets.models.Model` has them


def get(config: Config, key: str, field: str) -> Any:
    """The value of a key. Raises ScenarioError where there is none."""
    if config.get(key) is None:
        raise ScenarioError(field, f"the config has no {key}")
    return config[key]


def listed(config: Config, key: str, field: str) -> list[Any]:
    """A list; empty where there is none. Raises ScenarioError for another value."""
    values = config.get(key) or []
    if not isinstance(values, list):
        raise ScenarioError(field, f"{key} of the config is {short(values)}, not a list")
    return values


def layers_of(config: Config, field: str) -> int:
    """Its layers, as few as a model may have: they are counted one by one."""
    return whole(get(config, "num_hidden_layers", field), f"{field}.layers", _LAYERS)
