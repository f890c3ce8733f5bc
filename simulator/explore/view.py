"""What came of the settings, as pictures and a table: pure functions from outcomes to markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.explore.work import Outcome
from simulator.report.front import Axis, Point, front
from simulator.report.ledger import bars, time_key, time_parts
from simulator.report.markup import Content, Markup, joined, tag
from simulator.report.parts import Column, Row, breakable, headline, listed, section, table
from simulator.report.timeline import timelines
from simulator.report.words import bias, time_spent
from simulator.results.figures import seconds, share, usd

SYNCHRONOUS = "sync"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the page shows. chain: the one that it is about; steps: of the whole run; usd_per_hour:
    of a GPU, 0 where there is no price; split: the GPUs in words; gpu: what they are called."""

    chain: str
    steps: int
    usd_per_hour: float
    split: str
    gpu: str


def view(
    asked: Asked, here: Sequence[Outcome], elsewhere: Sequence[Outcome]
) -> tuple[Markup, Markup]:
    """The answer in sentences, and the table and pictures. here: outcomes on these GPUs, those
    known so far; elsewhere: on half and twice as many."""
    run = [each for each in here if not each.problem]
    sync = next((each for each in run if each.chain == SYNCHRONOUS), None)
    chosen = next((each for each in run if each.chain == asked.chain), None)
    shown = list(dict.fromkeys(each.chain for each in (sync, chosen) if each is not None))
    drawn = [each.timeline for name in shown for each in run if each.chain == name]
    used = {each.chain: each.use for each in run if each.chain in shown and each.use}
    return _headline(asked, chosen, sync, here), joined([
        _table(asked, run, chosen, sync),
        _impossible(here),
        section(
            "Where the time goes",
            timelines(drawn),
            bars([(name, time_parts(use)) for name, use in used.items()]),
            time_key(list(used.values())),
        ) if drawn else None,
        _front(asked, run, elsewhere),
    ])  # fmt: skip


def sentence(message: str) -> Markup:
    """Why nothing can be shown."""
    return tag("aside", tag("p", message), class_="notes", role="alert")


def _headline(
    asked: Asked, chosen: Outcome | None, sync: Outcome | None, here: Sequence[Outcome]
) -> Markup:
    if chosen is None:
        why = next((each.problem for each in here if each.chain == asked.chain), "")
        return sentence(f"{asked.chain} cannot run here. {_reason(why)}")
    hours = chosen.hours(asked.steps)
    lead = f"{asked.steps:,} steps of {chosen.chain} take {_hours(hours)}"
    lead += f" and {_cost(asked, chosen, hours)}"
    if sync is not None and sync is not chosen:
        lead += f": {sync.step_s / chosen.step_s:.2f} times as fast as {SYNCHRONOUS}"
    gpus = f"{chosen.gpus} {asked.gpu or 'GPUs'}: {asked.split}."
    trained = bias(chosen.staleness, chosen.length_bias)
    return headline(f"{lead}.", f"{gpus} {trained}", chosen.use and time_spent(chosen.use))


def _table(
    asked: Asked, run: Sequence[Outcome], chosen: Outcome | None, sync: Outcome | None
) -> Markup:
    columns = (
        Column("policy", text=True),
        Column("whole run", f"{asked.steps:,} steps"),
        Column("cost", "of the whole run"),
        Column("step time", "mean of the steps simulated"),
        Column("speed-up", "step time of sync over this one's"),
        Column("per 1,000 rollouts", "time per thousand rollouts that were trained on"),
        Column("idle", "share of the GPUs' time that nothing used"),
        Column("staleness", "versions behind, mean over the tokens trained on"),
        Column("dropped", "share of the tokens generated", narrow=False),
    )
    rows = []
    for each in run:
        hours = each.hours(asked.steps)
        per = each.trained_rollouts
        rows.append(
            Row(
                (
                    breakable(each.chain),
                    _hours(hours),
                    _cost(asked, each, hours),
                    seconds(each.step_s),
                    "" if sync is None else f"{sync.step_s / each.step_s:.2f}x",
                    seconds(1000 * each.step_s / per) if per else "-",
                    share(each.idle),
                    f"{each.staleness:.2f}",
                    share(each.dropped),
                ),
                chosen=each is chosen,
            )
        )
    about = f"From {run[0].steps} simulated steps each." if run else ""
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


def _front(asked: Asked, run: Sequence[Outcome], elsewhere: Sequence[Outcome]) -> Markup:
    priced = asked.usd_per_hour > 0
    points = []
    for each in (*run, *(other for other in elsewhere if not other.problem)):
        hours = each.hours(asked.steps)
        cost = hours * each.gpus * (asked.usd_per_hour if priced else 1.0)
        lines = (f"{each.chain} on {each.gpus} GPUs", _hours(hours), _cost(asked, each, hours))
        here = each.chain == asked.chain and each in run
        points.append(Point(f"{each.chain}, {each.gpus}", hours, cost, "\n".join(lines),
                            chosen=here))  # fmt: skip
    return section(
        "Hours against cost",
        front(points, Axis("hours of the whole run", lambda value: f"{value:g}"),
              Axis("$ of the whole run" if priced else "GPU-hours of the whole run",
                   lambda value: f"{value:,g}"), "shown above"),
        about="These policies on these GPUs, on half and on twice as many.",
    )  # fmt: skip


def _cost(asked: Asked, each: Outcome, hours: float) -> str:
    gpu_hours = hours * each.gpus
    if asked.usd_per_hour > 0:
        return usd(gpu_hours * asked.usd_per_hour)
    return f"{gpu_hours:,.4g} GPU-hours"


def _hours(hours: float) -> str:
    return f"{hours / 24:.3g} days" if hours >= 72 else f"{hours:.3g} h"


def placed(found: Mapping[tuple[int, int], Outcome], waves: Sequence[int]) -> list[Outcome]:
    """The outcomes of these waves, in order."""
    return [each for (wave, _), each in sorted(found.items()) if wave in waves]
