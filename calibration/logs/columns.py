"""The tables of an imported run: the columns that its readers may fill, of ``columns.yaml``.

Names are those of `simulator.results.schema` where they mean the same. A duration is what the stack
timed under that word; an empty cell is what it did not log.
"""

from __future__ import annotations

from pathlib import Path

from rollcast.simulator.results.columns import Figure
from rollcast.simulator.results.phases import OF_COLUMN
from rollcast.simulator.results.schema import Column, Table
from rollcast.simulator.values.readers import Text
from rollcast.simulator.values.yaml_file import read_yaml

LOG_SCHEMA = "rollcast-log/1"

_KINDS = {
    "key": Figure(-1e9, whole=True),
    "flag": Figure(0, 1, whole=True, null=True),
    "text": Text(),
    "any": Figure(-1e12, null=True),
    "number": Figure(null=True),
}


def _column(name: str, spelt: str) -> Column:
    kind, _, meaning = spelt.partition("; ")
    shape = _KINDS.get(kind, _KINDS["number"])
    return Column(name, shape, meaning, "" if kind in _KINDS else kind, needed=kind == "key")


TABLES = tuple(
    Table(name, table["about"], columns=tuple(_column(*item) for item in table["columns"].items()))
    for name, table in read_yaml(Path(__file__).with_suffix(".yaml")).items()
)
STEPS, ROLLOUTS, REQUESTS = TABLES
PHASES = tuple(column for column in OF_COLUMN if column != "rest_s")
"""The parts of a step that its rest is what remains of."""
SECONDS = tuple(one.name for one in STEPS.columns if one.unit == "s" and one.name != "logged_s")
"""Columns of steps.csv that last."""
