"""Whether published runs fit into memory, against what rollcast's ledger says: ``python -m
benchmarks.memory``.

A run that is known to have fit, or whose peak was measured, must fit in the forecast; one that ran
out of memory must not. Where a source says who or what filled the memory, that part of the ledger
is judged. Measured peaks are compared with the parts that their source measured. Every case was
seen while the formulas were made: neither half of the sources is blind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median, stdev
from typing import NamedTuple

from benchmarks.runner import markdown_table, parser
from benchmarks.validation.memory_cases import (
    PARTS,
    Kind,
    MemoryCase,
    Part,
    all_cases,
    memory_sources,
)
from rollcast.simulator.costs.memory.ledger import UNCERTAIN, Ledger, MemoryPhase
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.ledger import ledger_of
from rollcast.simulator.studies.simulate import from_raw

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


def judged(part: Part | None = None, *, on_host: bool = False) -> Iterator[Judged]:
    """Every case of GPU memory, or of host memory, or those of a part."""
    for source, name, case in all_cases(memory_sources(), part):
        if case.on_host == on_host:
            yield judge(source, name, case)


def judge(source: str, name: str, case: MemoryCase) -> Judged:
    """A case beside its forecast."""
    scenario = from_raw(RawScenario(dict(case.scenario)))
    ledger = ledger_of(scenario)
    assert ledger is not None, name  # every case has a roofline
    refused = ""
    try:
        scenario.check_memory()
    except ScenarioError as error:
        refused = str(error)
    if case.on_host:
        total = math.fsum(ledger.host_bytes.values())
        left = math.inf if case.outcome == "peak_gb" else (case.figure_bytes or 0.0) - total
        return Judged(source, name, case, float(left >= 0), refused, total)
    places = [place for place in ledger.places if _counts(case, place)]
    chance = min(ledger.chance(*place) for place in places)
    forecast = sure = None
    if case.outcome == "peak_gb":
        forecast, sure = _peak(ledger, case, places)
    return Judged(source, name, case, chance, refused, forecast, sure or 0.0)


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
    """Counts of the verdicts by what the runs did, and how far forecast peaks are off."""
    del folder  # computed at once: nothing is kept
    cases, rows = list(judged()), []
    for words, fits, error in (
        ("ran, or their peak was measured", True, "said not to fit"),
        ("ran out of GPU memory", False, "said to fit"),
    ):
        of = [one for one in cases if one.fits == fits]
        wrong = sum(not one.right for one in of)
        sources = len({one.source for one in of})
        rows.append((words, str(len(of)), str(sources), f"{wrong} {error}"))
    for words, kinds in (
        ("measured peak of tensors or of their allocator", ("allocated", "active", "reserved")),
        ("measured peak of the device", ("device",)),
    ):
        of = [one for one in cases if one.error is not None and one.case.memory in kinds]
        sources = len({one.source for one in of})
        rows.append((words, str(len(of)), str(sources), _off(of)))
    return markdown_table(("runs that", "number", "sources", "wrong"), rows)


def _off(cases: Sequence[Judged]) -> str:
    errors = [abs(one.error) for one in cases if one.error is not None]
    return f"median {100 * median(errors):.0f} %, largest {100 * max(errors):.0f} %"


def main() -> None:
    """Prints what is wrong, and the counts."""
    options = parser(__doc__)
    options.add_argument("--part", choices=PARTS, help="half of the sources alone")
    part = options.parse_args().part
    cases = list(judged(part))
    for one in cases:
        if not one.right:
            did = "ran" if one.fits else "ran out of memory"
            print(f"{one.source}: {one.name}: {did}; chance to fit {one.chance:.2f}")
        if one.fits and one.refused:
            print(f"{one.source}: {one.name}: ran, and is refused: {one.refused}")
    counts = Counter((one.fits, one.right) for one in cases)
    print(f"{sum(one.right for one in cases)} of {len(cases)} right")
    print(f"ran: {counts[True, True]} said to fit, {counts[True, False]} not")
    print(f"out of memory: {counts[False, True]} said not to fit, {counts[False, False]} to fit")
    refused = Counter(one.fits for one in cases if one.refused)
    print(f"refused before a run: {refused[True]} that ran, {refused[False]} that did not")
    for kind in NOT_MEASURED:
        of = [one for one in cases if one.case.memory == kind and one.error is not None]
        if of:
            print(f"peaks, {kind}: {len(of)}, {_off(of)}")
    everywhere = [one for one in cases if one.error is not None]
    if everywhere:
        print(f"peaks: {len(everywhere)}, {_off(everywhere)}")
    logs = [one.uncertain_log for one in everywhere if one.uncertain_log is not None]
    if len(logs) > 1:
        within = sorted(map(abs, logs))[round(0.68 * len(logs))]
        print(f"log of measured over forecast uncertain parts: sd {stdev(logs):.2f}")
        print(f"two of three of them are within {within:.2f}")
    for one in judged(part, on_host=True):
        assert one.forecast_bytes is not None
        assert one.case.figure_bytes is not None
        had = "measured" if one.fits else "ran out of"
        print(
            f"host: {one.name}: {had} {one.case.figure_bytes / 1e9:.0f} GB, forecast "
            f"{one.forecast_bytes / 1e9:.0f} GB"
        )


if __name__ == "__main__":
    main()
