"""From a log to what it is good for: fits, their judgement, a scenario, advice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

from rollcast.calibration.fits import log_responses as own_rollouts
from rollcast.calibration.fits import model as fits
from rollcast.calibration.fits.log_scenario import carries_over, setting
from rollcast.calibration.fits.model import Drift, Fit
from rollcast.calibration.fits.steps import (
    LEAST_STEPS,
    Change,
    Steps,
    changes,
    other_lengths,
    steps_of,
)
from rollcast.calibration.judge import advice as what_if
from rollcast.calibration.judge import whole
from rollcast.calibration.judge.advice import Advice
from rollcast.calibration.judge.asked import Asked, changed_step
from rollcast.calibration.judge.beside import beside
from rollcast.calibration.judge.hold_out import Judged, hold_out, run_level
from rollcast.calibration.judge.pace import with_pace
from rollcast.calibration.judge.whole import FITTED_FILE, Step
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.launches.parts import Part, replaced
from rollcast.simulator.results.text import seconds

FAR_OFF, HOPELESS = 1.5, 3.0
"""Times by which a forecast of the held-out run time may be off. Logs of busy machines and growing
lengths stay below the first, or their intervals say so (docs/importing.md); one that is further off
and outside its own interval is of another run. Beyond the second an interval says nothing."""


@dataclass(frozen=True)
class Outcome:
    """parts: of the scenario, complete as far as the log and the user allow. fit: None where
    nothing could be fitted. judged: forecasts of the last third. changes: where the run changed; of
    the last part alone is all the rest. used: steps of it. notes: what the user should know.
    step: of the scenario, simulated. refused: why the fit is no good for a scenario or advice;
    empty if it is. what_if: what was asked, and the step with it.
    """

    parts: tuple[Part, ...]
    fit: Fit | None
    judged: tuple[Judged, ...]
    changes: tuple[Change, ...]
    used: Steps
    drift: Drift
    advice: Advice | None = None
    notes: tuple[str, ...] = field(default=())
    step: Step | None = None
    refused: str = ""
    what_if: tuple[str, Step] | None = None


def drift_of(text: str) -> Drift:
    """What ``--drift`` says. Raises ScenarioError for anything else."""
    if text not in get_args(Drift):
        raise ScenarioError("--drift", f"must be auto, freeze or extrapolate, got {text!r}")
    return cast(Drift, text)


def outcome(
    log: RunLog, parts: Sequence[Part], drift: Drift = "auto", advised: bool = True
) -> Outcome:
    """Fits the log. parts: of its scenario, as `calibration.logs.draft` gives them. drift: how
    lengths go on after its end. advised: whether to simulate what-ifs.
    """
    steps = steps_of(log)
    if (other := other_lengths(steps)) is not None:
        return Outcome(tuple(parts), None, (), (other,), steps, drift, refused=_apart(other))
    changed = changes(steps)
    used = steps.rows(changed[-1].place, len(steps)) if changed else steps
    notes = [f"from step {change.step} on, {change.what}" for change in changed]
    if changed:
        notes.append(f"fitted to steps {used.number[0]} to {used.number[-1]} alone")
        parts = replaced(parts, _resized(used, parts))
    if used.quiet.sum() < LEAST_STEPS:
        notes.append(
            f"{int(used.quiet.sum())} of the steps after the first can be fitted, and at least "
            f"{LEAST_STEPS} are needed: nothing is fitted, and what the scenario's steps take is "
            "not what the log's did"
        )
        return Outcome(tuple(parts), None, (), changed, used, drift, None, tuple(notes))
    cap = int(setting(parts, "workload.max_new_tokens"))
    rollouts = own_rollouts.rollouts_of(log, used, cap)
    if rollouts is not None and rollouts.tokens_from == own_rollouts.FROM_CHARACTERS:
        notes.append(
            "tokens of the dumped text are estimated from its characters and each "
            "step's logged mean; --tokenizer counts them"
        )
    if rollouts is not None and rollouts.tokens_from == own_rollouts.FROM_TOKENIZER:
        notes.append(_counted(log, rollouts, used))
    several = log.overlapped or carries_over(parts)
    judged: tuple[Judged, ...] = ()
    advice = None
    with beside(lambda: hold_out(log, used, tuple(parts), rollouts, drift, several)) as judged_of:
        try:
            known = fits.fit(log, used, tuple(parts), rollouts)
            known = with_pace(known, used, drift) if several else known
        except ScenarioError as error:
            notes.append(f"the log's settings give no valid scenario ({error}): nothing was fitted")
            return Outcome(tuple(parts), None, (), changed, used, drift, None, tuple(notes))
        try:
            judged = judged_of()
        except ScenarioError as error:
            notes.append(f"the last third was not forecast ({error})")
    notes.extend(known.notes)
    notes.extend(_drifting(known, drift))
    made = _few_enough(scenario_parts(known, drift))
    refused = refusal(judged)
    step = None
    if not refused and known.forecasts:
        try:
            step = _step(known, made, drift)
        except (ScenarioError, RunError) as error:
            notes.append(f"the scenario cannot be simulated ({error})")
    if advised and step is not None:
        try:
            advice = what_if.advise(known, log, used, drift).at(step.seconds)
        except ScenarioError as error:
            notes.append(f"no change was simulated ({error})")
    return Outcome(made, known, judged, changed, used, drift, advice, tuple(notes), step, refused)


def with_what_if(found: Outcome, want: Asked | None) -> Outcome:
    """The outcome with what a step takes as asked. Raises ScenarioError (``--what-if``) where
    nothing can be simulated, or not so."""
    if want is None or found.refused:
        return found
    if found.fit is None or found.step is None:
        raise ScenarioError("--what-if", "nothing can be simulated: see the notes of the import")
    groups = fitted_groups(found.fit, found.drift, found.parts)
    try:
        step = changed_step(found.fit, found.parts, groups, found.step, want)
    except RunError as error:
        raise ScenarioError("--what-if", str(error)) from None
    return replace(found, what_if=(want.text, step))


def refusal(judged: Sequence[Judged]) -> str:
    """Why a fit with these forecasts of held-out steps is no good; empty where it is."""
    for one in judged:
        if one.mode != "predict":
            continue
        times = one.total_s / max(float(one.measured_s.sum()), 1e-12)
        off = max(times, 1 / max(times, 1e-12))
        if off <= FAR_OFF or (one.total_covered and off <= HOPELESS):
            continue
        first, last, count = one.number[0], one.number[-1], len(one.number)
        took, forecast = float(one.measured_s.sum()) / count, one.total_s / count
        return (
            f"steps {first} to {last} took {seconds(took)} each, and {seconds(forecast)} were "
            f"forecast from the {one.fitted_on} before them: the run is no longer what it was, and "
            f"no scenario is made of both. Give the steps that are alike, such as --steps {first}: "
            f"or --steps :{first - 1}"
        )
    return ""


def _apart(other: Change) -> str:
    """Why no scenario is made of a run whose responses became others."""
    return (
        f"from step {other.step} on, {other.what}: the run is no longer what it was, and no "
        f"scenario is made of both. Give the steps that are alike, --steps {other.step}: or "
        f"--steps :{other.step - 1}"
    )


def _drifting(known: Fit, drift: Drift) -> list[str]:
    """What is taken of lengths that change over the log."""
    if drift != "auto" or not known.trend:
        return []
    a_step = 100 * math.expm1(known.trend)
    return [
        f"responses still changed by {a_step:+.2g} % a step in the later half of the log: the "
        "scenario goes on so, ever less; intervals also hold lengths that stay (--drift freeze) "
        "and the slope of the whole log (--drift extrapolate)"
    ]


def fitted_groups(known: Fit, drift: Drift, parts: Sequence[Part]) -> dict[str, Any] | None:
    """``groups`` of the fitted file beside the scenario; None where its lengths need no file."""
    groups = known.groups(drift, int(setting(parts, "steps")))
    return None if groups is None else groups.to_mapping()


def _step(known: Fit, parts: Sequence[Part], drift: Drift) -> Step:
    """Raises ScenarioError or RunError."""
    count = whole.steps_for(parts)
    taken_s = whole.step_s(parts, fitted_groups(known, drift, parts), count)
    low, high = run_level(known, count, drift)
    return Step(taken_s, low * taken_s, high * taken_s, count)


def _few_enough(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """With no more steps than are simulated for the step that is told, so that a simulation of the
    file gives the same."""
    held, count = int(setting(parts, "steps")), whole.steps_for(parts)
    if count == held:
        return parts
    source = f"as many of the log's {held} as its step is simulated over"
    return replaced(parts, [Part("steps", count, source)])


def _counted(log: RunLog, rollouts: own_rollouts.Rollouts, used: Steps) -> str:
    """How the tokenizer's counts compare with the log's own means."""
    means = rollouts.table.groupby("step")["new_tokens"].mean().reindex(used.number)
    ratio = float((means.to_numpy() / used.column("mean_new_tokens")).mean())
    sentence = "tokens of the dumped text are counted with the given tokenizer"
    if not math.isfinite(ratio):
        return f"{sentence}; the log has no means to compare them with"
    return f"{sentence}: {ratio:.3f} times the logged means"


def _resized(used: Steps, parts: Sequence[Part]) -> list[Part]:
    """The batch of the last part of a run that changed it."""
    rollouts = used.median("rollouts")
    size = int(setting(parts, "workload.group_size"))
    parts_resized = []
    if math.isfinite(rollouts) and rollouts >= 1:
        groups = max(round(rollouts / size), 1)
        if groups != setting(parts, "workload.batch_groups"):
            source = f"rollouts of the median step from step {used.number[0]} on"
            parts_resized.append(Part("workload.batch_groups", groups, source))
    longest = used.median("max_new_tokens")
    cut = used.median("truncated_share")
    cap = setting(parts, "workload.max_new_tokens")
    if math.isfinite(longest) and cut > 0 and longest != cap:
        parts_resized.append(
            Part(
                "workload.max_new_tokens",
                round(longest),
                f"where responses are cut from step {used.number[0]} on",
            )
        )
    return parts_resized


def scenario_parts(known: Fit, drift: Drift) -> tuple[Part, ...]:
    """The fitted scenario: what is fitted in the place of what was assumed."""
    over = f"fitted to {known.steps} steps"
    if known.rollouts is not None:
        gone = ("workload.lengths", "workload.prompt_tokens", "workload.rewards")
        kept = tuple(p for p in known.parts if not p.key.startswith(gone))
        groups = len(known.rollouts.groups)
        parts = replaced(
            kept,
            [Part("workload.lengths.file", FITTED_FILE, f"{groups} groups of the run, resampled")],
        )
    elif known.few is not None:
        fitted, errors = known.lengths(drift), known.few.errors()
        lengths = [Part("workload.lengths.family", "lognormal", "assumed", True)]
        for key, value in fitted.items():
            source = f"{over}, from their mean, longest and cut responses: +- {errors[key]:.2g}"
            if key == "drift_per_step" and not known.followed(drift):
                source = f"assumed: lengths stay; measured {known.few.lengths()[key]:+.2g}"
            elif key == "drift_per_step" and drift == "auto":
                source = (
                    f"as in the later half of the log, fading; all of it {known.few.values[4]:+.2g}"
                )
            lengths.append(
                Part(
                    f"workload.lengths.{key}",
                    float(f"{value:.5g}"),
                    source,
                    source.startswith("assumed"),
                )
            )
        parts = replaced(known.parts, [])
        parts = tuple(p for p in parts if not p.key.startswith("workload.lengths"))
        parts = replaced(parts, lengths)
    else:
        parts = known.parts
    return replaced(parts, _cost_parts(known, over))


def _cost_parts(known: Fit, over: str) -> list[Part]:
    cost_section = []
    for name in known.coefficients:
        linear = known.cost["linear"][name]
        cost_section.append(Part(f"cost.linear.{name}", linear, _linear_source(name, known, over)))
    if known.cost.get("linear", {}).get("padded"):
        cost_section.append(
            Part("cost.linear.padded", True, "the trainer's code or settings: it pads its batches")
        )
    if known.shape == "roofline" and not any(p.key.startswith("cost.") for p in known.parts):
        cost_section.append(Part("cost.roofline", {}, "shape of the named model and GPU"))
    for key, value in known.cost.get("scale", {}).items():
        phase = key.removesuffix("_sd")
        if key == "opening":
            cost_section += [
                Part(f"cost.scale.opening.{name}", seconds, f"{over}: {_OPENING[name]}")
                for name, seconds in value.items()
            ]
        elif phase in known.levels.seen:
            source = f"{over}: {known.levels.seen[phase]} over its forecast"
            cost_section.append(Part(f"cost.scale.{key}", value, source))
        else:
            cost_section.append(Part(f"cost.scale.{key}", value, "assumed: not in the log", True))
    return cost_section


_OPENING = {
    "seconds": "generation that does not depend on lengths, by steps and a prior",
    "rollouts": "rollouts of such a step",
    "sd": "how sure that is",
    "decode_s": "the rest of the median step's generation",
}
_FROM = {
    "iteration_s": "decode",
    "per_rollout_s": "decode",
    "per_prefill_token_s": "prefill",
    "train_per_token_s": "update",
    "train_per_rollout_s": "update",
    "log_prob_per_token_s": "log_prob",
    "sync_s": "sync",
    "switch_to_rollout_s": "switch",
    "train_fixed_s": "rest",
}


def _linear_source(name: str, known: Fit, over: str) -> str:
    if name == "per_prefill_token_s":
        return "assumed: a forward's on the trainer's GPUs, at most what a sampled token takes"
    if not known.cost["linear"][name]:
        return "none in the log"
    phase = _FROM.get(name, "")
    figure = known.levels.seen.get(phase, "what remains of a step" if phase == "rest" else "")
    return f"{over}: {figure}" if figure else over
