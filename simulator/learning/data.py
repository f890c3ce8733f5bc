"""Files of laws: the prior that comes with rollcast, and what ``rollcast calibrate`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.learning.law import PARAMETERS, Law
from rollcast.simulator.results.read import read_json
from rollcast.simulator.results.write import write_json_file
from rollcast.simulator.values.plain import from_plain, to_plain

SCHEMA = "rollcast-learning/1"
FIELD = "learning.file"
_WANTED = f"so it is not a law of learning ({SCHEMA!r}), which rollcast calibrate --learning writes"
_PRIOR = Path(__file__).with_name("prior.json")


@cache
def prior() -> Law:
    """The law over the runs that come with rollcast: wide, since tasks differ."""
    return load(_PRIOR)


def is_law(path: Path) -> bool:
    """Whether a file says that it is a law of learning."""
    try:
        content = read_json(path, FIELD)
    except ScenarioError:
        return False
    return isinstance(content, Mapping) and content.get("schema") == SCHEMA


def load(path: Path, field: str = FIELD) -> Law:
    """The law in a file. Raises ScenarioError (``field``) for anything else."""
    content = read_json(path, field, path.name, _WANTED)
    if not isinstance(content, Mapping) or content.get("schema") != SCHEMA:
        raise ScenarioError(field, f"{path.name} does not name the schema {SCHEMA!r}, {_WANTED}")
    # Laws of earlier versions do not name level_speed and lag.
    fields = {"level_speed": 0.0, **content}
    del fields["schema"]
    if isinstance(domain := fields.get("domain"), Mapping):
        fields["domain"] = {"lag": None, **domain}
    try:
        law: Law = from_plain(fields, Law, path.name)
    except ValueError as error:
        raise ScenarioError(field, f"{error}, {_WANTED}") from None
    problem = _contradiction(law)
    if problem:
        raise ScenarioError(field, f"{path.name}: {problem}, {_WANTED}")
    return law


def save(law: Law, path: Path) -> None:
    """Writes a law, whole or not at all. Raises ScenarioError (``-o``)."""
    write_json_file(path, {"schema": SCHEMA, **to_plain(law)})


def _contradiction(law: Law) -> str | None:
    """What is wrong with a law whose fields are of the right types."""
    if set(law.parameters) != set(PARAMETERS):
        return f"its parameters must be {', '.join(PARAMETERS)}"
    if [len(row) for row in law.covariance] != [len(PARAMETERS)] * len(PARAMETERS):
        return f"its covariance must have {len(PARAMETERS)} rows and columns"
    matrix = np.array(law.covariance)
    figures = [*law.parameters.values(), *matrix.flat, law.run_sd, law.policy_sd, law.level_sd]
    if not np.isfinite([*figures, law.concentration, law.level_speed]).all():
        return "its figures must be finite"
    if min(law.run_sd, law.policy_sd, law.level_sd) < 0 or law.concentration <= 0:
        return "its standard deviations must be 0 or more, and its concentration more than 0"
    if not np.allclose(matrix, matrix.T) or np.linalg.eigvalsh(matrix).min() < -1e-9:
        return "its covariance must be symmetric and have no negative eigenvalue"
    return None
