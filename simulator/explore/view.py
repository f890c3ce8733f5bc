"""What came of the settings, as pictures and a table: pure functions from outcomes to markup."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from simulator.explore.work import Outcome
from simulator.planner.measure import Measured
from simulator.planner.whole_run import Bill, Work, bill
from simulator.planner.words import hours, usd
from simulator.report.front import Axis, Point, front
from simulator.report.ledger import bars, time_key, time_parts
from simulator.report.markup import Content, Markup, joined, tag
from simulator.report.parts import Column, Row, breakable, headline, listed, notes, section, table
from simulator.report.timeline import timelines
from simulator.report.words import bias, time_spent
from simulator.results.figures import seconds, share

SYNCHRONOUS = "sync"


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
    bill: Bill
    outcome: Outcome

    @property
    def cost(self) -> str:
        """Dollars, or GPU-hours where there is no price."""
        if self.bill.usd is None:
            return f"{self.bill.gpu_hours:,.4g} GPU-hours"
        return usd(self.bill.usd)


def view(
    asked: Asked, here: Sequence[Outcome], elsewhere: Sequence[Outcome]
) -> tuple[Markup, Markup]:
    """The answer in sentences, and the table and pictures. here: outcomes on these GPUs, those
    known so far; elsewhere: on half and twice as many."""
    run = _ran(asked, here)
    sync = next((each for each in run if each.chain == SYNCHRONOUS), None)
    chosen = next((each for each in run if each.chain == asked.chain), None)
    drawn = list({each.chain: each for each in (sync, chosen) if each is not None}.values())
    said = _headline(asked, chosen, sync, here)
    return said, joined([
        _table(asked, run, chosen, sync),
        _impossible(here),
        notes([] if chosen is None else chosen.figures.warnings),
        section(
            "Where the time goes",
            timelines([each.outcome.timeline for each in drawn]),
            bars([(each.chain, time_parts(each.outcome.use)) for each in drawn]),
            time_key([each.outcome.use for each in drawn]),
        ) if drawn else None,
        _front(asked, run, _ran(asked, elsewhere)),
    ])  # fmt: skip


def sentence(message: str) -> Markup:
    """Why nothing can be shown."""
    return tag("aside", tag("p", message), class_="notes", role="alert")


def placed(found: Mapping[tuple[int, int], Outcome], waves: Collection[int]) -> list[Outcome]:
    """The outcomes of these waves, in order."""
    return [each for (wave, _), each in sorted(found.items()) if wave in waves]


def _ran(asked: Asked, outcomes: Sequence[Outcome]) -> list[Ran]:
    found = []
    for each in outcomes:
        figures = each.figures
        if figures is None:
            continue
        whole = bill(
            asked.work,
            step_s=figures.step_s,
            fill_s=figures.fill_s,
            taken=figures.taken,
            used=figures.used,
            trained=figures.trained,
            gpus=each.gpus,
            usd_per_gpu_hour=asked.usd_per_hour or None,
        )
        found.append(Ran(each.chain, each.gpus, figures, whole, each))
    return found


def _headline(
    asked: Asked, chosen: Ran | None, sync: Ran | None, here: Sequence[Outcome]
) -> Markup:
    if chosen is None:
        why = next((each.problem for each in here if each.chain == asked.chain), "")
        return sentence(f"{asked.chain} cannot run here: {_reason(why)}")
    lead = f"{asked.work.said} under {chosen.chain} take {hours(chosen.bill.hours)}"
    lead += f" and {chosen.cost}"
    if sync is not None and sync is not chosen:
        lead += f": {sync.bill.hours / chosen.bill.hours:.2f} times as fast as {SYNCHRONOUS}"
    figures = chosen.figures
    return headline(
        f"{lead}.",
        f"{chosen.gpus} {asked.gpu or 'GPUs'}: {asked.split}. What bounds it is the "
        f"{figures.bound_by}. {bias(figures.staleness_mean, figures.length_bias)}",
        time_spent(chosen.outcome.use),
    )


def _table(asked: Asked, run: Sequence[Ran], chosen: Ran | None, sync: Ran | None) -> Markup:
    columns = (
        Column("policy", text=True),
        Column("whole run", asked.work.said),
        Column("cost", "of the whole run"),
        Column("against sync", "hours of sync over this one's"),
        Column("step time", "mean of a steady step"),
        Column("bound by", "what its steps wait for most"),
        Column("idle", "share of the GPUs' time that nothing used"),
        Column("staleness", "versions behind, mean over the tokens trained on"),
        Column("length bias", "mean length of what is trained over what was launched",
               narrow=False),
    )  # fmt: skip
    rows = []
    for each in run:
        s = each.figures
        cells: Sequence[Content] = (
            breakable(each.chain),
            hours(each.bill.hours),
            each.cost,
            "" if sync is None else f"{sync.bill.hours / each.bill.hours:.2f}x",
            seconds(s.step_s),
            s.bound_by,
            share(s.bubble_fraction),
            f"{s.staleness_mean:.2f}",
            "-" if s.length_bias is None else f"{s.length_bias:.2f}",
        )
        rows.append(Row(cells, chosen=each is chosen))
    about = f"From {run[0].figures.steps} simulated steps each." if run else ""
    return section("Policies on these GPUs", table(columns, rows, "Policies"), about=about)


def _impossible(here: Sequence[Outcome]) -> Content:
    """What cannot be run, those with one reason together."""
    found: dict[str, list[str]] = {}
    for each in here:
        if each.problem:
            found.setdefault(_reason(each.problem), []).append(each.chain)
    if not found:
        return None
    said = [f"{', '.join(chains)}: {why}" for why, chains in found.items()]
    return tag("aside", tag("h3", "Not possible here"), listed(said), class_="notes")


def _reason(problem: str) -> str:
    """Without the policy that it starts with."""
    field, colon, rest = problem.partition(": ")
    return rest if colon and field.startswith("policy.") else problem


def _front(asked: Asked, run: Sequence[Ran], elsewhere: Sequence[Ran]) -> Markup:
    points = [
        Point(
            f"{each.chain}, {each.gpus}",
            each.bill.hours,
            each.bill.cost,
            f"{each.chain} on {each.gpus} GPUs\n{hours(each.bill.hours)}\n{each.cost}",
            chosen=place < len(run) and each.chain == asked.chain,
        )
        for place, each in enumerate((*run, *elsewhere))
    ]
    unit = "$" if asked.usd_per_hour else "GPU-hours"
    return section(
        "Hours against cost",
        front(points, Axis("hours of the whole run", lambda value: f"{value:,g}"),
              Axis(f"{unit} of the whole run", lambda value: f"{value:,g}"), "shown above"),
        about="These policies on these GPUs, on half and on twice as many.",
    )  # fmt: skip
