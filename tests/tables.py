"""Tables of cases that tests read from a file of YAML beside them."""

from pathlib import Path

import pytest
import yaml
from _pytest.mark import ParameterSet


def cases(path: Path, *keys: str) -> list[ParameterSet]:
    """A parameter set of each case of each stack: the stack, and the values of the keys; an empty
    mapping where it has none."""
    return [
        pytest.param(stack, *(case.get(key, {}) for key in keys), id=f"{stack}-{number}")
        for stack, rows in yaml.safe_load(path.read_text("utf-8")).items()
        for number, case in enumerate(rows)
    ]
