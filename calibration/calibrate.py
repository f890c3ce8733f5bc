"""From run folders to a fitted file: costs, lengths and rewards, each with its uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from rollcast.calibration.fits import actors, iterations, responses, updates
from rollcast.calibration.fits import groups as measured_groups
from rollcast.calibration.fits.machine_speed import MachineSpeed, by_phase, steady
from rollcast.calibration.fits.noise import MachineNoise, run_levels
from rollcast.calibration.fits.probes import Probed, read_probe
from rollcast.calibration.fits.robust import FloatArray, median_error
from rollcast.calibration.folder import RunFolder, check_alike, check_given_once
from rollcast.simulator.costs.fitted import FIELD, FittedCost
from rollcast.simulator.costs.fitted_draws import check_draws, scaled
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.fitted_file import PARTS, SCHEMA, read_fitted
from rollcast.simulator.results.write import write_json_file
from rollcast.simulator.workload.measured import MeasuredGroups

_MAX_RESIDUALS = 2000


@dataclass(frozen=True)
class Fitted:
    """The content of a fitted file, as plain JSON types."""

    content: dict[str, Any]
    name: str = "fitted.json"

    @property
    def cost(self) -> FittedCost:
        """Its cost model."""
        return FittedCost.from_mapping(self.content, self.name)

    @property
    def speed(self) -> MachineSpeed | None:
        """The machine's pulse that its costs are stated at; None where the runs had none. Raises
        ScenarioError (``cost.file``) for one that is none."""
        try:
            return MachineSpeed.from_mapping(self.content.get("pulse"), "pulse")
        except ScenarioError as error:
            raise ScenarioError(FIELD, f"{self.name}: {error}") from None

    @property
    def groups(self) -> MeasuredGroups:
        """Its measured groups. Raises ScenarioError for what are none."""
        return MeasuredGroups.from_mapping(self.content["groups"], self.name)

    @property
    def environment(self) -> Mapping[str, Any]:
        """``environment`` of the scenario of its runs; empty where they had none."""
        machine = self.content["provenance"].get("environment")
        return machine if isinstance(machine, Mapping) else {}

    def pulses(self, run: RunFolder) -> FloatArray | None:
        """The pulse by step over the costs' own, short and long, (steps, 2); None where unknown."""
        speed = self.speed
        return None if speed is None else speed.of(run)

    def noise(self, at_speed: bool) -> MachineNoise:
        """The noise of its runs. at_speed: what the machine's measured speed does not explain."""
        measured = np.array(self.content["step_ratios"])
        if not at_speed:
            measured[:, :3] *= by_phase(np.array(self.content["step_pulses"]))
        return MachineNoise.of(measured)

    @property
    def policies(self) -> list[str]:
        """The policies that it was calibrated on."""
        return [str(policy) for policy in self.content["policies"]]

    def with_responses(self, folders: Sequence[Path]) -> Fitted:
        """The same costs with the lengths and rewards of other runs: of other prompts, say.

        Raises ScenarioError (``--lengths``) as `calibrate` does.
        """
        try:
            collected = responses.collect([RunFolder.open(folder) for folder in folders])
            return replace(self, content={**self.content, **_responses(collected)})
        except ScenarioError as error:
            raise ScenarioError("--lengths", error.message) from None

    def write(self, path: Path) -> None:
        """Writes the file, whole or not at all. Raises ScenarioError (``-o``)."""
        write_json_file(path, self.content)

    @classmethod
    def read(cls, path: Path) -> Fitted:
        """Reads a fitted file. Raises ScenarioError (``cost.file``) for another schema, and where
        something that a forecast needs is missing."""
        content = dict(read_fitted(path, FIELD))
        fitted = cls(content, path.name)
        for key in PARTS:
            if key not in content:
                raise ScenarioError(FIELD, f"{path.name} has no {key!r}; calibrate again")
        _ = fitted.cost, fitted.speed, fitted.groups  # which check themselves
        try:
            check_draws(content)
        except ScenarioError as error:
            raise ScenarioError(FIELD, f"{path.name}: {error}") from None
        if len(content["step_pulses"]) != len(content["step_ratios"]):
            raise ScenarioError(FIELD, f"{path.name}: step_pulses: not one a row of step_ratios")
        return fitted


def calibrate(folders: Sequence[Path], probe: Path | None = None) -> Fitted:
    """Fits everything that a forecast needs to the runs in ``folders``.

    probe: of trainer and engine (``rollcast probe``): it prices every layout and prompts of other
    lengths, and tells apart what an update costs per token, microbatch and pair.

    Raises ScenarioError (``RUN_DIR``), naming folder and file: for no runs, one given twice,
    missing files or columns, another schema, too few samples, and mixed hardware, versions or
    engines.
    """
    if not folders:
        raise ScenarioError("RUN_DIR", "no run was given")
    check_given_once(folders)
    runs = [RunFolder.open(folder) for folder in folders]
    check_alike(runs)
    speed = MachineSpeed.of_runs(runs)
    pulses = [_pulses(run, speed) for run in runs]
    probed = Probed() if probe is None else read_probe(probe, runs[0], speed)
    samples = iterations.collect(runs, pulses)
    of_iterations = iterations.fit_iterations(samples, probed.iterations)
    done = updates.collect(runs, pulses)
    dense, shared = _layouts(done, probed.updates)
    rest = updates.overheads(runs, pulses)
    ratios = _step_ratios(runs, of_iterations, done, dense, shared, rest)
    typical = np.exp(np.log(run_levels(ratios)).mean(axis=0))
    ratios[:, :3] /= typical
    of_rollout, of_update, of_rest = typical.tolist()
    collected = responses.collect(runs)
    packed = updates.packing(runs[0], runs[0].updates if done.padded else None)
    middle = {name: of_rest * float(np.median(seconds)) for name, seconds in rest.items()}
    apart, apart_errors = None, None
    if runs[0].of_actors:
        apart, apart_errors = actors.costs(runs, rest, pulses, probed.slower)
    cost = {
        "iteration": scaled(of_iterations.cost(), of_rollout),
        "dense": scaled(dense.cost(), of_update),
        "shared_prefix": None if shared is None else scaled(shared.cost(), of_update),
        "sync_s": middle["sync"],
        "switch_to_train_s": middle["to_train"],
        "switch_to_rollout_s": middle["to_rollout"],
        "actors": apart,
        "packing": None if packed is None else packed.to_mapping(),
        "skips_equal_rewards": done.skips_equal_rewards,
    }
    described = iterations.describe(of_iterations, samples)
    fits = {
        "iteration": {**described, "step_ratio": of_rollout * described["step_ratio"]},
        "dense": updates.describe(dense),
        "shared_prefix": None if shared is None else updates.describe(shared),
        "overheads": {name: _spread(seconds) for name, seconds in rest.items()},
        "actors": None if apart_errors is None else {"standard_errors": apart_errors},
    }
    known = {"iteration": of_iterations.fit, "dense": dense.fit}
    return Fitted(
        {
            "schema": SCHEMA,
            "cost": cost,
            "range": _covered(samples, done, collected, probed),
            "policies": sorted({run.policy for run in runs}),
            "fits": fits,
            "covariance": {
                name: {"names": list(fit.names), "matrix": fit.covariance.tolist()}
                for name, fit in known.items()
            },
            "step_ratios": ratios.round(6).tolist(),
            "step_pulses": np.concatenate(pulses)[: len(ratios)].round(6).tolist(),
            "pulse": None if speed is None else speed.to_mapping(),
            **_responses(collected),
            "provenance": _provenance(runs),
        }
    )


def _layouts(
    done: updates.Updates, shapes: updates.Updates | None
) -> tuple[updates.UpdateFit, updates.UpdateFit | None]:
    """What an update costs, dense and with a shared prefix. shapes: of a probe."""
    dense = updates.fit_updates(done, False, shapes)
    if dense is None:
        raise ScenarioError(
            "RUN_DIR",
            f"fewer than {updates.MIN_UPDATES} dense updates; add a run without prefix_reuse",
        )
    return dense, updates.fit_updates(done, True, shapes, dense.ratio)


def _pulses(run: RunFolder, speed: MachineSpeed | None) -> FloatArray:
    pulses = None if speed is None else speed.of(run)
    return steady(len(run.steps["step"])) if pulses is None else pulses


def _responses(collected: responses.Responses) -> dict[str, Any]:
    of_turns = None
    if collected.turned is None:
        of_lengths = responses.lengths(collected)
    else:
        of_lengths, of_turns = responses.turn_lengths(collected, collected.turned)
    return {
        "lengths": of_lengths,
        "turns": of_turns,
        "rewards": responses.rewards(collected, of_lengths["lengths"]),
        "prompt_tokens": responses.prompts(collected),
        "groups": measured_groups.measured(collected).to_mapping(),
    }


def _covered(
    samples: iterations.Samples,
    done: updates.Updates,
    collected: responses.Responses,
    probed: Probed,
) -> dict[str, list[int]]:
    """The least and the most of each quantity in runs and probe."""
    measured, trained = [samples], [done]
    if probed.iterations is not None and probed.updates is not None:
        measured, trained = [samples, probed.iterations], [done, probed.updates]
    names = ("rollouts", "context_tokens", "prefill_tokens")
    ranges = {n: np.concatenate([sample.counts[n] for sample in measured]) for n in names}
    ranges["train_tokens"] = np.concatenate([sample["computed"] for sample in trained])
    ranges["rollout_tokens"] = collected.contexts
    return {name: [int(values.min()), int(values.max())] for name, values in ranges.items()}


def _spread(seconds: FloatArray) -> dict[str, float]:
    """Median of an overhead, its standard error, and the middle 90 %."""
    low, middle, high = np.quantile(seconds, [0.05, 0.5, 0.95]).tolist()
    return {
        "median_s": middle,
        "standard_error_s": median_error(seconds),
        "p05_s": low,
        "p95_s": high,
    }


def _step_ratios(
    runs: Sequence[RunFolder],
    of_iterations: iterations.IterationFit,
    done: updates.Updates,
    dense: updates.UpdateFit,
    shared: updates.UpdateFit | None,
    rest: dict[str, FloatArray],
) -> FloatArray:
    """Measured over typical seconds of rollout, update and rest; then the run. Shape (steps, 4)."""
    update = np.ones(len(done))
    for layout, fit in ((False, dense), (True, shared)):
        mine = done["shared"] == layout
        if fit is not None and mine.sum() == len(fit.ratios):
            update[mine] = fit.ratios
    others = rest["sync"] + rest["to_train"] + rest["to_rollout"]
    count = min(len(of_iterations.step_ratios), len(update), len(others), _MAX_RESIDUALS)
    number = np.repeat(np.arange(len(runs)), [len(run.steps["step"]) for run in runs])
    relative = others / max(float(np.median(others)), 1e-12)
    columns = (of_iterations.step_ratios, update, np.maximum(relative, 1e-6), number)
    return np.column_stack([column[:count] for column in columns])


def _provenance(runs: Sequence[RunFolder]) -> dict[str, Any]:
    return {
        **{key: value for key, value in runs[0].provenance.items() if key != "date"},
        "fitted_on": date.today().isoformat(),
        "measured_on": sorted({str(run.provenance.get("date")) for run in runs}),
        "engine": runs[0].scenario.get("engine"),
        "environment": runs[0].scenario.get("environment"),
        "runs": [
            {
                "name": run.name,
                "policy": run.policy,
                "seed": run.seed,
                "steps": len(run.steps["step"]),
                "makespan_s": run.summary.get("makespan_s"),
            }
            for run in runs
        ],
    }
