"""What it cost that replicas and trainer were processes of their own.

The ways between them come from runs of one replica under a policy that takes turns: how long after
the last rollout an update begins, how long after the update its weights are sent, and what of a
sync a replica stands still for. What actors that work at the same time cost each other no such run
can say; a probe can (`engine.actors.beside`), of replicas among themselves one of several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rollcast.calibration.folder import RunFolder
from rollcast.calibration.robust import FloatArray, median_error
from rollcast.simulator.costs.actors import ActorCosts
from rollcast.simulator.errors import ScenarioError

LEAST_ROUNDS = 5


@dataclass(frozen=True)
class Together:
    """How many times as long something takes while so many ``replicas`` work; shape (rounds,) each.
    among: an iteration, the trainer at rest. all_*: iterations and updates, the trainer at work."""

    replicas: int
    among: FloatArray
    all_iterations: FloatArray
    all_updates: FloatArray

    @classmethod
    def of(cls, rounds: Sequence[Mapping[str, Any]]) -> Together | None:
        """Of the rounds of a probe; None of one replica. Raises ScenarioError (``--probe``) for too
        few of them."""
        rows = [(row["among"], row["update_alone_s"]) for row in rounds if "among" in row]
        if not rows:
            return None
        rounds_together = [
            (row, alone_s) for row, alone_s in rows if row["iterations"] and row["all_iterations"]
        ]
        replicas = {row["replicas"] for row, _ in rows}
        if len(rounds_together) < LEAST_ROUNDS or len(replicas) > 1:
            raise ScenarioError(
                "--probe", f"fewer than {LEAST_ROUNDS} rounds of beside are of as many replicas"
            )
        return cls(
            replicas.pop(),
            np.array(
                [
                    row["iterations_among_s"] / row["iterations_alone_s"]
                    for row, _ in rounds_together
                ]
            ),
            np.array(
                [
                    row["all_iterations_s"] / row["all_iterations_alone_s"]
                    for row, _ in rounds_together
                ]
            ),
            np.array([row["all_update_s"] / alone_s for row, alone_s in rounds_together]),
        )

    def costs(self, cores: int, beside: float, update_beside: float) -> dict[str, FloatArray]:
        """The figures of `ActorCosts` that they give, by round: what replicas cost each other, and
        where cores are too few, what is waited for them beyond an even share. beside,
        update_beside: what one replica and the trainer cost each other."""
        samples: dict[str, FloatArray] = {}
        uncrowded = ActorCosts(
            iteration_beside=beside,
            iteration_crowded=0.0,
            update_beside=update_beside,
            update_crowded=0.0,
            cores=cores,
        )
        if not uncrowded.waiting(self.replicas):  # else the two cannot be told apart
            samples["iteration_among"] = among = 1.0 + (self.among - 1.0) / (self.replicas - 1)
            one = max(float(np.median(among)), 1.0)
            uncrowded = replace(uncrowded, iteration_among=one)
        crowded = []
        for times, training in ((self.among, False), (self.all_iterations, True)):
            if waiting := uncrowded.waiting(self.replicas + training):
                there = uncrowded.slower_iterations(self.replicas, training)
                crowded.append((times - there) / waiting)
        if waiting := uncrowded.waiting(self.replicas + 1):
            samples["iteration_crowded"] = np.concatenate(crowded)
            there = uncrowded.slower_updates(self.replicas)
            samples["update_crowded"] = (self.all_updates - there) / waiting
        return samples


@dataclass(frozen=True)
class Slower:
    """How many times as long something takes beside another actor; shape (rounds,) each. The
    pulses are the machine's long ones, which an overlapping run takes beside a replica. together:
    of several replicas; None where one was measured."""

    iterations: FloatArray
    updates: FloatArray
    pulses: FloatArray
    together: Together | None = None

    @classmethod
    def of(cls, rounds: Sequence[Mapping[str, Any]]) -> Slower:
        """Of the rounds of a probe. Raises ScenarioError (``--probe``) for too few of them."""
        usable = [row for row in rounds if row["iterations"] and row["update_alone_s"]]
        if len(usable) < LEAST_ROUNDS:
            raise ScenarioError("--probe", f"fewer than {LEAST_ROUNDS} rounds of beside")
        pulses = [(row["pulse_beside"], row["pulse_alone"]) for row in usable]
        return cls(
            np.array([row["iterations_beside_s"] / row["iterations_alone_s"] for row in usable]),
            np.array([row["update_beside_s"] / row["update_alone_s"] for row in usable]),
            np.array([beside["long_s"] / alone["long_s"] for beside, alone in pulses]),
            Together.of(usable),
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
    samples = {
        "to_trainer_s": overheads["to_train"],
        "from_trainer_s": overheads["to_rollout"],
        "open_s": np.array(
            [run.summary.get("saving_s", 0.0) / len(run.steps["step"]) for run in runs]
        ),
        "load_s": load,
        "check_s": check,
    }
    cores = int(runs[0].provenance["cores"])
    if slower is not None:
        samples |= {"iteration_beside": slower.iterations, "update_beside": slower.updates}
    middle: dict[str, Any] = {name: float(np.median(values)) for name, values in samples.items()}
    if slower is not None and slower.together is not None:
        beside = (max(middle[name], 1.0) for name in ("iteration_beside", "update_beside"))
        several = slower.together.costs(cores, *beside)
        samples |= several
        middle |= {name: float(np.median(values)) for name, values in several.items()}
    for name in middle:
        middle[name] = max(middle[name], 1.0 if name.endswith(("_beside", "_among")) else 0.0)
    middle["cores"] = cores
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
