"""How many random examples a law is tried on (few in the gate, many in ``make laws``), and where
they write."""

import os
from pathlib import Path

import pytest

SEARCHING = os.environ.get("HYPOTHESIS_PROFILE") == "search"


def examples(count: int) -> int:
    """How many to try of a law that is worth ``count`` examples where time is no object.

    The gate tries a quarter of them, the same ones each time; the search ten times as many, new
    ones each time.
    """
    return count * 10 if SEARCHING else max(5, count // 4)


def scratch(factory: pytest.TempPathFactory) -> Path:
    """A folder that the examples of a law write over, apart from the folders of other tests."""
    folder = factory.getbasetemp() / "scratch"
    folder.mkdir(exist_ok=True)
    return folder
