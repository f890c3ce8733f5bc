"""What it cost that replicas and trainer were processes of their own.

The ways between them come from runs of one replica under a policy that takes turns: how long after
the last rollout an update begins, how long after the update its weights are sent, and what of a
sync a replica stands still for. What actors that work at the same time cost each other no such run
can say; a probe can (`engine.actors.beside`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.folder import RunFolder
from calibration.robust import FloatArray, median_error
from simulator.errors import ScenarioError

LEAST_ROUNDS = 5


@dataclass(frozen=True)
class Slower:
    """How many times as long something takes beside another actor; shape (rounds,) each. The
    pulses are the machine's long ones, which an overlapping run takes beside a replica."""

    iterations: FloatArray
    updates: FloatArray
    pulses: FloatArray

    @classmethod
    def of(cls, rounds: Sequence[Mapping[str, Any]]) -> Slower:
        """Of the rounds of a probe. Raises ScenarioError (``--probe``) for too few of them."""
        found = [row for row in rounds if row["iterations"] and row["update_alone_s"]]
        if len(found) < LEAST_ROUNDS:
            raise ScenarioError("--probe", f"fewer than {LEAST_ROUNDS} rounds of beside")
        pulses = [(row["pulse_beside"], row["pulse_alone"]) for row in found]
        return cls(
            np.array([row["iterations_beside_s"] / row["iterations_alone_s"] for row in found]),
            np.array([row["update_beside_s"] / row["update_alone_s"] for row in found]),
            np.array([beside["long_s"] / alone["long_s"] for beside, alone in pulses]),
        )


def costs(
    runs: Sequence[RunFolder],
    overheads: Mapping[str, FloatArray],
    pulses: Sequence[FloatArray],
    slower: Slower | None,
) -> tuple[dict[str, Any], dict[str, float]]:
    """The mapping ``cost.actors`` of a fitted file, and its standard errors.

    overheads: of `calibration.updates.overheads`, of these runs. pulses: of each run, over the
    reference; shape (steps, 2). slower: None where no probe says.
    """
    load, check = _arrivals(runs, pulses)
    found = {
        "to_trainer_s": overheads["to_train"],
        "from_trainer_s": overheads["to_rollout"],
        "open_s": np.array([run.summary.get("saving_s", 0.0) / len(run.steps["step"])
                            for run in runs]),
        "load_s": load,
        "check_s": check,
    }  # fmt: skip
    if slower is not None:
        found |= {"iteration_beside": slower.iterations, "update_beside": slower.updates}
    middle: dict[str, Any] = {name: float(np.median(each)) for name, each in found.items()}
    for name in ("iteration_beside", "update_beside"):
        if name in middle:
            middle[name] = max(middle[name], 1.0)
    middle["cores"] = int(runs[0].provenance["cores"])
    return middle, {name: median_error(each) for name, each in found.items()}


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
