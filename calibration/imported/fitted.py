"""fitted.json of an import: groups and lengths as a scenario reads them, and the fits behind it."""

from __future__ import annotations

from datetime import date
from typing import Any

from calibration.imported.hold_out import Judged
from calibration.imported.outcome import Outcome
from calibration.logs.run_log import RunLog
from simulator.results.fitted_file import SCHEMA

IMPORT_SCHEMA = "rollcast-import/1"


def to_json(log: RunLog, found: Outcome) -> dict[str, Any]:
    """The file's content. ``groups``, ``lengths`` and ``rewards`` are those of a fitted file;
    ``imported`` holds the fit of the costs, its judgement, and where all of it is from."""
    known = found.fit
    content: dict[str, Any] = {"schema": SCHEMA}
    imported: dict[str, Any] = {
        "schema": IMPORT_SCHEMA,
        "stack": log.stack,
        "level": log.level,
        "fitted_on": date.today().isoformat(),
        "steps": [int(found.used.number[0]), int(found.used.number[-1])] if len(found.used) else [],
        "changes": [{"step": each.step, "what": each.what} for each in found.changes],
        "drift": found.drift,
        "notes": list(found.notes),
        "assumed": [part.key for part in found.parts if part.assumed],
        "files": [tally.file for tally in log.tallies],
        "hold_out": [_judged(each) for each in found.judged],
    }
    if known is not None:
        imported["shape"] = known.shape
        imported["cost"] = known.cost
        imported["levels"] = {
            phase: {
                "factor": known.levels.factors.get(phase, 1.0),
                "log_sd": sd,
                "from": known.levels.seen.get(phase),
            }
            for phase, sd in known.levels.spreads.items()
        }
        imported["steps_fitted"] = known.steps
        imported["step_ratios"] = [round(float(r), 5) for r in known.ratios]
        imported["tokens_from"] = known.tokens_from or None
        if known.rollouts is not None:
            content["groups"] = known.rollouts.groups.to_mapping()
            content["lengths"] = known.rollouts.lengths
            if known.rollouts.rewards is not None:
                content["rewards"] = known.rollouts.rewards
        elif known.few is not None:
            content["lengths"] = {
                "lengths": {"family": "lognormal", **known.lengths(found.drift)},
                "standard_errors": known.few.errors(),
                "drift_measured": float(known.few.values[4]),
            }
    if found.advice is not None:
        imported["advice"] = {
            "bottleneck": list(found.advice.bottleneck),
            "draws": found.advice.draws,
            "divided": found.advice.divided,
            "what_ifs": [
                {"key": a.key, "said": a.said, "speedup": a.speedup, "low": a.low, "high": a.high,
                 "step_s": a.step_s, "settings": a.words, "why_not": a.why_not}
                for a in found.advice.answers
            ],
        }  # fmt: skip
    content["imported"] = imported
    return content


def _judged(each: Judged) -> dict[str, Any]:
    return {
        "mode": each.mode,
        "steps": each.number.tolist(),
        "measured_s": each.measured_s.tolist(),
        "forecast_s": each.forecast_s.tolist(),
        "low_s": each.low_s.tolist(),
        "high_s": each.high_s.tolist(),
        "total_s": each.total_s,
        "total_interval_s": [each.total_low_s, each.total_high_s],
        "median_error": each.median_error,
        "total_error": each.total_error,
        "covered": each.covered,
    }
