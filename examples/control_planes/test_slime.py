"""The smallest run in which slime loses a group:

    ROLLCAST_CHECKOUTS=/path/to/clones pytest --rollcast test_slime.py

Before #2238 (git -C /path/to/clones/slime checkout fb393e59c) it loses one when more are whole than
a batch has; up to 624b824a8, one whose engine fails.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from on_slime import ADAPTER, drive  # noqa: E402
from run import SETTINGS  # noqa: E402
from stand_ins import code_of  # noqa: E402

from rollcast.virtual import Search, laws  # noqa: E402

SCENARIO = str(HERE.parent / "fully_async.yaml")
OPTIONS: dict[str, Any] = {"units": False, "fresh": ADAPTER.packages, "conserved": False}


def search(*faults: Any) -> Search:
    """Small runs: each imports slime anew."""
    return Search(examples=20, steps=3, batch_groups=2, group_size=2, faults=faults)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """slime logs each group that it gives up."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _drive(fleet: Any) -> None:
    checkout = Path(os.environ.get("ROLLCAST_CHECKOUTS", "")) / "slime"
    if not checkout.is_dir():
        pytest.skip("set ROLLCAST_CHECKOUTS to a folder with a clone called slime")
    with code_of([checkout], ADAPTER.absent):
        held = drive(fleet, fleet.scenario.steps, concurrency=4)["held"]
    laws.conserved(fleet.journal, held)


@pytest.mark.rollcast(SCENARIO, *SETTINGS, search=search(), **OPTIONS)
def test_whatever_arrives_when(fleet: Any) -> None:
    """Whatever the sizes, lengths and arrivals, each group is kept."""
    _drive(fleet)


@pytest.mark.rollcast(SCENARIO, *SETTINGS, search=search("errors", "dies"), **OPTIONS)
def test_whatever_fails(fleet: Any) -> None:
    """Also where a request fails or an engine dies."""
    _drive(fleet)
