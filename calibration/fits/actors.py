"""Costs of a replica and a trainer in processes of their own, from runs in which they take turns.

Such runs tell the ways between the processes. How much slower each is while the other works, only a
probe tells (`engine.actors.beside`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollcast.calibration.fits.robust import FloatArray, median_error
from rollcast.calibration.folder import RunFolder
from rollcast.simulator.errors import ScenarioError

LEAST_ROUNDS = 5


def slowdowns(rounds: Sequence[Mapping[str, Any]]) -> dict[str, FloatArray]:
    """``KEY_beside`` by key, each (rounds,). Raises ScenarioError (``--probe``) for too few."""
    usable = [row for row in rounds if row["iterations"] and row["update_alone_s"]]
    if len(usable) < LEAST_ROUNDS:
        raise ScenarioError("--probe", f"fewer than {LEAST_ROUNDS} rounds of beside")
    return {
        f"{key}_beside": np.array(
            [row[f"{column}_beside_s"] / row[f"{column}_alone_s"] for row in usable]
        )
        for key, column in (("iteration", "iterations"), ("update", "update"))
    }


def costs(
    runs: Sequence[RunFolder],
    overheads: Mapping[str, FloatArray],
    pulses: Sequence[FloatArray],
    slower: Mapping[str, FloatArray],
) -> tuple[dict[str, float], dict[str, float]]:
    """``cost.actors`` of a fitted file, and its standard errors.

    overheads: of `calibration.fits.updates.overheads`, of these runs. pulses: of each run, over the
    reference; shape (steps, 2). slower: `slowdowns`; empty without a probe of them.
    """
    load, check = _arrivals(runs, pulses)
    saving = [run.summary.get("saving_s", 0.0) / len(run.steps["step"]) for run in runs]
    samples = {
        "to_trainer_s": overheads["to_train"],
        "from_trainer_s": overheads["to_rollout"],
        "open_s": np.array(saving),
        "load_s": load,
        "check_s": check,
        **slower,
    }
    middle = {
        name: max(float(np.median(values)), 1.0 if name in slower else 0.0)
        for name, values in samples.items()
    }
    return middle, {name: median_error(values) for name, values in samples.items()}


def _arrivals(
    runs: Sequence[RunFolder], pulses: Sequence[FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Seconds that each arrival of weights took to be taken in, and to be compared."""
    load, check = [], []
    for run, pulse in zip(runs, pulses, strict=True):
        table = run.arrivals
        if table is None:
            raise ScenarioError(
                "RUN_DIR", f"{run.path} has no arrivals.csv; a calibration of actors needs it"
            )
        step = np.clip(table["version"] - 1, 0, len(pulse) - 1)
        load.append((table["loaded_s"] - table["start_s"]) / pulse[step, 0])
        check.append((table["end_s"] - table["loaded_s"]) / pulse[step, 0])
    return np.concatenate(load), np.concatenate(check)
