"""A probe of trainer and engine, read back: see `engine.probe`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.folder import RunFolder, check_same
from calibration.iterations import COUNTS, Samples
from calibration.robust import FloatArray
from calibration.tempo import Tempo
from calibration.updates import MIN_UPDATES, Updates, packing_options
from simulator.checks import number, whole
from simulator.costs.base import TrainLoad
from simulator.costs.fitted import Packing
from simulator.errors import ScenarioError

SCHEMA = "rollcast-probe/2"
FIELD = "--probe"
_COLUMNS = ("computed_tokens", "padding_tokens", "rollouts", "microbatches", "log_prob_s",
            "total_s")  # fmt: skip
_ENGINE = ("model", "device", "dtype", "trainer", "max_seqs", "max_batched_tokens", "block_tokens")


@dataclass(frozen=True)
class Probed:
    """What a probe measured, at the reference pulse: updates of the trainer, and iterations of the
    engine, whose ``step`` numbers the bursts."""

    updates: Updates
    iterations: Samples


def read_probe(path: Path, run: RunFolder, tempo: Tempo | None) -> Probed:
    """What a probe's file holds.

    run: one of those that it is to be calibrated with. tempo: their pulse; None where they have
    none, and then times are as measured. Raises ScenarioError (``--probe``) for a file that is
    none, has too few updates or bursts, or was made on other hardware, versions, trainer or engine.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ScenarioError(FIELD, f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ScenarioError(FIELD, f"{path} is not a file of JSON") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ScenarioError(FIELD, f"{path} is not of schema {SCHEMA!r}; rollcast probe writes it")
    check_same(path, content.get("provenance"), run)
    engine, own = content.get("engine") or {}, run.scenario.get("engine") or {}
    for key in _ENGINE:
        if engine.get(key) != own.get(key):
            raise ScenarioError(FIELD, f"{path} was made with another engine.{key} than {run.path}")
    packing = Packing(**packing_options(own.get("trainer") or {}))
    updates = [_update(at, row, packing, tempo) for at, row in _rows(path, content, "updates")]
    bursts = [_burst(at, row, tempo) for at, row in _rows(path, content, "bursts")]
    return Probed(_updates(updates), _samples(bursts))


def _rows(path: Path, content: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    """The rows of a list in the file, each with its name. Raises ScenarioError for too few."""
    found = content.get(key)
    if not isinstance(found, list) or len(found) < MIN_UPDATES:
        raise ScenarioError(FIELD, f"{path} has fewer than {MIN_UPDATES} {key}")
    for i, row in enumerate(found):
        if not isinstance(row, dict):
            raise ScenarioError(FIELD, f"{path}, {key}[{i}] is not a mapping")
        yield f"{path}, {key}[{i}]", row


def _pulse(at: str, row: Mapping[str, Any], tempo: Tempo | None) -> tuple[float, float]:
    """The pulse of a row over the reference, short and long."""
    try:
        pulse = Tempo.from_mapping(row.get("pulse"), "pulse")
    except ScenarioError as error:
        raise ScenarioError(FIELD, f"{at}, {error}") from None
    if pulse is None:
        raise ScenarioError(FIELD, f"{at}, pulse: missing")
    if tempo is None:
        return 1.0, 1.0
    return pulse.short_s / tempo.short_s, pulse.long_s / tempo.long_s


def _update(
    at: str, row: Mapping[str, Any], packing: Packing, tempo: Tempo | None
) -> tuple[float, ...]:
    if row.get("layout") not in ("dense", "shared_prefix"):
        raise ScenarioError(FIELD, f"{at} has no layout, dense or shared_prefix")
    try:
        computed, padding, rollouts, microbatches, log_prob_s, total_s = (
            number(row.get(key), key) for key in _COLUMNS
        )
    except ScenarioError as error:
        raise ScenarioError(FIELD, f"{at}, {error}") from None
    try:
        groups = [(whole(prompt, "groups"), [whole(n, "groups") for n in responses])
                  for prompt, responses in row["groups"]]  # fmt: skip
    except (ScenarioError, KeyError, TypeError, ValueError):
        message = f"{at}, groups: must be a list of [prompt_tokens, [response_tokens, ...]]"
        raise ScenarioError(FIELD, message) from None
    shared = row["layout"] == "shared_prefix"
    pairs = packing.fed(TrainLoad(groups, shared)).pairs
    _, slower = _pulse(at, row, tempo)
    times = ((total_s - log_prob_s) / slower, log_prob_s / slower)
    return (computed + padding, computed, pairs, rollouts, microbatches, *times, float(shared))


def _updates(rows: Sequence[tuple[float, ...]]) -> Updates:
    *columns, shared = np.array(rows).T
    return Updates(*columns, shared=shared > 0, skips_equal_rewards=False, padded=True)


def _burst(at: str, row: Mapping[str, Any], tempo: Tempo | None) -> dict[str, FloatArray]:
    """Counts and seconds of a burst's iterations, each until the next one begins."""
    found, columns = row.get("iterations"), {}
    for key in ("start_s", "seconds", *COUNTS):
        values = found.get(key) if isinstance(found, dict) else None
        if not isinstance(values, list) or not values:
            raise ScenarioError(FIELD, f"{at}, iterations.{key}: must be a list of numbers")
        try:
            columns[key] = np.array([number(value, f"iterations.{key}") for value in values])
        except ScenarioError as error:
            raise ScenarioError(FIELD, f"{at}, {error}") from None
    if len({len(values) for values in columns.values()}) > 1:
        raise ScenarioError(FIELD, f"{at}, iterations: columns differ in length")
    start, slower = columns.pop("start_s"), _pulse(at, row, tempo)[0]
    until = np.append(start[1:], start[-1] + columns["seconds"][-1]) - start
    return {**columns, "seconds": np.maximum(until, 1e-9) / slower}


def _samples(bursts: Sequence[dict[str, FloatArray]]) -> Samples:
    seconds = [burst["seconds"] for burst in bursts]
    counts = {name: np.concatenate([burst[name] for burst in bursts]) for name in COUNTS}
    burst = np.repeat(np.arange(len(bursts)), [len(values) for values in seconds])
    return Samples(counts, np.concatenate(seconds), burst, np.array([v.sum() for v in seconds]))
