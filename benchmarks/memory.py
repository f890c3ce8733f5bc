"""Whether published runs fit into memory, against what rollcast's ledger says: ``python -m
benchmarks.memory``.

A run that is known to have fit, or whose peak was measured, must fit in the forecast; one that ran
out of memory must not. Where a source says who or what filled the memory, that part of the ledger
is judged. Measured peaks are compared with the parts that their source measured. Cases that were
found after the formulas were done are judged once as they come (``--freeze``): that verdict stays
in ``benchmarks/results/memory.json``, whatever is changed afterwards. Counts of both are written
beside it, from which documents have their table.
"""

from __future__ import annotations

import math
import textwrap
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
LOADS: tuple[MemoryPhase, str] = ("start", "trainer")
"""Where a trainer on GPUs of its own has weights that are not shared yet."""
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
COUNTS = "memory_counts.json"
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
    "fifteenth": ("fifteenth",),
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
        return place == LOADS or (phase in TRAINS and pool not in ENGINES)
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


class Counts(NamedTuple):
    """What a round comes to: cases and those rightly told, of both outcomes those wrongly told, the
    Brier score, peaks that were measured and how far off they are in the median and at most, and
    nodes whose host memory is known with those wrongly told."""

    cases: int
    right: int
    ran: int
    ran_wrong: int
    failed: int
    failed_wrong: int
    brier: float
    peaks: int
    peaks_off: float
    peaks_most: float
    hosts: int
    hosts_wrong: int

    @classmethod
    def of(cls, judged: Sequence[Judged]) -> Counts:
        cases = [one for one in judged if not one.case.on_host]
        hosts = [one for one in judged if one.case.on_host]
        ran, failed = ([one for one in cases if one.fits == fits] for fits in (True, False))
        off = errors(cases)
        return cls(
            len(cases),
            sum(one.right for one in cases),
            len(ran),
            sum(not one.right for one in ran),
            len(failed),
            sum(not one.right for one in failed),
            round(brier(cases), 4) if cases else 0.0,
            len(off),
            round(median(off), 4) if off else 0.0,
            round(max(off, default=0.0), 4),
            len(hosts),
            sum(not one.right for one in hosts),
        )


ALL = "all"


def all_counts(now: Mapping[Part, Sequence[Judged]]) -> dict[str, dict[str, Counts]]:
    """By round in which sources were found, and over all: what was said of its cases when they were
    found (blind; none for those that were there while formulas were made), and what is now."""
    rounds = {"while the formulas were made": ("seen",), **ROUNDS, ALL: PARTS}
    return {
        title: {
            "blind": Counts.of(list(frozen(RESULTS, parts))),
            "now": Counts.of([one for part in parts for one in now[part]]),
        }
        for title, parts in rounds.items()
    }


def kept_counts(folder: Path) -> dict[str, dict[str, Counts]]:
    """`all_counts` as they were written."""
    return {
        title: {when: Counts(**counts) for when, counts in both.items()}
        for title, both in read_json(folder / COUNTS, {}).items()
    }


def memory_table(folder: Path) -> str:
    """A row for each round, and one of all."""
    rows = []
    for title, both in kept_counts(folder).items():
        blind, now = both["blind"], both["now"]
        cells = [
            (
                _share(one.right, one.cases),
                _of(one.ran_wrong, one.ran),
                _of(one.failed_wrong, one.failed),
                f"{one.brier:.3f}" if one.cases else "-",
                _of(one.hosts_wrong, one.hosts),
            )
            for one in (blind, now)
        ]
        *both_ways, hosts = zip(*cells, strict=True)
        peaks = _off(now.peaks, now.peaks_off, now.peaks_most)
        rows.append((title, *chain(*both_ways), peaks, *hosts))
    return markdown_table(COLUMNS, rows)


def memory_sentence(folder: Path) -> str:
    """The README's sentence."""
    blind, now = (kept_counts(folder)[ALL][when] for when in ("blind", "now"))
    text = (
        f"Of {now.cases} runs whose memory is known, {now.right} are rightly told to fit or not; "
        f"of the {blind.cases} that were found later, {blind.right} were before anything was "
        "changed for them."
    )
    return textwrap.fill(text, 126, initial_indent=" " * 32, subsequent_indent="  ").lstrip()


COLUMNS = (
    "found",
    *(f"rightly told, {when}" for when in ("blind", "now")),
    *(f"ran: said not to fit, {when}" for when in ("blind", "now")),
    *(f"ran out of memory: said to fit, {when}" for when in ("blind", "now")),
    *(f"Brier score, {when}" for when in ("blind", "now")),
    "peaks, now: off in the median, most (of)",
    *(f"host memory: wrongly told, {when}" for when in ("blind", "now")),
)


def errors(cases: Sequence[Judged], kinds: Sequence[Kind] = tuple(NOT_MEASURED)) -> list[float]:
    """How far each measured peak of these kinds is off."""
    return [abs(one.error) for one in cases if one.error is not None and one.case.memory in kinds]


def _share(right: int, cases: int) -> str:
    return f"{right} of {cases} ({100 * right / cases:.0f} %)" if cases else "-"


def _of(wrong: int, cases: int) -> str:
    return f"{wrong} of {cases}" if cases else "-"


def _off(peaks: int, middle: float, most: float) -> str:
    return f"{100 * middle:.0f} %, {100 * most:.0f} % ({peaks})" if peaks else "-"


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
    now = {part: list(judged(part)) for part in given.part or PARTS}
    everything = list(chain(*now.values()))
    cases = [one for one in everything if not one.case.on_host]
    if not given.counts:
        _name(everything)
    counts = Counts.of(everything)
    print(f"{_share(counts.right, counts.cases)} right")
    print(f"ran: {_of(counts.ran_wrong, counts.ran)} said not to fit")
    print(f"out of memory: {_of(counts.failed_wrong, counts.failed)} said to fit")
    refused = Counter(one.fits for one in cases if one.refused)
    print(f"refused before a run: {refused[True]} that ran, {refused[False]} that did not")
    print(f"Brier score: {brier(cases):.3f}")
    came = [one for one in frozen(RESULTS, given.part or PARTS) if not one.case.on_host]
    for when, those in (("now", cases), ("as they came", came)):
        for said, fits, of in reliability(those):
            print(f"chance to fit {said:.2f} in the mean, {when}: {fits} of {of} did")
    print(f"host memory: {_of(counts.hosts_wrong, counts.hosts)} wrong")
    for kind in NOT_MEASURED:
        off = errors(cases, (kind,))
        print(f"peaks, {kind}: {_off(len(off), median(off or [0.0]), max(off, default=0.0))}")
    print(f"peaks: {_off(counts.peaks, counts.peaks_off, counts.peaks_most)}")
    logs = [one.uncertain_log for one in cases if one.uncertain_log is not None]
    if len(logs) > 1:
        within = sorted(map(abs, logs))[round(0.68 * len(logs))]
        print(f"log of measured over forecast uncertain parts: sd {stdev(logs):.2f}")
        print(f"two of three of them are within {within:.2f}")
    if not given.part:
        found = all_counts(now)
        kept = {
            title: {w: one._asdict() for w, one in both.items()} for title, both in found.items()
        }
        write_json(RESULTS / COUNTS, kept)


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
