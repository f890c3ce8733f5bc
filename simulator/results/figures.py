"""Figures of runs: the name, label, meaning and text of each, and the tables that show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rollcast.simulator.results.phases import PHASES, STEP_PHASES, TAIL, PhaseName, bound_cell


def seconds(value: float | None, like: float | None = None) -> str:
    """Text of a duration; "-" for None. like: whose unit is taken, where several stand in one line;
    None: its own."""
    if value is None:
        return "-"
    size = value if like is None else like
    if size >= 7200:
        return f"{value / 3600:.2f} h"
    if size >= 600:
        return f"{value / 60:.1f} min" if value >= 60 else f"{value / 60:.2g} min"
    return f"{value:.3g} s" if value < 100 else f"{value:.1f} s"


def interval(ends: Sequence[float], write: Callable[[float], str] | None = None) -> str:
    """Text of an interval; its unit once. write: of both ends; None: seconds, in the unit of the
    higher one."""
    first, last = map(write or partial(seconds, like=ends[1]), ends)
    number, _, unit = first.partition(" ")
    return f"{number if unit and last.endswith(f' {unit}') else first} to {last}"


def hours(value: float, like: float | None = None) -> str:
    """Text of the duration of a whole run. value: hours. like: whose unit is taken, where several
    stand in one line; None: its own."""
    size = value if like is None else like
    if size >= 96:
        return f"{value / 24:,.{1 if value < 2400 else 0}f} days"
    if size >= 1:
        return f"{value:.0f} h" if value >= 10 else f"{value:.1f} h"
    if size >= 1 / 30:
        return (
            f"{60 * value:.0f} min" if value >= 1 / 6 or like is None else f"{60 * value:.2g} min"
        )
    return f"{3600 * value:.3g} s"


def usd(value: float) -> str:
    """Text of an amount of US dollars."""
    if value >= 10:
        return f"${value:,.0f}"
    return f"${value:.2f}" if value >= 0.1 or not value else f"${value:.1g}"


def cost(usd_or_none: float | None, gpu_hours: float) -> str:
    """Text of a run's cost: dollars, or GPU-hours for a GPU without a price."""
    if usd_or_none is None:
        return f"{gpu_hours:,.0f} GPU-hours" if gpu_hours >= 100 else f"{gpu_hours:.3g} GPU-hours"
    return usd(usd_or_none)


def count(value: float) -> str:
    """Text of a count."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}"


def share(value: float | None) -> str:
    """Text of a share, in per cent."""
    return "-" if value is None or value != value else f"{100 * value:.1f} %"


factor = "{:.2f}x".format

Values = Mapping[str, Any]
"""Figures by name: a run's summary.json, a row of `simulator.studies.compare.compared`, a row of a
plan."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line in the table of one run. label and note replace the figure's label and meaning; text
    replaces its text. A line without text is left out."""

    label: str = ""
    text: Callable[[Values], str] | None = None
    note: str | Callable[[Values], str] | None = None


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of the terminal's comparison.

    text: the label with line breaks. drop: a narrow terminal drops the lowest first, never 0.
    footnote: whether the meaning stands below the table. if_differs: show it only where policies
    differ.
    """

    text: str = ""
    drop: int = 0
    footnote: bool = False
    if_differs: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run.

    name: its key in `Values`. write: its text. value: computes it; by default the value under
    ``name``. None becomes "-". saved: whether comparison.json and comparison.csv hold it. run,
    terminal, page: its line in the table of one run, its column in the terminal's comparison and on
    the page of one. narrow: whether a phone shows the page's column.
    """

    name: str
    label: str
    write: Callable[[Any], str]
    meaning: str = ""
    value: Callable[[Values], Any] | None = None
    saved: bool = True
    run: Line | None = None
    terminal: Heading | None = None
    page: bool = False
    narrow: bool = True

    @property
    def heading(self) -> str:
        """The terminal's column heading."""
        return (self.terminal.text if self.terminal else "") or self.label

    def value_in(self, values: Values) -> Any:
        """The figure; None if there is none."""
        return values.get(self.name) if self.value is None else self.value(values)

    def text(self, values: Values) -> str:
        """The figure's text."""
        value = self.value_in(values)
        return "-" if value is None else self.write(value)

    def line(self, summary: Values) -> tuple[str, str, str] | None:
        """Label, text and note in the table of one run; None if it has no line."""
        if self.run is None:
            return None
        text = self.text(summary) if self.run.text is None else self.run.text(summary)
        note = self.meaning if self.run.note is None else self.run.note
        return self.run.label or self.label, text, note if isinstance(note, str) else note(summary)


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
    return f"{v['gpu_hours']:.2f} GPU-hours{price}"


_LEAST = 5e-4  # of a step, that a phase's line or cell tells


def _phase(name: PhaseName) -> Callable[[Values], Values | None]:
    """A phase of `simulator.results.phases.said`; None where it takes no time."""

    def value(v: Values) -> Values | None:
        phase = v["phases"].get(name)
        if phase is None or phase["share"] < _LEAST:
            return None
        return {**phase, "beside": name == "generation" and v["overlapped"]}

    return value


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if value < 99.5 else f"{value:,.0f}"


def _phase_cell(phase: Values) -> str:
    """Seconds, and their interval below."""
    ends = [_number(phase[end], 2) for end in ("low_s", "high_s") if end in phase]
    return "\n".join([_number(phase["s"]), *(["-".join(ends)] if ends else [])])


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


def gigabytes(size: float) -> str:
    """Text of bytes, in GB of 1e9."""
    size /= 1e9
    return f"{size:.0f} GB" if size >= 10 else f"{size:.1f} GB"


ENGINE_SHARE = "engine_share"
"""The pool of a ledger that is what an engine may use of its GPUs."""
MEMORY_PHASES: Mapping[str, str] = {
    "start": "at the start",
    "generation": "in generation",
    "switch": "between rollout and training",
    "log_prob": "in the log-probabilities",
    "update": "in the update",
    "optimizer_step": "in the optimiser's step",
    "sync": "in the weight sync",
}
"""Phases of a ledger of memory, as a sentence goes on."""
MEMORY_PHASE_NAMES: Mapping[str, str] = {
    "start": "start",
    "generation": "generation",
    "switch": "switch",
    "log_prob": "log-probs",
    "update": "update",
    "optimizer_step": "optimiser step",
    "sync": "weight sync",
}
"""The same in tables."""


def room(peak: Mapping[str, Any]) -> str:
    """What a peak is of: a GPU's memory, or an engine's share of it. peak: as a ledger tells it."""
    size = gigabytes(peak["capacity_bytes"])
    return f"the engine's {size} of a GPU" if peak["pool"] == ENGINE_SHARE else f"{size} of a GPU"


def _peak(v: Values) -> Values | None:
    memory = v.get("memory")
    return None if memory is None else memory["peak"]


def _peak_text(v: Values) -> str:
    """Empty where no memory is known."""
    peak = _peak(v)
    return "" if peak is None else gigabytes(peak["bytes"])


def _peak_note(v: Values) -> str:
    peak = _peak(v)
    if peak is None:
        return ""
    return f"of {room(peak)}, {MEMORY_PHASES[peak['phase']]}"


def memory_said(v: Values) -> str:
    """Peak, phase, what is left and how sure that is, as a sentence; empty where no memory is
    known. v: with ``memory``, of a ledger."""
    memory, peak = v.get("memory"), _peak(v)
    if memory is None or peak is None:
        return ""
    spare = peak["capacity_bytes"] - peak["bytes"]
    rest = f"{gigabytes(spare)} are left" if spare >= 0 else f"{gigabytes(-spare)} are missing"
    return (
        f"A GPU holds at most {gigabytes(peak['bytes'])} of {gigabytes(peak['capacity_bytes'])}, "
        f"{MEMORY_PHASES[peak['phase']]}: {rest}; it fits with a probability of "
        f"{100 * memory['fits_probability']:.0f} %."
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
    Figure(
        "rollout_s",
        "rollout phase",
        seconds,
        "mean of a step",
        value=_per_step("rollout_s"),
    ),
    Figure(
        "train_s",
        "train phase",
        seconds,
        "mean of a step",
        value=_per_step("train_s"),
    ),
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
        run=Line(text=_peak_text, note=_peak_note),
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


def to_target(v: Values, name: str) -> tuple[float | None, float | None, float | None]:
    """Of what a run takes to its target (`simulator.studies.learned.learned`): the figure and the
    ends of its interval; None for what is not known."""
    told = v.get("learning") or {}
    return told.get(name), told.get(f"{name}_low"), told.get(f"{name}_high")


def _target_figure(
    name: str, label: str, run_label: str, meaning: str, write: Callable[..., str]
) -> Figure:
    """A figure of what training takes to the target accuracy. write: of it and of its ends, in the
    unit of the number ``like``."""

    def value(v: Values) -> tuple[str, str] | None:
        own, low, high = to_target(v, name)
        if low is None or (name == "gpu_hours" and to_target(v, "usd")[1] is not None):
            return None
        said = partial(write, like=high or own or low)
        ends = f"{said(low)} or more" if high is None else interval((low, high), said)
        return "-" if own is None else said(own), ends

    def text(v: Values) -> str:
        return (value(v) or ("", ""))[0]

    def note(v: Values) -> str:
        return f"{meaning}, 90 % interval {(value(v) or ('', ''))[1]}"

    line = Line(run_label, text, note)
    return Figure(f"learning.{name}", label, "\n".join, meaning, value, saved=False, run=line)


TO_TARGET: tuple[Figure, ...] = (
    _target_figure("hours", "time", "to target", "time until the target accuracy", hours),
    _target_figure(
        "updates", "updates", "  updates", "up to there", lambda value, like: f"{value:,.0f}"
    ),
    _target_figure("usd", "cost", "  cost", "up to there", lambda value, like: usd(value)),
    _target_figure(
        "gpu_hours", "GPU-hours", "  GPU-hours", "up to there", lambda value, like: f"{value:,.3g}"
    ),
)
"""What training takes to a target accuracy: a line each in the table of one run, a column each in
tables of several."""


def _after(v: Values) -> tuple[str, str] | None:
    """Accuracy and hours at the end of a curve without a target, and the ends of its interval."""
    told = (v.get("learning") or {}).get("after")
    if told is None:
        return None
    said = f"{told['accuracy']:.2f} after {hours(told['hours'])}"
    return said, interval((told["low"], told["high"]), "{:.2f}".format)


def _after_note(v: Values) -> str:
    updates = ((v.get("learning") or {}).get("after") or {}).get("updates", 0)
    return f"{updates:,} updates, 90 % interval {(_after(v) or ('', ''))[1]}"


AFTER = Figure(
    "learning.after",
    "accuracy",
    "\n".join,
    "after updates that are like the simulated ones",
    _after,
    saved=False,
    run=Line(text=lambda v: (_after(v) or ("",))[0], note=_after_note),
)
"""Of a run without a target accuracy."""


def _speedup_to_target(v: Values) -> tuple[str, str] | None:
    own, low, high = to_target(v, "speedup")
    if own is None or low is None:
        return None
    return f"{own:.2f}x", f"{low:.2f}-{high:.2f}" if high is not None else f"{low:.2f} or more"


SOONER: tuple[Figure, ...] = (
    Figure(
        "learning.speedup",
        "speed-up",
        "\n".join,
        "time of the first policy to the target over this one's",
        _speedup_to_target,
        saved=False,
    ),
    Figure(
        "learning.sooner",
        "sooner",
        "{:.0%}".format,
        "share of draws in which it reaches the target before the first policy",
        lambda v: (v.get("learning") or {}).get("sooner"),
        saved=False,
    ),
)
"""Of tables of several runs, against the first."""
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
