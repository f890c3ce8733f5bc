"""Forecasts of real runs that the calibration has not seen: ``python -m benchmarks.held_out``.

Calibrates on synchronous runs of each campaign in ``benchmarks/data``, forecasts all its runs (a
replay of their own rollouts, and a prediction that knows none of them), and writes
``results/held_out.json``, from which docs/evidence.md has its tables. Of three campaigns only a
part of the runs is committed today; `measured.past` takes them from the repository's history. A
copy without that history keeps their last results.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measured
from benchmarks.runner import RESULTS, fails_in_words, parser, progress, read_json, write_json
from rollcast.calibration.calibrate import Fitted, calibrate
from rollcast.calibration.forecast import Mode
from rollcast.calibration.validate import Check, Validation, by_policy, noise_floor, validate

PATH = RESULTS / "held_out.json"
MODES: tuple[Mode, ...] = ("replay", "predict")
DRAWS = 20
DIGITS = 6  # significant ones that are kept


@dataclass(frozen=True)
class HeldOut:
    """What is calibrated on, and what is forecast.

    data: the archive of the runs, as `measured.runs` names it. calibration: synchronous runs.
    forecast: names of the other runs, as patterns. responses: a run whose lengths and rewards
    predictions of the runs of a pattern take, instead of the calibration's. history: whether most
    runs are in the repository's history only.
    """

    title: str
    data: str
    calibration: tuple[str, ...]
    forecast: tuple[str, ...] = ("*-*",)
    responses: Mapping[str, str] = field(default_factory=dict)
    history: bool = False

    def folder(self) -> Path:
        """Where the runs are. Raises AbsentError for those of a history that is not there."""
        return (measured.past if self.history else measured.runs)(self.data)

    def fitted(self) -> Fitted:
        """The calibration: the runs, and the campaign's probe of engine and trainer if it has
        one."""
        folder = self.folder()
        probe = folder / "probe.json"
        runs = [folder / name for name in self.calibration]
        return calibrate(runs, probe if probe.is_file() else None)

    def names(self, pattern: str) -> list[str]:
        """Runs of a pattern without those of the calibration, in order."""
        found = sorted(path.name for path in self.folder().glob(pattern) if path.is_dir())
        return [name for name in found if name not in self.calibration]


_REAL = tuple(f"sync-{seed}" for seed in range(3)) + tuple(f"sync-more-{s}" for s in (3, 4, 5))
_POLICIES = ("sync-again", "april", "sagc", "pods", "prefix", "all")
_SYNC = ("sync-0", "sync-1")
CAMPAIGNS: Mapping[str, HeldOut] = {
    "policies": HeldOut("six policies", "real/runs", _REAL, tuple(f"{p}-*" for p in _POLICIES)),
    "settings": HeldOut(
        "other settings",
        "real/runs",
        _REAL,
        ("wide-*", "narrow-*", "worded-*"),
        {"narrow-*": "narrow-sync-20", "worded-*": "worded-sync-30"},
    ),
    "overlap": HeldOut("first campaign", "overlap/runs", _SYNC),
    "idle": HeldOut("idle cores", "overlap/idle", _SYNC, history=True),
    "several": HeldOut("two replicas", "overlap/several", _SYNC),
    "turns": HeldOut("one process", "turns/runs", _SYNC, history=True),
    "beside": HeldOut("trainer beside", "turns/beside", _SYNC, history=True),
    "gpu": HeldOut("calibrated on seed 0", "gpu/runs", ("sync-0",)),
    "gpu-swapped": HeldOut("calibrated on seed 1", "gpu/runs", ("sync-1",)),
    "gpu-policies": HeldOut(
        "policies on an H100", "gpu/h100/runs", _SYNC, ("april", "pods", "all", "worded-*")
    ),
}


def checks_of(held: HeldOut, fitted: Fitted, mode: Mode, names: Sequence[str]) -> list[Check]:
    """The calibration's first run and then the named ones against their forecasts."""
    folder = held.folder()
    listed = [folder / name for name in (held.calibration[0], *names)]
    return validate(fitted, listed, mode, DRAWS, progress).checks


def judged(held: HeldOut, fitted: Fitted, mode: Mode) -> Validation:
    """All runs of a campaign: the calibration's, then the others."""
    special = {name: run for p, run in held.responses.items() for name in held.names(p)}
    listed = [name for pattern in held.forecast for name in held.names(pattern)]
    plain = [name for name in listed if name not in special or mode == "replay"]
    checks = checks_of(held, fitted, mode, [*held.calibration[1:], *plain])
    for run in dict.fromkeys(special.values()) if mode == "predict" else ():
        other = fitted.with_responses([held.folder() / run])
        names = [name for name in listed if special.get(name) == run]
        checks += checks_of(held, other, mode, names)[1:]
    return Validation(mode, fitted, checks)


def figures(check: Check) -> dict[str, Any]:
    """What is kept of one forecast. Errors are forecast over measured, less one; of a phase its
    median over the steps. staleness: means over the steps, measured and forecast."""
    compared = check.compared
    stale = [float(np.mean(of["staleness"])) for of in (check.measured, check.forecast.point)]
    return {
        "run_s": rounded(compared.total_s),
        "low_s": rounded(compared.total_low_s),
        "high_s": rounded(compared.total_high_s),
        "error": rounded(check.total_error),
        "inside": compared.total_covered,
        "steps_inside": rounded(compared.covered),
        **{
            f"{phase}_error": rounded(float(np.median(check.step_errors(f"{phase}_s"))))
            for phase in ("rollout", "train")
        },
        "step_error": rounded(check.error_of("step_s")),
        "staleness": [rounded(value) for value in stale],
    }


def overall(validation: Validation) -> dict[str, Any]:
    """What is kept of all forecasts of a mode."""
    content, checks = validation.to_json(), validation.checks
    held = [check for check in checks if check.held_out]
    again = [pair for same in by_policy(checks).values() for pair in combinations(same, 2)]
    repeats = [noise_floor(pair, True) for pair in again if _same_rollouts(*pair)]
    plain = [noise_floor(pair) for pair in again if _same_rollouts(*pair)]
    floor = content["noise_floor_at_pulse" if validation.mode == "replay" else "noise_floor"]
    same = repeats if validation.mode == "replay" else plain
    return {
        **{key: rounded(content["held_out"][key]) for key in ("step_s", "run_time")},
        "largest": rounded(max(abs(check.total_error) for check in held)),
        "ranked": [content["ranking"][key] for key in ("clear_pairs_right", "clear_pairs")],
        "coverage": content["coverage"]["held_out"],
        "noise": {key: rounded(value) for key, value in floor.items()},
        "same_rollouts": [[rounded(f[key]) for key in ("step_s", "run_time")] for f in same],
    }


def _same_rollouts(one: Check, other: Check) -> bool:
    return one.run.seed == other.run.seed and one.steps == other.steps


def beside(fitted: Fitted) -> dict[str, list[float | None]] | None:
    """Slowdown of an iteration and of an update while the other works, each with its standard
    error; None for runs of one process."""
    actors = fitted.cost.actors
    if actors is None:
        return None
    errors = fitted.content["fits"]["actors"]["standard_errors"]
    names = ("iteration_beside", "update_beside")
    return {name: [rounded(getattr(actors, name)), rounded(errors[name])] for name in names}


def rounded(value: float | None) -> float | None:
    """To as many digits as are kept."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


def result(held: HeldOut) -> dict[str, Any]:
    """All that is kept of a campaign: `overall` and `figures` of each run, by mode."""
    fitted = held.fitted()
    judgements = {mode: judged(held, fitted, mode) for mode in MODES}
    first = judgements["replay"].checks
    by_mode = {mode: {c.run.name: figures(c) for c in v.checks} for mode, v in judgements.items()}
    return {
        "calibrated_on": list(held.calibration),
        "provenance": first[0].run.provenance,
        "beside": beside(fitted),
        "overall": {mode: overall(validation) for mode, validation in judgements.items()},
        "runs": [
            {
                "run": check.run.name,
                "policy": check.label,
                "held_out": check.held_out,
                "steps": check.steps,
                "measured_s": rounded(check.total_s),
                **{mode: by_mode[mode][check.run.name] for mode in MODES},
            }
            for check in first
        ],
    }


@fails_in_words
def main(arguments: list[str] | None = None) -> int:
    """Forecasts and writes each campaign as soon as it is there."""
    options = parser(__doc__)
    options.add_argument("--only", choices=tuple(CAMPAIGNS), action="append", metavar="CAMPAIGN")
    given = options.parse_args(arguments)
    known = read_json(PATH, {"campaigns": {}})["campaigns"]
    for name in given.only or CAMPAIGNS:
        progress(f"{name}:")
        try:
            known[name] = result(CAMPAIGNS[name])
        except measured.AbsentError as error:
            progress(f"{error}: its last results are kept")
            continue
        ordered = {name: known[name] for name in CAMPAIGNS if name in known}
        write_json(PATH, {"draws": DRAWS, "campaigns": ordered})
    return 0


if __name__ == "__main__":
    sys.exit(main())
