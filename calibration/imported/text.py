"""An outcome in sentences and rows, for the terminal and the page alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibration.imported.hold_out import Judged
from calibration.imported.model import Fit
from calibration.imported.outcome import Outcome
from calibration.logs.run_log import LEVELS, RunLog
from simulator.cli.console import seconds, share
from simulator.costs.scaled import PHASES

_SHAPES = {
    "roofline": "the roofline of the named model and GPU, with factors by phase",
    "linear": "straight lines through the log's own phases: nobody said which model and GPU it was",
    "none": "nothing: the log does not time its steps",
}
_MODES = {
    "predict": "predicted, with lengths drawn from the fit",
    "replay": "replayed, with the lengths that the steps had",
}


def levels(log: RunLog) -> str:
    """What was read, and at which level."""
    return LEVELS[log.level]


def judged(found: Judged) -> str:
    """How well the last third was forecast."""
    first, last = found.number[0], found.number[-1]
    held = f"step {first}" if first == last else f"steps {first} to {last}"
    inside = "inside" if found.total_covered else "outside"
    return (
        f"{held}, {_MODES[found.mode]} by a fit of {found.fitted_on} earlier steps: step time off "
        f"by {share(found.median_error)} in the median, run time by {100 * found.total_error:+.1f} "
        f"% ({inside} its 90 % interval); {share(found.covered)} of the steps inside theirs"
    )


def shape(known: Fit) -> str:
    """Where the costs' shape is from."""
    return _SHAPES[known.shape]


def factors(known: Fit) -> list[tuple[str, str, str, str]]:
    """Phase, factor, its 90 % interval, and what it is from."""
    rows = []
    for phase in PHASES:
        sd = known.levels.spreads.get(phase)
        if sd is None or phase == "rest":
            continue
        factor = known.levels.factors.get(phase, 1.0)
        low, high = (factor * math.exp(z * 1.645 * sd) for z in (-1, 1))
        source = known.levels.seen.get(phase, "assumed: not in the log")
        rows.append((phase, f"{factor:.3g}", f"{low:.3g} to {high:.3g}", source))
    return rows


def lengths(known: Fit, outcome: Outcome) -> list[tuple[str, str, str]]:
    """Key, value, and standard error of the fitted lengths."""
    found = known.lengths(outcome.drift)
    if known.rollouts is not None:
        errors = known.rollouts.lengths["standard_errors"]
        measured = known.rollouts.lengths.get("drift_measured")
        if measured is not None:
            found = {**found, "drift_per_step": measured}
    else:
        errors = known.few.errors() if known.few is not None else {}
        if known.few is not None:
            found = {**found, "drift_per_step": float(known.few.values[4])}
    return [(key, f"{value:.4g}", f"{errors[key]:.2g}" if key in errors else "-")
            for key, value in found.items()]  # fmt: skip


def advice_rows(found: Outcome) -> list[tuple[str, str, str, str]]:
    """What-if, speed-up, 90 % interval, and how to have it."""
    if found.advice is None:
        return []
    rows = []
    for each in found.advice.answers:
        words = each.words
        if each.why_not:
            rows.append((each.said, "-", "-", f"not simulated: {each.why_not}"))
        elif each.key == "as_run":
            rows.append((each.said, "1", "", f"{seconds(each.step_s)} a step, simulated"))
        else:
            rows.append((each.said, f"{each.speedup:.2f}x ({each.sure})",
                         f"{each.low:.2f} to {each.high:.2f}", words))  # fmt: skip
    return rows


def notes(found: Outcome, log: RunLog) -> list[str]:
    """What the user should know."""
    said: Sequence[str] = (*log.notes, *found.notes)
    return list(dict.fromkeys(said))
