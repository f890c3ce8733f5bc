"""A run's folder, read back: tables as arrays, checked before anything is fitted to them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.rollout import CALL_ENDS, CALL_KINDS, ENDINGS, OLD_CALL_ENDS
from rollcast.simulator.core.spans import Calls, Segments
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results import schema
from rollcast.simulator.results.columns import LARGEST_TOKENS
from rollcast.simulator.results.read import place, read_document, read_lines, read_table
from rollcast.simulator.scenario.file import Trust, named_modules
from rollcast.simulator.values import A_MAPPING, Between, read, wrong
from rollcast.simulator.values import Number as Option
from rollcast.simulator.workload.environment import EnvironmentSection, environment_spec
from rollcast.simulator.workload.recorded_turns import (
    Name,
    RecordedTrajectory,
    recorded_trajectories,
)

Table = dict[str, NDArray[Any]]

FIELD = "RUN_DIR"
_GIVE = (
    "give the folder of a finished run, as rollcast run --out writes it (rollcast import reads the "
    "logs of other trainers)"
)
SAME = ("python", "versions", "processor", "cores", "torch_threads", "gpu")
_ROUNDING_S = 2e-6  # tables may be kept to the microsecond
_CAP = Option(whole=True, bounds=Between(1, LARGEST_TOKENS))
_SAME_SCENARIO = ("model", "gpu", "cluster", "engine")


def check_given_once(folders: Sequence[Path]) -> None:
    """Raises ScenarioError (``RUN_DIR``) for a run that is named twice."""
    # unlike Path.resolve, realpath raises nothing on links that lead in a circle
    if len({os.path.realpath(folder) for folder in folders}) < len(folders):
        raise ScenarioError(FIELD, "a run is given twice")


@dataclass(frozen=True)
class RunFolder:
    """A finished run on disk. Its tables are read when first asked for; they may be compressed, as
    ``steps.csv.gz``.

    path: the folder. summary, description: summary.json and scenario.json. Every file is of the
    shape that `simulator.results.schema` gives it. Raises ScenarioError (``RUN_DIR``), naming file
    and line, for what is missing, unreadable, of another schema or of values that none has.
    """

    path: Path
    summary: dict[str, Any]
    description: dict[str, Any]
    trust_modules: Trust = False

    @classmethod
    def open(cls, path: Path, trust_modules: Trust = False) -> RunFolder:
        """Opens a run's folder. trust_modules: whether forecasts may import policies it names."""
        if not path.is_dir():
            raise _wrong(f"{path} is not a folder; {_GIVE}")
        if not any(place(path, file.name).exists() for file in (schema.SUMMARY, schema.SCENARIO)):
            raise _wrong(f"{path} holds no run; {_GIVE}")
        summary = read_document(path, schema.SUMMARY, FIELD)
        return cls(path, summary, read_document(path, schema.SCENARIO, FIELD), trust_modules)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @cached_property
    def policy(self) -> str:
        """The policy, as the command line spells it; a seed that follows the run's is no part of
        it, so that runs of one policy are known as such."""
        from rollcast.simulator.policies import build_chain, spell

        if named_modules(self.scenario):  # which are not imported for a name
            return str(self.description.get("policy_spelt", self.scenario["policy"]))
        try:
            return spell(build_chain(self.scenario.get("policy")))
        except ScenarioError as error:
            raise self.bad_scenario(error) from None

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.summary.get("seed", 0))

    @property
    def scenario(self) -> dict[str, Any]:
        """The scenario that was run, as its file says it."""
        scenario: dict[str, Any] = self.description["scenario"]
        return scenario

    def section(self, *keys: str) -> Mapping[str, Any]:
        """A section of the scenario, such as ``engine``, ``trainer``; empty where it has none."""
        section: Any = self.scenario
        for i, key in enumerate(keys):
            section = section.get(key)
            if section is None:
                return {}
            if not isinstance(section, Mapping):
                field = ".".join(keys[: i + 1])
                raise self.bad_scenario(wrong(field, A_MAPPING, section))
        return cast(Mapping[str, Any], section)

    @cached_property
    def cap(self) -> int:
        """The scenario's ``max_new_tokens``."""
        key = "max_new_tokens"
        try:
            return int(_CAP.read(self.section("workload").get(key), f"workload.{key}"))
        except ScenarioError as error:
            raise self.bad_scenario(error) from None

    @cached_property
    def spans(self) -> Table:
        """spans.csv by column."""
        table = read_table(self.path, schema.SPANS, FIELD)
        self._check_steps(schema.SPANS, table, "step")
        if not len(table["step"]):
            raise self._wrong(schema.SPANS, "holds no span")
        return table

    @cached_property
    def steps(self) -> Table:
        """steps.csv by column, in order of steps."""
        table = read_table(self.path, schema.STEPS, FIELD)
        for row, step in enumerate(table["step"].tolist()):
            if step != row:
                raise self._wrong(schema.STEPS, f"holds step {step} where step {row} belongs")
        self._check_rises(schema.STEPS, table, "rollout_start_s")
        return table

    @cached_property
    def rollouts(self) -> Table:
        """rollouts.csv by column: one row a segment, in the order they ended. What the limit on a
        trial ended counts as unfinished: it says how far the rollout came."""
        table = read_table(self.path, schema.ROLLOUTS, FIELD)
        if "ending" in table:
            late = table["ending"] == "trial_timeout"
            table["finished"] = np.where(late, 0, table["finished"])
            table["reward"] = np.where(late, np.nan, table["reward"])
        for column in ("step", "trained_step"):
            self._check_steps(schema.ROLLOUTS, table, column)
        self._check_steps(schema.ROLLOUTS, table, "version", most=len(self.steps["step"]))
        sampled = "new_tokens" if self._has(schema.ENVIRONMENTS) else "total_tokens"
        if (table[sampled] > self.cap).any():
            problem = f"holds a response of more than workload.max_new_tokens, {self.cap}"
            raise self._wrong(schema.ROLLOUTS, problem)
        return table

    @cached_property
    def environments(self) -> Table | None:
        """environments.csv by column; None for a run whose rollouts have one turn."""
        if not self._has(schema.ENVIRONMENTS):
            return None
        table = read_table(self.path, schema.ENVIRONMENTS, FIELD)
        self._check_steps(schema.ENVIRONMENTS, table, "step")
        ended = [OLD_CALL_ENDS.get(word, word) for word in table["ended"].tolist()]
        table["ended"] = np.array(ended, dtype=object)
        for column, known in (("kind", CALL_KINDS), ("ended", CALL_ENDS)):
            for row, word in enumerate(table[column].tolist()):
                if word not in known:
                    problem = f"line {row + 2}, column {column!r}: {word!r} is none of "
                    raise self._wrong(schema.ENVIRONMENTS, problem + ", ".join(known))
        return table

    @cached_property
    def environment(self) -> EnvironmentSection:
        """The scenario's ``environment``, as it is where it says nothing."""
        try:
            return read(EnvironmentSection, self.section("environment"), "environment")
        except ScenarioError as error:
            raise self.bad_scenario(error) from None

    @cached_property
    def iterations(self) -> Table:
        """iterations.csv by column, in order of time."""
        table = read_table(self.path, schema.ITERATIONS, FIELD)
        self._check_rises(schema.ITERATIONS, table, "start_s")
        return table

    @cached_property
    def pulses(self) -> Table | None:
        """speed_probes.csv by column: the machine's speed around each step; None without it."""
        if not self._has(schema.SPEED_PROBES):
            return None
        table, steps = read_table(self.path, schema.SPEED_PROBES, FIELD), len(self.steps["step"])
        done = table["steps_done"].tolist()
        if self.of_actors:  # which take it as often as costs next to nothing
            if not done or sorted(done) != done or done[-1] > steps:
                raise self._wrong(schema.SPEED_PROBES, "is not in order of the run's steps")
        elif done != list(range(steps + 1)):
            raise self._wrong(
                schema.SPEED_PROBES,
                "does not have one speed probe before each step and one at the end",
            )
        return table

    @cached_property
    def arrivals(self) -> Table | None:
        """arrivals.csv by column; None for a run of one process."""
        has = self._has(schema.ARRIVALS)
        return read_table(self.path, schema.ARRIVALS, FIELD) if has else None

    @property
    def of_actors(self) -> bool:
        """Whether replicas and trainer had processes of their own, each its device."""
        return bool(self.section("cluster").get("placement", "colocated") == "disaggregated")

    @property
    def overlaps(self) -> bool:
        """Whether the rollouts of a step began before the step before it had ended."""
        begin, end = self.steps["rollout_start_s"], self.steps["end_s"]
        return bool((begin[1:] < end[:-1] - _ROUNDING_S).any())

    @cached_property
    def updates(self) -> list[dict[str, Any]] | None:
        """updates.jsonl, one mapping an update; None where the run has none."""
        has = self._has(schema.UPDATES)
        return read_lines(self.path, schema.UPDATES, FIELD) if has else None

    @cached_property
    def layouts(self) -> list[str]:
        """The trainer's layout in each step, from decisions.jsonl."""
        lines = read_lines(self.path, schema.DECISIONS, FIELD)
        return [str(line.get("layout", "dense")) for line in lines]

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """provenance.json, which only real runs have."""
        if self.summary.get("world") == "simulated":
            raise _wrong(f"{self.path} is a simulated run, which has no measured times; {_GIVE}")
        return read_document(self.path, schema.PROVENANCE, FIELD)

    def segments(self) -> Segments:
        """The table of segments with what a replay needs; other columns hold 0."""
        from array import array

        table = self.rollouts
        data = {}
        for name, column in Segments().__getstate__().items():
            values = table.get(name)
            if values is None:
                values = np.zeros(len(table["group"]))
            elif name == "ending":
                values = np.array([_ending(ending) for ending in values.tolist()])
            kind = column.typecode
            data[name] = array(kind, values.tolist() if kind == "d" else _whole(values))
        segments = Segments()
        segments.__setstate__(data)
        return segments

    def calls(self) -> Calls | None:
        """The table of calls; None for a run that has none."""
        table = self.environments
        if table is None:
            return None
        columns = dict(table)
        columns["kind"] = np.array([CALL_KINDS.index(word) for word in table["kind"].tolist()])
        columns["ended"] = np.array([CALL_ENDS.index(word) for word in table["ended"].tolist()])
        calls = Calls()
        calls.extend(zip(*(columns[name].tolist() for name in calls.columns), strict=True))
        return calls

    @cached_property
    def turned(self) -> dict[Name, RecordedTrajectory] | None:
        """What its rollouts did turn by turn; None for a run of rollouts of one turn."""
        calls = self.calls()
        if calls is None or not len(calls):
            return None
        return recorded_trajectories(
            self.segments(), calls, environment_spec(self.environment, None)
        )

    def _has(self, file: schema.File) -> bool:
        return place(self.path, file.name).exists()

    def _check_steps(
        self, file: schema.File, table: Table, column: str, most: int | None = None
    ) -> None:
        """Every value of a column is one of the run's steps, or of its versions."""
        most = len(self.steps["step"]) - 1 if most is None else most
        highest = int(table[column].max(initial=0))
        if highest > most:
            raise self._wrong(file, f"column {column!r} goes to {highest}, the run to {most}")

    def _check_rises(self, file: schema.File, table: Table, column: str) -> None:
        if (np.diff(table[column]) < 0).any():
            row = int(np.argmax(np.diff(table[column]) < 0)) + 1
            problem = f"column {column!r}: {table[column][row]:g} after {table[column][row - 1]:g}"
            raise self._wrong(file, f"{problem}, but its rows are in order of time")

    def _wrong(self, file: schema.File, problem: str) -> ScenarioError:
        return _wrong(f"{place(self.path, file.name)} {problem}")

    def bad_scenario(self, error: ScenarioError) -> ScenarioError:
        """The error of a key of the run's scenario, as one of the run's folder."""
        return _wrong(f"{place(self.path, schema.SCENARIO.name)}, {error}")


def check_alike(runs: Sequence[RunFolder]) -> None:
    """Raises ScenarioError where runs were made with other hardware, versions, engine settings or a
    cluster that the iterations of one replica cannot describe."""
    first = runs[0]
    for run in runs:
        cluster = run.section("cluster")
        if cluster.get("replicas", 1) != 1 or run.overlaps:
            raise _wrong(
                f"{run.path}: a calibration needs one replica that takes turns with its trainer, "
                "as under policy sync"
            )
        check_same(first.path, first.provenance, run)
        _check_keys(_SAME_SCENARIO, first.path, first.scenario, run.path, run.scenario)


def check_same(path: Path, provenance: object, run: RunFolder) -> None:
    """Raises ScenarioError where ``path`` and ``run`` differ in hardware or versions."""
    recorded = provenance if isinstance(provenance, Mapping) else {}
    _check_keys(SAME, path, recorded, run.path, run.provenance)


def _check_keys(
    keys: Sequence[str],
    path: Path,
    one: Mapping[str, Any],
    other_path: Path,
    other: Mapping[str, Any],
) -> None:
    for key in keys:
        if one.get(key) != other.get(key):
            name, a, b = _difference(key, one.get(key), other.get(key))
            raise _wrong(
                f"{path} and {other_path} differ in {name} ({_short(a)} and {_short(b)}); "
                "calibrate each kind of run by itself"
            )


def _difference(name: str, one: Any, other: Any) -> tuple[str, Any, Any]:
    """The first key below ``name`` in which two values differ, and what each has there."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            if one.get(key) != other.get(key):
                return _difference(f"{name}.{key}", one.get(key), other.get(key))
    return name, one, other


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "..."


def _ending(name: str) -> int:
    """The number of an ending; unknown ones count as "stop"."""
    return ENDINGS.index(name) if name in ENDINGS else ENDINGS.index("stop")


def _whole(values: NDArray[Any]) -> list[int]:
    numbers: list[int] = values.astype(np.int64).tolist()
    return numbers


def _wrong(message: str) -> ScenarioError:
    return ScenarioError(FIELD, message)
