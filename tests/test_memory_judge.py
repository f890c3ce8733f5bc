"""The judge of memory refuses and accepts as rollcast's own check does."""

from __future__ import annotations

from benchmarks.memory import Judged, judged, refusal
from benchmarks.validation.memory_cases import MemoryCase

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


def test_a_case_is_judged_by_what_it_did() -> None:
    small = MemoryCase("verl", "a small model", ROOM, "ran")
    large = MemoryCase("verl", "a large one", {**ROOM, "model": "qwen2.5-32b"}, "out_of_memory")
    assert refusal(small) == ""
    assert "qwen2.5-32b" in refusal(large)
    verdicts = [Judged("thread", "case", case, refusal(case)) for case in (small, large)]
    assert all(one.right for one in verdicts)
    assert not Judged("thread", "case", small, refusal(large)).right
    assert not Judged("thread", "case", large, refusal(small)).right


def test_cases_of_host_memory_are_left_out() -> None:
    cases = list(judged())
    assert len(cases) >= 60
    assert not any(one.case.on_host for one in cases)
