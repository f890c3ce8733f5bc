"""A probe of the trainer, read back: see `engine.probe`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from calibration.folder import RunFolder, check_same
from calibration.updates import MIN_UPDATES, Updates, packing_options
from simulator.checks import number, whole
from simulator.costs.base import TrainLoad
from simulator.costs.fitted import Packing
from simulator.errors import ScenarioError

SCHEMA = "rollcast-probe/1"
FIELD = "--probe"
_COLUMNS = ("computed_tokens", "padding_tokens", "rollouts", "microbatches", "log_prob_s",
            "total_s")  # fmt: skip
_TRAINER = ("model", "device", "dtype", "trainer")


def read_probe(path: Path, run: RunFolder) -> Updates:
    """The updates of a probe's file.

    run: one of those that it is to be calibrated with. Raises ScenarioError (``--probe``) for a
    file that is none, has too few updates, or was made on other hardware, versions or trainer.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ScenarioError(FIELD, f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ScenarioError(FIELD, f"{path} is not a file of JSON") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ScenarioError(FIELD, f"{path} is not of schema {SCHEMA!r}; rollcast probe writes it")
    found = content.get("updates")
    if not isinstance(found, list) or len(found) < MIN_UPDATES:
        raise ScenarioError(FIELD, f"{path} has fewer than {MIN_UPDATES} updates")
    check_same(path, content.get("provenance"), run)
    engine, own = content.get("engine") or {}, run.scenario.get("engine") or {}
    for key in _TRAINER:
        if engine.get(key) != own.get(key):
            raise ScenarioError(FIELD, f"{path} was made with another engine.{key} than {run.path}")
    packing = Packing(**packing_options(own.get("trainer") or {}))
    rows = [_row(path, i, row, packing) for i, row in enumerate(found)]
    computed, padding, rollouts, microbatches, log_prob, total, shared, pairs = np.array(rows).T
    return Updates(computed + padding, computed, pairs, rollouts, microbatches, total - log_prob,
                   log_prob, shared > 0, skips_equal_rewards=False, padded=True)  # fmt: skip


def _row(path: Path, i: int, row: Any, packing: Packing) -> list[float]:
    name = f"{path}, updates[{i}]"
    if not isinstance(row, dict) or row.get("layout") not in ("dense", "shared_prefix"):
        raise ScenarioError(FIELD, f"{name} has no layout, dense or shared_prefix")
    try:
        values = [number(row.get(key), key) for key in _COLUMNS]
    except ScenarioError as error:
        raise ScenarioError(FIELD, f"{name}, {error}") from None
    shared = row["layout"] == "shared_prefix"
    try:
        groups = [(whole(prompt, "groups"), [whole(n, "groups") for n in responses])
                  for prompt, responses in row["groups"]]  # fmt: skip
    except (ScenarioError, KeyError, TypeError, ValueError):
        message = f"{name}, groups: must be a list of [prompt_tokens, [response_tokens, ...]]"
        raise ScenarioError(FIELD, message) from None
    return [*values, float(shared), packing.fed(TrainLoad(groups, shared)).pairs]
