"""fitted.json of an import: groups and lengths as a scenario reads them, and the fits behind it."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import date
from typing import Any

from rollcast.calibration.importing import Outcome, fitted_groups
from rollcast.calibration.judge.hold_out import Judged
from rollcast.calibration.judge.phases import said_of
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.results.fitted_file import SCHEMA

IMPORT_SCHEMA = "rollcast-import/1"


def to_json(log: RunLog, outcome: Outcome) -> dict[str, Any]:
    """The file's content. ``groups``, ``lengths`` and ``rewards`` are those of a fitted file;
    ``imported`` holds the fit of the costs, its judgement, and where all of it is from."""
    known = outcome.fit
    content: dict[str, Any] = {"schema": SCHEMA}
    imported: dict[str, Any] = {
        "schema": IMPORT_SCHEMA,
        "stack": log.stack,
        "level": log.level,
        "fitted_on": date.today().isoformat(),
        "steps": [int(outcome.used.number[0]), int(outcome.used.number[-1])]
        if len(outcome.used)
        else [],
        "changes": [{"step": change.step, "what": change.what} for change in outcome.changes],
        "drift": outcome.drift,
        "notes": list(outcome.notes),
        "assumed": [part.key for part in outcome.parts if part.assumed],
        "files": [tally.file for tally in log.tallies],
        "hold_out": [_judged(judged) for judged in outcome.judged],
        **said_of(log, outcome.used),
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
            content["groups"] = fitted_groups(known, outcome.drift, outcome.parts)
            content["lengths"] = known.rollouts.lengths
            if known.rollouts.rewards is not None:
                content["rewards"] = known.rollouts.rewards
        elif known.few is not None:
            content["lengths"] = {
                "lengths": {"family": "lognormal", **known.lengths(outcome.drift)},
                "standard_errors": known.few.errors(),
                "drift_measured": float(known.few.values[4]),
            }
    if outcome.step is not None:
        imported["simulated_step"] = asdict(outcome.step)
    if outcome.what_if is not None:
        imported["what_if"] = {"asked": outcome.what_if[0], **asdict(outcome.what_if[1])}
    if outcome.advice is not None:
        answers = [asdict(answer) for answer in outcome.advice.answers]
        imported["advice"] = {
            "bottleneck": list(outcome.advice.bottleneck),
            "draws": outcome.advice.draws,
            "divided": outcome.advice.divided,
            "what_ifs": [{"settings": answer.pop("words"), **answer} for answer in answers],
        }
    content["imported"] = imported
    return content


def _judged(judged: Judged) -> dict[str, Any]:
    return {
        "mode": judged.mode,
        "steps": judged.number.tolist(),
        **judged.by_step(),
        "total_s": judged.total_s,
        "total_interval_s": [judged.total_low_s, judged.total_high_s],
        "median_error": judged.median_error,
        "total_error": judged.total_error,
        "given_error": judged.given_error if math.isfinite(judged.given_error) else None,
        "covered": judged.covered,
    }
