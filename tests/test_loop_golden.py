"""The loop does what it did, to the tick, for every policy (`tests.golden.runs`)."""

from __future__ import annotations

import json

import pytest

from tests.golden.runs import DIGESTS, PARTS, cases, digests, make

KEPT = json.loads(DIGESTS.read_text("utf-8"))


@pytest.mark.parametrize(("name", "chain", "trainer", "cluster"), list(cases()))
def test_a_run_is_what_it_was(name: str, chain: str, trainer: str, cluster: str) -> None:
    found = digests(make(chain, trainer, cluster))
    assert {part: found[part] == KEPT[name][part] for part in PARTS} == dict.fromkeys(PARTS, True)
