"""Figures of runs, in the order of the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollcast.simulator.results.figure import Figure, Heading, Line, Values
from rollcast.simulator.results.phases import PHASES, STEP_PHASES, TAIL, PhaseName, bound_cell
from rollcast.simulator.results.target_figures import AFTER, TO_TARGET
from rollcast.simulator.results.text import (
    cost,
    count,
    factor,
    gigabytes,
    hours,
    interval,
    number,
    peak_note,
    peak_text,
    seconds,
    share,
)


def _per_step(name: str) -> Callable[[Values], float]:
    return lambda v: v[name] / max(v["steps"], 1)


def _of_generated(name: str) -> Callable[[Values], float]:
    return lambda v: v[name] / max(v["generated_tokens"], 1)


def _pair(write: Callable[[float], str], first: str, second: str) -> Callable[[Values], str]:
    return lambda v: f"{write(v[first])} / {write(v[second])}"


def _steady(v: Values) -> str:
    start, stop = v["steady_steps"]
    steps = f"{v['steps']}" if stop - start == v["steps"] else f"{stop - start} steady"
    startup = f" after {seconds(v['startup_s'])} of start-up" if start else ""
    return f"mean of {steps}{startup}, p95 {seconds(v['step_s_p95'])}"


def _speedup_interval(v: Values) -> str:
    """Empty for the baseline and without intervals."""
    if v["first"] or "speedup_low" not in v:
        return ""
    return f"{v['speedup_low']:.2f}-{v['speedup_high']:.2f}"


def _per_thousand(v: Values) -> float | None:
    rollouts = v["trained_rollouts"]
    return 1000 * v["makespan_s"] / rollouts if rollouts else None


def _idle_by_cause(v: Values) -> str:
    causes = v["bubble_by_cause"].items()
    listed = [f"{name} {share(part)}" for name, part in causes if part >= 0.0005]
    return "GPU time idle" + (f": {', '.join(listed)}" if listed else "")


def _hours_and_cost(v: Values) -> str:
    price = f", ${v['cost_usd']:,.2f}" if "cost_usd" in v else ""
    hours = v["gpu_hours"]
    return f"{hours:.2f} GPU-hours{price}" if hours >= 0.01 else f"{hours:.2g} GPU-hours{price}"


_LEAST = 5e-4  # of a step, that a phase's line or cell tells


def _phase(name: PhaseName) -> Callable[[Values], Values | None]:
    """A phase of `simulator.results.phases.said`; None where it takes no time."""

    def value(v: Values) -> Values | None:
        phase = v["phases"].get(name)
        if phase is None or phase["share"] < _LEAST:
            return None
        return {**phase, "beside": name == "generation" and v["overlapped"]}

    return value


def _phase_cell(phase: Values) -> str:
    """Seconds, and their interval below."""
    ends = [number(phase[end], 2) for end in ("low_s", "high_s") if end in phase]
    return "\n".join([number(phase["s"]), *(["-".join(ends)] if ends else [])])


def _phase_figure(name: PhaseName) -> Figure:
    value = _phase(name)

    def text(v: Values) -> str:
        phase = value(v)
        return "" if phase is None else seconds(phase["s"])

    def note(v: Values) -> str:
        phase = value(v) or {"share": 0.0, "beside": False}
        said = f"{share(phase['share'])} of the step"
        if "low_s" in phase:
            said += f", 90 % interval {interval((phase['low_s'], phase['high_s']))}"
        return said + (", beside the training" if phase["beside"] else "")

    label = name.replace("_", "-")
    indent = "    " if name == TAIL else "  "
    return Figure(
        f"phases.{name}",
        label,
        _phase_cell,
        STEP_PHASES[name].meaning,
        value,
        saved=False,
        run=Line(f"{indent}{label}", text, note),
    )


def _group_sizes(v: Values) -> str:
    return " / ".join(v["group_sizes"]) if len(v["group_sizes"]) > 1 else ""


def steps_by_group_size(summary: Values) -> str:
    """Steps of each group size."""
    return f"in {' / '.join(map(str, summary['group_sizes'].values()))} steps"


# Figures of runs, in the order of the tables

_TIMES: tuple[Figure, ...] = (
    Figure(
        "step_s",
        "step time",
        seconds,
        "mean, from one step's end to the next",
        run=Line(note=_steady),
        terminal=Heading("step\ntime"),
        page=True,
    ),
    Figure(
        "speedup",
        "speed-up",
        factor,
        "step time of the first policy over this one's",
        terminal=Heading("speed-\nup"),
        page=True,
        saved=False,
    ),
    Figure(
        "speedup_interval",
        "90 % interval",
        str,
        "of the speed-up",
        value=_speedup_interval,
        terminal=Heading("90 %\ninterval"),
        page=True,
        saved=False,
    ),
    Figure(
        "trained_rollouts_per_step",
        "rollouts trained",
        "{:.4g}".format,
        "mean of a step",
        terminal=Heading("rollouts\ntrained", footnote=True, if_differs=True),
        saved=False,
    ),
    Figure(
        "s_per_1000_rollouts",
        "per 1,000 rollouts",
        seconds,
        "time per thousand rollouts that were trained on",
        value=_per_thousand,
        page=True,
        saved=False,
    ),
    Figure("rollout_s", "rollout phase", seconds, "mean of a step", value=_per_step("rollout_s")),
    Figure("train_s", "train phase", seconds, "mean of a step", value=_per_step("train_s")),
    Figure("sync_s", "sync", seconds),
    Figure("switch_s", "switch", seconds),
)
_RATES: tuple[Figure, ...] = (
    Figure(
        "rollout_tokens_per_s",
        "rollout tokens/s",
        count,
        "generated, over rollout time",
        run=Line(),
        terminal=Heading("rollout\ntokens/s", drop=9),
    ),
    Figure(
        "throughput_gain",
        "gain",
        lambda gain: f"{100 * (gain - 1):+.0f}%",
        "rollout tokens/s against the first row",
        terminal=Heading(drop=1, footnote=True),
        saved=False,
    ),
    Figure("trained_tokens_per_s", "trained tokens/s", count, "over the whole run", run=Line()),
    Figure(
        "bubble_fraction",
        "bubble",
        share,
        "share of GPU time that is idle",
        run=Line(note=_idle_by_cause),
        terminal=Heading(),
        page=True,
    ),
    Figure(
        "underfilled_fraction",
        "underfilled",
        share,
        "rollout time below 1/4 of the peak load",
        run=Line(),
        saved=False,
    ),
    Figure(
        "straggler_rate",
        "stragglers",
        share,
        "groups whose max / median > 1.25",
        run=Line(),
        terminal=Heading("strag-\nglers", drop=5),
    ),
)
_LEARNING: tuple[Figure, ...] = (
    Figure(
        "staleness_mean",
        "staleness",
        "{:.2f}".format,
        "versions, mean over trained tokens",
        run=Line(),
        terminal=Heading("stale-\nness", drop=8),
        page=True,
    ),
    Figure(
        "truncated_share",
        "at cap",
        share,
        "responses cut at max_new_tokens",
        run=Line(),
        terminal=Heading("at\ncap", drop=2, footnote=True),
    ),
    Figure("generated_tokens", "tokens generated", count, run=Line()),
    Figure(
        "trained_tokens",
        "tokens trained",
        count,
        run=Line("  trained / masked", _pair(count, "trained_tokens", "masked_tokens")),
    ),
    Figure(
        "dropped_tokens",
        "dropped",
        share,
        "share of the tokens generated",
        value=_of_generated("dropped_tokens"),
        run=Line("  dropped / carried", _pair(count, "dropped_tokens", "carried_tokens"), ""),
        terminal=Heading("drop-\nped", drop=3, footnote=True),
    ),
    Figure(
        "reprefilled_tokens",
        "re-prefilled",
        share,
        "over the tokens generated",
        value=_of_generated("reprefilled_tokens"),
        run=Line(
            text=lambda v: count(v["reprefilled_tokens"]),
            note=lambda v: f"{v['preemptions']} preemptions",
        ),
        terminal=Heading("re-pre-\nfilled", drop=4, footnote=True),
    ),
    Figure(
        "length_bias",
        "length bias",
        "{:.2f}".format,
        "mean length of what is trained over what was launched",
        page=True,
        narrow=False,
    ),
    Figure(
        "peak_memory_bytes",
        "peak memory",
        gigabytes,
        "of a GPU, in the phase that comes closest to what it has",
        run=Line(text=peak_text, note=peak_note),
        terminal=Heading("peak\nmemory", drop=6, if_differs=True),
        page=True,
        narrow=False,
    ),
    Figure("makespan_s", "makespan", seconds, run=Line(note=_hours_and_cost)),
    Figure("gpu_hours", "GPU-hours", "{:.3g}".format),
    Figure(
        "group_sizes",
        "group sizes",
        str,
        run=Line(text=_group_sizes, note=steps_by_group_size),
        saved=False,
    ),
)
BY_PHASE: tuple[Figure, ...] = tuple(_phase_figure(name) for name in PHASES)
"""The phases of a step: a line each in the table of one run, a column each in tables of several."""

NOTES: Mapping[PhaseName, str] = {
    TAIL: "The tail is a part of generation.",
    "wait": "Where rollouts overlap training, a step is the sum with wait in place of generation.",
}
"""Of a table of phases, where it shows them."""

BOUND_BY = Figure(
    "bound_by",
    "bound by",
    str,
    "what bounds a step, and the share of the draws in which it does",
    bound_cell,
)
FIGURES = (*_TIMES[:1], *BY_PHASE, *_TIMES[1:], *_RATES, *_LEARNING, AFTER, *TO_TARGET)
"""Figures that the tables of runs show, in order. A figure is one entry here and its value in
`simulator.results.metrics.summarise`."""

WHOLE_RUN: tuple[Figure, ...] = (
    Figure("hours", "whole run", hours, "hours of it", terminal=Heading("whole\nrun")),
    Figure("cost", "cost", str, "of the whole run", lambda v: cost(v["usd"], v["gpu_hours"])),
    Figure(
        "break_even",
        "pays up to",
        factor,
        "times the updates of the best synchronous choice",
        terminal=Heading("pays\nup to"),
    ),
    Figure(
        "staleness_max",
        "oldest token",
        str,
        "versions behind, of what is trained on",
        terminal=Heading("oldest\ntoken"),
    ),
    Figure("simulated_steps", "steps", str, "simulated"),
)
"""Further figures of a plan's choices."""

NAMED: Mapping[str, Figure] = {figure.name: figure for figure in (*FIGURES, *WHOLE_RUN)}
"""All figures by name."""
