"""What it cost that replicas and trainer were processes of their own.

The ways between them come from runs of one replica under a policy that takes turns: how long after
the last rollout an update begins, how long after the update its weights are sent, and what of a
sync a replica stands still for. What actors that work at the same time cost each other no such run
can say; a probe can (`engine.actors.beside`), of replicas among themselves one of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.folder import RunFolder
from calibration.robust import FloatArray, median_error
from simulator.costs.actors import ActorCosts
from simulator.errors import ScenarioError

LEAST_ROUNDS = 5


@dataclass(frozen=True)
class Slower:
    """How many times as long something takes beside another actor; shape (rounds,) each. The
    pulses are the machine's long ones, which an overlapping run takes beside a replica. among:
    iterations while ``replicas`` of them work; None where one was measured."""

    iterations: FloatArray
    updates: FloatArray
    pulses: FloatArray
    among: FloatArray | None = None
    replicas: int = 1

    @classmethod
    def of(cls, rounds: Sequence[Mapping[str, Any]]) -> Slower:
        """Of the rounds of a probe. Raises ScenarioError (``--probe``) for too few of them."""
        found = [row for row in rounds if row["iterations"] and row["update_alone_s"]]
        if len(found) < LEAST_ROUNDS:
            raise ScenarioError("--probe", f"fewer than {LEAST_ROUNDS} rounds of beside")
        pulses = [(row["pulse_beside"], row["pulse_alone"]) for row in found]
        together = [row["among"] for row in found if row.get("among", {}).get("iterations")]
        among = [row["iterations_among_s"] / row["iterations_alone_s"] for row in together]
        replicas = {row["replicas"] for row in together}
        if together and (len(together) < LEAST_ROUNDS or len(replicas) > 1):
            raise ScenarioError(
                "--probe", f"fewer than {LEAST_ROUNDS} rounds of beside are of as many replicas"
            )
        return cls(
            np.array([row["iterations_beside_s"] / row["iterations_alone_s"] for row in found]),
            np.array([row["update_beside_s"] / row["update_alone_s"] for row in found]),
            np.array([beside["long_s"] / alone["long_s"] for beside, alone in pulses]),
            np.array(among) if among else None,
            max(replicas, default=1),
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
    cores = int(runs[0].provenance["cores"])
    if slower is not None:
        found |= {"iteration_beside": slower.iterations, "update_beside": slower.updates}
        if slower.among is not None:
            of_one = ActorCosts(cores=cores).among_of
            found["iteration_among"] = np.array(
                [of_one(times, slower.replicas) for times in slower.among]
            )
    middle: dict[str, Any] = {name: float(np.median(each)) for name, each in found.items()}
    for name in found:
        if not name.endswith("_s"):
            middle[name] = max(middle[name], 1.0)
    middle["cores"] = cores
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
