"""Tables of published RL runs, each source left out, from the results of the validation suite."""

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from benchmarks.runner import markdown_table
from benchmarks.validation.case import by
from benchmarks.validation.files import PUBLISHED, column, read_table
from benchmarks.validation.published_runs import PublishedRun, all_runs, published_sources
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.draws import unusual
from rollcast.simulator.costs.stacks import FOLDERS
from rollcast.simulator.results.phases import STEP_PHASES
from rollcast.simulator.studies.drawn import LEVEL

GROUPS = ("generation", "log_prob", "update", "sync", "step")
FAR = {"sync": 2.0}  # measured over forecast, or its inverse, that users are warned about
FAR_OF_OTHERS = 1.5
FEWEST = 2  # runs


class FarOff(NamedTuple):
    """A phase that is far off in a stack. low, high: measured over forecast."""

    stack: str
    phase: str
    low: float
    high: float
    runs: int
    sources: int


def run_cases(folder: Path) -> list[Mapping[str, Any]]:
    """Every judged figure of a published run."""
    content = json.loads((folder / "validation" / "validation.json").read_text("utf-8"))
    return next((s["cases"] for s in content["sources"] if s["key"] == "runs"), [])


def judged_runs(folder: Path) -> dict[str, tuple[str, PublishedRun]]:
    """Source and run by the name of each run that the results hold."""
    judged = {_run_of(case) for case in run_cases(folder)}
    found = all_runs(published_sources())
    return {name: (source, run) for source, name, run in found if name in judged}


def rl_runs(folder: Path) -> str:
    """How far off each phase is, how many of its intervals hold, and how wide one interval around
    every forecast would have to be to hold as many as are asked for."""
    groups = by(run_cases(folder), lambda case: str(case["group"]))
    rows = []
    for name in GROUPS:
        cases = groups.get(name, [])
        if cases:
            held = sum(low <= c["measured"] <= high for c in cases for low, high in [c["range"]])
            off = sorted(abs(math.log1p(c["error"])) for c in cases)
            alike = math.exp(2.0 * off[math.ceil(LEVEL * len(off)) - 1])
            rows.append(
                (
                    _words(name) if name != "step" else "the step",
                    str(len(cases)),
                    f"{100 * median(abs(c['error']) for c in cases):.0f} %",
                    f"{100 * median(c['error'] for c in cases):+.0f} %",
                    f"{100 * held / len(cases):.0f} %",
                    f"{median(c['range'][1] / c['range'][0] for c in cases):.1f}x",
                    f"{alike:.1f}x",
                )
            )
    head = ("phase", "figures", "median error", "median bias", "inside", "median interval")
    return markdown_table((*head, "all alike"), rows)


def reliability(folder: Path) -> str:
    """How many intervals of each phase hold, and how wide they are, by what is known of a run."""
    runs = judged_runs(folder)
    sources: Mapping[str, set[str]] = {
        stack: {source for source, run in members}
        for stack, members in by(runs.values(), lambda one: FOLDERS[one[1].stack].name).items()
    }

    def kinds(case: Mapping[str, Any]) -> Iterator[str]:
        _, run = runs[_run_of(case)]
        several = len(sources[FOLDERS[run.stack].name]) > FEWEST
        strange = unusual(load_model(run.scenario["model"]))
        yield "mixtures and recurrent layers" if strange else "other models"
        yield "stacks of three sources and more" if several else "stacks of one or two sources"
        yield "something left open by the source" if run.unknown else "nothing left open"

    known = [case for case in run_cases(folder) if case["group"] in GROUPS]
    pairs = [(kind, case) for case in known for kind in kinds(case)]
    rows = []
    for name in GROUPS:
        groups = by((p for p in pairs if p[1]["group"] == name), lambda pair: pair[0])
        for kind in sorted(groups):
            cases = [case for _, case in groups[kind]]
            held = [low <= c["measured"] <= high for c in cases for low, high in [c["range"]]]
            of = by(zip(cases, held, strict=True), lambda one: runs[_run_of(one[0])][0])
            by_source = mean(mean(hold for _, hold in members) for members in of.values())
            widths = [c["range"][1] / max(c["range"][0], 1e-9) for c in cases]
            rows.append(
                (
                    _words(name) if name != "step" else "the step",
                    kind,
                    f"{len(cases)} ({len(of)})",
                    f"{100 * mean(held):.0f} %",
                    f"{100 * by_source:.0f} %",
                    f"{median(widths):.1f}x",
                )
            )
    head = ("phase", "runs", "figures (sources)", "inside", "by source", "median interval")
    return markdown_table(head, rows)


def rl_runs_sentence(folder: Path) -> str:
    """The README's sentence on published runs."""
    groups = by(run_cases(folder), lambda case: str(case["group"]))
    errors = {
        name: f"{100 * median(abs(case['error']) for case in groups[name]):.0f} %"
        for name in GROUPS
        if name in groups
    }
    sources = len({source for source, _ in judged_runs(folder).values()})
    text = (
        f"Steps of published RL runs of {sources} sources, each left out of the fits, are off by a "
        f"median of {errors['step']}, their generation by {errors['generation']}, "
        f"log-probabilities by {errors['log_prob']}, updates by {errors['update']}."
    )
    return textwrap.fill(text, 106, initial_indent=" " * 34, subsequent_indent="  ").lstrip()


@dataclass(frozen=True)
class Round:
    """Sources that were forecast blind together, by the names of their files. step to update:
    medians of the absolute error, percent. inside: how many of the figures their 90 % intervals
    hold; None where there were none.
    """

    round: str
    runs: int
    step: int | None
    generation: int | None
    log_prob: int | None
    update: int | None
    inside: int | None = column(least=0)
    figures: int | None = column()
    sources: tuple[str, ...] = column(made=lambda cell, _: tuple(cell.split()))


def rounds(folder: Path) -> str:
    """A row for each round of ``rounds.csv``: its errors as it was forecast blind, and those of its
    steps now, each source left out; and a row of the sources that are of no round."""
    runs = judged_runs(folder)
    steps = by(
        (case for case in run_cases(folder) if case["group"] == "step"),
        lambda case: runs[_run_of(case)][0],
    )

    def now(sources: Iterable[str]) -> str:
        errors = [abs(case["error"]) for source in sources for case in steps.get(source, ())]
        return f"{100 * median(errors):.0f} % ({len(errors)})" if errors else "-"

    found = _rounds()
    others = steps.keys() - {source for one in found for source in one.sources}
    rows = [("made with", str(len(others)), *["-"] * 5, now(others))]
    for one in found:
        errors = (one.step, one.generation, one.log_prob, one.update)
        rows.append(
            (
                one.round,
                f"{len(one.sources)} ({one.runs})",
                *("-" if error is None else f"{error} %" for error in errors),
                "-" if one.inside is None else f"{one.inside} of {one.figures}",
                now(one.sources),
            )
        )
    head = ("round", "sources (runs)", "step", "generation", "log-probabilities", "update")
    return markdown_table((*head, "inside", "step now (figures)"), rows)


def rounds_sentence(_: Path) -> str:
    """The README's sentence on them."""
    found = _rounds()
    steps = [one.step for one in found if one.step is not None]
    generation = [one.generation for one in found if one.generation is not None]
    judged = [one for one in found if one.inside is not None]
    held = sum(one.inside or 0 for one in judged)
    figures = sum(one.figures or 0 for one in judged)
    text = (
        f"{sum(len(one.sources) for one in found)} sources were forecast blind, before anything "
        f"was changed for them, in {len(found)} rounds: steps were off by medians of {min(steps)} "
        f"to {max(steps)} %, generation by {min(generation)} to {max(generation)} %; of the "
        f"{sum(len(one.sources) for one in judged)} with intervals {held} of {figures} figures are "
        "inside."
    )
    return textwrap.fill(text, 126, initial_indent=" " * 34, subsequent_indent="  ").lstrip()


def _rounds() -> list[Round]:
    return read_table(PUBLISHED / "runs" / "rounds.csv", Round)


def weak(folder: Path) -> str:
    """What is furthest off: checks of every source beyond 20 %, and phases of stacks."""
    content = json.loads((folder / "validation" / "validation.json").read_text("utf-8"))
    checks = [
        (abs(check["value"]), source["title"].split(":")[0], check["name"], check["cases"])
        for source in content["sources"]
        for check in source["checks"]
        if source["key"] != "runs" and check["target"] and abs(check["value"]) > 0.2
        if "outside" not in check["name"]
    ]
    rows = [(f"{title}: {name}", f"{100 * size:.0f} %", str(n)) for size, title, name, n in checks]
    far = sorted(far_off(folder), key=lambda one: -abs(math.log(one.low * one.high)))
    phases = [
        (
            f"`{one.stack}`: {_words(one.phase)}",
            f"took {one.low:.2g} to {one.high:.2g} times the forecast",
            f"{one.runs} ({one.sources} source{'s' * (one.sources > 1)})",
        )
        for one in far
    ]
    ordered = [row for _, row in sorted(zip(checks, rows, strict=True), reverse=True)]
    return markdown_table(("what is far off", "by how much", "figures"), [*phases, *ordered])


def far_off(folder: Path) -> list[FarOff]:
    """Phases of stacks of which the middle run is off by more than `FAR`."""
    runs = judged_runs(folder)
    cases = [case for case in run_cases(folder) if case["group"] in GROUPS[:-1]]
    found = []
    for (stack, phase), members in sorted(by(cases, lambda c: _key(c, runs)).items()):
        ratios = [case["measured"] / case["forecast"] for case in members]
        limit = FAR.get(phase, FAR_OF_OTHERS)
        if len(ratios) >= FEWEST and abs(math.log(median(ratios))) > math.log(limit):
            of = {runs[_run_of(case)][0] for case in members}
            low, high = (float(f"{end:.2g}") for end in (min(ratios), max(ratios)))
            found.append(FarOff(stack, phase, low, high, len(ratios), len(of)))
    return found


def _run_of(case: Mapping[str, Any]) -> str:
    return str(case["name"]).rpartition(", ")[0]


def _key(case: Mapping[str, Any], runs: Mapping[str, tuple[str, PublishedRun]]) -> tuple[str, str]:
    return FOLDERS[runs[_run_of(case)][1].stack].name, str(case["group"])


def _words(phase: str) -> str:
    return STEP_PHASES[phase].words  # type: ignore[index]


def lines(found: Sequence[FarOff]) -> Iterator[str]:
    """``far_off.yaml`` of the presets."""
    yield "# Phases of stacks for which published runs, each source left out, took far longer or"
    yield "# shorter than forecast. low, high: measured over forecast. Written by `make evidence`."
    yield "cases:" if found else "cases: []"
    for one in found:
        keys = ", ".join(f"{key}: {value}" for key, value in one._asdict().items())
        yield f"  - {{{keys}}}"
