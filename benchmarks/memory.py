"""Whether published runs fit into memory, against what rollcast's check says: ``python -m
benchmarks.memory``.

A run that is known to have fit, or whose peak was measured, must be accepted; one that ran out of
GPU memory must be refused. Cases of host memory are left out: nothing forecasts it yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.runner import markdown_table, parser
from benchmarks.validation.memory_cases import (
    PARTS,
    MemoryCase,
    Part,
    all_cases,
    memory_sources,
)
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw


class Judged(NamedTuple):
    """A case and its verdict. refusal: why rollcast says that it does not fit; '' where it does."""

    source: str
    name: str
    case: MemoryCase
    refusal: str

    @property
    def fits(self) -> bool:
        """Whether the run itself fit."""
        return self.case.outcome != "out_of_memory"

    @property
    def right(self) -> bool:
        """Whether rollcast says so."""
        return self.fits == (not self.refusal)


def judged(part: Part | None = None) -> Iterator[Judged]:
    """Every case of GPU memory, or those of a part."""
    for source, name, case in all_cases(memory_sources(), part):
        if not case.on_host:
            yield Judged(source, name, case, refusal(case))


def refusal(case: MemoryCase) -> str:
    """Why a case does not fit, in rollcast's words; '' where it does."""
    try:
        from_raw(RawScenario(dict(case.scenario))).check_memory()
    except ScenarioError as error:
        return str(error)
    return ""


def memory_table(folder: Path) -> str:
    """Counts of the verdicts by what the runs did, and of their errors."""
    del folder  # computed at once: nothing is kept
    cases, rows = list(judged()), []
    for words, fits, error in (
        ("ran, or their peak was measured", True, "refused"),
        ("ran out of GPU memory", False, "accepted"),
    ):
        of = [one for one in cases if one.fits == fits]
        wrong = sum(not one.right for one in of)
        sources = len({one.source for one in of})
        rows.append((words, str(len(of)), str(sources), f"{wrong} {error}"))
    return markdown_table(("runs that", "number", "sources", "wrong"), rows)


def main() -> None:
    """Prints what is wrong, and the counts."""
    options = parser(__doc__)
    options.add_argument("--part", choices=PARTS, help="half of the sources alone")
    cases = list(judged(options.parse_args().part))
    counts = Counter((one.fits, one.right) for one in cases)
    for one in cases:
        if not one.right:
            said = one.refusal or "rollcast says that it fits; it ran out of memory"
            print(f"{one.source}: {one.name}: {said}")
    print(f"{sum(one.right for one in cases)} of {len(cases)} right")
    print(f"ran: {counts[True, True]} accepted, {counts[True, False]} refused")
    print(f"out of memory: {counts[False, True]} refused, {counts[False, False]} accepted")


if __name__ == "__main__":
    main()
