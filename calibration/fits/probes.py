"""A probe of trainer and engine, read back: see `engine.probe`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rollcast.calibration.fits.actors import slowdowns
from rollcast.calibration.fits.iterations import COUNTS, Samples
from rollcast.calibration.fits.machine_speed import MachineSpeed
from rollcast.calibration.fits.robust import FloatArray
from rollcast.calibration.fits.updates import MIN_UPDATES, Updates, packing
from rollcast.calibration.folder import RunFolder, check_same
from rollcast.simulator.costs.base import TrainLoad
from rollcast.simulator.costs.fitted import Packing
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.fitted_file import PROBE, PROBE_BURST, PROBE_SCHEMA
from rollcast.simulator.results.read import check, read_json

FIELD = "--probe"
_ENGINE = ("model", "device", "dtype", "trainer", "max_seqs", "max_batched_tokens", "block_tokens")


@dataclass(frozen=True)
class Probed:
    """What a probe measured, at the reference speed: updates of the trainer, and iterations of the
    engine, whose ``step`` numbers the bursts; None of one that asked for neither, and without one.
    slower: where replica and trainer had processes of their own, how much slower each is beside the
    other."""

    updates: Updates | None = None
    iterations: Samples | None = None
    slower: Mapping[str, FloatArray] = field(default_factory=dict)


def read_probe(path: Path, run: RunFolder, speed: MachineSpeed | None) -> Probed:
    """What a probe's file holds.

    run: one of those that it is to be calibrated with. speed: their pulse; None where they have
    none, and then times are as measured. Raises ScenarioError (``--probe``) for a file that is
    none, has too few updates or bursts, or was made on other hardware, versions, trainer or engine.
    """
    content = read_json(path, FIELD)
    schema_name = content.get("schema") if isinstance(content, dict) else None
    if schema_name != PROBE_SCHEMA:
        message = f"{path} is not of schema {PROBE_SCHEMA!r}; rollcast probe writes it"
        raise ScenarioError(FIELD, message)
    check(content, PROBE.shape, str(path), FIELD)
    check_same(path, content.get("provenance"), run)
    engine, section = content.get("engine") or {}, run.section("engine")
    for key in _ENGINE:
        if engine.get(key) != section.get(key):
            raise ScenarioError(FIELD, f"{path} was made with another engine.{key} than {run.path}")
    beside = content.get("beside")
    slower = {} if beside is None else slowdowns(beside)
    updates, bursts = content["updates"], content["bursts"]
    if slower and not updates and not bursts:
        return Probed(slower=slower)
    packed = packing(run, updates)
    assert packed is not None
    for key, rows in (("updates", updates), ("bursts", bursts)):
        if len(rows) < MIN_UPDATES:
            raise ScenarioError(FIELD, f"{path} has fewer than {MIN_UPDATES} {key}")
    columns = [_burst(f"{path}, bursts[{i}]", row, speed) for i, row in enumerate(bursts)]
    rows = [_update(row, packed, speed) for row in updates]
    trained = Updates(pd.DataFrame(rows), skips_equal_rewards=False, padded=True)
    return Probed(trained, _samples(columns), slower)


def _slower(row: Mapping[str, Any], speed: MachineSpeed | None) -> tuple[float, float]:
    """The pulse of a row over the reference, short and long."""
    if speed is None:
        return 1.0, 1.0
    pulse = row["pulse"]
    [[short, long]] = speed.ratios(np.array([pulse["short_s"]]), np.array([pulse["long_s"]]))
    return float(short), float(long)


def _update(
    row: Mapping[str, Any], packed: Packing, speed: MachineSpeed | None
) -> dict[str, float]:
    shared = row["layout"] == "shared_prefix"
    _, slower = _slower(row, speed)
    return {
        "tokens": row["computed_tokens"] + row["padding_tokens"],
        "computed": row["computed_tokens"],
        "pairs": packed.fed(TrainLoad(row["groups"], shared)).pairs,
        "rollouts": row["rollouts"],
        "microbatches": row["microbatches"],
        "train_s": (row["total_s"] - row["log_prob_s"]) / slower,
        "log_prob_s": row["log_prob_s"] / slower,
        "shared": shared,
    }


def _burst(at: str, row: Mapping[str, Any], speed: MachineSpeed | None) -> dict[str, FloatArray]:
    """Counts and seconds of a burst's iterations, each until the next one begins."""
    columns = {key: np.array(row["iterations"][key], dtype=float) for key in PROBE_BURST}
    if len({len(values) for values in columns.values()}) > 1:
        raise ScenarioError(FIELD, f"{at}, iterations: columns differ in length")
    start, slower = columns.pop("start_s"), _slower(row, speed)[0]
    until = np.append(start[1:], start[-1] + columns["seconds"][-1]) - start
    return {**columns, "seconds": np.maximum(until, 1e-9) / slower}


def _samples(bursts: Sequence[dict[str, FloatArray]]) -> Samples:
    seconds = [burst["seconds"] for burst in bursts]
    counts = {name: np.concatenate([burst[name] for burst in bursts]) for name in COUNTS}
    burst = np.repeat(np.arange(len(bursts)), [len(values) for values in seconds])
    return Samples(counts, np.concatenate(seconds), burst, np.array([v.sum() for v in seconds]))
