"""The machine's speed during a run, by its speed probe (`engine.trainer.pulse`): a fixed small
computation, timed all through the run.

Measured times are divided by the probe's before costs are fitted, and a run with a probe of its own
can be judged at its own speed: what is left of its error is the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np

from rollcast.calibration.fits.robust import FloatArray
from rollcast.calibration.folder import RunFolder
from rollcast.simulator.studies.drawn import BLOCK_STEPS
from rollcast.simulator.values import POSITIVE, read


@dataclass(frozen=True)
class MachineSpeed:
    """The pulse that costs are stated at. short_s: what an iteration is compared with, and all that
    is launched rather than computed; long_s: what an update is. of_actors: of processes of their
    own, whose short pulse is disturbed by what else wakes up at a weight sync; the long one stands
    for both."""

    short_s: Annotated[float, POSITIVE]
    long_s: Annotated[float, POSITIVE]
    of_actors: bool = False

    @classmethod
    def of_runs(cls, runs: Sequence[RunFolder]) -> MachineSpeed | None:
        """The geometric mean of the runs' typical pulses; None where a run has none."""
        pulses = [by_step(run) for run in runs]
        known = [pulse.mean(axis=0) for pulse in pulses if pulse is not None]
        if len(known) < len(runs):
            return None
        short_s, long_s = np.exp(np.log(known).mean(axis=0)).tolist()
        return cls(short_s, long_s, any(run.of_actors for run in runs))

    @classmethod
    def from_mapping(cls, spec: object, field: str) -> MachineSpeed | None:
        """Of a fitted file. Raises ScenarioError that names the key."""
        if isinstance(spec, Mapping):  # earlier versions had a factor for pulses beside a replica
            spec = {key: value for key, value in spec.items() if key != "beside"}
        return None if spec is None else read(cls, spec, field)

    def to_mapping(self) -> dict[str, Any]:
        """As a fitted file holds it."""
        return asdict(self)

    def ratios(self, short_s: FloatArray, long_s: FloatArray) -> FloatArray:
        """Pulses over this one: short, long; shape (n, 2), above 1 where the machine is slower."""
        long = long_s / self.long_s
        return np.column_stack([long if self.of_actors else short_s / self.short_s, long])

    def of(self, run: RunFolder) -> FloatArray | None:
        """The pulse around each step over this one, shape (steps, 2); None without pulses."""
        pulses = by_step(run)
        return None if pulses is None else self.ratios(*pulses.T)


def by_step(run: RunFolder) -> FloatArray | None:
    """The run's speed probe around each step, short and long, seconds, shape (steps, 2): the mean
    of the `BLOCK_STEPS` + 1 nearest, half of them before the step; where there is none between two
    steps, the nearest counts in its place. Not the median: a machine that is now and then busy with
    something else is slower for it."""
    table = run.pulses
    if table is None:
        return None
    asked = np.arange(len(run.steps["step"]) + 1)
    nearest = np.abs(asked[:, None] - table["steps_done"][None, :]).argmin(axis=1)
    probes = np.column_stack([table["short_s"], table["long_s"]])[nearest]
    padded = np.pad(probes, ((BLOCK_STEPS // 2, BLOCK_STEPS // 2), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, BLOCK_STEPS + 1, axis=0)
    return np.asarray(windows.mean(axis=-1))


def tells(run: RunFolder) -> bool:
    """Whether the run's pulse tells how fast its machine was. Where actors work at the same time it
    tells how they disturb each other, which a forecast prices anyhow: replays of 16 such runs
    (`benchmarks/data`) are off by 6.4 % in the median without it and by 10.8 % with it."""
    return not (run.of_actors and run.overlaps)


def steady(steps: int) -> FloatArray:
    """The ratios of a machine whose pulse never changes, or is not known; shape (steps, 2)."""
    return np.ones((steps, 2))


def by_phase(ratios: FloatArray) -> FloatArray:
    """Of rollout, update and the rest of a step, from pulses of shape (steps, 2); (steps, 3)."""
    return ratios[:, [0, 1, 0]]
