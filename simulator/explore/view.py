"""What came of the settings, as pictures and a table: pure functions from outcomes to markup."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rollcast.simulator.explore.work import Outcome
from rollcast.simulator.planner.measure import Measured
from rollcast.simulator.planner.whole_run import RunCost, Work, run_cost
from rollcast.simulator.planner.words import hours, usd
from rollcast.simulator.report.front import Axis, Point, front
from rollcast.simulator.report.ledger import bars, time_key, time_parts
from rollcast.simulator.report.markup import Content, Markup, joined, tag
from rollcast.simulator.report.parts import (
    Column,
    Row,
    breakable,
    headline,
    listed,
    notes,
    section,
    table,
)
from rollcast.simulator.report.timeline import timelines
from rollcast.simulator.report.words import bias, time_spent
from rollcast.simulator.results.figures import NAMED

SYNCHRONOUS = "sync"
_FIGURES = tuple(
    NAMED[name]
    for name in ("step_s", "bound_by", "bubble_fraction", "staleness_mean", "length_bias")
)
"""Of `Measured`, the columns of the policies' table."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the page shows. chain: the one that it is about. work: the whole run. usd_per_hour: of a
    GPU, 0 where there is no price. split: the GPUs in words; gpu: what they are called."""

    chain: str
    work: Work
    usd_per_hour: float
    split: str
    gpu: str


@dataclass(frozen=True, slots=True)
class Ran:
    """An outcome of a choice that can be run, and what the whole run takes."""

    chain: str
    gpus: int
    figures: Measured
    run_cost: RunCost
    outcome: Outcome

    @property
    def cost(self) -> str:
        """Dollars, or GPU-hours where there is no price."""
        if self.run_cost.usd is None:
            return f"{self.run_cost.gpu_hours:,.4g} GPU-hours"
        return usd(self.run_cost.usd)


def view(
    asked: Asked, here: Sequence[Outcome], elsewhere: Sequence[Outcome]
) -> tuple[Markup, Markup]:
    """The answer in sentences, and the table and pictures. here: outcomes on these GPUs, those
    known so far; elsewhere: on half and twice as many."""
    run = _ran(asked, here)
    sync = next((outcome for outcome in run if outcome.chain == SYNCHRONOUS), None)
    chosen = next((outcome for outcome in run if outcome.chain == asked.chain), None)
    drawn = list(
        {outcome.chain: outcome for outcome in (sync, chosen) if outcome is not None}.values()
    )
    headline = _headline(asked, chosen, sync, here)
    return headline, joined(
        [
            _table(asked, run, chosen, sync),
            _impossible(here),
            notes([] if chosen is None else chosen.figures.warnings),
            section(
                "Where the time goes",
                timelines([outcome.outcome.timeline for outcome in drawn]),
                bars([(outcome.chain, time_parts(outcome.outcome.use)) for outcome in drawn]),
                time_key([outcome.outcome.use for outcome in drawn]),
            )
            if drawn
            else None,
            _front(asked, run, _ran(asked, elsewhere)),
        ]
    )


def sentence(message: str) -> Markup:
    """Why nothing can be shown."""
    return tag("aside", tag("p", message), class_="notes", role="alert")


def placed(outcomes: Mapping[tuple[int, int], Outcome], waves: Collection[int]) -> list[Outcome]:
    """The outcomes of these waves, in order."""
    return [outcome for (wave, _), outcome in sorted(outcomes.items()) if wave in waves]


def _ran(asked: Asked, outcomes: Sequence[Outcome]) -> list[Ran]:
    ran = []
    for outcome in outcomes:
        figures = outcome.figures
        if figures is None:
            continue
        whole = run_cost(
            asked.work,
            step_s=figures.step_s,
            fill_s=figures.fill_s,
            taken=figures.taken,
            used=figures.used,
            trained=figures.trained,
            gpus=outcome.gpus,
            usd_per_gpu_hour=asked.usd_per_hour or None,
        )
        ran.append(Ran(outcome.chain, outcome.gpus, figures, whole, outcome))
    return ran


def _headline(
    asked: Asked, chosen: Ran | None, sync: Ran | None, here: Sequence[Outcome]
) -> Markup:
    if chosen is None:
        why = next((outcome.problem for outcome in here if outcome.chain == asked.chain), "")
        return sentence(f"{asked.chain} cannot run here: {_reason(why)}")
    lead = f"{asked.work.said} under {chosen.chain} take {hours(chosen.run_cost.hours)}"
    lead += f" and {chosen.cost}"
    if sync is not None and sync is not chosen:
        lead += (
            f": {sync.run_cost.hours / chosen.run_cost.hours:.2f} times as fast as {SYNCHRONOUS}"
        )
    figures = chosen.figures
    return headline(
        f"{lead}.",
        f"{chosen.gpus} {asked.gpu or 'GPUs'}: {asked.split}. The {figures.bound_by} is "
        f"the bottleneck. {bias(figures.staleness_mean, figures.length_bias)}",
        time_spent(chosen.outcome.use),
    )


def _table(asked: Asked, run: Sequence[Ran], chosen: Ran | None, sync: Ran | None) -> Markup:
    columns = (
        Column("policy", text=True),
        Column("whole run", asked.work.said),
        Column("cost", "of the whole run"),
        Column("against sync", "hours of sync over this one's"),
        *(Column(figure.label, figure.meaning, narrow=figure.narrow) for figure in _FIGURES),
    )
    rows = []
    for outcome in run:
        measured = outcome.figures
        cells: Sequence[Content] = (
            breakable(outcome.chain),
            hours(outcome.run_cost.hours),
            outcome.cost,
            "" if sync is None else f"{sync.run_cost.hours / outcome.run_cost.hours:.2f}x",
            *(figure.text({figure.name: getattr(measured, figure.name)}) for figure in _FIGURES),
        )
        rows.append(Row(cells, chosen=outcome is chosen))
    about = f"From {run[0].figures.steps} simulated steps each." if run else ""
    return section("Policies on these GPUs", table(columns, rows, "Policies"), about=about)


def _impossible(here: Sequence[Outcome]) -> Content:
    """What cannot be run, those with one reason together."""
    chains_by_reason: dict[str, list[str]] = {}
    for outcome in here:
        if outcome.problem:
            chains_by_reason.setdefault(_reason(outcome.problem), []).append(outcome.chain)
    if not chains_by_reason:
        return None
    sentences = [f"{', '.join(chains)}: {why}" for why, chains in chains_by_reason.items()]
    return tag("aside", tag("h3", "Not possible here"), listed(sentences), class_="notes")


def _reason(problem: str) -> str:
    """Without the policy that it starts with."""
    field, colon, rest = problem.partition(": ")
    return rest if colon and field.startswith("policy.") else problem


def _front(asked: Asked, run: Sequence[Ran], elsewhere: Sequence[Ran]) -> Markup:
    points = [
        Point(
            f"{outcome.chain}, {outcome.gpus}",
            outcome.run_cost.hours,
            outcome.run_cost.cost,
            f"{outcome.chain} on {outcome.gpus} GPUs\n"
            f"{hours(outcome.run_cost.hours)}\n{outcome.cost}",
            chosen=place < len(run) and outcome.chain == asked.chain,
        )
        for place, outcome in enumerate((*run, *elsewhere))
    ]
    unit = "$" if asked.usd_per_hour else "GPU-hours"
    return section(
        "Hours against cost",
        front(
            points,
            Axis("hours of the whole run", lambda value: f"{value:,g}"),
            Axis(f"{unit} of the whole run", lambda value: f"{value:,g}"),
            "shown above",
        ),
        about="The same policies on these GPUs, on half as many and on twice as many.",
    )
