"""The judge of memory says of a case what the ledger says of its scenario."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.memory import Judged, judge, judged
from benchmarks.validation.memory_cases import MemoryCase
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.ledger import ledger_of
from rollcast.simulator.studies.simulate import from_raw

ROOM = {
    "model": "qwen3-0.6b",
    "gpu": "h100-sxm",
    "cluster": {"replicas": 1},
    "workload": {
        "batch_groups": 4,
        "group_size": 4,
        "prompt_tokens": 256,
        "max_new_tokens": 1024,
        "lengths": {"mean_tokens": 500},
    },
    "cost": {"roofline": {}},
}
CASES = list(judged())


def test_a_case_is_judged_by_what_it_did() -> None:
    small = MemoryCase("verl", "a small model", ROOM, "ran")
    large = MemoryCase("verl", "a large one", {**ROOM, "model": "qwen2.5-32b"}, "out_of_memory")
    verdicts = [judge("thread", "case", case) for case in (small, large)]
    assert not verdicts[0].refused
    assert "qwen2.5-32b" in verdicts[1].refused
    assert all(one.right for one in verdicts)
    assert not verdicts[1]._replace(case=replace(large, outcome="ran")).right
    assert not verdicts[0]._replace(case=replace(small, outcome="out_of_memory")).right


def test_a_peak_is_of_the_parts_that_were_measured() -> None:
    keys = {"outcome": "peak_gb", "gb": 10.0, "role": "trainer"}
    device, allocated = (
        judge("thread", "case", MemoryCase("verl", "a run", ROOM, **keys, memory=memory))  # type: ignore[arg-type]
        for memory in ("device", "allocated")
    )
    assert device.forecast_bytes is not None
    assert allocated.forecast_bytes is not None
    assert allocated.forecast_bytes < device.forecast_bytes
    found = ledger_of(from_raw(RawScenario(dict(ROOM))))
    assert found is not None
    trains = ("log_prob", "update", "optimizer_step")
    fullest = max(found.total(phase, "colocated") for phase in trains)  # type: ignore[arg-type]
    assert device.forecast_bytes == pytest.approx(fullest)
    assert device.error == pytest.approx(fullest / (10 * 2**30) - 1)
    assert (
        Judged("thread", "case", MemoryCase("v", "a run", ROOM, "ran"), 1.0, "", None).error is None
    )


def test_cases_of_host_memory_are_apart() -> None:
    assert len(CASES) >= 60
    assert not any(one.case.on_host for one in CASES)
    assert all(one.case.on_host for one in judged(on_host=True))


def test_no_run_that_ran_is_said_not_to_fit() -> None:
    """And nine in ten verdicts are right, half of the peaks within 12 %."""
    assert [one.name for one in CASES if one.fits and (not one.right or one.refused)] == []
    assert sum(one.right for one in CASES) >= 0.9 * len(CASES)
    errors = sorted(abs(one.error) for one in CASES if one.error is not None)
    assert errors[len(errors) // 2] < 0.12
