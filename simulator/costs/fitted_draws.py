"""Costs drawn from the sampling distribution of a fit, for the uncertainty of a forecast."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values.chance import Chance

_LEAST_LEVEL, _MOST_LEVEL = 0.5, 2.0


def check_draws(content: Mapping[str, Any]) -> None:
    """Raises ScenarioError, naming the key, where a fitted file's costs cannot be drawn anew: a
    coefficient whose error it does not tell, or a covariance that is not of its terms."""
    cost, fits = content["cost"], content["fits"]
    spread = content["covariance"]["iteration"]
    names, matrix = spread["names"], spread["matrix"]
    if any(len(row) != len(names) for row in matrix) or len(matrix) != len(names):
        message = f"must be {len(names)} rows of as many, one a name"
        raise ScenarioError("covariance.iteration.matrix", message)
    for start, _ in cost["iteration"]["rollout_pieces"]:
        if f"rollouts>{start}" not in names:
            raise ScenarioError("covariance.iteration.names", f"has no 'rollouts>{start}'")
    for layout in ("dense", "shared_prefix"):
        if cost.get(layout) is None:
            continue
        if fits[layout] is None:
            raise ScenarioError(f"fits.{layout}", "missing, as cost has that layout")
        for name in fits[layout]["standard_errors"]:
            if name not in cost[layout]:
                field = f"fits.{layout}.standard_errors.{name}"
                raise ScenarioError(field, f"cost.{layout} has no such coefficient")
    if cost.get("actors") is not None:
        if fits.get("actors") is None:
            raise ScenarioError("fits.actors", "missing, as cost has actors")
        for name in fits["actors"]["standard_errors"]:
            if name not in cost["actors"]:
                field = f"fits.actors.standard_errors.{name}"
                raise ScenarioError(field, "cost.actors has no such figure")


def drawn_cost(content: Mapping[str, Any], chance: Chance) -> dict[str, Any]:
    """The mapping ``cost`` of a fitted file with every coefficient drawn anew.

    content: a fitted file's, with its ``fits`` and ``covariance``. Coefficients of an iteration are
    drawn together, as they trade against each other; those of an update share one draw, as their
    errors are those of one level.
    """
    cost: dict[str, Any] = copy.deepcopy(content["cost"])
    fits = content["fits"]
    level = (
        1.0
        + chance.normal("decode efficiency/level") * fits["iteration"]["step_ratio_standard_error"]
    )
    _draw_iteration(cost["iteration"], content, chance)
    cost["iteration"] = scaled(cost["iteration"], min(max(level, _LEAST_LEVEL), _MOST_LEVEL))
    for layout in ("dense", "shared_prefix"):
        if cost.get(layout) is not None:
            _draw_coefficients(cost[layout], fits[layout]["standard_errors"], chance, layout)
    if cost.get("actors") is not None:
        _draw_actors(cost["actors"], fits["actors"]["standard_errors"], chance)
    names = {"sync": "sync_s", "to_train": "switch_to_train_s", "to_rollout": "switch_to_rollout_s"}
    for short, name in names.items():
        error = fits["overheads"][short]["standard_error_s"]
        z = chance.normal(f"{'sync' if short == 'sync' else 'switch'}/{name}")
        cost[name] = max(cost[name] + error * z, 0.0)
    return cost


def scaled(cost: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """The costs of an iteration or an update, all times ``factor``."""
    return {
        name: [[start, factor * slope] for start, slope in value]
        if name == "rollout_pieces"
        else factor * value
        for name, value in cost.items()
    }


def slowed_cost(
    cost: Mapping[str, Any], rollout: float, update: float, rest: float
) -> dict[str, Any]:
    """The mapping ``cost`` of a fitted file, with iterations, updates and all else so many times as
    long."""
    factors = {"iteration": rollout, "dense": update, "shared_prefix": update, "actors": rest}
    slowed: dict[str, Any] = dict(cost)
    for part, factor in factors.items():
        if cost.get(part) is not None:
            slowed[part] = scaled(cost[part], factor)
    if cost.get("actors") is not None:  # slowdowns are no seconds
        kept = {name: cost["actors"][name] for name in cost["actors"] if not name.endswith("_s")}
        slowed["actors"] |= kept
    for name in ("sync_s", "switch_to_train_s", "switch_to_rollout_s"):
        slowed[name] = rest * cost[name]
    return slowed


def _draw_iteration(iteration: dict[str, Any], content: Mapping[str, Any], chance: Chance) -> None:
    """Draws from the joint distribution of the iteration's coefficients: they trade against each
    other, so that their sum is known better than any of them."""
    spread = content["covariance"]["iteration"]
    ratio = content["fits"]["iteration"]["step_ratio"]
    matrix = ratio**2 * np.array(spread["matrix"])
    moved_by = chance.normals("decode efficiency/coefficients", matrix)
    shift = dict(zip(spread["names"], moved_by, strict=True))
    names = {
        "fixed": "fixed_s",
        "context": "per_context_token_s",
        "pairs": "per_prefill_pair_s",
        "admission": "per_admission_s",
        "prefill": "per_prefill_token_s",
    }
    for term, name in names.items():
        iteration[name] = max(iteration[name] + shift.get(term, 0.0), 0.0)
    if "prefill" not in shift:  # assumed, or of a probe: as likely too low as too high, all of it
        errors = content["fits"]["iteration"]["standard_errors"]
        z = chance.normal("prefill efficiency/prefill")
        for name in ("prefilling_s", "per_prefill_token_s", "per_prefill_pair_s"):
            moved = iteration.get(name, 0.0) + errors.get(name, 0.0) * z
            iteration[name] = max(moved, 0.0)
    iteration["rollout_pieces"] = [
        [start, max(slope + shift[f"rollouts>{start}"], 0.0)]
        for start, slope in iteration["rollout_pieces"]
    ]
    iteration["fixed_s"] = max(iteration["fixed_s"], 1e-9)


def _draw_actors(cost: dict[str, Any], errors: Mapping[str, float], chance: Chance) -> None:
    for name, error in errors.items():
        least = 1.0 if name.endswith("_beside") else 0.0
        cost[name] = max(cost[name] + error * chance.normal(f"actors/{name}"), least)


def _draw_coefficients(
    cost: dict[str, float], errors: Mapping[str, float], chance: Chance, layout: str
) -> None:
    """One shared draw, as the errors of an update's coefficients are those of one level."""
    z = chance.normal(f"trainer efficiency/{layout}")
    for name, error in errors.items():
        cost[name] = max(cost[name] + error * z, 0.0)
