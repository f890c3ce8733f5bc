"""An outcome in sentences and rows, for the terminal and the page alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollcast.calibration.fits.model import Fit
from rollcast.calibration.importing import Outcome
from rollcast.calibration.judge.hold_out import Judged
from rollcast.calibration.logs.run_log import LEVELS, RunLog
from rollcast.simulator.cli.console import console
from rollcast.simulator.costs.scaled import PHASES
from rollcast.simulator.results.text import interval, seconds, share

_SHAPES = {
    "roofline": "roofline of the named model and GPU, scaled by a fitted factor per phase",
    "linear": "linear fits to the log's own phases, as model or GPU are not known, or the roofline "
    "does not take the run (a note says why)",
    "none": "not fitted: the log does not time what a step consists of",
}
_CURVE = 10  # logged steps with a reward
_MODES = {
    "predict": "predicted with lengths drawn from the fit",
    "replay": "replayed with the lengths that the steps had",
}


def levels(log: RunLog) -> str:
    """What was read, and at which level."""
    return LEVELS[log.level]


def judged(judgement: Judged) -> str:
    """How well the last third was forecast."""
    first, last = judgement.number[0], judgement.number[-1]
    held = f"step {first}" if first == last else f"steps {first} to {last}"
    inside = "inside" if judgement.total_covered else "outside"
    given = ""
    if math.isfinite(judgement.given_error):
        error = f"{100 * judgement.given_error:+.1f} %"
        given = f", {error} had the mean and longest response of each been known"
    return (
        f"{held}, {_MODES[judgement.mode]} (fitted to {judgement.fitted_on} earlier steps): "
        f"median error of step time {share(judgement.median_error)}, error of run time "
        f"{100 * judgement.total_error:+.1f} % ({inside} its 90 % interval){given}; "
        f"{share(judgement.covered)} of the steps lie inside theirs"
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
    fitted = known.lengths(outcome.drift)
    if known.rollouts is not None:
        errors = known.rollouts.lengths["standard_errors"]
        measured = known.rollouts.lengths.get("drift_measured")
        if measured is not None:
            fitted = {**fitted, "drift_per_step": measured}
    else:
        errors = known.few.errors() if known.few is not None else {}
        if known.few is not None:
            fitted = {**fitted, "drift_per_step": float(known.few.values[4])}
    return [
        (key, f"{value:.4g}", f"{errors[key]:.2g}" if key in errors else "-")
        for key, value in fitted.items()
    ]


def step(outcome: Outcome) -> str:
    """What a step of the scenario takes."""
    assert outcome.step is not None
    of = outcome.step
    ends = of.low_s, of.high_s
    return (
        f"a step of the scenario takes {seconds(of.seconds, like=ends[1])} "
        f"(90 % interval {interval(ends)}), "
        f"simulated over {of.steps} steps"
    )


def what_if(outcome: Outcome) -> str:
    """What a step takes as asked, beside now."""
    assert outcome.what_if is not None
    assert outcome.step is not None
    said, changed = outcome.what_if
    between = interval((changed.low_s, changed.high_s))
    return (
        f"with {said}: {seconds(changed.seconds)} a step (90 % interval {between}), "
        f"{changed.seconds / outcome.step.seconds:.2f} times now's {seconds(outcome.step.seconds)}"
    )


def advice_rows(outcome: Outcome) -> list[tuple[str, str, str, str]]:
    """What-if, speed-up, 90 % interval, and how to have it."""
    if outcome.advice is None:
        return []
    rows = []
    for answer in outcome.advice.answers:
        if answer.why_not:
            rows.append((answer.said, "-", "-", f"not simulated: {answer.why_not}"))
        elif answer.key == "as_run":
            rows.append((answer.said, "1", "", f"{seconds(answer.step_s)} a step, simulated"))
        else:
            speedup = f"{answer.speedup:.2f}x ({answer.sure})"
            interval = f"{answer.low:.2f} to {answer.high:.2f}"
            rows.append((answer.said, speedup, interval, answer.words))
    return rows


def notes(outcome: Outcome, log: RunLog) -> list[str]:
    """What the user should know."""
    sentences: Sequence[str] = (*log.notes, *outcome.notes)
    return list(dict.fromkeys(sentences))


def reward(log: RunLog) -> str | None:
    """How the reward went, and whether a law of learning can be fitted to it; None without one."""
    known = log.steps.dropna(subset=["mean_reward"])
    values, numbers = known["mean_reward"].to_numpy(), known["step"].to_numpy()
    if len(values) < _CURVE:
        return None
    part = len(values) // 10 or 1
    sentence = (
        f"mean reward {values[:part].mean():.3g} over the first {part} logged steps, "
        f"{values[-part:].mean():.3g} over the last {part}, {numbers[-1] - numbers[0]} steps later"
    )
    if values.min() < 0 or values.max() > 1:
        return f"{sentence}; it is no accuracy from 0 to 1, so no law of learning is fitted to it"
    return (
        f"{sentence}; with the log of another run of the task, rollcast calibrate --learning fits "
        "a law of learning to both"
    )


def show_outcome(log: RunLog, outcome: Outcome) -> None:
    """Prints fits, their judgement, the advice and notes."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    known = outcome.fit
    if known is not None:
        screen.print(Text(f"costs: {shape(known)}"))
        rows = [
            f"{phase} {factor} ({interval})"
            for phase, factor, interval, source in factors(known)
            if not source.startswith("assumed")
        ]
        if rows:
            screen.print(Text(f"factors, 90 %: {'; '.join(rows)}"))
        rows = [f"{key} {value} +- {error}" for key, value, error in lengths(known, outcome)]
        if rows:
            screen.print(Text(f"lengths: {'; '.join(rows)}"))
    if (sentence := reward(log)) is not None:
        screen.print(Text(sentence))
    for judgement in outcome.judged:
        screen.print(Text(f"forecast of {judged(judgement)}", style="bold"))
    if outcome.step is not None:
        screen.print(Text(step(outcome), style="bold"))
    if outcome.what_if is not None:
        screen.print(Text(what_if(outcome), style="bold"))
    if outcome.advice is not None:
        for line in outcome.advice.bottleneck:
            screen.print(Text(line))
        grid = Table(title=Text("what would make it faster"), title_justify="left")
        for name in ("change", "speed-up", "90 % interval", "how, in this stack"):
            grid.add_column(name, overflow="fold")
        for row in advice_rows(outcome):
            grid.add_row(*(Text(cell) for cell in row))
        screen.print(grid)
    for note in notes(outcome, log):
        if note not in log.notes:
            screen.print(Text(f"note: {note}"))
