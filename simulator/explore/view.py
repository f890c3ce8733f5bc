"""The settings' result as pictures and a table: pure functions from outcomes to markup."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rollcast.simulator.explore.work import Outcome
from rollcast.simulator.planner.measure import Measured
from rollcast.simulator.planner.whole_run import RunCost, Work
from rollcast.simulator.policies.registry import SYNCHRONOUS
from rollcast.simulator.report import parts
from rollcast.simulator.report.ledger import time_bars
from rollcast.simulator.report.page import Content, Markup, joined, tag
from rollcast.simulator.report.parts import phase_table
from rollcast.simulator.report.plots import Axis, Point, front
from rollcast.simulator.report.timeline import timelines
from rollcast.simulator.report.words import bias, time_spent
from rollcast.simulator.results.figures import NAMED
from rollcast.simulator.results.phases import bound_text
from rollcast.simulator.results.text import cost, factor, hours, interval, usd
from rollcast.simulator.studies.drawn import ends

_FIGURES = tuple(
    NAMED[name] for name in ("step_s", "bubble_fraction", "staleness_mean", "length_bias")
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The page's question. chain: the chosen policies. work: the whole run. usd_per_hour: of a GPU,
    0 without a price. split: the GPUs in words. gpu: their name. target: accuracy to reach; None
    without one."""

    chain: str
    work: Work
    usd_per_hour: float
    split: str
    gpu: str
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """A choice that ran, and what the whole run takes."""

    chain: str
    figures: Measured
    run_cost: RunCost
    outcome: Outcome

    @property
    def cost(self) -> str:
        """Text of the whole run's cost."""
        return cost(self.run_cost.usd, self.run_cost.gpu_hours)

    @property
    def takes(self) -> str:
        """Text of the whole run's hours and cost, with 90 % intervals where it has draws."""
        run, texts = self.run_cost, [hours(self.run_cost.hours), self.cost]
        if self.figures.factors:
            low, high = ends(self.figures.factors).tolist()
            around = (min(low, 1.0), max(high, 1.0))
            texts[0] += (
                f" ({interval([by * run.hours for by in around], partial(hours, like=run.hours))})"
            )
            if run.usd is not None:
                texts[1] += f" ({interval([by * run.usd for by in around], usd)})"
        return " and ".join(texts)


def view(
    asked: Asked,
    here: Sequence[Outcome],
    elsewhere: Sequence[Outcome],
    drawn: Outcome | None = None,
) -> tuple[Markup, Markup]:
    """The answer in sentences; the table and pictures. here, elsewhere: outcomes on these GPUs, and
    on half and twice as many. drawn: the chosen policy's, with draws for its interval."""
    run = _ran(asked, here)
    sync = next((outcome for outcome in run if outcome.chain == SYNCHRONOUS), None)
    chosen = next((outcome for outcome in run if outcome.chain == asked.chain), None)
    pictured = {ran.chain: ran.outcome for ran in (sync, chosen) if ran is not None}
    answers = [
        _table(asked, run, chosen, sync),
        parts.section(
            "A step by phase",
            phase_table(
                [(parts.breakable(ran.chain), ran.figures.said, ran is chosen) for ran in run]
            ),
            about="Seconds of a mean step.",
        ),
        _impossible(here),
        parts.notes([] if chosen is None else chosen.figures.warnings),
        parts.section(
            "Where the time goes",
            timelines([outcome.timeline for outcome in pictured.values()]),
            time_bars({chain: outcome.use for chain, outcome in pictured.items()}),
        )
        if pictured
        else None,
        _front(asked, run, _ran(asked, elsewhere)),
    ]
    if drawn is not None and chosen is not None:
        chosen = next(iter(_ran(asked, [drawn])), chosen)
    return _headline(asked, chosen, sync, here), joined(answers)


def sentence(message: str) -> Markup:
    """The reason why nothing can be shown."""
    return tag("aside", tag("p", message), class_="notes", role="alert")


def placed(outcomes: Mapping[tuple[int, int], Outcome], waves: Collection[int]) -> list[Outcome]:
    """The outcomes of these waves, in order."""
    return [outcome for (wave, _), outcome in sorted(outcomes.items()) if wave in waves]


def _ran(asked: Asked, outcomes: Sequence[Outcome]) -> list[Ran]:
    price = asked.usd_per_hour or None
    return [
        Ran(
            outcome.chain,
            outcome.figures,
            outcome.figures.run_cost(asked.work, outcome.gpus, price),
            outcome,
        )
        for outcome in outcomes
        if outcome.figures is not None
    ]


def _headline(
    asked: Asked, chosen: Ran | None, sync: Ran | None, here: Sequence[Outcome]
) -> Markup:
    if chosen is None:
        why = next((outcome.problem for outcome in here if outcome.chain == asked.chain), "")
        return sentence(f"{asked.chain} cannot run here: {_reason(why)}")
    lead = f"{asked.work.text} under {chosen.chain} take {chosen.takes}"
    if sync is not None and sync.chain != chosen.chain:
        ratio = sync.run_cost.hours / chosen.run_cost.hours
        lead += f": {ratio:.2f} times as fast as {SYNCHRONOUS}"
    figures = chosen.figures
    return parts.headline(
        f"{lead}.",
        _to_target(asked, chosen),
        f"{chosen.outcome.gpus} {asked.gpu or 'GPUs'}: {asked.split}. "
        f"{bound_text(figures.said)} {bias(figures.staleness_mean, figures.length_bias)}",
        time_spent(chosen.outcome.use),
    )


def _to_target(asked: Asked, chosen: Ran) -> str:
    """What the chosen policy takes to the target of the law of learning; empty without one."""
    needs, target = chosen.figures.needs, asked.target
    if needs is None or target is None:
        return ""
    if needs.quality is None:
        return needs.reason
    work = Work("", accuracy=target)
    figures, price = chosen.figures.up_to_target(), asked.usd_per_hour or None
    run = figures.run_cost(work, chosen.outcome.gpus, price, needs.quality)
    takes = Ran(chosen.chain, figures, run, chosen.outcome).takes
    return f"{work.said(run.updates)} take {takes}."


def _table(asked: Asked, run: Sequence[Ran], chosen: Ran | None, sync: Ran | None) -> Markup:
    columns = (
        parts.Column("policy", text=True),
        parts.Column(NAMED["hours"].label, asked.work.text),
        parts.Column(NAMED["cost"].label, NAMED["cost"].meaning),
        parts.Column("against sync", "hours of the synchronous schedule over those of this one"),
        *(parts.Column(figure.label, figure.meaning, narrow=figure.narrow) for figure in _FIGURES),
    )
    rows = []
    for ran in run:
        values = ran.figures.plain()
        cells: Sequence[Content] = (
            parts.breakable(ran.chain),
            hours(ran.run_cost.hours),
            ran.cost,
            "" if sync is None else factor(sync.run_cost.hours / ran.run_cost.hours),
            *(figure.text(values) for figure in _FIGURES),
        )
        rows.append(parts.Row(cells, chosen=ran is chosen))
    about = f"From {run[0].figures.steps} simulated steps each." if run else ""
    return parts.section(
        "Policies on these GPUs", parts.table(columns, rows, "Policies"), about=about
    )


def _impossible(here: Sequence[Outcome]) -> Content:
    """Chains that cannot run, by reason."""
    chains_by_reason: dict[str, list[str]] = {}
    for outcome in here:
        if outcome.problem:
            chains_by_reason.setdefault(_reason(outcome.problem), []).append(outcome.chain)
    if not chains_by_reason:
        return None
    sentences = [f"{', '.join(chains)}: {why}" for why, chains in chains_by_reason.items()]
    return tag("aside", tag("h3", "Not possible here"), parts.listed(sentences), class_="notes")


def _reason(problem: str) -> str:
    """The problem without the policy's key before it."""
    field, colon, rest = problem.partition(": ")
    return rest if colon and field.startswith("policy.") else problem


def _front(asked: Asked, run: Sequence[Ran], elsewhere: Sequence[Ran]) -> Markup:
    points = [
        Point(
            f"{ran.chain}, {ran.outcome.gpus}",
            ran.run_cost.hours,
            ran.run_cost.cost,
            f"{ran.chain} on {ran.outcome.gpus} GPUs\n{hours(ran.run_cost.hours)}\n{ran.cost}",
            chosen=place < len(run) and ran.chain == asked.chain,
        )
        for place, ran in enumerate((*run, *elsewhere))
    ]
    unit = "$" if asked.usd_per_hour else "GPU-hours"
    return parts.section(
        "Hours against cost",
        front(
            points, Axis("hours of the whole run"), Axis(f"{unit} of the whole run"), "shown above"
        ),
        about="The same policies on these GPUs, on half as many and on twice as many.",
    )
