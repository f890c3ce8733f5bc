"""Whether published runs fit into memory, against what rollcast's ledger says: ``python -m
benchmarks.memory``.

A run that is known to have fit, or whose peak was measured, must fit in the forecast; one that ran
out of memory must not. Where a source says who or what filled the memory, that part of the ledger
is judged. Measured peaks are compared with the parts that their source measured. Cases that were
found after the formulas were done are judged once as they come (``--freeze``): that verdict stays
in ``benchmarks/results/memory.json``, whatever is changed afterwards.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

from benchmarks.runner import RESULTS, markdown_table, parser, read_json, write_json
from benchmarks.validation.memory_cases import (
    PARTS,
    Kind,
    MemoryCase,
    Part,
    all_cases,
    memory_sources,
)
from rollcast.simulator.costs.memory.ledger import (
    REFUSED_BELOW,
    UNCERTAIN,
    Ledger,
    MemoryPhase,
)
from rollcast.simulator.errors import ScenarioError

TRAINS: tuple[MemoryPhase, ...] = ("log_prob", "update", "optimizer_step")
NOT_MEASURED: Mapping[Kind, frozenset[str]] = {
    "allocated": frozenset({"context", "fragmentation"}),
    "active": frozenset({"context", "fragmentation"}),
    "reserved": frozenset({"context"}),
    "device": frozenset(),
    "host": frozenset(),
}
"""The parts that a kind of measurement does not see."""
ENGINES = ("engine", "engine_share")
HOST = "cost.roofline.host_memory_bytes"
FROZEN = "memory.json"
FAR = 0.25  # a peak that is further off is named
BINS = (0.0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1)
"""Chances between which runs are counted for the reliability line."""


class Judged(NamedTuple):
    """A case and its forecast. chance: that it fits. refused: why ``simulate`` refuses it; '' where
    it does not. forecast_bytes: of a measured peak, or of a node's host memory; None for other
    cases. sure_bytes: of that, what the configuration fixes."""

    source: str
    name: str
    case: MemoryCase
    chance: float
    refused: str
    forecast_bytes: float | None
    sure_bytes: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether the run itself fit."""
        return self.case.outcome != "out_of_memory"

    @property
    def right(self) -> bool:
        """Whether the ledger says so."""
        return self.fits == (self.chance >= 0.5)

    @property
    def error(self) -> float | None:
        """Forecast over the measured peak, less 1; None where none was measured."""
        measured = self.case.figure_bytes
        if self.case.outcome != "peak_gb" or measured is None or self.forecast_bytes is None:
            return None
        return self.forecast_bytes / measured - 1

    @property
    def uncertain_log(self) -> float | None:
        """Log of measured over forecast uncertain parts; None where the rest is more than was
        measured."""
        measured = self.case.figure_bytes
        if self.error is None or measured is None or self.forecast_bytes is None:
            return None
        left, forecast = measured - self.sure_bytes, self.forecast_bytes - self.sure_bytes
        return math.log(left / forecast) if left > 0 and forecast > 0 else None


ROUNDS: Mapping[str, tuple[Part, ...]] = {
    "first afterwards": ("blind", "held"),
    "second": ("later",),
    "third": ("fresh",),
    "fourth": ("newest",),
    "fifth": ("last",),
    "sixth": ("sixth",),
    "seventh": ("seventh",),
    "eighth": ("eighth",),
    "ninth": ("ninth",),
    "tenth": ("tenth",),
    "eleventh": ("eleventh",),
    "twelfth": ("twelfth",),
    "thirteenth": ("thirteenth",),
    "fourteenth": ("fourteenth",),
}
"""The parts that were found after the formulas were done, by the round in which they were."""


def judged(*parts: Part) -> Iterator[Judged]:
    """Every case beside what the ledger says now, or those of these parts."""
    for _, name, _ in all_cases(_sources(), *parts):
        yield _judged_now(name)


_sources = cache(memory_sources)  # the committed ones


@cache
def _judged_now(name: str) -> Judged:
    """A committed case beside what the ledger says now."""
    return judge(*_by_name()[name])


@cache
def _by_name() -> dict[str, tuple[str, str, MemoryCase]]:
    return {one[1]: one for one in all_cases(_sources())}


def frozen(folder: Path, parts: Sequence[Part]) -> Iterator[Judged]:
    """Every case of parts that were found afterwards, beside what the ledger said when it was
    found."""
    verdicts = read_json(folder / FROZEN, {})
    for source, name, case in all_cases(_sources(), *parts):
        if name in verdicts:
            kept = verdicts[name]
            chance, forecast = kept["chance"], kept["forecast_bytes"]
            if case.on_host and case.outcome == "peak_gb":
                chance = _near(forecast, case)
            yield Judged(source, name, case, chance, "", forecast)


def freeze(folder: Path = RESULTS) -> int:
    """Judges the cases that have no verdict yet and keeps it; the number of these."""
    verdicts = read_json(folder / FROZEN, {})
    new = {
        name: {"chance": round(one.chance, 4), "forecast_bytes": one.forecast_bytes}
        for _, name, _ in all_cases(_sources(), *chain(*ROUNDS.values()))
        if name not in verdicts
        for one in [_judged_now(name)]
    }
    write_json(folder / FROZEN, verdicts | new)
    return len(new)


def judge(source: str, name: str, case: MemoryCase) -> Judged:
    """A case beside its forecast; a launch that is refused is told wrongly."""
    settings = (f"{HOST}={case.figure_bytes}",) if case.on_host else ()
    try:
        scenario, ledger = case.forecast(*settings)
    except ScenarioError as error:
        if case.launch is None:
            raise
        return Judged(source, name, case, float(case.outcome == "out_of_memory"), str(error), None)
    if case.on_host:  # whose source may say nothing of its GPUs
        return Judged(source, name, case, _host_chance(ledger, case), "", ledger.host_total)
    refused = ""
    try:
        scenario.check_memory(remedied=False)
    except ScenarioError as error:
        beside = case.role == "trainer" and scenario.no_pool is not None  # its engine is none
        told = case.launch is not None and ledger.fits_probability >= REFUSED_BELOW
        refused = "" if beside or told else str(error)
    places = [place for place in ledger.places if _counts(case, place)]
    chance = ledger.of_chances(ledger.chance(*place) for place in places)
    if case.launch is not None:  # as the user is told it
        chance = ledger.fits_probability
    forecast = sure = None
    if case.outcome == "peak_gb":
        forecast, sure = _peak(ledger, case, places)
    return Judged(source, name, case, chance, refused, forecast, sure or 0.0)


def _host_chance(ledger: Ledger, case: MemoryCase) -> float:
    """Chance that a node is enough; of a measured one, whether the forecast is within `FAR`."""
    if case.outcome == "peak_gb":
        return _near(ledger.host_total, case)
    return ledger.host_chance


def _near(forecast: float, case: MemoryCase) -> float:
    """1 where a forecast is within `FAR` of what was measured, else 0."""
    return float(abs(forecast / (case.figure_bytes or 1.0) - 1) <= FAR)


def _counts(case: MemoryCase, place: tuple[MemoryPhase, str]) -> bool:
    """Whether a phase on a pool is what the source speaks of."""
    phase, pool = place
    if case.role == "trainer":
        return phase in TRAINS and pool not in ENGINES
    return True


def _peak(
    ledger: Ledger, case: MemoryCase, places: Sequence[tuple[MemoryPhase, str]]
) -> tuple[float, float]:
    """(the fullest of the places as it is measured, of that what the configuration fixes)."""
    unseen, most = NOT_MEASURED[case.memory], (0.0, 0.0)
    for phase, pool in places:
        if pool == "engine_share" or case.phase not in (None, phase):
            continue
        parts = [item for holding in ledger.of(phase, pool) for item in holding.bytes.items()]
        seen = [(name, size) for name, size in parts if name not in unseen]
        sure = math.fsum(size for name, size in seen if name not in UNCERTAIN)
        most = max(most, (math.fsum(size for _, size in seen), sure))
    return most


def memory_table(folder: Path) -> str:
    """A row for each round in which sources were found: what was said of its cases when they were
    found, and what is said now; and one of all."""
    rows = [_row("while the formulas were made", [], list(judged("seen")))]
    for title, parts in ROUNDS.items():
        rows.append(_row(title, list(frozen(folder, parts)), list(judged(*parts))))
    rows.append(_row("all", list(frozen(folder, PARTS)), list(judged())))
    return markdown_table(COLUMNS, rows)


COLUMNS = (
    "found",
    *(f"rightly told, {when}" for when in ("blind", "now")),
    *(f"ran: said not to fit, {when}" for when in ("blind", "now")),
    *(f"ran out of memory: said to fit, {when}" for when in ("blind", "now")),
    *(f"Brier score, {when}" for when in ("blind", "now")),
    "peaks, now: off in the median, most (of)",
    *(f"host memory: wrongly told, {when}" for when in ("blind", "now")),
)


def _row(title: str, blind: Sequence[Judged], now: Sequence[Judged]) -> tuple[str, ...]:
    """The same runs as they were judged when they were found (none for those that were there while
    formulas were made), and now."""
    both = [[one for one in cases if not one.case.on_host] for cases in (blind, now)]
    return (
        title,
        *(_share(cases) for cases in both),
        *(_wrong(cases, fits=True) for cases in both),
        *(_wrong(cases, fits=False) for cases in both),
        *(f"{brier(cases):.3f}" if cases else "-" for cases in both),
        _off(both[1], tuple(NOT_MEASURED)),
        *(_wrong(cases, host=True) for cases in (blind, now)),
    )


def _share(cases: Sequence[Judged]) -> str:
    """How many were rightly told."""
    right = sum(one.right for one in cases)
    return f"{right} of {len(cases)} ({100 * right / len(cases):.0f} %)" if cases else "-"


def _wrong(cases: Sequence[Judged], *, fits: bool | None = None, host: bool = False) -> str:
    """How many of these are wrong."""
    of = [one for one in cases if one.case.on_host == host and fits in (None, one.fits)]
    return f"{sum(not one.right for one in of)} of {len(of)}" if of else "-"


def _off(cases: Sequence[Judged], kinds: Sequence[Kind]) -> str:
    """How far peaks of these kinds that were measured are off."""
    errors = [abs(one.error) for one in cases if one.error is not None and one.case.memory in kinds]
    if not errors:
        return "-"
    return f"{100 * median(errors):.0f} %, {100 * max(errors):.0f} % ({len(errors)})"


def main() -> None:
    """Prints what is wrong, and the counts."""
    options = parser(__doc__)
    options.add_argument("--part", choices=PARTS, action="append", help="sources of this part")
    options.add_argument(
        "--freeze", action="store_true", help="keep the verdicts on cases that have none yet"
    )
    options.add_argument("--counts", action="store_true", help="name no case")
    given = options.parse_args()
    if given.freeze:
        print(f"{freeze()} verdicts kept in {FROZEN}")
    everything = list(judged(*(given.part or PARTS)))
    cases = [one for one in everything if not one.case.on_host]
    if not given.counts:
        _name(everything)
    counts = Counter((one.fits, one.right) for one in cases)
    print(f"{_share(cases)} right")
    print(f"ran: {counts[True, True]} said to fit, {counts[True, False]} not")
    print(f"out of memory: {counts[False, True]} said not to fit, {counts[False, False]} to fit")
    refused = Counter(one.fits for one in cases if one.refused)
    print(f"refused before a run: {refused[True]} that ran, {refused[False]} that did not")
    print(f"Brier score: {brier(cases):.3f}")
    came = [one for one in frozen(RESULTS, given.part or PARTS) if not one.case.on_host]
    for when, those in (("now", cases), ("as they came", came)):
        for said, fits, of in reliability(those):
            print(f"chance to fit {said:.2f} in the mean, {when}: {fits} of {of} did")
    print(f"host memory: {_wrong(everything, host=True)} wrong")
    for kind in NOT_MEASURED:
        print(f"peaks, {kind}: {_off(cases, (kind,))}")
    print(f"peaks: {_off(cases, tuple(NOT_MEASURED))}")
    logs = [one.uncertain_log for one in cases if one.uncertain_log is not None]
    if len(logs) > 1:
        within = sorted(map(abs, logs))[round(0.68 * len(logs))]
        print(f"log of measured over forecast uncertain parts: sd {stdev(logs):.2f}")
        print(f"two of three of them are within {within:.2f}")


def brier(cases: Sequence[Judged]) -> float:
    """Mean square of the chance that a run fits, less 1 where it did."""
    return mean((one.chance - one.fits) ** 2 for one in cases)


def reliability(cases: Sequence[Judged]) -> list[tuple[float, int, int]]:
    """(mean chance that was said, runs that fit, of so many) in order of the chances."""
    found = []
    for low, high in pairwise(BINS):
        within = [one for one in cases if low <= one.chance < high]
        if within:
            said = mean(one.chance for one in within)
            found.append((said, sum(one.fits for one in within), len(within)))
    return found


def _name(cases: Sequence[Judged]) -> None:
    """Prints the cases that are wrong, and those of host memory."""
    for one in cases:
        forecast, figure = (one.forecast_bytes or 0.0) / 1e9, (one.case.figure_bytes or 0.0) / 1e9
        if one.case.on_host:
            had = "measured" if one.error is not None else ("ran in" if one.fits else "ran out of")
            print(f"host: {one.name}: {had} {figure:.0f} GB, forecast {forecast:.0f} GB")
        elif not one.right:
            did = "ran" if one.fits else "ran out of memory"
            print(f"{one.source}: {one.name}: {did}; chance to fit {one.chance:.2f}")
        elif one.error is not None and abs(one.error) > FAR:
            print(f"{one.source}: {one.name}: {figure:.0f} GB, forecast {forecast:.0f} GB")
        if one.fits and one.refused:
            print(f"{one.source}: {one.name}: ran, and is refused: {one.refused}")


if __name__ == "__main__":
    main()
