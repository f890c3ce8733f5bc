"""A run's folder, read back: tables as arrays, checked before anything is fitted to them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ScenarioError
from simulator.spans import Stays

Table = dict[str, NDArray[Any]]

RUN_SCHEMA = "rollcast-run/1"
_COLUMNS = {
    "spans.csv": ("step", "kind", "track", "start_s", "end_s", "tokens"),
    "steps.csv": (
        "step", "start_s", "rollout_start_s", "rollout_end_s", "end_s", "trained_rollouts",
        "generated_tokens", "rollout_s", "train_s", "sync_s", "switch_s", "step_s",
        "mean_staleness",
    ),
    "rollouts.csv": (
        "step", "group", "index", "attempt", "version", "prompt_tokens", "new_tokens",
        "total_tokens", "finished", "truncated", "trained", "trained_step", "reward",
    ),
    "iterations.csv": (
        "start_s", "seconds", "rollouts", "context_tokens", "prefill_tokens", "prefill_pairs",
        "prefill_rollouts",
    ),
    "pulses.csv": ("steps_done", "short_s", "long_s"),
}  # fmt: skip
SAME = ("python", "versions", "processor", "cores", "torch_threads", "gpu")
_SAME_SCENARIO = ("model", "gpu", "cluster", "engine")


@dataclass(frozen=True)
class RunFolder:
    """A finished run on disk. Its tables are read when first asked for; they may be compressed, as
    ``steps.csv.gz``.

    path: the folder. summary, description: summary.json and scenario.json. Raises ScenarioError
    (``RUN_DIR``), naming folder and file, for what is missing, unreadable or of another schema.
    """

    path: Path
    summary: dict[str, Any]
    description: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens a run's folder."""
        if not path.is_dir():
            raise _wrong(f"{path} is not a folder; give the folder of a finished run")
        summary = _json(path, "summary.json")
        if not isinstance(summary, dict) or summary.get("schema") != RUN_SCHEMA:
            raise _wrong(f"{path}/summary.json is not of schema {RUN_SCHEMA!r}")
        description = _json(path, "scenario.json")
        if not isinstance(description, dict) or not isinstance(description.get("scenario"), dict):
            raise _wrong(f"{path}/scenario.json holds no mapping 'scenario'")
        return cls(path, summary, description)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def policy(self) -> str:
        """The policy, as the command line spells it; a seed that follows the run's is no part of
        it, so that runs of one policy are known as such."""
        from simulator.policies import spell
        from simulator.scenario.scenario import build_policies

        return spell(build_policies(self.scenario.get("policy") or [], 0))

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.summary.get("seed", 0))

    @property
    def scenario(self) -> dict[str, Any]:
        """The scenario that was run, as its file says it."""
        found: dict[str, Any] = self.description["scenario"]
        return found

    @property
    def cap(self) -> int:
        """The scenario's ``max_new_tokens``."""
        try:
            return int(self.scenario["workload"]["max_new_tokens"])
        except (KeyError, TypeError, ValueError):
            raise _wrong(f"{self.path}/scenario.json has no workload.max_new_tokens") from None

    @cached_property
    def spans(self) -> Table:
        """spans.csv by column."""
        return self._table("spans.csv")

    @cached_property
    def steps(self) -> Table:
        """steps.csv by column, in order of steps."""
        return self._table("steps.csv")

    @cached_property
    def rollouts(self) -> Table:
        """rollouts.csv by column: one row a stay, in the order they ended."""
        return self._table("rollouts.csv")

    @cached_property
    def iterations(self) -> Table:
        """iterations.csv by column, in order of time."""
        return self._table("iterations.csv")

    @cached_property
    def pulses(self) -> Table | None:
        """pulses.csv by column: the machine's pulse before the first step and after each; None for
        a run without it. Raises ScenarioError where it is not whole."""
        if not self._place("pulses.csv").exists():
            return None
        table, steps = self._table("pulses.csv"), len(self.steps["step"])
        if table["steps_done"].tolist() != list(range(steps + 1)):
            raise _wrong(f"{self.path}/pulses.csv has not one pulse before each step and a last")
        for name in ("short_s", "long_s"):
            if not (table[name] > 0).all():
                raise _wrong(f"{self.path}/pulses.csv, column {name!r}: a pulse took no time")
        return table

    @cached_property
    def updates(self) -> list[dict[str, Any]] | None:
        """updates.jsonl, one mapping an update; None where the run has none."""
        return self._lines("updates.jsonl") if self._place("updates.jsonl").exists() else None

    @cached_property
    def layouts(self) -> list[str]:
        """The trainer's layout in each step, from decisions.jsonl."""
        return [str(line.get("layout", "dense")) for line in self._lines("decisions.jsonl")]

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """provenance.json."""
        found = _json(self.path, "provenance.json")
        if not isinstance(found, dict) or "versions" not in found:
            raise _wrong(f"{self.path}/provenance.json names no versions")
        return found

    def stays(self) -> Stays:
        """The table of stays with what a replay needs; other columns hold 0."""
        from array import array

        table = self.rollouts
        data = {}
        for name, column in Stays().__getstate__().items():
            values = table.get(name)
            if values is None:
                values = np.zeros(len(table["group"]))
            kind = column.typecode
            data[name] = array(kind, values.tolist() if kind == "d" else _whole(values))
        stays = Stays()
        stays.__setstate__(data)
        return stays

    def _place(self, file: str) -> Path:
        """Where a table lies: under its own name, or compressed."""
        packed = self.path / f"{file}.gz"
        return packed if packed.exists() else self.path / file

    def _table(self, file: str) -> Table:
        import pandas as pd

        path = self._place(file)
        try:
            frame = pd.read_csv(path)
        except (OSError, EOFError) as error:
            raise _wrong(f"cannot read {path}: {_reason(error)}") from None
        except (ValueError, zlib.error) as error:  # empty, ragged, not UTF-8
            raise _wrong(f"{path} is not a table: {error}") from None
        for column in _COLUMNS[file]:
            if column not in frame:
                raise _wrong(f"{path} has no column {column!r}")
            text = column in ("kind", "track")
            if not text and not pd.api.types.is_numeric_dtype(frame[column]):
                raise _wrong(f"{path}, column {column!r}: not every value is a number")
            if column != "reward" and frame[column].isna().any():
                raise _wrong(f"{path}, column {column!r}: a value is missing")
        return {str(column): frame[column].to_numpy() for column in frame}

    def _lines(self, file: str) -> list[dict[str, Any]]:
        path = self._place(file)
        try:
            content = path.read_bytes()
            text = gzip.decompress(content) if path.suffix == ".gz" else content
            return [json.loads(line) for line in text.decode("utf-8").splitlines()]
        except (OSError, EOFError) as error:
            raise _wrong(f"cannot read {path}: {_reason(error)}") from None
        except (ValueError, zlib.error):
            raise _wrong(f"{path} is not a file of JSON lines") from None


def check_alike(runs: Sequence[RunFolder]) -> None:
    """Raises ScenarioError where runs were made with other hardware, versions, engine settings or a
    cluster that the iterations of one replica cannot describe."""
    first = runs[0]
    for run in runs:
        cluster = run.scenario.get("cluster") or {}
        if cluster.get("replicas", 1) != 1 or cluster.get("placement", "colocated") != "colocated":
            raise _wrong(
                f"{run.path}: a calibration needs one replica, colocated with its trainer, whose "
                "iterations do not overlap"
            )
        check_same(first.path, first.provenance, run)
        _check_keys(_SAME_SCENARIO, first.path, first.scenario, run.path, run.scenario)


def check_same(path: Path, provenance: object, run: RunFolder) -> None:
    """Raises ScenarioError where what lies in ``path`` was measured on other hardware or with other
    versions than ``run``."""
    found = provenance if isinstance(provenance, Mapping) else {}
    _check_keys(SAME, path, found, run.path, run.provenance)


def _check_keys(
    keys: Sequence[str],
    path: Path,
    one: Mapping[str, Any],
    other_path: Path,
    other: Mapping[str, Any],
) -> None:
    for key in keys:
        if one.get(key) != other.get(key):
            raise _wrong(
                f"{path} and {other_path} differ in {key} ({_short(one.get(key))} and "
                f"{_short(other.get(key))}); calibrate each kind of run by itself"
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "..."


def _whole(values: NDArray[Any]) -> list[int]:
    found: list[int] = values.astype(np.int64).tolist()
    return found


def _json(folder: Path, file: str) -> Any:
    path = folder / file
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise _wrong(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        raise _wrong(f"{path} is not a file of JSON") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _wrong(message: str) -> ScenarioError:
    return ScenarioError("RUN_DIR", message)
