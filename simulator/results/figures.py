"""The figures of a run: what each is called, what it means, how it is written for people, and which
tables of the terminal and of pages show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def seconds(value: float) -> str:
    """A duration for people."""
    if value >= 7200:
        return f"{value / 3600:.2f} h"
    if value >= 600:
        return f"{value / 60:.1f} min"
    return f"{value:.3g} s" if value < 100 else f"{value:.1f} s"


def count(value: float) -> str:
    """A count for people."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}"


def share(value: float | None) -> str:
    """A share in per cent."""
    return "-" if value is None or value != value else f"{100 * value:.1f} %"


Values = Mapping[str, Any]
"""What a figure is taken from: a run's summary.json, and in a comparison also the columns that
`simulator.studies.compare.compared` adds to it."""


@dataclass(frozen=True, slots=True)
class Line:
    """How the table of one run shows a figure, where that differs from a comparison.

    label: in place of the figure's. text: in place of the figure, from the summary; a line without
    text is left out. note: in place of the meaning, fixed or from the summary.
    """

    label: str = ""
    text: Callable[[Values], str] | None = None
    note: str | Callable[[Values], str] | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run, and where the terminal and the page of a comparison show it.

    name: its key in summary.json, or in what a comparison adds. label: what people call it.
    write: the value for people. meaning: what it measures, in a few words. value: computes it where
    it is more than the value under ``name``; None is shown as "-".
    saved: whether comparison.json and comparison.csv take it from each run's summary. run: its line
    in the table of one run. terminal, page: whether a comparison shows it there.

    heading: the label as a narrow column breaks it. leaves: columns with the lowest numbers leave a
    terminal that is too narrow first; 0 stays. footnote: whether the meaning also stands below the
    terminal's table. if_differs: whether the terminal shows it only where policies differ in it.
    narrow: whether a phone shows its column of the page.
    """

    name: str
    label: str
    write: Callable[[Any], str]
    meaning: str = ""
    value: Callable[[Values], Any] | None = None
    saved: bool = False
    run: Line | None = None
    terminal: bool = False
    page: bool = False
    heading: str = ""
    leaves: int = 0
    footnote: bool = False
    if_differs: bool = False
    narrow: bool = True

    def value_in(self, values: Values) -> Any:
        """The figure itself; None where there is none."""
        return values.get(self.name) if self.value is None else self.value(values)

    def text(self, values: Values) -> str:
        """The figure for people."""
        value = self.value_in(values)
        return "-" if value is None else self.write(value)

    def line(self, summary: Values) -> tuple[str, str, str] | None:
        """Label, text and note in the table of one run; None where that has no such line."""
        if self.run is None:
            return None
        text = self.text(summary) if self.run.text is None else self.run.text(summary)
        note = self.meaning if self.run.note is None else self.run.note
        return (
            self.run.label or self.label,
            text,
            note if isinstance(note, str) else note(summary),
        )


def _a_step(name: str) -> Callable[[Values], float]:
    """The total under ``name`` over the run's steps."""
    return lambda v: v[name] / max(v["steps"], 1)


def _of_generated(name: str) -> Callable[[Values], float]:
    """The tokens under ``name`` over the tokens generated."""
    return lambda v: v[name] / max(v["generated_tokens"], 1)


def _pair(write: Callable[[float], str], first: str, second: str) -> Callable[[Values], str]:
    return lambda v: f"{write(v[first])} / {write(v[second])}"


def _steps_of_the_mean(v: Values) -> str:
    """How many steps the mean is of, how long the start-up took beside, and the slow steps."""
    start, stop = v["steady_steps"]
    steps = f"{v['steps']}"
    if (start, stop) != (0, v["steps"]):
        steps = f"{stop - start} steady, start-up {seconds(v['fill_s'])}"
    return f"mean of {steps}, p95 {seconds(v['step_s_p95'])}"


def _interval(v: Values) -> str:
    """Empty for the policy that the others are held against, and without intervals."""
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
    cost = f", ${v['cost_usd']:,.2f}" if "cost_usd" in v else ""
    return f"{v['gpu_hours']:.2f} GPU-hours{cost}"


def _group_sizes(v: Values) -> str:
    return " / ".join(v["group_sizes"]) if len(v["group_sizes"]) > 1 else ""


def steps_by_group_size(summary: Values) -> str:
    """How many steps had each of the group sizes."""
    return f"in {' / '.join(map(str, summary['group_sizes'].values()))} steps"


FIGURES: tuple[Figure, ...] = (
    Figure(
        "step_s",
        "step time",
        seconds,
        "mean, from one step's end to the next",
        saved=True,
        run=Line(note=_steps_of_the_mean),
        terminal=True,
        page=True,
        heading="step\ntime",
    ),
    Figure(
        "speedup",
        "speed-up",
        "{:.2f}x".format,
        "step time of the first policy over this one's",
        terminal=True,
        page=True,
        heading="speed-\nup",
    ),
    Figure(
        "speedup_interval",
        "90 % interval",
        str,
        "of the speed-up",
        value=_interval,
        terminal=True,
        page=True,
        heading="90 %\ninterval",
    ),
    Figure(
        "trained_rollouts_per_step",
        "rollouts trained",
        "{:.4g}".format,
        "mean of a step",
        terminal=True,
        heading="rollouts\ntrained",
        footnote=True,
        if_differs=True,
    ),
    Figure(
        "s_per_1000_rollouts",
        "per 1,000 rollouts",
        seconds,
        "time per thousand rollouts that were trained on",
        value=_per_thousand,
        page=True,
    ),
    Figure(
        "rollout_s",
        "rollout phase",
        seconds,
        "mean of a step",
        value=_a_step("rollout_s"),
        saved=True,
        run=Line("rollout / train", _pair(seconds, "rollout_s", "train_s"), "in total"),
        terminal=True,
        page=True,
        heading="rollout\nphase",
        leaves=7,
        narrow=False,
    ),
    Figure(
        "train_s",
        "train phase",
        seconds,
        "mean of a step",
        value=_a_step("train_s"),
        saved=True,
        terminal=True,
        page=True,
        heading="train\nphase",
        leaves=6,
        narrow=False,
    ),
    Figure(
        "sync_s",
        "sync",
        seconds,
        saved=True,
        run=Line("sync / switch", _pair(seconds, "sync_s", "switch_s"), "in total"),
    ),
    Figure("switch_s", "switch", seconds, saved=True),
    Figure(
        "rollout_tokens_per_s",
        "rollout tokens/s",
        count,
        "generated, over rollout time",
        saved=True,
        run=Line(),
        terminal=True,
        heading="rollout\ntokens/s",
        leaves=9,
    ),
    Figure(
        "throughput_gain",
        "gain",
        lambda gain: f"{100 * (gain - 1):+.0f}%",
        "rollout tokens/s against the first row",
        terminal=True,
        leaves=1,
        footnote=True,
    ),
    Figure(
        "trained_tokens_per_s",
        "trained tokens/s",
        count,
        "over the whole run",
        saved=True,
        run=Line(),
    ),
    Figure(
        "bound_by",
        "bound by",
        str,
        "the bottleneck of its steps",
        page=True,
        narrow=False,
    ),
    Figure(
        "bubble_fraction",
        "bubble",
        share,
        "share of GPU time that is idle",
        saved=True,
        run=Line(note=_idle_by_cause),
        terminal=True,
        page=True,
    ),
    Figure(
        "underfilled_fraction",
        "underfilled",
        share,
        "rollout time below 1/4 of the peak load",
        run=Line(),
    ),
    Figure(
        "straggler_rate",
        "stragglers",
        share,
        "groups whose max / median > 1.25",
        saved=True,
        run=Line(),
        terminal=True,
        heading="strag-\nglers",
        leaves=5,
    ),
    Figure(
        "staleness_mean",
        "staleness",
        "{:.2f}".format,
        "versions, mean over trained tokens",
        saved=True,
        run=Line(),
        terminal=True,
        page=True,
        heading="stale-\nness",
        leaves=8,
    ),
    Figure(
        "truncated_share",
        "at cap",
        share,
        "responses cut at max_new_tokens",
        saved=True,
        run=Line(),
        terminal=True,
        heading="at\ncap",
        leaves=2,
        footnote=True,
    ),
    Figure(
        "generated_tokens",
        "tokens generated",
        count,
        saved=True,
        run=Line(),
    ),
    Figure(
        "trained_tokens",
        "tokens trained",
        count,
        saved=True,
        run=Line("  trained / masked", _pair(count, "trained_tokens", "masked_tokens")),
    ),
    Figure(
        "dropped_tokens",
        "dropped",
        share,
        "share of the tokens generated",
        value=_of_generated("dropped_tokens"),
        saved=True,
        run=Line("  dropped / carried", _pair(count, "dropped_tokens", "carried_tokens"), ""),
        terminal=True,
        heading="drop-\nped",
        leaves=3,
        footnote=True,
    ),
    Figure(
        "reprefilled_tokens",
        "re-prefilled",
        share,
        "over the tokens generated",
        value=_of_generated("reprefilled_tokens"),
        saved=True,
        run=Line(
            text=lambda v: count(v["reprefilled_tokens"]),
            note=lambda v: f"{v['preemptions']} preemptions",
        ),
        terminal=True,
        heading="re-pre-\nfilled",
        leaves=4,
        footnote=True,
    ),
    Figure(
        "length_bias",
        "length bias",
        "{:.2f}".format,
        "mean length of what is trained over what was launched",
        saved=True,
        page=True,
        narrow=False,
    ),
    Figure("makespan_s", "makespan", seconds, saved=True, run=Line(note=_hours_and_cost)),
    Figure("gpu_hours", "GPU-hours", "{:.3g}".format, saved=True),
    Figure(
        "group_sizes",
        "group sizes",
        str,
        run=Line(text=_group_sizes, note=steps_by_group_size),
    ),
)
"""Every figure that tables and pages of runs show, in their order. A figure is one entry here and
its value in `simulator.results.metrics.summarise`."""

NAMED: Mapping[str, Figure] = {figure.name: figure for figure in FIGURES}
"""The figures by name, for tables that show a few of them among other things."""
