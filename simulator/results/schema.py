"""The files of a run and the columns of its tables.

`simulator.results.write` writes them, `simulator.results.read` reads them. Columns are in the order
of ``tables.yaml``; steps.csv has further ones of policies. Columns are fields of
`simulator.core.spans.StepRecord` or `Segments`, or of `simulator.results.metrics.step_columns` and
`phase_columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollcast.simulator.results import RUN_SCHEMA
from rollcast.simulator.results.columns import Figure, typecode
from rollcast.simulator.results.phases import PHASE_COLUMNS, STEP_PHASES
from rollcast.simulator.values.readers import Choice, Keys, Named, Reader, Text
from rollcast.simulator.values.yaml_file import read_yaml

OUR_SCHEMAS = "rollcast-"  # start of every schema's name
PACKED = ".gz"  # ending of a file that was compressed later
LAYOUTS = ("dense", "shared_prefix")
PREFIX_PASSES = "prefix_passes"
"""What an update tells since prefixes of several groups are computed in one pass."""
OLD_FILES = {"speed_probes.csv": "pulses.csv"}  # names in runs of earlier versions
EVALUATION = "evaluation"  # a column of steps.csv, left out where it would be empty
_ANYTHING = Keys()


@dataclass(frozen=True, slots=True)
class Column:
    """A column. needed: a table without it is not read; others may be absent. unit: ``s``,
    ``tokens``, another, or none for counts and flags."""

    name: str
    shape: Reader
    meaning: str
    unit: str = ""
    needed: bool = False


@dataclass(frozen=True, slots=True)
class File:
    """A file of a run. optional: not of every run."""

    name: str
    meaning: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Table(File):
    """A CSV file with a header."""

    columns: tuple[Column, ...] = ()

    def __getitem__(self, name: str) -> Column:
        """A column. Raises KeyError."""
        return next(column for column in self.columns if column.name == name)

    def __contains__(self, name: object) -> bool:
        return any(column.name == name for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names, in order."""
        return tuple(column.name for column in self.columns)

    def without(self, name: str) -> Table:
        """The same table, but for a column."""
        return replace(self, columns=tuple(c for c in self.columns if c.name != name))

    def and_columns(self, more: Iterable[Column]) -> Table:
        """The same table, with further columns."""
        return replace(self, columns=(*self.columns, *more))

    @property
    def typecodes(self) -> dict[str, str]:
        """`array.array` codes of the number columns, by name."""
        codes = {column.name: typecode(column.shape) for column in self.columns}
        return {name: code for name, code in codes.items() if code is not None}

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of needed columns."""
        return tuple(column.name for column in self.columns if column.needed)


@dataclass(frozen=True, slots=True)
class Document(File):
    """A JSON file. shape: checked when read."""

    shape: Keys = _ANYTHING


@dataclass(frozen=True, slots=True)
class Lines(Document):
    """A file of JSON lines. shape: of each, checked when read."""


_KINDS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "seconds": ({}, "s"),
    "tokens": ({"whole": True}, "tokens"),
    "count": ({"whole": True}, ""),
    "flag": ({"whole": True, "most": 1}, ""),
    "mean": ({"null": True}, ""),
    "figure": ({}, ""),
}
"""Arguments of `simulator.results.columns.Figure`, and the unit, of numbers in ``tables.yaml``."""


def _column(
    name: str,
    *,
    needed: bool = False,
    unit: str | None = None,
    text: str | None = None,
    **said: Any,
) -> Column:
    """An entry of ``tables.yaml``."""
    if text is not None:
        return Column(name, Text(), text, needed=needed)
    [kind] = said.keys() & _KINDS.keys()
    meaning = said.pop(kind)
    shape, usual = _KINDS[kind]
    return Column(name, Figure(**{**shape, **said}), meaning, unit or usual, needed)


def _table(name: str) -> Table:
    entry = _TABLES[name]
    columns = tuple(_column(column, **said) for column, said in entry.pop("columns").items())
    return Table(name, columns=columns, **entry)


_TABLES = read_yaml(Path(__file__).parent / "tables.yaml")

SPANS = _table("spans.csv")
STEPS = _table("steps.csv").and_columns(
    Column(column, Figure(), STEP_PHASES[name].meaning, "s")
    for name, column in PHASE_COLUMNS.items()
)
ROLLOUTS = _table("rollouts.csv")
ENVIRONMENTS = _table("environments.csv")
ITERATIONS = _table("iterations.csv")
SPEED_PROBES = _table("speed_probes.csv")
FAULTS = _table("faults.csv")
FAILURES = _table("failures.csv")
ARRIVALS = _table("arrivals.csv")
EVALUATIONS = _table("evaluations.csv")

DECISIONS = Lines(
    "decisions.jsonl",
    "one line a step: its plan, what was launched, stopped and selected",
    shape=Keys(may={"layout": Choice(LAYOUTS)}),
)
SCENARIO = Document(
    "scenario.json",
    "the scenario that was run, as its file said it",
    shape=Keys({"scenario": Keys()}),
)
SUMMARY = Document(
    "summary.json",
    "the run's metrics",
    shape=Keys(
        {"schema": Choice((RUN_SCHEMA,))},
        may={"seed": Figure(whole=True, most=2**63 - 1), "makespan_s": Figure(null=True)},
    ),
)
TRACE = File("trace.json", "the run on a time line, for Perfetto; written compressed")
TIMELINE = File("timeline.png", "a picture of the run", optional=True)
LEARNING_PICTURE = File(
    "learning.png", "accuracy over hours, where the scenario has a law of learning", optional=True
)

UPDATES = Lines(
    "updates.jsonl",
    "one line an update: what the trainer reports, and the step's accuracy",
    optional=True,
    shape=Keys(
        {
            "updates": Figure(whole=True),
            "rollouts": Figure(whole=True),
            "log_prob_s": Figure(),
            "computed_tokens": Figure(whole=True),
            "padding_tokens": Figure(whole=True),
            "microbatches": Figure(whole=True),
        },
        may={PREFIX_PASSES: Figure(whole=True)},
    ),
)
BOARD = File(
    "events.out.tfevents.rollcast",
    "curves for TensorBoard: one event a step, of reward, loss, seconds, tokens and the engine",
    optional=True,
)
PROVENANCE = Document(
    "provenance.json",
    "versions, hardware and the date; never names or paths of a machine",
    shape=Keys({"versions": Named(Text())}, may={"date": Text()}),
)

EVENTS = Lines(
    "events.jsonl",
    "one line a verb of the loop: what the world was asked, when and what it answered",
    optional=True,
    shape=Keys({"verb": Text(), "at_s": Figure()}),
)
TORNADO_CSV = File(
    "tornado.csv",
    "one row an uncertain input: what a step, the run and its cost are at its ends",
    optional=True,
)
TORNADO_PICTURE = File("tornado.png", "the same as bars", optional=True)


SAMPLES = Lines(
    "samples.jsonl",
    "some rollouts of each batch: prompt, response, reward, advantage, version of the weights",
    optional=True,
)

RUN: tuple[File, ...] = (
    SPANS,
    STEPS,
    ROLLOUTS,
    ENVIRONMENTS,
    DECISIONS,
    SCENARIO,
    SUMMARY,
    TRACE,
    TIMELINE,
    LEARNING_PICTURE,
    TORNADO_CSV,
    TORNADO_PICTURE,
    ITERATIONS,
    SPEED_PROBES,
    UPDATES,
    BOARD,
    PROVENANCE,
    EVENTS,
    ARRIVALS,
    FAULTS,
    FAILURES,
    SAMPLES,
    EVALUATIONS,
)
"""A run's files; the summary is written last."""

RUN_FOLDERS = frozenset({"model", "checkpoint"})
"""A real run's folders: the trained model, and what it needs to go on."""

COMPARISON_JSON = File("comparison.json", "one entry a policy: metrics, speed-up, its interval")
COMPARISON_CSV = File("comparison.csv", "the same as a table")
COMPARISON_PICTURE = File("comparison.png", "the policies' time lines", optional=True)
REPORT = File("report.html", "all of it as one page that needs no other file", optional=True)
COMPARISON: tuple[File, ...] = (
    COMPARISON_JSON,
    COMPARISON_CSV,
    COMPARISON_PICTURE,
    LEARNING_PICTURE,
    REPORT,
)
"""A comparison's own files."""

PLAN_SCHEMA = "rollcast-plan/1"
PLAN_JSON = File("plan.json", "what is recommended, the runners-up, the front, what cannot be")
PLAN_CSV = File("plan.csv", "one row a choice, best first")
PLAN_SCENARIO = File("recommended.yaml", "the scenario of what is recommended")
PLAN: tuple[File, ...] = (PLAN_JSON, PLAN_CSV, PLAN_SCENARIO, REPORT, TORNADO_CSV, TORNADO_PICTURE)
"""A plan's files."""

CHECK_SCHEMA = "rollcast-check/1"
CHECK_JSON = File("check.json", "whether a launch fits, its times, its ledger of memory, changes")
CHECK_SCENARIO = File("scenario.yaml", "the launch as a scenario, with the place of each value")
CHECK: tuple[File, ...] = (CHECK_JSON, CHECK_SCENARIO, REPORT)
"""A check's files."""
