"""From run folders to a fitted file: costs, lengths and rewards, each with its uncertainty."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from calibration import iterations, responses, updates
from calibration.folder import RunFolder, check_alike
from calibration.robust import FloatArray, median_error
from simulator.costs.fitted import SCHEMA, FittedCost, read_json
from simulator.errors import ScenarioError
from simulator.output import plain

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
    def policies(self) -> list[str]:
        """The policies that it was calibrated on."""
        return [str(policy) for policy in self.content["policies"]]

    def write(self, path: Path) -> None:
        """Writes the file, whole or not at all. Raises ScenarioError (``-o``)."""
        text = json.dumps(plain(self.content), indent=1, allow_nan=False) + "\n"
        work = None
        try:
            if path.is_dir():
                raise ScenarioError("-o", f"{path} is a folder; give a file")
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, work = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(work, 0o644)
            os.replace(work, path)
        except OSError as error:
            message = f"cannot write {path}: {error.strerror or error}"
            raise ScenarioError("-o", message) from None
        finally:
            if work is not None:
                with suppress(OSError):
                    os.unlink(work)

    @classmethod
    def read(cls, path: Path) -> Fitted:
        """Reads a fitted file. Raises ScenarioError (``cost.file``) for another schema, and where
        something that a forecast needs is missing."""
        content = read_json(path)
        fitted = cls(content, path.name)
        assert fitted.cost is not None  # checks the schema and the costs
        for key in ("lengths", "rewards", "prompt_tokens", "fits", "step_ratios", "policies"):
            if key not in content:
                raise ScenarioError("cost.file", f"{path.name} has no {key!r}; calibrate again")
        return fitted


def calibrate(folders: Sequence[Path]) -> Fitted:
    """Fits everything that a forecast needs to the runs in ``folders``.

    Raises ScenarioError (``RUN_DIR``), naming folder and file: for no runs, one given twice,
    missing files or columns, another schema, too few samples, and mixed hardware, versions or
    engines.
    """
    if not folders:
        raise ScenarioError("RUN_DIR", "no run was given")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ScenarioError("RUN_DIR", "a run is given twice")
    runs = [RunFolder.open(folder) for folder in folders]
    check_alike(runs)
    samples = iterations.collect(runs)
    of_iterations = iterations.fit_iterations(samples)
    done = updates.collect(runs)
    dense, shared = updates.fit_updates(done, False), updates.fit_updates(done, True)
    if dense is None:
        raise ScenarioError(
            "RUN_DIR", f"fewer than {updates.MIN_UPDATES} dense updates; add a run without a prefix"
        )
    rest = updates.overheads(runs)
    found = responses.collect(runs)
    of_lengths = responses.lengths(found)
    of_rewards = responses.rewards(found, of_lengths["lengths"])
    middle = {name: float(np.median(seconds)) for name, seconds in rest.items()}
    return Fitted(
        {
            "schema": SCHEMA,
            "cost": {
                "iteration": of_iterations.cost(),
                "dense": dense.cost(),
                "shared_prefix": None if shared is None else shared.cost(),
                "sync_s": middle["sync"],
                "switch_to_train_s": middle["to_train"],
                "switch_to_rollout_s": middle["to_rollout"],
                "packing": updates.packing(runs[0], done.padded),
                "skips_equal_rewards": done.skips_equal_rewards,
            },
            "range": _covered(samples, done, found),
            "policies": sorted({run.policy for run in runs}),
            "fits": {
                "iteration": iterations.describe(of_iterations, samples),
                "dense": updates.describe(dense),
                "shared_prefix": None if shared is None else updates.describe(shared),
                "overheads": {name: _spread(seconds) for name, seconds in rest.items()},
            },
            "covariance": {
                "iteration": _covariance(of_iterations.fit.names, of_iterations.fit.covariance),
                "dense": _covariance(dense.fit.names, dense.fit.covariance),
            },
            "step_ratios": _step_ratios(runs, of_iterations, done, dense, shared, rest),
            "lengths": of_lengths,
            "rewards": of_rewards,
            "prompt_tokens": responses.prompts(found),
            "provenance": _provenance(runs),
        }
    )


def _covered(
    samples: iterations.Samples, done: updates.Updates, found: responses.Responses
) -> dict[str, list[int]]:
    counts = samples.counts
    total = found.prompt_tokens + found.tokens
    ranges = {
        "rollouts": counts["rollouts"],
        "context_tokens": counts["context_tokens"],
        "prefill_tokens": counts["prefill_tokens"],
        "train_tokens": done.computed,
        "rollout_tokens": total,
    }
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


def _covariance(names: Sequence[str], matrix: FloatArray) -> dict[str, Any]:
    return {"names": list(names), "matrix": matrix.tolist()}


def _step_ratios(
    runs: Sequence[RunFolder],
    of_iterations: iterations.IterationFit,
    done: updates.Updates,
    dense: updates.UpdateFit,
    shared: updates.UpdateFit | None,
    rest: dict[str, FloatArray],
) -> list[list[float]]:
    """Measured over typical time of each step in order: rollout, update, and all the rest; then the
    number of its run. A busy machine slows neighbouring steps alike, and some runs altogether, so a
    forecast draws a run, and stretches of its steps."""
    update = np.ones(len(done.train_s))
    for layout, found in ((False, dense), (True, shared)):
        mine = done.shared == layout
        if found is not None:
            update[mine] = found.ratios
    others = rest["sync"] + rest["to_train"] + rest["to_rollout"]
    count = min(len(of_iterations.step_ratios), len(update), len(others), _MAX_RESIDUALS)
    number = np.repeat(np.arange(len(runs)), [len(run.steps["step"]) for run in runs])
    relative = others / max(float(np.median(others)), 1e-12)
    columns = (of_iterations.step_ratios, update, relative, number)
    return np.column_stack([column[:count] for column in columns]).round(6).tolist()  # type: ignore[no-any-return]


def _provenance(runs: Sequence[RunFolder]) -> dict[str, Any]:
    return {
        **{key: value for key, value in runs[0].provenance.items() if key != "date"},
        "fitted_on": date.today().isoformat(),
        "measured_on": sorted({str(run.provenance.get("date")) for run in runs}),
        "engine": runs[0].scenario.get("engine"),
        "runs": [
            {"name": run.name, "policy": run.policy, "seed": run.seed,
             "steps": len(run.steps["step"]), "makespan_s": run.summary.get("makespan_s")}
            for run in runs
        ],
    }  # fmt: skip
