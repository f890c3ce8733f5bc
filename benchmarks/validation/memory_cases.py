"""Published runs whose memory is known: they ran, ran out of memory, or their peak was measured.

A file of ``benchmarks/data/published/memory`` is a source: a table, a thread or a folder of
scripts. Those of the part ``seen`` were there while the formulas were made. Those of ``blind`` and
``held`` were found and written down afterwards, and judged once before any formula was changed;
``held`` (half of them, by a hash) was looked at by nobody while formulas were changed then. Those
of ``later`` were found when the formulas had been changed with all of these in view, and judged
once; those of ``fresh`` again so, after those, those of ``newest`` after these, those of
``last`` after these, and so on to ``fifteenth``.

A case holds the run as a scenario of ours, or as the settings of its launch, which are read as
``rollcast check`` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from benchmarks.validation.files import PUBLISHED
from rollcast.simulator import values
from rollcast.simulator.check.forecast import over_lengths
from rollcast.simulator.check.question import Question, question
from rollcast.simulator.costs.memory.ledger import Ledger
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.draft import Asked
from rollcast.simulator.launches.parts import Part as ScenarioPart
from rollcast.simulator.launches.settle import of_release, settled
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.stacks.launch import Given
from rollcast.simulator.stacks.settings import Place
from rollcast.simulator.stacks.stack import all_stacks
from rollcast.simulator.studies.simulate import from_raw
from rollcast.simulator.values.yaml_file import read_yaml

Part = Literal[
    "seen",
    "blind",
    "held",
    "later",
    "fresh",
    "newest",
    "last",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
]
Outcome = Literal["ran", "out_of_memory", "peak_gb"]
Kind = Literal["allocated", "active", "reserved", "device", "host"]
Phase = Literal["start", "generation", "switch", "log_prob", "update", "optimizer_step", "sync"]
Role = Literal["trainer", "engine"]
Unit = Literal["GB", "GiB"]

FOLDER = PUBLISHED / "memory"
PARTS: tuple[Part, ...] = get_args(Part)
UNIT_BYTES: Mapping[Unit, float] = {"GB": 1e9, "GiB": 2.0**30}


@dataclass(frozen=True)
class LaunchCase:
    """A launch by the stack's own settings.

    stack: name of its folder. settings: what the launch gives, by the stack's keys. release: None
    where the source does not tell it. entry: module or script that is launched. gpu, gpus, model,
    mean_tokens, prompt_tokens: as a user gives them to ``rollcast check``, GPU and model also as
    keys of a scenario.
    """

    stack: str
    settings: Mapping[str, Any]
    gpu: str | Mapping[str, Any]
    gpus: int | None = None
    release: str | None = None
    entry: str = ""
    model: str | Mapping[str, Any] | None = None
    mean_tokens: float | None = None
    prompt_tokens: int | None = None

    def question(self, settings: Sequence[str] = ()) -> Question:
        """As ``rollcast check`` asks it, ``--set`` these. Raises ScenarioError as that does."""
        place = Place("the source")
        given = [Given(key, value, place) for key, value in self.settings.items()]
        stack = all_stacks()[self.stack]
        launch = settled(stack, given, {}, self.entry, _Nowhere(Path("launch")), ())
        if self.release is not None:
            launch = of_release(launch, self.release)
        said = {"gpu": self.gpu, "model": self.model}
        parts = tuple(
            ScenarioPart(key, value, "the source") for key, value in said.items() if value
        )
        asked = Asked(self.gpus, None, self.mean_tokens, self.prompt_tokens, parts=parts)
        return question(launch, asked, settings)


class _Nowhere(Sources):
    """Of settings that no file says."""

    def roots(self) -> Iterator[Path]:
        """None."""
        yield from ()


@dataclass(frozen=True)
class MemoryCase:
    """A run as its source describes it, by a scenario or by its launch.

    launched: what the user set, in words. gb: the measured peak of one GPU in ``unit``, or of a
    node's host memory; of host memory that was not measured, what the node has. memory: what was
    measured (tensors allocated or active, what the allocator reserved, the device's, the host's).
    phase, role: where the peak was or the memory ran out, where the source says it. open: dotted
    keys that the source leaves open. beyond: what it sets and no key says.
    """

    stack: str
    launched: str
    outcome: Outcome
    scenario: Mapping[str, Any] = field(default_factory=dict)
    launch: LaunchCase | None = None
    gb: float | None = None
    unit: Unit = "GiB"
    memory: Kind = "device"
    phase: Phase | None = None
    role: Role | None = None
    open: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    note: str = ""

    @property
    def figure_bytes(self) -> float | None:
        """``gb`` in bytes: a measured peak, or the memory that the node has."""
        return None if self.gb is None else self.gb * UNIT_BYTES[self.unit]

    @property
    def on_host(self) -> bool:
        """Whether the outcome is of host memory."""
        return self.memory == "host"

    def forecast(self, *settings: str) -> tuple[Scenario, Ledger]:
        """The run as we see it, with these settings (``key=value``) over it, and its memory.
        Raises ScenarioError for a run that cannot be."""
        if self.launch is None:
            scenario = from_raw(override(RawScenario(dict(self.scenario)), settings))
            ledger = scenario.ledger
        else:
            asked = self.launch.question(settings)
            scenario, ledger = asked.scenario, asked.scenario.ledger
            ledger = over_lengths(asked, ledger) if ledger is not None else None
        assert ledger is not None  # every case has a roofline
        return scenario, ledger


@dataclass(frozen=True)
class MemorySource:
    """The cases of one source."""

    source: str
    part: Part
    cases: Mapping[str, MemoryCase]


def memory_sources(folder: Path = FOLDER) -> dict[str, MemorySource]:
    """Every source by the name of its file. Raises ScenarioError naming file and key."""
    return {path.stem: _read(path) for path in sorted(folder.glob("*.yaml"))}


def _read(path: Path) -> MemorySource:
    content = read_yaml(path)
    part = cast("Part", values.choice(content["part"], f"{path.name}: part", PARTS))
    cases = {
        name: _checked(values.read(MemoryCase, keys, f"{path.name}: {name}"), path.name, name)
        for name, keys in content["cases"].items()
    }
    return MemorySource(content["source"], part, cases)


def _checked(case: MemoryCase, file: str, name: str) -> MemoryCase:
    """The case. Raises ScenarioError where its figure is missing or belongs to no such outcome, and
    where it is not either a scenario or a launch."""
    if bool(case.scenario) == (case.launch is not None):
        raise ScenarioError(f"{file}: {name}", "is by a scenario or by a launch")
    has = case.outcome == "peak_gb" or case.on_host
    if has != (case.gb is not None):
        raise ScenarioError(
            f"{file}: {name}.gb", "belongs to peak_gb and to host memory, and to no other"
        )
    return case


def all_cases(
    sources: Mapping[str, MemorySource], *parts: Part
) -> Iterator[tuple[str, str, MemoryCase]]:
    """Source, name and case of each, or of these parts."""
    for key, source in sources.items():
        if not parts or source.part in parts:
            for name, case in source.cases.items():
                yield key, name, case
