"""The page of a comparison: which policy is fastest, what it costs, and why."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.planner.measure import bound_by
from simulator.planner.words import usd
from simulator.policies import label
from simulator.report.assumptions import assumptions
from simulator.report.front import Axis, Point, front
from simulator.report.ledger import (
    bars,
    gpu_use,
    time_key,
    time_parts,
    token_key,
    token_parts,
)
from simulator.report.markup import Content, Markup, tag
from simulator.report.page import page
from simulator.report.parts import (
    Column,
    Row,
    breakable,
    headline,
    notes,
    section,
    table,
    tiles,
)
from simulator.report.reproduced import reproduced
from simulator.report.timeline import timeline_of, timelines
from simulator.report.words import bias, sureness, time_spent
from simulator.results.figures import count, seconds, share
from simulator.scenario.scenario import Scenario
from simulator.studies.compare import table as table_of
from simulator.studies.compare import warnings_of
from simulator.studies.ranking import Ranking
from simulator.studies.simulate import Result

SYNCHRONOUS = "sync"
_MILLION = 1e6

COLUMNS = (
    Column("policy", text=True),
    Column("step time", "mean, from one step's end to the next"),
    Column("speed-up", "step time of the first policy over this one's"),
    Column("90 % interval", "of the speed-up"),
    Column("per 1,000 rollouts", "time per thousand rollouts that were trained on"),
    Column("rollout", "its phase, mean of a step", narrow=False),
    Column("train", "its phase, mean of a step", narrow=False),
    Column("bound by", "what its steps wait for most", narrow=False),
    Column("idle", "share of the GPUs' time that nothing used"),
    Column("staleness", "versions behind, mean over the tokens trained on"),
    Column("length bias", "mean length of what is trained over what was launched", narrow=False),
)


@dataclass(frozen=True, slots=True)
class Told:
    """A policy's figures. row: as `simulator.studies.compare.table` has it."""

    name: str
    row: Mapping[str, Any]
    summary: Mapping[str, Any]
    rollouts: int
    bound_by: str

    @property
    def per_thousand_s(self) -> float | None:
        """Seconds per thousand trained rollouts."""
        makespan_s: float = self.summary["makespan_s"]
        return 1000 * makespan_s / self.rollouts if self.rollouts else None

    @property
    def cost(self) -> tuple[float, str]:
        """Of a million trained tokens, in dollars where the GPU has a price, else in GPU-hours."""
        tokens = max(self.summary["trained_tokens"], 1) / _MILLION
        if "cost_usd" in self.summary:
            return self.summary["cost_usd"] / tokens, "usd"
        return self.summary["gpu_hours"] / tokens, "gpu_hours"


def comparison_page(
    results: Mapping[str, Result], ranking: Ranking | None, draws: int | None = None
) -> str:
    """The whole page. draws: how many the ranking was asked for, None for its own."""
    told = [
        Told(
            name,
            row,
            result.summary,
            sum(s.trained_rollouts for s in result.run.steps),
            bound_by(result.summary, result.run.steps),
        )
        for (name, result), row in zip(results.items(), table_of(results, ranking), strict=True)
    ]
    first = told[0]
    best = min(told, key=lambda each: each.summary["step_s"])
    base = next((each for each in told if each.name == SYNCHRONOUS), first)
    scenario = results[best.name].scenario
    uses = {name: gpu_use(result.run) for name, result in results.items()}
    return page(
        scenario.name,
        _headline(best, first, len(told), ranking, uses[best.name]),
        _tiles(best, first),
        notes(warnings_of(results)),
        section(
            "Side by side",
            table(COLUMNS, [_row(each, each is best, each is first) for each in told],
                  "Policies side by side"),
            about=sureness(ranking),
        ),
        _front(told, best),
        section(
            "Where the time goes",
            timelines([_timeline(results, each) for each in dict.fromkeys((base.name, best.name))]),
            about="Each row of the lower strip is one replica or more; what is hatched is idle.",
        ),
        section(
            "The ledger",
            tag("h3", "GPU time"),
            bars([(name, time_parts(use)) for name, use in uses.items()]),
            time_key(list(uses.values())),
            tag("h3", "Tokens generated"),
            bars([(each.name, token_parts(each.summary)) for each in told]),
            token_key(),
            _ledger(told),
            about="All of the GPUs' time, then every token generated, by what became of it.",
        ),
        assumptions(scenario),
        reproduced(scenario.raw.data, _command([r.scenario for r in results.values()], draws)),
        subtitle=_subtitle(scenario, best),
    )  # fmt: skip


def _subtitle(scenario: Scenario, told: Told) -> str:
    batch = scenario.plan.batch
    gpu = f" x {scenario.gpu.name}" if scenario.gpu is not None else " GPUs"
    return (f"{scenario.steps} steps of {batch.groups} x {batch.group_size} rollouts on "
            f"{told.summary['gpus']}{gpu}")  # fmt: skip


def _headline(
    best: Told, first: Told, policies: int, ranking: Ranking | None, use: Mapping[str, float]
) -> Markup:
    step_s = seconds(best.summary["step_s"])
    if policies == 1:
        lead = f"{best.name} takes {step_s} a step."
    elif best is first:
        lead = f"None of these is faster than {first.name}, which takes {step_s} a step."
    else:
        lead = (f"{best.name} is the fastest of these: {step_s} a step, "
                f"{best.row['speedup']:.2f} times as fast as {first.name}")  # fmt: skip
        if ranking is not None:
            low, high = best.row["speedup_low"], best.row["speedup_high"]
            lead += f" (90 % interval {low:.2f} to {high:.2f})"
        lead += "."
    note = best.summary.get("interval_note")
    trained = bias(best.summary["staleness_mean"], best.summary["length_bias"])
    return headline(
        lead,
        f"What bounds it is the {best.bound_by}. {time_spent(use)}",
        f"The interval of its step: {note}." if note else None,
        f"{trained} Whether it learns as well is not part of a simulation." if trained else None,
    )


def _tiles(best: Told, first: Told) -> Markup:
    s = best.summary
    known = s.get("intervals", {})

    def within(key: str, write: Callable[[float], str], otherwise: str) -> str:
        low, high = known.get(key, (None, None))
        return otherwise if low is None else f"90 %: {write(low)} to {write(high)}"

    said = within("step_s", seconds, f"p95 {seconds(s['step_s_p95'])}")
    figures = [("step time", seconds(s["step_s"]), said)]
    if best is not first:
        figures.append(("speed-up", f"{best.row['speedup']:.2f}x", f"against {first.name}"))
    figures.append(
        (
            "whole run",
            seconds(s["makespan_s"]),
            within("makespan_s", seconds, f"{s['steps']} steps"),
        )
    )
    figures.append(("GPU-hours", f"{s['gpu_hours']:.3g}", f"{s['gpus']} GPUs held"))
    if "cost_usd" in s:
        figures.append(("cost", usd(s["cost_usd"]), within("cost_usd", usd, "")))
    figures.append(("idle", share(s["bubble_fraction"]), "of the GPUs' time"))
    return tiles(figures)


def _row(told: Told, best: bool, first: bool) -> Row:
    row, steps = told.row, max(told.summary["steps"], 1)
    per = told.per_thousand_s
    interval = f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}" if (
        "speedup_low" in row and not first) else ""  # fmt: skip
    cells: Sequence[Content] = (
        breakable(told.name),
        seconds(row["step_s"]),
        f"{row['speedup']:.2f}x",
        interval,
        "-" if per is None else seconds(per),
        seconds(row["rollout_s"] / steps),
        seconds(row["train_s"] / steps),
        told.bound_by,
        share(row["bubble_fraction"]),
        f"{row['staleness_mean'] or 0:.2f}",
        "-" if row["length_bias"] is None else f"{row['length_bias']:.2f}",
    )
    return Row(cells, chosen=best)


def _front(told: Sequence[Told], best: Told) -> Markup:
    """Time of a step against the cost of what is trained on: on the same GPUs a step costs what it
    takes, but not every policy trains on all that it generates."""
    if len(told) < 2:
        return Markup()
    priced = told[0].cost[1] == "usd"
    write = usd if priced else lambda value: f"{value:.3g}"
    points = []
    for each in told:
        cost = each.cost[0]
        step_s, speedup = each.summary["step_s"], each.row["speedup"]
        of_cost = f"{write(cost)}{'' if priced else ' GPU-hours'} per million trained tokens"
        points.append(
            Point(each.name, step_s, cost,
                  f"{each.name}\n{seconds(step_s)} a step ({speedup:.2f}x)\n{of_cost}",
                  chosen=each is best)
        )  # fmt: skip
    unit = "$" if priced else "GPU-hours"
    return section(
        "Time against cost",
        front(
            points,
            Axis("step time, s", lambda value: f"{value:g}"),
            Axis(f"{unit} per million trained tokens", lambda value: f"{value:g}"),
            "the fastest",
        ),
        about="Less is better in both. The line joins what no other policy beats.",
    )


def _timeline(results: Mapping[str, Result], name: str) -> Any:
    result = results[name]
    s = result.summary
    return timeline_of(result.run, name, s["step_s"], s["bubble_fraction"])


def _ledger(told: Sequence[Told]) -> Markup:
    columns = (
        Column("policy", text=True),
        Column("generated", "tokens"),
        Column("trained", "tokens"),
        Column("masked", "tokens of trained responses that the loss leaves out"),
        Column("dropped", "tokens"),
        Column("carried", "tokens of responses unfinished at the end"),
        Column("re-prefilled", "tokens computed again, for resumed rollouts and preemptions"),
        Column("preemptions", narrow=False),
    )
    keys = ("generated_tokens", "trained_tokens", "masked_tokens", "dropped_tokens",
            "carried_tokens", "reprefilled_tokens", "preemptions")  # fmt: skip
    rows = [
        Row((breakable(each.name), *(count(each.summary[key]) for key in keys))) for each in told
    ]
    return table(columns, rows, "Tokens by what became of them")


def _command(scenarios: Sequence[Scenario], draws: int | None) -> str:
    words = ["rollcast", "compare", "scenario.yaml"]
    for scenario in scenarios:
        spelt = label(scenario.policy)
        name = scenario.policy_name
        words += ["--policy", name if name == spelt else f"{name} = {spelt}"]
    words += [] if draws is None else ["--draws", str(draws)]
    return shlex.join([*words, "--out", "comparison"])
