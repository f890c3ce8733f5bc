"""Holds forecasts against real runs: errors by step, ranking, coverage and noise floor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rollcast.calibration.calibrate import Fitted
from rollcast.calibration.fits.machine_speed import by_phase, tells
from rollcast.calibration.fits.robust import FloatArray
from rollcast.calibration.folder import RunFolder
from rollcast.calibration.forecast import DRAWS, METRICS, Forecast, Mode, forecast, measured_by_step
from rollcast.calibration.judge.compared import Compared
from rollcast.calibration.judge.quality import qualities
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies.registry import SYNCHRONOUS
from rollcast.simulator.scenario.file import Trust
from rollcast.simulator.studies.drawn import LEVEL
from rollcast.simulator.studies.ranking import SURE

_NO_SETTING = ("policy", "seed", "steps", "name", "cost", "workload.lengths", "workload.rewards")
_ABSOLUTE = ("bubble", "staleness")  # may be 0: errors are differences, not shares


@dataclass(frozen=True)
class Check:
    """One run against its forecast.

    measured: `METRICS` by step. held_out: whether it was not calibrated on. setting: where its
    scenario differs from the first run's, policy, seed and steps apart. pulses: the machine's
    around each step over the calibration's, short and long, shape (steps, 2), where both have them.
    """

    run: RunFolder
    held_out: bool
    measured: dict[str, FloatArray]
    forecast: Forecast
    setting: str = ""
    pulses: FloatArray | None = None

    @property
    def label(self) -> str:
        """The policy, and the setting where it is not the first run's."""
        return f"{self.run.policy} [{self.setting}]" if self.setting else self.run.policy

    @property
    def steps(self) -> int:
        """How many steps it ran."""
        return len(self.measured["step_s"])

    @property
    def warnings(self) -> list[str]:
        """What to be wary of: in the forecast, and what the run itself warned of."""
        listed = self.run.summary.get("warnings")
        texts = listed if isinstance(listed, list) else []
        return [*self.forecast.flags, *(f"the run itself warned: {warning}" for warning in texts)]

    @property
    def pulse(self) -> tuple[float, float] | None:
        """The machine's mean speed in the run over the calibration's."""
        if self.pulses is None:
            return None
        short, long = self.pulses.mean(axis=0).tolist()
        return short, long

    @property
    def step_s_at_calibrations_pulse(self) -> FloatArray:
        """Measured step times over the pulse around each phase; as measured where it is unknown."""
        real = self.measured
        if self.pulses is None:
            return real["step_s"]
        rollout, update, rest = by_phase(self.pulses).T
        rest_s = real["step_s"] - real["rollout_s"] - real["train_s"]
        return np.asarray(real["rollout_s"] / rollout + real["train_s"] / update + rest_s / rest)

    @property
    def total_s(self) -> float:
        """Measured run time: the sum of the steps."""
        return float(self.measured["step_s"].sum())

    @cached_property
    def compared(self) -> Compared:
        """Its step times against their forecast."""
        draws, point = (made["step_s"] for made in (self.forecast.draws, self.forecast.point))
        return Compared.of(self.measured["step_s"], draws, point)

    @property
    def total_error(self) -> float:
        """Forecast (median draw) over measured run time, less 1."""
        return self.compared.total_error

    @property
    def level(self) -> float:
        """Forecast over measured step time of the median step."""
        return float(np.median(1.0 + self.step_errors("step_s")))

    @property
    def error_at_own_level(self) -> float:
        """Median absolute error of step time once the run's `level` is taken out."""
        return float(np.median(np.abs((1.0 + self.step_errors("step_s")) / self.level - 1.0)))

    def step_errors(self, metric: str) -> FloatArray:
        """By step: forecast over measured less 1, or their difference where that may be 0."""
        point, real = self.forecast.point[metric], self.measured[metric]
        if metric in _ABSOLUTE:
            return np.asarray(point - real)
        return point / np.maximum(real, 1e-12) - 1.0

    def error_of(self, metric: str) -> float:
        """Median over the steps of the absolute error."""
        return float(np.median(np.abs(self.step_errors(metric))))


@dataclass(frozen=True)
class Validation:
    """All checks of one mode."""

    mode: Mode
    fitted: Fitted
    checks: list[Check]

    def to_json(self) -> dict[str, Any]:
        """Everything that the report says, as plain JSON types."""
        held = [check for check in self.checks if check.held_out]
        return {
            "schema": "rollcast-validation/2",
            "mode": self.mode,
            "calibrated_on": self.fitted.content["provenance"]["runs"],
            "provenance": {
                key: value
                for key, value in self.fitted.content["provenance"].items()
                if key not in ("runs", "engine")
            },
            "runs": [_run_json(check) for check in self.checks],
            "ranking": ranking(self.checks),
            "noise_floor": noise_floor(self.checks),
            "noise_floor_at_pulse": noise_floor(self.checks, at_pulse=True),
            "machine_noise": machine_noise(self.fitted),
            "quality": quality(self.checks),
            "held_out": {
                "step_s": _median([c.error_of("step_s") for c in held]),
                "step_s_at_own_level": _median([c.error_at_own_level for c in held]),
                "run_time": _median([abs(c.total_error) for c in held]),
            },
            "coverage": {
                "nominal": LEVEL,
                "held_out": _coverage(held),
                "all": _coverage(self.checks),
            },
        }


def validate(
    fitted: Fitted,
    folders: Sequence[Path],
    mode: Mode = "replay",
    draws: int = DRAWS,
    on_run: Callable[[str], None] | None = None,
    at_pulse: bool | None = None,
    trust_modules: Trust = False,
) -> Validation:
    """Forecasts every run in ``folders`` and holds it against what was measured.

    mode: ``replay`` (the runs' own lengths: judges the costs) or ``predict`` (fitted lengths and
    rewards: judges the whole forecast). draws: of the parameters. on_run is called with each name.
    trust_modules: whether policies of one's own that the runs name may be imported.
    at_pulse: judge each run at the machine's speed in it; None does so in a replay, as how fast a
    machine will be is part of what a prediction does not know, but not where the run's own actors
    disturb it (`calibration.fits.machine_speed.tells`).
    Raises ScenarioError for folders that hold no run, or no steps.
    """
    if mode not in ("replay", "predict"):
        raise ScenarioError("--mode", f"{mode!r} is unknown; give replay or predict")
    if draws < 1:
        raise ScenarioError("--draws", f"must be at least 1, got {draws}")
    if not folders:
        raise ScenarioError("RUN_DIR", "no run was given")
    known = {
        (run["policy"], run["seed"], run["steps"], run["makespan_s"])
        for run in fitted.content["provenance"]["runs"]
    }
    checks: list[Check] = []
    for folder in folders:
        run = RunFolder.open(folder, trust_modules)
        steps = len(run.steps["step"])
        if steps == 0:
            raise ScenarioError("RUN_DIR", f"{folder}/steps.csv holds no step")
        if steps != run.scenario.get("steps", steps):
            raise ScenarioError("RUN_DIR", f"{folder}: steps.csv holds {steps} steps, not all")
        if on_run is not None:
            on_run(run.name)
        this = (run.policy, run.seed, steps, run.summary.get("makespan_s"))
        own_pulse = mode == "replay" and tells(run) if at_pulse is None else at_pulse
        expected = forecast(fitted, run, mode, draws, at_pulse=own_pulse)
        setting = difference(checks[0].run.scenario, run.scenario) if checks else ""
        measured = measured_by_step(run)
        held_out, pulses = this not in known, fitted.pulses(run)
        checks.append(Check(run, held_out, measured, expected, setting, pulses))
    return Validation(mode, fitted, checks)


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _coverage(checks: Sequence[Check]) -> dict[str, Any]:
    """Share of steps, and of run times, whose interval holds them."""
    if not checks:
        return {"steps": None, "step_count": 0, "runs": None, "run_count": 0}
    steps = np.concatenate([check.compared.inside for check in checks])
    runs = [check.compared.total_covered for check in checks]
    return {
        "steps": float(steps.mean()),
        "step_count": len(steps),
        "runs": float(np.mean(runs)),
        "run_count": len(runs),
    }


def _run_json(check: Check) -> dict[str, Any]:
    compared = check.compared
    metrics = {}
    for name in METRICS:
        errors = check.step_errors(name)
        metrics[name] = {
            "measured_median": float(np.median(check.measured[name])),
            "forecast_median": float(np.median(check.forecast.point[name])),
            "median_absolute_error": float(np.median(np.abs(errors))),
            "median_error": float(np.median(errors)),
            "unit": "difference" if name in _ABSOLUTE else "share",
        }
    return {
        "name": check.run.name,
        "policy": check.run.policy,
        "setting": check.setting,
        "seed": check.run.seed,
        "held_out": check.held_out,
        "steps": check.steps,
        "metrics": metrics,
        "total": {
            "measured_s": check.total_s,
            "forecast_s": compared.total_s,
            "interval_s": [compared.total_low_s, compared.total_high_s],
            "error": compared.total_error,
            "covered": compared.total_covered,
        },
        "coverage_of_steps": compared.covered,
        "by_step": compared.by_step(),
        "level": check.level,
        "pulse": None
        if check.pulse is None
        else dict(zip(("short", "long"), check.pulse, strict=True)),
        "at_pulse": check.forecast.at_pulse,
        "median_absolute_error_at_own_level": check.error_at_own_level,
        "unmeasured_rollouts": check.forecast.unmeasured,
        "warnings": check.warnings,
    }


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Where scenarios differ, as ``key=value`` of the other, without `_NO_SETTING`."""
    a, b = (dict(_flat(scenario)) for scenario in (one, other))
    changed = [key for key in {**a, **b} if a.get(key) != b.get(key)]
    return ", ".join(f"{key}={b.get(key)}" for key in changed)


def _flat(scenario: Mapping[str, Any], field: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in scenario.items():
        dotted = f"{field}.{key}" if field else str(key)
        if dotted in _NO_SETTING:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, dotted)
        else:
            yield dotted, value


def by_policy(checks: Sequence[Check]) -> dict[str, list[Check]]:
    """The checks by policy and setting, in the order of their first run."""
    checks_by: dict[str, list[Check]] = {}
    for check in checks:
        checks_by.setdefault(check.label, []).append(check)
    return checks_by


def noise_floor(checks: Sequence[Check], at_pulse: bool = False) -> dict[str, Any]:
    """How far real runs of one policy are from each other, over pairs of its runs: the median share
    by which their steps of one number differ, and their run times. None without such a pair.

    A forecast of either run cannot be asked to come closer than that to the other. at_pulse: with
    all times at the calibration's speed, where pulses are known.
    """
    steps, totals = [], []
    for same in by_policy(checks).values():
        for one, other in combinations(same, 2):
            a, b = (_step_s(check, at_pulse) for check in (one, other))
            count = min(len(a), len(b))
            steps.append(float(np.median(np.abs(a[:count] - b[:count]) / b[:count])))
            mean_a, mean_b = float(a[:count].mean()), float(b[:count].mean())
            totals.append(abs(mean_a - mean_b) / ((mean_a + mean_b) / 2))
    return {
        "pairs": len(steps),
        "step_s": float(np.median(steps)) if steps else None,
        "run_time": float(np.median(totals)) if totals else None,
        "run_time_largest": max(totals) if totals else None,
    }


def _step_s(check: Check, at_pulse: bool) -> FloatArray:
    return check.step_s_at_calibrations_pulse if at_pulse else check.measured["step_s"]


def quality(checks: Sequence[Check]) -> dict[str, dict[str, float]]:
    """`qualities` of the policies, from the accuracy of real runs of one setting and number of
    steps: that in which synchronous ones and most others ran."""
    alike: dict[tuple[str, int], dict[str, list[FloatArray]]] = {}
    for check in checks:
        curves = alike.setdefault((check.setting, check.steps), {})
        accuracy = check.run.steps.get("accuracy")
        if accuracy is not None:
            curves.setdefault(check.run.policy, []).append(np.asarray(accuracy, dtype=float))
    known = [curves for curves in alike.values() if SYNCHRONOUS in curves]
    if not known:
        return {}
    factors = qualities(max(known, key=len), SYNCHRONOUS)
    return {name: factor.plain() for name, factor in factors.items()}


def machine_noise(fitted: Fitted) -> dict[str, float]:
    """Medians over the calibration's steps of how far phases are from what their work typically
    takes: no cost model that sees only the work could replay them more closely."""
    ratios = np.array(fitted.content["step_ratios"])
    off = np.abs(ratios - 1.0)
    return {"rollout_s": float(np.median(off[:, 0])), "train_s": float(np.median(off[:, 1]))}


def ranking(checks: Sequence[Check]) -> dict[str, Any]:
    """Policies by mean step time, measured and forecast, and every pair of them. Where each run is
    judged at its own speed, all times are brought to the calibration's.

    Only like is ranked with like: ``sets`` has an entry for each setting (batch and group size
    among them) and number of steps, in which two policies or more ran, and pairs are within one.

    A pair's difference is real where it exceeds the noise between runs of one policy (the largest
    seen; without repeats, twice the standard error of the two means). sure: the share of the draws,
    number for number, in which the forecast's faster policy is faster. Where that is below 95 %,
    the forecast says that the two may change places.
    """
    alike: dict[tuple[str, int], list[Check]] = {}
    for check in checks:
        alike.setdefault((check.setting, check.steps), []).append(check)
    at_pulse = any(check.forecast.at_pulse for check in checks)
    floor = noise_floor(checks, at_pulse)["run_time_largest"]
    sets, pairs = [], []
    for (setting, steps), members in alike.items():
        groups: dict[str, list[Check]] = {}
        for check in members:
            groups.setdefault(check.run.policy, []).append(check)
        if len(groups) > 1:
            ranked, measured = _ranked(groups, at_pulse, floor)
            sets.append({"setting": setting, "steps": steps, **ranked})
            pairs += [{"set": len(sets) - 1, **pair} for pair in measured]
    clear = [pair for pair in pairs if pair["exceeds_noise"]]
    return {
        "sets": sets,
        "pairs": pairs,
        "clear_pairs": len(clear),
        "clear_pairs_right": sum(pair["right"] for pair in clear),
    }


def _ranked(
    groups: Mapping[str, Sequence[Check]], at_pulse: bool, floor: float | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The order of policies that ran alike, and their pairs; see `ranking`."""
    real = {
        p: float(np.mean([_step_s(c, at_pulse).mean() for c in cs])) for p, cs in groups.items()
    }
    drawn = {p: np.mean([_mean_steps(c) for c in cs], axis=0) for p, cs in groups.items()}
    expected = {policy: float(np.median(values)) for policy, values in drawn.items()}
    pairs = []
    for one, other in combinations(groups, 2):
        gap = abs(real[one] - real[other]) / ((real[one] + real[other]) / 2)
        steps = [[_step_s(c, at_pulse) for c in groups[name]] for name in (one, other)]
        noise = _standard_noise(*map(np.concatenate, steps)) if floor is None else floor
        faster = one if expected[one] <= expected[other] else other
        slower = other if faster == one else one
        share = float(np.mean(drawn[faster] < drawn[slower]))
        pairs.append(
            {
                "policies": [one, other],
                "real_difference": gap,
                "noise": noise,
                "exceeds_noise": bool(gap > noise),
                "right": bool((real[one] <= real[other]) == (expected[one] <= expected[other])),
                "faster": faster,
                "sure": share,
                "may_flip": bool(share < SURE),
            }
        )
    order = {
        "measured": sorted(real, key=lambda p: real[p]),
        "forecast": sorted(expected, key=lambda p: expected[p]),
        "step_s_measured": real,
        "step_s_forecast": expected,
    }
    return order, pairs


def _mean_steps(check: Check) -> FloatArray:
    """Mean step time of each draw; at the calibration's speed if it was made at the run's own."""
    mean = check.forecast.total_s / len(check.measured["step_s"])
    if not check.forecast.at_pulse:
        return mean
    return np.asarray(mean * check.step_s_at_calibrations_pulse.sum() / check.total_s)


def _standard_noise(one: FloatArray, other: FloatArray) -> float:
    """Two standard errors of the difference of mean step times, as a share of them."""
    variance = sum(float(np.var(steps)) / len(steps) for steps in (one, other))
    return float(2 * np.sqrt(variance) / ((one.mean() + other.mean()) / 2))
