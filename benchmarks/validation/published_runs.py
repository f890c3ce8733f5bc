"""Published RL runs: each a scenario that a user could have written, and its measured phases.

A file of ``benchmarks/data/published/runs`` is a source: a page, a thread or a log. A run's
``scenario`` holds only keys of a user's scenario, ``unknown`` what the source leaves open.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.validation.files import PUBLISHED
from rollcast.simulator import values
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.phases import PHASES
from rollcast.simulator.values.yaml_file import read_yaml

MEASURED = (*(name for name in PHASES if name not in ("tail", "optimiser")), "step")
"""What sources measure: phases, of which an update holds the optimiser, and the step."""
TRAINER = frozenset({"log_prob", "reference", "values", "update", "step"})
"""Phases of a trainer, and the step, which holds them."""
FOLDER = PUBLISHED / "runs"


@dataclass(frozen=True)
class PublishedRun:
    """A run as its source describes it.

    measured: seconds of a step by phase; phases that the source measures as one are joined by
    ``+``. steps: over how many they are means, None where the source does not say. unknown: by
    dotted key of the scenario, the values that are about equally likely, the best guess first.
    bound: the phase that bounds a step. first_step: whether the figures are of the first step after
    a process's start.
    """

    scenario: Mapping[str, Any]
    measured: Mapping[str, float]
    unknown: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    version: str = ""
    steps: int | None = None
    bound: str | None = None
    first_step: bool = False
    note: str = ""

    @property
    def stack(self) -> str:
        """As the scenario names it."""
        return str(self.scenario["cost"]["roofline"]["stack"])

    @property
    def judged(self) -> dict[str, float]:
        """What forecasts are held to. In the first step of a process the trainer compiles kernels,
        tunes them and fills its allocator: its phases and the step are not those of a run."""
        once = TRAINER if self.first_step else frozenset()
        return {name: s for name, s in self.measured.items() if once.isdisjoint(parts(name))}

    def keys(self, chosen: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The scenario's keys, with ``chosen`` values of what is unknown, the guess for others."""
        content = copy.deepcopy(dict(self.scenario))
        for key, guesses in self.unknown.items():
            put(content, key, (chosen or {}).get(key, guesses[0]))
        return content


@dataclass(frozen=True)
class PublishedSource:
    """The runs of one page, thread or log. pairs: names of runs whose ratio of steps counts, the
    changed one first."""

    source: str
    runs: Mapping[str, PublishedRun]
    pairs: Sequence[Sequence[str]] = ()


def put(keys: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key."""
    *above, last = key.split(".")
    for part in above:
        keys = keys.setdefault(part, {})
    keys[last] = value


def parts(name: str) -> tuple[str, ...]:
    """The phases of a measured figure: ``log_prob+reference`` are two."""
    return tuple(name.split("+"))


def published_sources() -> dict[str, PublishedSource]:
    """Every source by the name of its file. Raises ScenarioError naming file and key."""
    return {path.stem: _read(path) for path in sorted(FOLDER.glob("*.yaml"))}


def _read(path: Path) -> PublishedSource:
    content = read_yaml(path)
    runs = {
        name: values.read(PublishedRun, keys, f"{path.name}: {name}")
        for name, keys in content["runs"].items()
    }
    for name, run in runs.items():
        for figure in run.measured:
            for phase in parts(figure):
                values.choice(phase, f"{path.name}: {name}.measured", MEASURED)
    pairs = tuple(tuple(pair) for pair in content.get("pairs", ()))
    for name in {name for pair in pairs for name in pair} - set(runs):
        raise ScenarioError(f"{path.name}: pairs", f"{name} is no run of this file")
    return PublishedSource(content["source"], runs, pairs)


def all_runs(sources: Mapping[str, PublishedSource]) -> Iterator[tuple[str, str, PublishedRun]]:
    """Source, name and run of each."""
    for key, source in sources.items():
        for name, run in source.runs.items():
            yield key, name, run
